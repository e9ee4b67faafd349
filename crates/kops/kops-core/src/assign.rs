//! Assigns the values that are fixed when a cluster is created and do not follow later defaults: network ranges, name
//! and version.

use api_meta::{Cidr, Tree as _};
use kops_api::Object;
use serde_json::{Value, json};

use crate::{
    cluster::{CloudName, Cluster, Dns},
    error::Error,
    ranges,
    world::{Network, World},
};

const AWS_NETWORK: &str = "172.20.0.0/16";
/// GCE's networks have no range of their own; subnets are allocated from this range.
const GCE_NETWORK: &str = "10.0.0.0/8";
const NON_MASQUERADE: &str = "100.64.0.0/10";
const BACKUP_DAYS: u32 = 90;

/// Assigns the values that are still unset.
pub fn assign(cluster: &mut Object, world: &World) -> Result<(), Error> {
    for etcd in cluster.spec.items_mut("etcdClusters") {
        etcd.put_default("manager.backupRetentionDays", BACKUP_DAYS);
    }
    if cluster.cloud() == CloudName::Gce {
        assign_gce(&mut cluster.spec)?;
    }
    if cluster.cloud() == CloudName::Aws && cluster.spec.text("networking.networkCIDR").is_empty() {
        assign_network(cluster, world)?;
    }
    cluster.spec.put_default("networking.nonMasqueradeCIDR", NON_MASQUERADE);
    if cluster.dns() == Dns::Public && !cluster.name().is_empty() {
        let name = format!("api.{}", cluster.name());
        cluster.spec.put_default("api.publicName", name);
    }
    if cluster.cloud() == CloudName::Aws {
        adopt_subnets(&mut cluster.spec, world)?;
        assign_subnets(&mut cluster.spec)?;
    }
    assign_proxy(cluster)?;
    if cluster.spec.text("kubernetesVersion").is_empty() {
        let hint = ", because the channel recommends none";
        return Err(Error::Missing { field: "spec.kubernetesVersion".into(), hint });
    }
    Ok(())
}

fn network<'w>(world: &'w World, id: &str) -> Result<&'w Network, Error> {
    let remedy = "give the ID of an existing network, or leave it out to create one";
    world.networks.get(id).ok_or(Error::Unknown { what: "network", name: id.to_owned(), remedy })
}

fn assign_network(cluster: &mut Object, world: &World) -> Result<(), Error> {
    let cidr = match cluster.spec.text("networking.networkID") {
        "" => AWS_NETWORK,
        id => &network(world, id)?.cidr,
    };
    if cidr.is_empty() {
        let hint = ", because the network has no range: use --network-cidr";
        return Err(Error::Missing { field: "spec.networkCIDR".into(), hint });
    }
    let cidr = cidr.to_owned();
    // The Amazon VPC CNI allocates Pod addresses from the machines' network.
    if cluster.spec.has("networking.amazonVPC") && !cluster.is_ipv6_only() {
        cluster.spec.put("networking.nonMasqueradeCIDR", cidr.clone());
    }
    cluster.spec.put("networking.networkCIDR", cidr);
    Ok(())
}

fn assign_gce(spec: &mut Value) -> Result<(), Error> {
    let within = ranges::parse("GCE's networks", GCE_NETWORK)?;
    let full = |what: &str| Error::Full { within: GCE_NETWORK.into(), what: what.into() };
    let mut used = Vec::new();
    if spec.has("networking.gcp") || spec.has("networking.kindnet") {
        return assign_aliases(spec, within);
    }
    for subnet in spec.items_mut("networking.subnets") {
        if subnet.text("id").is_empty() && subnet.text("cidr").is_empty() {
            let free =
                ranges::allocate(within, 20, &mut used).ok_or_else(|| full(subnet.text("name")))?;
            subnet.put("cidr", free.to_string());
        }
    }
    Ok(())
}

/// Allocates Pod, Service and node ranges from GCE's network, for alias IPs.
fn assign_aliases(spec: &mut Value, within: Cidr) -> Result<(), Error> {
    let full = |what: &str| Error::Full { within: GCE_NETWORK.into(), what: what.into() };
    let [subnet] = spec.items("networking.subnets") else {
        let count = spec.items("networking.subnets").len().to_string();
        return Err(Error::value(
            "spec.subnets",
            count,
            "is the number of subnets, but Pod addresses from GCE's network need exactly one",
        ));
    };
    let settled = ["networking.podCIDR", "networking.serviceClusterIPRange"];
    if settled.iter().all(|path| !spec.text(path).is_empty()) && !subnet.text("cidr").is_empty() {
        return Ok(());
    }
    let mut used = Vec::new();
    let mut take = |prefix, what: &str| {
        let free = ranges::allocate(within, prefix, &mut used).ok_or_else(|| full(what))?;
        Ok::<_, Error>(free.to_string())
    };
    let (pods, services, nodes) = (take(14, "Pods")?, take(16, "Services")?, take(19, "nodes")?);
    for subnet in spec.items_mut("networking.subnets") {
        subnet.put("cidr", nodes.clone());
    }
    spec.put("networking.podCIDR", pods);
    spec.put("networking.serviceClusterIPRange", services);
    // Pods are reachable by their addresses in all of this range.
    spec.put("networking.nonMasqueradeCIDR", GCE_NETWORK);
    Ok(())
}

