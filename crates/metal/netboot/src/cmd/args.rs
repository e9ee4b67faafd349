//! The flags of the commands. They keep the names that Matchbox and dnsmasq use.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
};

use api_meta::Cidr;
use clap::{Args as ClapArgs, Subcommand, builder::OsStringValueParser, builder::TypedValueParser};

use super::error::{AddressError, LogLevelError};

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
fn parse_path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

/// Parses an address to listen on. As in Go, `:PORT` means all addresses.
pub(super) fn parse_listen_address(text: &str) -> Result<SocketAddr, AddressError> {
    let text = if text.starts_with(':') { format!("0.0.0.0{text}") } else { text.to_owned() };
    Ok(text.parse()?)
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
fn parse_log_level(text: &str) -> Result<LogLevel, LogLevelError> {
    Ok(LogLevel(match text.to_ascii_lowercase().as_str() {
        "panic" | "fatal" | "critical" | "error" => "error",
        "warn" | "warning" => "warn",
        "notice" | "info" => "info",
        "debug" => "debug",
        "trace" => "trace",
        _ => return Err(LogLevelError),
    }))
}

/// The flags of `serve`. They use Matchbox's names, and dnsmasq's for DHCP, TFTP and DNS, with Matchbox's environment
/// variables.
#[derive(Debug, ClapArgs)]
#[command(version)]
pub struct ServeArgs {
    /// HTTP listen address
    #[arg(long, env = "MATCHBOX_ADDRESS", default_value = "127.0.0.1:8080", value_parser = parse_listen_address)]
    pub address: SocketAddr,
    /// Additional HTTPS listen address, for secrets; requires --web-cert-file and --web-key-file
    #[arg(long, value_parser = parse_listen_address)]
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
    #[arg(long, env = "MATCHBOX_KEY_RING_PATH", default_value = "", value_parser = parse_path())]
    pub key_ring_path: PathBuf,
    /// Log level: panic, fatal, error, warn, info, debug or trace
    #[arg(long, env = "MATCHBOX_LOG_LEVEL", default_value = "info", value_parser = parse_log_level)]
    pub log_level: LogLevel,
    /// Kubeconfig of a cluster: give join tokens to enrolled machines, approve their certificates and watch for their
    /// nodes to become Ready
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Serve secrets to every client, without TLS or proof
    #[arg(long)]
    pub insecure_secrets: bool,
    /// File that keeps the records of machines over restarts; empty to keep nothing
    #[arg(long, value_name = "FILE", default_value = MACHINES, value_parser = parse_path())]
    pub machines_file: PathBuf,
    /// Network, ADDRESS/BITS, that may read the pages of machines (/machines), besides this machine itself; may be
    /// given several times
    #[arg(long, value_name = "NETWORK")]
    pub machines_from: Vec<Cidr>,
    /// Path to the data directory
    #[arg(long, env = "MATCHBOX_DATA_PATH", default_value = "/var/lib/matchbox")]
    pub data_path: PathBuf,
    /// Path to static assets; empty to serve none
    #[arg(long, env = "MATCHBOX_ASSETS_PATH", default_value = "/var/lib/matchbox/assets", value_parser = parse_path())]
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
    #[arg(long, value_name = "FILE", default_value = "/var/lib/matchbox/dhcp.leases", value_parser = parse_path())]
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
