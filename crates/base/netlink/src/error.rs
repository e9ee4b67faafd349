//! The errors of network operations.

/// The error of a network operation.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel rejected the operation.
    #[error("{operation} on {subject}: {}", explain(*errno))]
    Refused { operation: &'static str, subject: String, errno: i32 },
    #[error("netlink socket: {action}")]
    Socket { action: &'static str, source: std::io::Error },
    #[error("{operation} on {subject}: the kernel's answer is malformed")]
    Malformed { operation: &'static str, subject: String },
    #[error("setting {path} to {value}")]
    Sysctl { path: String, value: String, source: std::io::Error },
    #[error("reading listening sockets from {path}")]
    Listeners { path: String, source: std::io::Error },
    #[error("network namespace {path}: {action}")]
    Namespace { path: String, action: &'static str, source: std::io::Error },
    #[error(transparent)]
    Nft(#[from] NftError),
    #[error(transparent)]
    Xtables(#[from] XtablesError),
}

impl Error {
    pub(crate) fn errno(&self) -> Option<i32> {
        match self {
            Error::Refused { errno, .. } => Some(*errno),
            _ => None,
        }
    }

    /// Reports whether the name, address or route exists already.
    pub fn is_exists(&self) -> bool {
        self.errno() == Some(rustix::io::Errno::EXIST.raw_os_error())
    }

    /// Reports whether the object to change or remove does not exist.
    pub fn is_missing(&self) -> bool {
        use rustix::io::Errno;
        let missing = [Errno::NODEV, Errno::NOENT, Errno::ADDRNOTAVAIL, Errno::SRCH];
        missing.iter().any(|errno| self.errno() == Some(errno.raw_os_error()))
    }
}

fn explain(errno: i32) -> String {
    let error = std::io::Error::from_raw_os_error(errno);
    let hint = match rustix::io::Errno::from_raw_os_error(errno) {
        rustix::io::Errno::PERM => "; run as root (CAP_NET_ADMIN)",
        rustix::io::Errno::OPNOTSUPP => "; the kernel lacks this kind of device or its module",
        _ => "",
    };
    format!("{error}{hint}")
}

/// The error of running nft. A transaction is applied as a whole or not at all.
#[derive(Debug, thiserror::Error)]
pub enum NftError {
    #[error("running nft: {0}; install the package nftables")]
    Start(std::io::Error),
    /// nft rejected the transaction. `line` is the line that its first message refers to.
    #[error("nft refused: {message} (in: {line})")]
    Refused { message: String, line: String },
    #[error("listing nftables table {table}: {message}")]
    List { table: String, message: String },
}

/// The error of running an iptables program.
#[derive(Debug, thiserror::Error)]
pub enum XtablesError {
    #[error("running {program}: {source}; install the package iptables")]
    Start { program: String, source: std::io::Error },
    #[error("{program} refused: {message}")]
    Refused { program: String, message: String },
}
