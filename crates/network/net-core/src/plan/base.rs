use super::config::{Config, NodePorts, TABLE};
use crate::{Family, nft::Table};

pub(super) const CLUSTER_IPS: &str = "cluster-ips";
pub(super) const NODE_IPS: &str = "nodeport-ips";
pub(super) const SERVICE_IPS: &str = "service-ips";
pub(super) const NODE_PORTS: &str = "service-nodeports";
pub(super) const DEAD_SERVICES: &str = "no-endpoint-services";
pub(super) const DEAD_NODE_PORTS: &str = "no-endpoint-nodeports";
pub(super) const FIREWALL_IPS: &str = "firewall-ips";

/// Returns the table without Services: hooks, dispatch and masquerading.
///
/// The filter chains run at priority -110, just before destination NAT, while a packet still has the Service's address.
pub(super) fn table(family: Family, config: &Config) -> Table {
    let mut table = Table::new(family, TABLE);
    sets(&mut table, config);
    hooks(&mut table, config);
    dispatch(&mut table, config);
    masquerading(&mut table, config);
    table
}

fn sets(table: &mut Table, config: &Config) {
    let address = format!("{}_addr", if table.family == Family::V4 { "ipv4" } else { "ipv6" });
    let by_address = format!("type {address} . inet_proto . inet_service : verdict;");
    let by_port = "type inet_proto . inet_service : verdict;";
    table.set(CLUSTER_IPS, format!("type {address};"));
    table.set(NODE_IPS, format!("type {address};"));
    for name in [SERVICE_IPS, DEAD_SERVICES, FIREWALL_IPS] {
        table.map(name, by_address.clone());
    }
    table.map(NODE_PORTS, by_port);
    table.map(DEAD_NODE_PORTS, by_port);
    if let NodePorts::Addresses(addresses) = &config.node_ports {
        let family = table.family;
        for address in addresses.iter().filter(|address| Family::of(**address) == family) {
            table.element(NODE_IPS, address.to_string(), String::new());
        }
        if config.localhost_node_ports && family == Family::V4 {
            table.element(NODE_IPS, "127.0.0.1".to_owned(), String::new());
        }
    }
}

fn hooks(table: &mut Table, config: &Config) {
    let mut arriving = vec!["ct state new jump firewall-check"];
    if config.localhost_node_ports && table.family == Family::V4 {
        arriving.push("iifname != \"lo\" ip daddr 127.0.0.0/8 ct state new drop");
    }
    table.base_chain("filter-prerouting", "type filter hook prerouting priority -110", &arriving);
    table.base_chain(
        "filter-input",
        "type filter hook input priority -110",
        &[
            "ct state new jump nodeport-endpoints-check",
            "ct state new jump service-endpoints-check",
        ],
    );
    table.base_chain(
        "filter-forward",
        "type filter hook forward priority -110",
        &["ct state new jump service-endpoints-check", "ct state new jump cluster-ips-check"],
    );
    table.base_chain(
        "filter-output",
        "type filter hook output priority -110",
        &["ct state new jump service-endpoints-check", "ct state new jump firewall-check"],
    );
    // Packets from the node itself are checked after their destination NAT; before it, every ClusterIP would match.
    table.base_chain(
        "filter-output-post-dnat",
        "type filter hook output priority -90",
        &["ct state new jump cluster-ips-check"],
    );
    table.base_chain(
        "nat-prerouting",
        "type nat hook prerouting priority -100",
        &["jump services"],
    );
    table.base_chain("nat-output", "type nat hook output priority -100", &["jump services"]);
    table.base_chain(
        "nat-postrouting",
        "type nat hook postrouting priority 100",
        &["jump masquerading"],
    );
}

fn dispatch(table: &mut Table, config: &Config) {
    let ip = table.family.nft();
    let key = format!("{ip} daddr . meta l4proto . th dport");
    let to_node = match (&config.node_ports, table.family) {
        (NodePorts::Addresses(_), _) => format!("{ip} daddr @{NODE_IPS}"),
        (NodePorts::All, Family::V4) if config.localhost_node_ports => {
            "fib daddr type local".to_owned()
        }
        (NodePorts::All, Family::V4) => "fib daddr type local ip daddr != 127.0.0.0/8".to_owned(),
        (NodePorts::All, Family::V6) => "fib daddr type local ip6 daddr != ::1".to_owned(),
    };
    let port = "meta l4proto . th dport";
    table.chain("firewall-check", vec![format!("{key} vmap @{FIREWALL_IPS}")]);
    table.chain("service-endpoints-check", vec![format!("{key} vmap @{DEAD_SERVICES}")]);
    table.chain(
        "nodeport-endpoints-check",
        vec![format!("{to_node} {port} vmap @{DEAD_NODE_PORTS}")],
    );
    table.chain(
        "services",
        vec![format!("{key} vmap @{SERVICE_IPS}"), format!("{to_node} {port} vmap @{NODE_PORTS}")],
    );
    // TCP resets are exempt from the kernel's rate limit for ICMP errors, so a client's retry gets an answer.
    table.chain(
        "reject-chain",
        vec!["meta l4proto tcp reject with tcp reset".to_owned(), "reject".to_owned()],
    );
    let mut rules = vec![format!(
        "{ip} daddr @{CLUSTER_IPS} goto reject-chain comment \"Reject traffic to invalid ports of ClusterIPs\""
    )];
    let family = table.family;
    for range in config.service_cidrs.iter().filter(|range| range.family() == family) {
        rules.push(format!(
            "{ip} daddr {} drop comment \"Drop traffic to unallocated ClusterIPs\"",
            range.network()
        ));
    }
    table.chain("cluster-ips-check", rules);
}

fn masquerading(table: &mut Table, config: &Config) {
    let mark = format!("{:#x}", 1u32 << config.masquerade_bit.min(31));
    table.chain("mark-for-masquerade", vec![format!("meta mark set meta mark or {mark}")]);
    table.chain(
        "masquerading",
        vec![
            format!("meta mark & {mark} == 0 return"),
            // Remove the mark, so that a packet that passes a second time is not masqueraded again.
            format!("meta mark set meta mark xor {mark}"),
            "masquerade fully-random".to_owned(),
        ],
    );
}
