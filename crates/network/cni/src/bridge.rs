use std::{
    net::IpAddr,
    os::fd::AsFd,
    time::{Duration, Instant},
};

use data_encoding::HEXLOWER;
use net_core::{Cidr, Family, api::Protocol, ipam, nft};
use netlink::{
    Kernel, Link, LinkChange, Namespace, Net, NewKind, NewLink, Route, has_ipv6, refuse_routes,
    set_sysctl,
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::{
    bandwidth,
    forward::allow_forwarding,
    lease::{Lease, Leases},
    rules,
    spec::{Attachment, Config, Failure},
};

/// Handles ADD: allocates addresses and sets up the veth pair, the routes and the host ports. The order ensures that
/// DEL or a repeated ADD finds whatever a crash leaves.
pub(crate) fn add(
    net: &dyn Net,
    config: &Config,
    attachment: &Attachment,
) -> Result<Value, Failure> {
    let namespace = Namespace::open(&attachment.netns).map_err(Failure::container)?;
    let (lease, bridge) = {
        let leases = Leases::lock(&config.data_dir, &config.name)?;
        let ports = &config.runtime_config.port_mappings;
        let lease = leases.acquire(&config.subnets, attachment, ports)?;
        let bridge = ensure_bridge(net, config)?;
        ensure_rules(net, config, &leases, !ports.is_empty())?;
        route_loopback(config)?;
        (lease, bridge)
    };
    let host = make_pair(net, config, attachment, &namespace, &lease)?;
    connect(net, &host, &bridge)?;
    let limits = config.runtime_config.bandwidth.unwrap_or_default();
    bandwidth::apply(net, &limits, &host)?;
    let inside = configure(config, attachment, &namespace, &lease)?;
    wait_until_operational(&inside, &attachment.interface)?;
    wait_until_operational(net, &host.name)?;
    wait_until_operational(net, &config.bridge)?;
    forget_flows(net, &lease)?;
    Ok(result(config, attachment, &bridge, &host, &lease))
}

fn ensure_bridge(net: &dyn Net, config: &Config) -> Result<Link, Failure> {
    let bridge = match net.link(&config.bridge).map_err(Failure::network)? {
        Some(bridge) if bridge.kind == "bridge" => bridge,
        Some(other) => {
            let message = format!(
                "interface {} exists and is not a bridge but {:?}; name another in \"bridge\"",
                other.name, other.kind
            );
            return Err(Failure::config(message));
        }
        None => {
            // A fixed MAC address keeps Pods' neighbour entries valid while ports are added and removed.
            let mac = config.subnets.first().and_then(|subnet| ipam::gateway(*subnet)).map(mac_of);
            let new = NewLink { name: &config.bridge, mtu: config.mtu, mac, kind: NewKind::Bridge };
            net.add_link(&new).map_err(Failure::network)?;
            let link = net.link(&config.bridge).map_err(Failure::network)?;
            link.ok_or_else(|| Failure::new(100, format!("bridge {} vanished", config.bridge)))?
        }
    };
    refuse_routes(&config.bridge).map_err(Failure::network)?;
    let addresses = net.addresses().map_err(Failure::network)?;
    for subnet in &config.subnets {
        let gateway = gateway(*subnet)?;
        let cidr = Cidr { address: gateway, prefix: subnet.prefix };
        if !addresses.iter().any(|address| address.index == bridge.index && address.cidr == cidr) {
            set_up_forwarding(&config.bridge, subnet.family())?;
            net.add_address(bridge.index, cidr).map_err(Failure::network)?;
        }
    }
    if !bridge.up {
        let up = LinkChange { up: Some(true), ..LinkChange::default() };
        net.change_link(bridge.index, &up).map_err(Failure::network)?;
    }
    Ok(bridge)
}

fn gateway(subnet: Cidr) -> Result<IpAddr, Failure> {
    ipam::gateway(subnet)
        .ok_or_else(|| Failure::config(format!("subnet {subnet} has no room for a gateway")))
}

fn set_up_forwarding(bridge: &str, family: Family) -> Result<(), Failure> {
    match family {
        Family::V4 => {
            set("ipv4/ip_forward", "1")?;
            // Pods of one bridge must use the gateway, so send no redirects to each other's addresses.
            set(&format!("ipv4/conf/{bridge}/send_redirects"), "0")
        }
        Family::V6 => {
            set("ipv6/conf/all/forwarding", "1")?;
            set(&format!("ipv6/conf/{bridge}/accept_dad"), "0")
        }
    }
}

/// Makes host ports reachable on 127.0.0.1. The bridge's table, written earlier, denies this to Pods (CVE-2020-8558).
fn route_loopback(config: &Config) -> Result<(), Failure> {
    if config.subnets.iter().any(|subnet| subnet.family() == Family::V4) {
        set(&format!("ipv4/conf/{}/route_localnet", config.bridge), "1")?;
    }
    Ok(())
}

fn set(name: &str, value: &str) -> Result<(), Failure> {
    set_sysctl(name, value).map_err(Failure::network)
}

/// Writes the bridge's table if it is missing or if host ports have changed.
fn ensure_rules(
    net: &dyn Net,
    config: &Config,
    leases: &Leases,
    changed: bool,
) -> Result<(), Failure> {
    let name = rules::table_name(&config.bridge);
    let families = rules::families(config, has_ipv6());
    let mut missing = false;
    for family in &families {
        missing |= !net.has_table(*family, &name).map_err(Failure::network)?;
    }
    if !missing && !changed {
        return Ok(());
    }
    if missing {
        allow_forwarding(&config.bridge);
    }
    let all = leases.all()?;
    let tables = families.iter().map(|family| rules::table(config, *family, &all));
    let transaction: String = tables.map(|table| nft::create(&table).to_string()).collect();
    net.nft(&transaction).map_err(Failure::network)
}

/// Creates the veth pair. A repeated ADD after a crash replaces the old pair.
fn make_pair(
    net: &dyn Net,
    config: &Config,
    attachment: &Attachment,
    namespace: &Namespace,
    lease: &Lease,
) -> Result<Link, Failure> {
    let name = &host_name(attachment);
    let kind = NewKind::Veth {
        peer: &attachment.interface,
        peer_mac: peer_mac(lease),
        netns: Some(namespace.file().as_fd()),
    };
    let new = NewLink { name, mtu: config.mtu, mac: None, kind };
    match net.add_link(&new) {
        Err(error) if error.is_exists() => {
            remove_link(net, name)?;
            net.add_link(&new).map_err(Failure::network)?;
        }
        other => other.map_err(Failure::network)?,
    }
    let host = net.link(name).map_err(Failure::network)?;
    host.ok_or_else(|| Failure::new(100, format!("interface {name} vanished")))
}

fn peer_mac(lease: &Lease) -> Option<[u8; 6]> {
    lease.addresses.first().map(|address| mac_of(*address))
}

/// Makes the host's end a port of the bridge, before the Pod's end comes up and announces itself.
fn connect(net: &dyn Net, host: &Link, bridge: &Link) -> Result<(), Failure> {
    refuse_routes(&host.name).map_err(Failure::network)?;
    let change = LinkChange {
        up: Some(true),
        master: Some(bridge.index),
        hairpin: Some(true),
        // Pods reach each other through the gateway. A Pod's multicast must not reach other Pods.
        multicast: Some(false),
        ..LinkChange::default()
    };
    net.change_link(host.index, &change).map_err(Failure::network)
}

/// Configures the Pod's side: loopback, the addresses, and default routes through the gateway.
fn configure(
    config: &Config,
    attachment: &Attachment,
    namespace: &Namespace,
    lease: &Lease,
) -> Result<Kernel, Failure> {
    let interface = attachment.interface.as_str();
    let work = || {
        set("ipv4/conf/all/accept_redirects", "0")?;
        refuse_routes(interface).map_err(Failure::network)?;
        if lease.addresses.iter().any(IpAddr::is_ipv6) {
            set(&format!("ipv6/conf/{interface}/accept_dad"), "0")?;
        }
        Kernel::open().map_err(Failure::network)
    };
    let inside = namespace.run(work).map_err(Failure::network)??;
    let up = LinkChange { up: Some(true), ..LinkChange::default() };
    for name in ["lo", interface] {
        let link = inside.link(name).map_err(Failure::network)?;
        let link = link
            .ok_or_else(|| Failure::new(100, format!("interface {name} vanished from the Pod")))?;
        inside.change_link(link.index, &up).map_err(Failure::network)?;
        if name != interface {
            continue;
        }
        for (address, subnet) in lease.addresses.iter().zip(&config.subnets) {
            inside.add_address(link.index, Cidr::host(*address)).map_err(Failure::network)?;
            let gateway = gateway(*subnet)?;
            let device = Some(link.index);
            let to_gateway =
                Route { device, source: Some(*address), ..Route::new(Cidr::host(gateway)) };
            inside.put_route(&to_gateway).map_err(Failure::network)?;
            let route = Route {
                gateway: Some(gateway),
                device,
                ..Route::new(default_route(subnet.family()))
            };
            inside.put_route(&route).map_err(Failure::network)?;
        }
    }
    Ok(inside)
}

/// Waits until the link is operational. The kernel sets the carrier shortly after both ends are up and drops packets of
/// the bridge, its port or the Pod until then. A Pod that started earlier would lose its first packets and retry after
/// a second or more.
fn wait_until_operational(net: &dyn Net, name: &str) -> Result<(), Failure> {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(5) {
        if net.link(name).map_err(Failure::network)?.is_some_and(|link| link.operational) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_micros(500));
    }
    Err(Failure::new(100, format!("interface {name} did not become operational within 5 s")))
}

