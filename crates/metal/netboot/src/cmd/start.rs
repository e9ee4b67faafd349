//! Opens every port of `serve` and starts the servers behind them.

use std::{path::Path, sync::Arc};

use api_meta::Cidr;
use rt::{SystemClock, Tasks};
use tokio::net::TcpListener;

use super::{
    args::{ServeArgs, parse_listen_address},
    error::Error,
};
use crate::{
    dhcp::{self, BootFiles},
    dns,
    interface::Interface,
    lane::{Lane, Urgency},
    machines::Inventory,
    matchbox::{Matchbox, Settings, Store, TokenMaker, assets, port, rpc::Rpc, web::WebHandler},
    openpgp::Signer,
    ra, tftp,
};

/// The maximum number of TLS connections. Each one has buffers of its own.
const TLS_CONNECTIONS: usize = 1024;

/// The shared state of a running boot server, for callers that build on it (`metal::enroll`).
pub struct BootServer {
    /// The Matchbox store.
    pub store: Arc<Store>,
    /// The records of machines.
    pub inventory: Arc<Inventory>,
}

/// Opens every port, so that configuration errors fail here, and starts the tasks behind them. `token_maker` makes the
/// tokens for machines that join a cluster.
pub async fn start(
    args: &ServeArgs,
    tasks: &Tasks,
    token_maker: Option<TokenMaker>,
) -> Result<BootServer, Error> {
    let store = Arc::new(open_store(&args.data_path)?);
    let inventory = Arc::new(open_inventory(args)?);
    let assets = if args.assets_path.as_os_str().is_empty() {
        None
    } else if args.assets_path.is_dir() {
        Some(args.assets_path.clone())
    } else {
        return Err(Error::AssetsPath { path: args.assets_path.clone() });
    };
    let failed = |what: String| move |source| Error::Start { what, source };
    let interfaces = args
        .interface
        .iter()
        .map(|name| Interface::named(name).map_err(failed(format!("on {name}"))))
        .collect::<Result<Vec<_>, _>>()?;
    let signer = signer(args)?;
    start_rpc(args, &store, tasks).await?;
    start_small_answers(args, &interfaces, &inventory, tasks)?;
    if !args.no_tftp {
        start_tftp(args, &interfaces, &inventory, tasks)?;
    }
    let insecure_secrets = args.insecure_secrets;
    // Only this machine itself connects from one of its own addresses.
    let own = std::iter::once(args.address).chain(args.tls_address).map(|address| address.ip());
    let own = own.filter(|ip| !ip.is_unspecified()).map(Cidr::host);
    let page_readers = args.machines_from.iter().copied().chain(own).collect();
    let settings = Settings {
        assets,
        signer,
        insecure_secrets,
        token_maker,
        page_readers,
        inventory: inventory.clone(),
    };
    let matchbox = Arc::new(Matchbox::new(store.clone(), settings));
    start_http(args, &matchbox, tasks).await?;
    Ok(BootServer { store, inventory })
}

async fn start_http(
    args: &ServeArgs,
    matchbox: &Arc<Matchbox>,
    tasks: &Tasks,
) -> Result<(), Error> {
    let ports = [Some((args.address, args.web_ssl)), args.tls_address.map(|port| (port, true))];
    for (address, tls) in ports.into_iter().flatten() {
        let listener = TcpListener::bind(address).await.map_err(|source| Error::Start {
            what: format!("HTTP on {address}; is the address this machine's, and free?"),
            source,
        })?;
        let handler = Arc::new(WebHandler { matchbox: matchbox.clone(), tls });
        if tls {
            let limits = serve::Limits {
                connections: TLS_CONNECTIONS,
                send_buffer: Some(assets::CHUNK / 2),
                ..Default::default()
            };
            let task = serve::serve(listener, Some(web_tls(args)?), limits, handler, tasks.clone());
            tasks.essential("https", task);
        } else {
            tasks.essential("http", port::serve(listener, handler, tasks.clone()));
        }
        tracing::info!(%address, tls, "serving");
    }
    Ok(())
}

/// Starts DHCP, DNS and router advertisements on a thread of their own, so that downloads do not delay them.
fn start_small_answers(
    args: &ServeArgs,
    interfaces: &[Interface],
    inventory: &Arc<Inventory>,
    tasks: &Tasks,
) -> Result<(), Error> {
    let failed = |what: String| move |source| Error::Start { what, source };
    let lane = Lane::start("small answers", Urgency::High, tasks.shutdown());
    let lane = lane.map_err(failed("a thread".into()))?;
    let _on_the_lane = lane.enter();
    if !args.no_dhcp {
        start_dhcp(args, interfaces, inventory, tasks)?;
    }
    if !args.no_dns {
        let names = Arc::new(names(args)?);
        for interface in interfaces {
            let what = format!("DNS on {}", interface.name);
            dns::start(names.clone(), interface, tasks).map_err(failed(what))?;
        }
    }
    if !args.no_ra {
        for interface in interfaces {
            let what = format!("router advertisements on {}", interface.name);
            let responder = ra::Responder::new(interface.clone()).map_err(failed(what.clone()))?;
            let responder = Arc::new(responder);
            tasks.keep(&what, move || responder.clone().run());
        }
    }
    Ok(())
}

fn open_inventory(args: &ServeArgs) -> Result<Inventory, Error> {
    let (path, clock) = (args.machines_file.clone(), Arc::new(SystemClock));
    if path.as_os_str().is_empty() {
        return Ok(Inventory::in_memory(clock));
    }
    Inventory::open(path.clone(), clock).map_err(|source| Error::Machines { path, source })
}

