//! `windlass metal serve` and `windlass metal check`. Flags keep Matchbox's and dnsmasq's names.

use std::{io, net::Ipv4Addr, net::SocketAddr, path::PathBuf, sync::Arc};

use clap::{Args as ClapArgs, Subcommand};
use rt::{SystemClock, Tasks};
use tokio::net::TcpListener;

use crate::{
    dhcp::{self, BootFiles, ConfigError, server::Interface},
    dns,
    matchbox::{Matchbox, Store, check::check, handler::Shared},
    ra, tftp,
};

#[derive(Debug, ClapArgs)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve DHCP, TFTP, DNS and Matchbox's HTTP endpoints
    Serve(Box<ServeArgs>),
    /// Look over a whole store: every group, profile and template
    Check(CheckArgs),
}

#[derive(Debug, ClapArgs)]
pub struct CheckArgs {
    /// Path to the data directory
    #[arg(long, env = "MATCHBOX_DATA_PATH", default_value = "/var/lib/matchbox")]
    pub data_path: PathBuf,
}

#[derive(Debug, ClapArgs)]
pub struct ServeArgs {
    /// HTTP listen address
    #[arg(long, env = "MATCHBOX_ADDRESS", default_value = "127.0.0.1:8080")]
    pub address: SocketAddr,
    /// Path to the data directory
    #[arg(long, env = "MATCHBOX_DATA_PATH", default_value = "/var/lib/matchbox")]
    pub data_path: PathBuf,
    /// Path to static assets; empty to serve none
    #[arg(long, env = "MATCHBOX_ASSETS_PATH", default_value = "/var/lib/matchbox/assets")]
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
    /// Router to name to machines
    #[arg(long)]
    pub dhcp_router: Vec<Ipv4Addr>,
    /// DNS server to name to machines
    #[arg(long)]
    pub dhcp_dns: Vec<Ipv4Addr>,
    /// Domain to name to machines
    #[arg(long)]
    pub domain: Option<String>,
    /// Only name boot files, beside another DHCP server
    #[arg(long)]
    pub dhcp_proxy: bool,
    /// Where leases are kept over restarts; empty to keep none
    #[arg(long, value_name = "FILE", default_value = "/var/lib/matchbox/dhcp.leases")]
    pub dhcp_leasefile: PathBuf,
    /// Offer addresses without asking whether they are taken
    #[arg(long)]
    pub no_ping: bool,
    /// Another boot file: FIRMWARE=NAME, firmware being bios, uefi-ia32, uefi-x64, uefi-arm64, http-x64,
    /// http-arm64 or ipxe; {server} stands for our address
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
    #[error("--web-ssl with {}: {source}", path.display())]
    ReadTls { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Tls(#[from] serve::TlsError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("starting {what}: {source}")]
    Start { what: String, source: io::Error },
    #[error("the store has {0} problems")]
    Problems(usize),
}

/// Runs the command; `serve` until `tasks` are shut down.
pub async fn run(args: Args, tasks: Tasks) -> Result<(), Error> {
    match args.command {
        Command::Serve(args) => {
            start(&args, &tasks).await?;
            tasks.shutdown().stopping().await;
            Ok(())
        }
        Command::Check(args) => {
            let store = open_store(&args.data_path)?;
            let report = check(&Matchbox::new(store, None));
            println!("{report}");
            match report.problems.len() {
                0 => Ok(()),
                count => Err(Error::Problems(count)),
            }
        }
    }
}

fn open_store(path: &std::path::Path) -> Result<Store, Error> {
    match path.read_dir() {
        Ok(_) => Ok(Store::new(path)),
        Err(source) => Err(Error::DataPath { path: path.to_owned(), source }),
    }
}

/// Opens every port, so that what cannot work fails here, and starts the tasks behind them.
pub async fn start(args: &ServeArgs, tasks: &Tasks) -> Result<(), Error> {
    let store = open_store(&args.data_path)?;
    let assets = match args.assets_path.as_os_str().is_empty() {
        true => None,
        false if args.assets_path.is_dir() => Some(args.assets_path.clone()),
        false => return Err(Error::AssetsPath { path: args.assets_path.clone() }),
    };
    let failed = |what: String| move |source| Error::Start { what, source };
    let interfaces = args
        .interface
        .iter()
        .map(|name| Interface::named(name).map_err(failed(format!("on {name}"))))
        .collect::<Result<Vec<_>, _>>()?;
    let listener = TcpListener::bind(args.address)
        .await
        .map_err(failed(format!("HTTP on {}", args.address)))?;
    if !args.no_dhcp {
        start_dhcp(args, &interfaces, tasks)?;
    }
    if !args.no_tftp {
        start_tftp(args, &interfaces, tasks)?;
    }
    if !args.no_dns {
        let names = Arc::new(names(args)?);
        for interface in &interfaces {
            let what = format!("DNS on {}", interface.name);
            dns::start(names.clone(), interface, tasks).map_err(failed(what))?;
        }
    }
    if !args.no_ra {
        for interface in &interfaces {
            let what = format!("router advertisements on {}", interface.name);
            let responder = ra::Responder::new(interface.clone()).map_err(failed(what.clone()))?;
            tasks.spawn_until_shutdown(&what, responder.run());
        }
    }
    let handler = Arc::new(Shared(Arc::new(Matchbox::new(store, assets))));
    let limits = serve::Limits::default();
    tasks.essential("http", serve::serve(listener, tls(args)?, limits, handler, tasks.clone()));
    tracing::info!(address = %args.address, "serving");
    Ok(())
}

/// The names of machines with reserved addresses, and those given as records.
fn names(args: &ServeArgs) -> Result<dns::Names, Error> {
    let mut names = dns::Names::new(args.domain.as_deref())?;
    for host in &args.dhcp_host {
        let (_, reservation) = dhcp::parse_host(host)?;
        if let Some(hostname) = reservation.hostname {
            names.add(&hostname, reservation.address.into())?;
        }
    }
    for text in &args.host_record {
        let wrong = || Error::HostRecord { text: text.clone() };
        let (name, address) = text.split_once(',').ok_or_else(wrong)?;
        names.add(name.trim(), address.trim().parse().map_err(|_| wrong())?)?;
    }
    Ok(names)
}

fn tls(args: &ServeArgs) -> Result<Option<serve::ServerTls>, Error> {
    if !args.web_ssl {
        return Ok(None);
    }
    let read = |path: &PathBuf| {
        std::fs::read(path).map_err(|source| Error::ReadTls { path: path.clone(), source })
    };
    let (certificate, key) = (read(&args.web_cert_file)?, read(&args.web_key_file)?);
    Ok(Some(serve::ServerTls::new(&certificate, &key, Vec::new())?))
}

fn start_dhcp(args: &ServeArgs, interfaces: &[Interface], tasks: &Tasks) -> Result<(), Error> {
    let config = dhcp_config(args)?;
    if interfaces.is_empty() {
        return Err(Error::NoInterface { what: "DHCP", flag: "--no-dhcp" });
    }
    let path = &args.dhcp_leasefile;
    let lease_file = (!path.as_os_str().is_empty() && !args.dhcp_proxy).then(|| path.clone());
    let server = dhcp::server::Server::new(config, lease_file, Arc::new(SystemClock))
        .map_err(|source| Error::Start { what: "DHCP".into(), source })?;
    for interface in interfaces {
        server.start(interface, tasks).map_err(|source| Error::Start {
            what: format!("DHCP on {}", interface.name),
            source,
        })?;
    }
    Ok(())
}

fn dhcp_config(args: &ServeArgs) -> Result<dhcp::Config, Error> {
    let mut lease = None;
    let mut subnets = Vec::new();
    for range in &args.dhcp_range {
        let (mut subnet, own_lease) = dhcp::parse_range(range)?;
        let routers = args.dhcp_router.iter().filter(|router| subnet.contains(**router));
        subnet.routers = routers.copied().collect();
        subnet.dns = args.dhcp_dns.clone();
        lease = lease.or(own_lease);
        subnets.push(subnet);
    }
    if subnets.is_empty() && !args.dhcp_proxy {
        return Err(Error::NoRange);
    }
    let reservations = args.dhcp_host.iter().map(|host| dhcp::parse_host(host));
    Ok(dhcp::Config {
        subnets,
        reservations: reservations.collect::<Result<_, _>>()?,
        // dnsmasq's default.
        lease: lease.unwrap_or(std::time::Duration::from_secs(3600)),
        domain: args.domain.clone(),
        proxy: args.dhcp_proxy,
        probe: !args.no_ping,
        boot: boot_files(args)?,
    })
}

fn boot_files(args: &ServeArgs) -> Result<BootFiles, Error> {
    let mut files = BootFiles::usual(args.address.port());
    for text in &args.boot_file {
        let wrong = || Error::BootFile { text: text.clone() };
        let (firmware, name) = text.split_once('=').ok_or_else(wrong)?;
        let place = match firmware {
            "bios" => &mut files.bios,
            "uefi-ia32" => &mut files.uefi_ia32,
            "uefi-x64" => &mut files.uefi_x64,
            "uefi-arm64" => &mut files.uefi_arm64,
            "http-x64" => &mut files.http_x64,
            "http-arm64" => &mut files.http_arm64,
            "ipxe" => &mut files.ipxe,
            _ => return Err(wrong()),
        };
        *place = name.to_owned();
    }
    Ok(files)
}

fn start_tftp(args: &ServeArgs, interfaces: &[Interface], tasks: &Tasks) -> Result<(), Error> {
    if interfaces.is_empty() {
        return Err(Error::NoInterface { what: "TFTP", flag: "--no-tftp" });
    }
    if !args.tftp_root.is_dir() {
        return Err(Error::TftpRoot { path: args.tftp_root.clone() });
    }
    for interface in interfaces {
        let port = args.address.port();
        let script = format!("#!ipxe\nchain http://{}:{port}/boot.ipxe\n", interface.address);
        let server = tftp::server::Server::new(&args.tftp_root, Some(script));
        server.start(interface, tasks).map_err(|source| Error::Start {
            what: format!("TFTP on {}", interface.name),
            source,
        })?;
    }
    Ok(())
}