/// Reports whether a subnet needs an IPv4 range; a private IPv6 subnet does not.
fn lacks_range(subnet: &Value) -> bool {
    let v6_only = !subnet.text("ipv6CIDR").is_empty() && subnet.text("type") == "Private";
    subnet.text("cidr").is_empty() && !v6_only
}

/// Copies the ranges of existing subnets, and compares them with ranges in the spec.
fn adopt_subnets(spec: &mut Value, world: &World) -> Result<(), Error> {
    let id = spec.text("networking.networkID").to_owned();
    if id.is_empty() || !spec.items("networking.subnets").iter().any(lacks_range) {
        return Ok(());
    }
    let network = network(world, &id)?;
    for subnet in spec.items_mut("networking.subnets") {
        let id = subnet.text("id").to_owned();
        if id.is_empty() {
            continue;
        }
        let remedy = "the network does not have it";
        let found = network.subnets.iter().find(|s| s.id == id);
        let found = found.ok_or(Error::Unknown { what: "subnet", name: id.clone(), remedy })?;
        subnet.put_default("cidr", found.cidr.clone());
        for (field, real) in [("cidr", &found.cidr), ("zone", &found.zone)] {
            if subnet.text(field) != real {
                let reason = format!("differs from subnet {id}, which has {real:?}");
                return Err(Error::value(
                    &format!("spec.subnets.{field}"),
                    subnet.text(field),
                    reason,
                ));
            }
        }
    }
    Ok(())
}

/// Splits the network among subnets without a range. The first part is split again, among utility subnets.
fn assign_subnets(spec: &mut Value) -> Result<(), Error> {
    if !spec.items("networking.subnets").iter().any(lacks_range) {
        return Ok(());
    }
    let within = spec.text("networking.networkCIDR").to_owned();
    let network = ranges::parse("spec.networkCIDR", &within)?;
    let (mut big, mut little, mut reserved) = (Vec::new(), Vec::new(), Vec::new());
    for (number, subnet) in spec.items("networking.subnets").iter().enumerate() {
        let range = match subnet.text("cidr") {
            "" => None,
            text => Some(ranges::parse("spec.subnets.cidr", text)?),
        };
        // Ranges in additional networks do not overlap.
        if range.is_some_and(|range| !network.contains(range.address)) {
            continue;
        }
        match subnet.text("type") {
            "DualStack" | "Public" | "Private" => {
                big.push((subnet.text("zone").to_owned(), number))
            }
            "Utility" => little.push((subnet.text("zone").to_owned(), number)),
            other => {
                return Err(Error::value("spec.subnets.type", other, "is not a type of subnet"));
            }
        }
        reserved.extend(range);
    }
    big.sort_by(|a, b| a.0.cmp(&b.0));
    little.sort_by(|a, b| a.0.cmp(&b.0));
    let bits = match big.len() + usize::from(!little.is_empty()) {
        0 | 1 => 0,
        2 => 1,
        3 | 4 => 2,
        _ => 3,
    };
    let free = |range: &Cidr| !reserved.iter().any(|taken| kops_api::overlap(*taken, *range));
    let mut parts = ranges::split(network, bits).into_iter().filter(free);
    let full = |what: &Value| Error::Full {
        within: within.clone(),
        what: format!("subnet {:?}", what.text("name")),
    };
    let mut small = match little.first() {
        Some((_, first)) => {
            let part =
                parts.next().ok_or_else(|| full(&spec.items("networking.subnets")[*first]))?;
            ranges::split(part, 3)
        }
        None => Vec::new(),
    }
    .into_iter();
    let subnets = spec.at_mut("networking.subnets").and_then(Value::as_array_mut);
    let Some(subnets) = subnets else { return Ok(()) };
    for (_, number) in little {
        if subnets[number].text("cidr").is_empty() {
            let part = small.next().ok_or_else(|| full(&subnets[number]))?;
            subnets[number].put("cidr", part.to_string());
        }
    }
    for (_, number) in big {
        if lacks_range(&subnets[number]) {
            let part = parts.next().ok_or_else(|| full(&subnets[number]))?;
            subnets[number].put("cidr", part.to_string());
        }
    }
    Ok(())
}

/// Adds the addresses that must bypass the egress proxy to its excludes.
fn assign_proxy(cluster: &mut Object) -> Result<(), Error> {
    if !cluster.spec.has("networking.egressProxy") {
        return Ok(());
    }
    let spec = &cluster.spec;
    let existing = spec.text("networking.egressProxy.excludes").to_owned();
    let pods = spec.text("networking.nonMasqueradeCIDR");
    let range = ranges::parse("spec.nonMasqueradeCIDR", pods)?;
    let first = range.nth(1).map(|ip| ip.to_string()).unwrap_or_default();
    let mut required = vec![
        "127.0.0.1",
        "localhost",
        spec.text("clusterDNSDomain"),
        spec.text("api.publicName"),
        cluster.name(),
        &first,
        pods,
    ];
    if cluster.cloud() == CloudName::Aws {
        // The instance metadata service.
        required.push("169.254.169.254");
    }
    // The API server reaches kubelets by the machines' addresses.
    required.push(spec.text("networking.networkCIDR"));
    required.extend(spec.texts("networking.additionalNetworkCIDRs"));
    let mut excludes: Vec<&str> = existing.split(',').filter(|e| !e.is_empty()).collect();
    excludes.extend(required.into_iter().filter(|w| !w.is_empty() && !existing.contains(w)));
    let excludes = json!(excludes.join(","));
    cluster.spec.put("networking.egressProxy.excludes", excludes);
    Ok(())
}