fn signer(args: &ServeArgs) -> Result<Option<Signer>, Error> {
    let path = args.key_ring_path.clone();
    if path.as_os_str().is_empty() {
        return Ok(None);
    }
    let keyring = match std::fs::read(&path) {
        Ok(keyring) => keyring,
        Err(source) => return Err(Error::ReadKeyRing { path, source }),
    };
    // Other users can see the command line, so the passphrase is not a flag.
    let passphrase = std::env::var("MATCHBOX_PASSPHRASE").unwrap_or_default();
    match Signer::open(&keyring, &passphrase) {
        Ok(signer) => {
            tracing::info!(key = signer.key_id(), "answers are signed");
            Ok(Some(signer))
        }
        Err(source) => Err(Error::KeyRing { path, source }),
    }
}

async fn start_rpc(args: &ServeArgs, store: &Arc<Store>, tasks: &Tasks) -> Result<(), Error> {
    let text = args.rpc_address.as_str();
    if text.is_empty() {
        return Ok(());
    }
    let address = parse_listen_address(text)
        .map_err(|source| Error::RpcAddress { text: text.to_owned(), source })?;
    let tls = serve::ServerTls::mutual(
        &read_tls("--cert-file", &args.cert_file)?,
        &read_tls("--key-file", &args.key_file)?,
        &read_tls("--ca-file", &args.ca_file)?,
    )?;
    let listener = TcpListener::bind(address)
        .await
        .map_err(|source| Error::Start { what: format!("gRPC on {address}"), source })?;
    let handler = Arc::new(Rpc::new(store.clone()));
    let limits = serve::Limits::default();
    tasks.essential("grpc", serve::serve(listener, Some(tls), limits, handler, tasks.clone()));
    tracing::info!(%address, "serving gRPC");
    Ok(())
}

fn read_tls(flag: &'static str, path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|source| Error::ReadTls { flag, path: path.to_owned(), source })
}

fn web_tls(args: &ServeArgs) -> Result<serve::ServerTls, Error> {
    Ok(serve::ServerTls::from_files(&args.web_cert_file, &args.web_key_file, Vec::new())?)
}

/// Returns the names of machines with reserved addresses and of host records.
fn names(args: &ServeArgs) -> Result<dns::Names, Error> {
    let mut names = dns::Names::new(args.domain.as_deref())?;
    for host in &args.dhcp_host {
        let (_, reservation) = dhcp::parse_host(host)?;
        if let Some(hostname) = reservation.hostname {
            names.add(&hostname, reservation.address.into())?;
        }
    }
    for text in &args.host_record {
        let invalid = || Error::HostRecord { text: text.clone() };
        let (name, address) = text.split_once(',').ok_or_else(invalid)?;
        names.add(name.trim(), address.trim().parse().map_err(|_| invalid())?)?;
    }
    Ok(names)
}

fn start_dhcp(
    args: &ServeArgs,
    interfaces: &[Interface],
    inventory: &Arc<Inventory>,
    tasks: &Tasks,
) -> Result<(), Error> {
    let config = dhcp_config(args)?;
    if interfaces.is_empty() {
        return Err(Error::NoInterface { what: "DHCP", flag: "--no-dhcp" });
    }
    let path = &args.dhcp_leasefile;
    let lease_file = (!path.as_os_str().is_empty() && !args.dhcp_proxy).then(|| path.clone());
    let server =
        dhcp::server::Server::new(config, lease_file, Arc::new(SystemClock), inventory.clone())
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
        options: args
            .dhcp_option
            .iter()
            .map(|text| dhcp::parse_option(text))
            .collect::<Result<_, _>>()?,
    })
}

fn boot_files(args: &ServeArgs) -> Result<BootFiles, Error> {
    let mut files = BootFiles::with_defaults(args.address.port());
    for text in &args.boot_file {
        let invalid = || Error::BootFile { text: text.clone() };
        let (firmware, name) = text.split_once('=').ok_or_else(invalid)?;
        let place = match firmware {
            "bios" => &mut files.bios,
            "uefi-ia32" => &mut files.uefi_ia32,
            "uefi-x64" => &mut files.uefi_x64,
            "uefi-arm64" => &mut files.uefi_arm64,
            "http-x64" => &mut files.http_x64,
            "http-arm64" => &mut files.http_arm64,
            "ipxe" => &mut files.ipxe,
            _ => return Err(invalid()),
        };
        *place = name.to_owned();
    }
    Ok(files)
}

fn start_tftp(
    args: &ServeArgs,
    interfaces: &[Interface],
    inventory: &Arc<Inventory>,
    tasks: &Tasks,
) -> Result<(), Error> {
    if interfaces.is_empty() {
        return Err(Error::NoInterface { what: "TFTP", flag: "--no-tftp" });
    }
    if !args.tftp_root.is_dir() {
        return Err(Error::TftpRoot { path: args.tftp_root.clone() });
    }
    let lane = Lane::start("tftp", Urgency::Usual, tasks.shutdown());
    let lane = lane.map_err(|source| Error::Start { what: "a thread".into(), source })?;
    let _on_the_lane = lane.enter();
    for interface in interfaces {
        let port = args.address.port();
        let script = format!("#!ipxe\nchain http://{}:{port}/boot.ipxe\n", interface.address);
        let server = tftp::server::Server::new(&args.tftp_root, Some(script), inventory.clone());
        server.start(interface, tasks).map_err(|source| Error::Start {
            what: format!("TFTP on {}", interface.name),
            source,
        })?;
    }
    Ok(())
}

/// Opens the store, whose directory must exist.
pub(super) fn open_store(path: &Path) -> Result<Store, Error> {
    match path.read_dir() {
        Ok(_) => Ok(Store::new(path)),
        Err(source) => Err(Error::DataPath { path: path.to_owned(), source }),
    }
}
