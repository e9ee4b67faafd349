//! The errors of the commands and their flags.

use std::{io, net::AddrParseError, path::PathBuf};

use crate::{dhcp::ConfigError, dns, openpgp};

/// The error for a text that is not an address to listen on.
#[derive(Debug, thiserror::Error)]
#[error("{0}; write ADDRESS:PORT")]
pub struct AddressError(#[from] AddrParseError);

/// The error for an unknown log level.
#[derive(Debug, thiserror::Error)]
#[error("unknown level; use panic, fatal, error, warn, info, debug or trace")]
pub struct LogLevelError;

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
    #[error("--rpc-address {text:?}: {source}")]
    RpcAddress { text: String, source: AddressError },
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
