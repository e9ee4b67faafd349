//! Commands `windlass metal serve`, `check`, `status` and `reinstall`. Flags keep the names that Matchbox and dnsmasq
//! use.

mod start;

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    time::UNIX_EPOCH,
};

use api_meta::Cidr;
use clap::{Args as ClapArgs, Subcommand, builder::OsStringValueParser, builder::TypedValueParser};
use rt::Tasks;

use crate::{
    dhcp::ConfigError,
    dns,
    machines::status,
    matchbox::{Matchbox, Settings, Store, check::check},
    openpgp,
};

pub use start::{BootServer, start};

/// The flags of the `windlass metal` commands that concern only the boot server.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands of the boot server.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve DHCP, TFTP, DNS and Matchbox's HTTP endpoints
    Serve(Box<ServeArgs>),
    /// Check a whole store: every group, profile and template
    Check(CheckArgs),
    /// Show the machines that boot from here: their stage, times and last error
    Status(StatusArgs),
    /// Reinstall an installed machine at its next boot
    Reinstall(ReinstallArgs),
}

/// Parses a path that may be empty. An empty path turns the feature off.
fn path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

/// Parses an address to listen on. As in Go, `:PORT` means all addresses.
fn listen(text: &str) -> Result<SocketAddr, String> {
    let text = if text.starts_with(':') { format!("0.0.0.0{text}") } else { text.to_owned() };
    text.parse().map_err(|error| format!("{error}; write ADDRESS:PORT"))
}

/// The flags of `status`, which reads the server's file and needs no running server.
#[derive(Debug, ClapArgs)]
pub struct StatusArgs {
    /// Show one machine with the timeline of its last boot
    pub machine: Option<String>,
    /// File in which the server records machines
    #[arg(long, value_name = "FILE", default_value = MACHINES)]
    pub machines_file: PathBuf,
}

/// The flags of `reinstall`.
#[derive(Debug, ClapArgs)]
pub struct ReinstallArgs {
    /// MAC address of the machine
    pub machine: String,
    /// File in which the server records machines
    #[arg(long, value_name = "FILE", default_value = MACHINES)]
    pub machines_file: PathBuf,
}

const MACHINES: &str = "/var/lib/matchbox/machines";

/// The flags of `check`.
#[derive(Debug, ClapArgs)]
pub struct CheckArgs {
    /// Path to the data directory
    #[arg(long, env = "MATCHBOX_DATA_PATH", default_value = "/var/lib/matchbox")]
    pub data_path: PathBuf,
}

/// A log level by its `tracing` name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogLevel(pub &'static str);

/// Parses a log level: Matchbox's own, and those that its documentation names.
fn log_level(text: &str) -> Result<LogLevel, String> {
    Ok(LogLevel(match text.to_ascii_lowercase().as_str() {
        "panic" | "fatal" | "critical" | "error" => "error",
        "warn" | "warning" => "warn",
        "notice" | "info" => "info",
        "debug" => "debug",
        "trace" => "trace",
        _ => {
            return Err("unknown level; use panic, fatal, error, warn, info, debug or trace".into());
        }
    }))
}