fn default_route(family: Family) -> Cidr {
    let any = if family == Family::V4 { [0; 4].into() } else { [0; 16].into() };
    Cidr { address: any, prefix: 0 }
}

/// Deletes conntrack entries of UDP senders to the lease's host ports, which lead to the host or an earlier Pod.
fn forget_flows(net: &dyn Net, lease: &Lease) -> Result<(), Failure> {
    let ports = rules::udp_ports(lease);
    if ports.is_empty() {
        return Ok(());
    }
    let is_stale = |flow: &net_core::conntrack::Flow| {
        ports.iter().any(|(address, port)| {
            flow.destination.port() == *port
                && address.is_none_or(|address| flow.destination.ip() == address)
        })
    };
    net.delete_flows(Protocol::Udp.number(), &is_stale).map(drop).map_err(Failure::network)
}

fn result(
    config: &Config,
    attachment: &Attachment,
    bridge: &Link,
    host: &Link,
    lease: &Lease,
) -> Value {
    let pod_mac = mac_text(&peer_mac(lease).unwrap_or_default());
    let gateways = config.subnets.iter().map(|subnet| ipam::gateway(*subnet));
    let ips = lease.addresses.iter().zip(gateways);
    let ips: Vec<_> = ips
        .map(|(address, gateway)| config.address_json(Cidr::host(*address), gateway, Some(2)))
        .collect();
    let routes: Vec<_> = config.subnets.iter().map(|subnet| {
        json!({"dst": default_route(subnet.family()).to_string(), "gw": ipam::gateway(*subnet)})
    }).collect();
    json!({
        "cniVersion": config.cni_version,
        "interfaces": [
            {"name": bridge.name, "mac": mac_text(&bridge.mac)},
            {"name": host.name, "mac": mac_text(&host.mac)},
            {"name": attachment.interface, "mac": pod_mac, "sandbox": attachment.netns},
        ],
        "ips": ips,
        "routes": routes,
        "dns": {},
    })
}

