//! The nftables table of one bridge: host ports, masquerading, and the protection of the node's loopback.

use std::net::IpAddr;

use net_core::{Cidr, Family, api::Protocol, nft::Table};

use crate::{lease::Lease, spec::Config};

const ANY: &str = "host-ports";
const BY_ADDRESS: &str = "host-address-ports";
/// The mark of packets from this node's Pods to a host port. The kube-proxy's mark is another bit.
const MARK: &str = "0x2000";

/// Returns the name of the bridge's table. It contains the bridge, because nodes may share a network namespace.
pub fn table_name(bridge: &str) -> String {
    format!("windlass-cni-{bridge}")
}

/// Returns the families that need a table. Links use IPv6 even if Pods have no IPv6 addresses.
pub(crate) fn families(config: &Config, has_ipv6: bool) -> Vec<Family> {
    let has = |family| config.subnets.iter().any(|subnet| subnet.family() == family);
    let mut families = Family::ALL.to_vec();
    families.retain(|family| has(*family) || (*family == Family::V6 && has_ipv6));
    families
}

/// Returns the table of one family.
pub(crate) fn table(config: &Config, family: Family, leases: &[Lease]) -> Table {
    let mut table = Table::new(family, &table_name(&config.bridge));
    if let Some(subnet) = config.subnets.iter().find(|subnet| subnet.family() == family) {
        host_ports(&mut table, *subnet, leases);
        masquerade(&mut table, config, *subnet);
    }
    let bridge = &config.bridge;
    let guards = match family {
        Family::V4 => vec![
            // Host ports answer on 127.0.0.1 too, so the bridge routes loopback addresses; Pods must not use that.
            format!(
                "iifname \"{bridge}\" ip daddr 127.0.0.0/8 ct state != {{ established, related }} drop"
            ),
            format!("iifname \"{bridge}\" icmp type redirect drop"),
        ],
        // Programs of the host may listen for router advertisements, as the kernel does.
        Family::V6 => vec![format!(
            "iifname \"{bridge}\" icmpv6 type {{ nd-router-advert, nd-redirect }} drop"
        )],
    };
    let guards: Vec<&str> = guards.iter().map(String::as_str).collect();
    table.base_chain("input", "type filter hook input priority 0", &guards);
    table.seal();
    table
}

fn host_ports(table: &mut Table, subnet: Cidr, leases: &[Lease]) {
    let ip = table.family.nft();
    let address = if table.family == Family::V4 { "ipv4_addr" } else { "ipv6_addr" };
    let target = format!("{address} . inet_service;");
    table.map(ANY, format!("type inet_proto . inet_service : {target}"));
    table.map(BY_ADDRESS, format!("type {address} . inet_proto . inet_service : {target}"));
    for lease in leases {
        let Some(pod) = lease.addresses.iter().find(|address| subnet.contains(**address)) else {
            continue;
        };
        for mapping in &lease.ports {
            let (Some(protocol), Ok(host)) = (mapping.protocol(), mapping.address()) else {
                continue;
            };
            let port = format!("{} . {}", protocol.lower(), mapping.host_port);
            let value = format!("{pod} . {}", mapping.container_port);
            match host {
                None => table.element(ANY, port, value),
                Some(host) if Family::of(host) == table.family => {
                    table.element(BY_ADDRESS, format!("{host} . {port}"), value)
                }
                Some(_) => {}
            }
        }
    }
    let dispatch = ["fib daddr type local jump host-ports-dispatch"];
    table.chain(
        "host-ports-dispatch",
        vec![
            format!("{ip} saddr {} meta mark set meta mark or {MARK}", subnet.network()),
            format!("dnat {ip} to {ip} daddr . meta l4proto . th dport map @{BY_ADDRESS}"),
            format!("dnat {ip} to meta l4proto . th dport map @{ANY}"),
        ],
    );
    table.base_chain("prerouting", "type nat hook prerouting priority -100", &dispatch);
    table.base_chain("output", "type nat hook output priority -100", &dispatch);
}

fn masquerade(table: &mut Table, config: &Config, subnet: Cidr) {
    let ip = table.family.nft();
    let bridge = &config.bridge;
    let multicast = if table.family == Family::V4 { "224.0.0.0/4" } else { "ff00::/8" };
    let family = table.family;
    let mut direct: Vec<_> = config
        .cluster_cidrs
        .iter()
        .filter(|cidr| cidr.family() == family)
        .map(|cidr| cidr.network().to_string())
        .collect();
    if direct.is_empty() {
        direct.push(subnet.network().to_string());
    }
    direct.push(multicast.to_owned());
    let mut rules = Vec::new();
    if family == Family::V4 {
        rules.push(format!("ip saddr 127.0.0.0/8 oifname \"{bridge}\" masquerade"));
    }
    // A Pod that reaches itself through a host port must not see its own address as the peer.
    rules.push(format!(
        "meta mark & {MARK} == {MARK} ct status dnat oifname \"{bridge}\" masquerade"
    ));
    let inside: Vec<_> = direct
        .iter()
        .map(|cidr| format!("{ip} saddr {} {ip} daddr {cidr} return", subnet.network()))
        .collect();
    rules.extend(inside);
    rules.push(format!(
        "{ip} saddr {} oifname != \"{bridge}\" masquerade fully-random",
        subnet.network()
    ));
    let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
    table.base_chain("postrouting", "type nat hook postrouting priority 100", &rules);
}

/// Returns the addresses and ports of a lease's UDP host ports, whose old conntrack entries must be deleted.
pub(crate) fn udp_ports(lease: &Lease) -> Vec<(Option<IpAddr>, u16)> {
    let udp = lease.ports.iter().filter(|mapping| mapping.protocol() == Some(Protocol::Udp));
    udp.filter_map(|mapping| Some((mapping.address().ok()?, mapping.host_port))).collect()
}