/// The flags of `serve`. They use Matchbox's names, and dnsmasq's for DHCP, TFTP and DNS, with Matchbox's environment
/// variables.
#[derive(Debug, ClapArgs)]
#[command(version)]
pub struct ServeArgs {
    /// HTTP listen address
    #[arg(long, env = "MATCHBOX_ADDRESS", default_value = "127.0.0.1:8080", value_parser = listen)]
    pub address: SocketAddr,
    /// Additional HTTPS listen address, for secrets; requires --web-cert-file and --web-key-file
    #[arg(long, value_parser = listen)]
    pub tls_address: Option<SocketAddr>,
    /// gRPC listen address; empty for none
    #[arg(long, env = "MATCHBOX_RPC_ADDRESS", default_value = "")]
    pub rpc_address: String,
    /// Path to the gRPC server's TLS certificate
    #[arg(long, env = "MATCHBOX_CERT_FILE", default_value = "/etc/matchbox/server.crt")]
    pub cert_file: PathBuf,
    /// Path to the gRPC server's TLS key
    #[arg(long, env = "MATCHBOX_KEY_FILE", default_value = "/etc/matchbox/server.key")]
    pub key_file: PathBuf,
    /// Path to the CA that signs gRPC clients' certificates
    #[arg(long, env = "MATCHBOX_CA_FILE", default_value = "/etc/matchbox/ca.crt")]
    pub ca_file: PathBuf,
    /// Path to a secret OpenPGP keyring to sign answers with; its passphrase is MATCHBOX_PASSPHRASE
    #[arg(long, env = "MATCHBOX_KEY_RING_PATH", default_value = "", value_parser = path())]
    pub key_ring_path: PathBuf,
    /// Log level: panic, fatal, error, warn, info, debug or trace
    #[arg(long, env = "MATCHBOX_LOG_LEVEL", default_value = "info", value_parser = log_level)]
    pub log_level: LogLevel,
    /// Kubeconfig of a cluster: give join tokens to enrolled machines, approve their certificates and watch for their
    /// nodes to become Ready
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Serve secrets to every client, without TLS or proof
    #[arg(long)]
    pub insecure_secrets: bool,
    /// File that keeps the records of machines over restarts; empty to keep nothing
    #[arg(long, value_name = "FILE", default_value = MACHINES, value_parser = path())]
    pub machines_file: PathBuf,
    /// Network, ADDRESS/BITS, that may read the pages of machines (/machines), besides this machine itself; may be
    /// given several times
    #[arg(long, value_name = "NETWORK")]
    pub machines_from: Vec<Cidr>,
    /// Path to the data directory
    #[arg(long, env = "MATCHBOX_DATA_PATH", default_value = "/var/lib/matchbox")]
    pub data_path: PathBuf,
    /// Path to static assets; empty to serve none
    #[arg(long, env = "MATCHBOX_ASSETS_PATH", default_value = "/var/lib/matchbox/assets", value_parser = path())]
    pub assets_path: PathBuf,
    /// Serve HTTPS instead of HTTP
    #[arg(long, env = "MATCHBOX_WEB_SSL")]
    pub web_ssl: bool,
    /// Path to the server's TLS certificate
    #[arg(long, env = "MATCHBOX_WEB_CERT_FILE", default_value = "/etc/matchbox/ssl/server.crt")]
    pub web_cert_file: PathBuf,
    /// Path to the server's TLS key
    #[arg(long, env = "MATCHBOX_WEB_KEY_FILE", default_value = "/etc/matchbox/ssl/server.key")]
    pub web_key_file: PathBuf,
    /// Interface to answer DHCP, TFTP and DNS on; may be given several times
    #[arg(long)]
    pub interface: Vec<String>,
    /// Addresses to give: FIRST,LAST[,NETMASK[,LEASE]]; may be given several times
    #[arg(long, value_name = "RANGE")]
    pub dhcp_range: Vec<String>,
    /// A fixed address: MAC,ADDRESS[,NAME]; may be given several times
    #[arg(long, value_name = "HOST")]
    pub dhcp_host: Vec<String>,
    /// Router to announce to machines
    #[arg(long)]
    pub dhcp_router: Vec<Ipv4Addr>,
    /// DNS server to announce to machines
    #[arg(long)]
    pub dhcp_dns: Vec<Ipv4Addr>,
    /// An extra option to send: NUMBER or option:NAME, and its values; without a value, an option not to send; may be
    /// given several times
    #[arg(long, value_name = "OPTION")]
    pub dhcp_option: Vec<String>,
    /// Domain to announce to machines
    #[arg(long)]
    pub domain: Option<String>,
    /// Send only boot files, beside another DHCP server
    #[arg(long)]
    pub dhcp_proxy: bool,
    /// File that keeps leases over restarts; empty to keep none
    #[arg(long, value_name = "FILE", default_value = "/var/lib/matchbox/dhcp.leases", value_parser = path())]
    pub dhcp_leasefile: PathBuf,
    /// Offer addresses without probing whether they are in use
    #[arg(long)]
    pub no_ping: bool,
    /// A boot file: FIRMWARE=NAME, where FIRMWARE is bios, uefi-ia32, uefi-x64, uefi-arm64, http-x64, http-arm64 or
    /// ipxe; {server} stands for our address
    #[arg(long, value_name = "FILE")]
    pub boot_file: Vec<String>,
    /// A name to answer DNS for: NAME,ADDRESS; may be given several times
    #[arg(long, value_name = "RECORD")]
    pub host_record: Vec<String>,
    /// Files to serve by TFTP
    #[arg(long, value_name = "DIR", default_value = "/var/lib/tftpboot")]
    pub tftp_root: PathBuf,
    /// Do not answer DHCP
    #[arg(long)]
    pub no_dhcp: bool,
    /// Do not serve TFTP
    #[arg(long)]
    pub no_tftp: bool,
    /// Do not answer DNS
    #[arg(long)]
    pub no_dns: bool,
    /// Do not answer IPv6 router solicitations, which makes iPXE wait
    #[arg(long)]
    pub no_ra: bool,
}