/// Handles DEL. A missing interface or lease is not an error.
pub(crate) fn delete(
    net: &dyn Net,
    config: &Config,
    attachment: &Attachment,
) -> Result<(), Failure> {
    let host = host_name(attachment);
    remove_link(net, &host)?;
    remove_link(net, &bandwidth::device_name(&host))?;
    let leases = Leases::lock(&config.data_dir, &config.name)?;
    let Some(lease) = leases.find(attachment)? else { return leases.release(attachment) };
    leases.release(attachment)?;
    if !lease.ports.is_empty() {
        ensure_rules(net, config, &leases, true)?;
        forget_flows(net, &lease)?;
    }
    Ok(())
}

fn remove_link(net: &dyn Net, name: &str) -> Result<(), Failure> {
    let Some(link) = net.link(name).map_err(Failure::network)? else { return Ok(()) };
    match net.delete_link(link.index) {
        Err(error) if !error.is_missing() => Err(Failure::network(error)),
        _ => Ok(()),
    }
}

/// Handles CHECK: the Pod's interface must have the leased addresses and be a port of the bridge.
pub(crate) fn check(
    net: &dyn Net,
    config: &Config,
    attachment: &Attachment,
) -> Result<(), Failure> {
    let lease = Leases::lock(&config.data_dir, &config.name)?.find(attachment)?;
    let lease = lease.ok_or_else(|| {
        Failure::new(3, format!("container {} has no address here", attachment.container))
    })?;
    check_result(config, &lease)?;
    let name = host_name(attachment);
    let bridge = net.link(&config.bridge).map_err(Failure::network)?;
    let host = net.link(&name).map_err(Failure::network)?;
    let attached = matches!(
        (&bridge, &host),
        (Some(bridge), Some(host)) if host.master == Some(bridge.index) && host.up
    );
    if !attached {
        return Err(Failure::differs(format!(
            "interface {name} is not up and a port of {}",
            config.bridge
        )));
    }
    bandwidth::check(net, &config.runtime_config.bandwidth.unwrap_or_default(), &name)?;
    let inside = Namespace::open(&attachment.netns).and_then(|namespace| namespace.kernel());
    let inside = inside.map_err(Failure::container)?;
    let interface = inside.link(&attachment.interface).map_err(Failure::network)?;
    let addresses = inside.addresses().map_err(Failure::network)?;
    for address in &lease.addresses {
        let present = addresses.iter().any(|entry| {
            entry.cidr.address == *address
                && Some(entry.index) == interface.as_ref().map(|link| link.index)
        });
        if !present {
            return Err(Failure::differs(format!(
                "interface {} lacks the address {address}",
                attachment.interface
            )));
        }
    }
    Ok(())
}

fn check_result(config: &Config, lease: &Lease) -> Result<(), Failure> {
    let Some(previous) = &config.prev_result else {
        return Err(Failure::config("CHECK without \"prevResult\""));
    };
    let reported = previous["ips"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|ip| ip["address"].as_str()?.parse::<Cidr>().ok());
    let reported: Vec<_> = reported.map(|cidr| cidr.address).collect();
    match lease.addresses.iter().find(|address| !reported.contains(address)) {
        Some(address) => {
            Err(Failure::differs(format!("the lease's address {address} is not in \"prevResult\"")))
        }
        None => Ok(()),
    }
}

/// Handles GC: releases the leases of attachments that the runtime no longer knows.
pub(crate) fn collect(net: &dyn Net, config: &Config) -> Result<(), Failure> {
    let all = Leases::lock(&config.data_dir, &config.name)?.all()?;
    for lease in all {
        let valid = config
            .valid
            .iter()
            .any(|other| other.container == lease.container && other.interface == lease.interface);
        if !valid {
            let attachment = Attachment {
                container: lease.container,
                interface: lease.interface,
                netns: Default::default(),
            };
            delete(net, config, &attachment)?;
        }
    }
    Ok(())
}

/// Handles STATUS: reports whether an ADD could succeed.
pub(crate) fn status(config: &Config) -> Result<(), Failure> {
    let leases = Leases::lock(&config.data_dir, &config.name)
        .map_err(|failure| Failure::unavailable(failure.message))?;
    let all = leases.all().map_err(|failure| Failure::unavailable(failure.message))?;
    let leased = all.iter().flat_map(|lease| lease.addresses.iter().copied()).collect();
    for subnet in &config.subnets {
        if ipam::allocate(*subnet, &leased, None).is_none() {
            return Err(Failure::unavailable(Failure::exhausted(*subnet).message));
        }
    }
    if netlink::has_nft() {
        Ok(())
    } else {
        Err(Failure::unavailable("nft is not installed; install the package nftables"))
    }
}

/// Returns the name of the pair's host end, derived from the attachment.
fn host_name(attachment: &Attachment) -> String {
    let digest = Sha256::digest(format!("{}/{}", attachment.container, attachment.interface));
    format!("veth{}", HEXLOWER.encode(&digest[..5]))
}

/// Derives a MAC address from the IP address, so that a reused address needs no new neighbour entries.
fn mac_of(address: IpAddr) -> [u8; 6] {
    net_core::derived_mac(0x0a, address)
}

fn mac_text(mac: &[u8]) -> String {
    mac.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":")
}