/// The errors that end a boot server command. Each message names the flag to change.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("--data-path {}: {source}; name a directory with groups and profiles", path.display())]
    DataPath { path: PathBuf, source: io::Error },
    #[error("--assets-path {}: not a directory; name one, or '' to serve none", path.display())]
    AssetsPath { path: PathBuf },
    #[error("--tftp-root {}: not a directory; name one, or give --no-tftp", path.display())]
    TftpRoot { path: PathBuf },
    #[error("no --interface is named to answer {what} on; name one, or give {flag}")]
    NoInterface { what: &'static str, flag: &'static str },
    #[error("no --dhcp-range is given; give one, --dhcp-proxy, or --no-dhcp")]
    NoRange,
    #[error("--boot-file {text:?}: write FIRMWARE=NAME")]
    BootFile { text: String },
    #[error("--host-record {text:?}: write NAME,ADDRESS")]
    HostRecord { text: String },
    #[error(transparent)]
    Name(#[from] dns::NameError),
    #[error("{flag} {}: {source}; name a file in PEM", path.display())]
    ReadTls { flag: &'static str, path: PathBuf, source: io::Error },
    #[error("--rpc-address {text:?}: {reason}")]
    RpcAddress { text: String, reason: String },
    #[error("--key-ring-path {}: {source}", path.display())]
    ReadKeyRing { path: PathBuf, source: io::Error },
    #[error("--key-ring-path {}: {source}", path.display())]
    KeyRing { path: PathBuf, source: openpgp::Error },
    #[error("--machines-file {}: {source}; name one that can be read and written", path.display())]
    Machines { path: PathBuf, source: io::Error },
    #[error("no machine {0} has booted from here")]
    NoMachine(String),
    #[error(transparent)]
    Tls(#[from] serve::TlsError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("starting {what}: {source}")]
    Start { what: String, source: io::Error },
    #[error("the store has {0} problems")]
    Problems(usize),
}

/// Returns the log level for a command.
pub fn log_level_of(command: &Command) -> &'static str {
    match command {
        Command::Serve(args) => args.log_level.0,
        _ => "info",
    }
}

/// Runs a command. `serve` returns when `tasks` shut down.
pub async fn run(command: Command, tasks: Tasks) -> Result<(), Error> {
    match command {
        Command::Serve(args) => {
            start(&args, &tasks, None).await?;
            tasks.shutdown().stopping().await;
            Ok(())
        }
        Command::Check(args) => {
            let store = Arc::new(open_store(&args.data_path)?);
            let report = check(&Matchbox::new(store, Settings::default()));
            println!("{report}");
            match report.problems.len() {
                0 => Ok(()),
                count => Err(Error::Problems(count)),
            }
        }
        Command::Status(args) => {
            let path = &args.machines_file;
            let failed = |source| Error::Machines { path: path.clone(), source };
            let text = match args.machine {
                None => status::table(path, now()).map_err(failed)?,
                Some(id) => {
                    let found = status::timeline(path, &id, now()).map_err(failed)?;
                    found.ok_or(Error::NoMachine(id))?
                }
            };
            print!("{text}");
            Ok(())
        }
        Command::Reinstall(args) => {
            let path = args.machines_file;
            status::reinstall(&path, &args.machine)
                .map_err(|source| Error::Machines { path, source })
        }
    }
}

fn now() -> u64 {
    let since = rt::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn open_store(path: &Path) -> Result<Store, Error> {
    match path.read_dir() {
        Ok(_) => Ok(Store::new(path)),
        Err(source) => Err(Error::DataPath { path: path.to_owned(), source }),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: ServeArgs,
    }

    #[test]
    fn accepts_matchbox_flags() {
        let parse = |text: &str| Cli::try_parse_from(text.split(' ')).map(|cli| cli.args);
        let args = parse(
            "serve --address=:8080 --rpc-address=0.0.0.0:8081 --assets-path= --log-level=WARNING \
             --cert-file=a --key-file=b --ca-file=c --key-ring-path=d --web-ssl --web-cert-file=e \
             --web-key-file=f --data-path=g",
        )
        .unwrap();
        assert_eq!(args.address, "0.0.0.0:8080".parse().unwrap());
        assert!(args.assets_path.as_os_str().is_empty() && args.web_ssl);
        assert_eq!(args.log_level.0, "warn");
        assert!(parse("serve --log-level=loud").is_err());
        assert!(parse("serve --address=8080").is_err());
    }
}
