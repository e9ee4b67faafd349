//! Creates the subnets, the Pod network, the topology and the access to the API.

use std::collections::BTreeMap;

use api_meta::Tree as _;
use kops_api::Object;
use serde_json::{Value, json};

use super::options::Options;
use crate::{
    cluster::{CloudName, Cluster, Dns},
    error::Error,
    world::World,
};

/// The names of the subnets in each zone, the main one first.
#[derive(Default)]
pub(super) struct Subnets(BTreeMap<String, Vec<String>>);

impl Subnets {
    pub(super) fn of(&self, zone: &str) -> &[String] {
        self.0.get(zone).map(Vec::as_slice).unwrap_or_default()
    }
}

impl Options {
    /// Returns the zones of workers and control planes, sorted by name.
    pub(super) fn all_zones(&self) -> Vec<String> {
        let mut zones: Vec<_> =
            self.zones.iter().chain(&self.control_plane_zones).cloned().collect();
        zones.sort();
        zones.dedup();
        zones
    }
}

/// Creates the subnets: one per zone, or on GCE one for the region.
pub(super) fn create_subnets(
    options: &Options,
    cluster: &mut Object,
    world: &World,
) -> Result<Subnets, Error> {
    match cluster.cloud() {
        CloudName::Gce => {
            let project =
                if options.project.is_empty() { &world.project } else { &options.project };
            cluster.spec.put("cloudProvider.gce.project", project.clone());
            if !options.gce_service_account.is_empty() {
                cluster
                    .spec
                    .put("cloudProvider.gce.serviceAccount", options.gce_service_account.clone());
            }
            set_network(cluster, &options.network_id);
            create_gce_subnets(options, cluster)
        }
        CloudName::Aws => {
            let id = match (options.network_id.as_str(), options.subnet_ids.first()) {
                ("", Some(subnet)) => network_of(world, subnet)?,
                (id, _) => id,
            };
            set_network(cluster, id);
            let shared = shared_subnets(world, id, &options.subnet_ids)?;
            Ok(create_zonal_subnets(options, cluster, &shared))
        }
        _ => Ok(create_zonal_subnets(options, cluster, &BTreeMap::new())),
    }
}

fn set_network(cluster: &mut Object, id: &str) {
    if !id.is_empty() {
        cluster.spec.put("networking.networkID", id);
    }
}

fn network_of<'w>(world: &'w World, subnet: &str) -> Result<&'w str, Error> {
    let holds = |(_, network): &(&String, &crate::world::Network)| {
        network.subnets.iter().any(|s| s.id == subnet)
    };
    let found = world.networks.iter().find(holds).map(|(id, _)| id.as_str());
    let remedy = "name an existing one, or leave --subnets out to create them";
    found.ok_or(Error::Unknown { what: "subnet", name: subnet.to_owned(), remedy })
}

/// Returns the existing subnets with these IDs, by zone.
fn shared_subnets(
    world: &World,
    network: &str,
    ids: &[String],
) -> Result<BTreeMap<String, String>, Error> {
    let mut found = BTreeMap::new();
    for id in ids {
        let subnets = world.networks.get(network).map(|n| n.subnets.as_slice()).unwrap_or_default();
        let remedy = "the network does not have it";
        let subnet = subnets.iter().find(|s| s.id == *id);
        let subnet = subnet.ok_or(Error::Unknown { what: "subnet", name: id.clone(), remedy })?;
        if let Some(other) = found.insert(subnet.zone.clone(), id.clone()) {
            let reason = format!("is in the same zone as {other}: give one subnet per zone");
            return Err(Error::value("--subnets", id, reason));
        }
    }
    Ok(found)
}

fn add(cluster: &mut Object, subnet: Value) {
    let mut subnets = cluster.spec.items("networking.subnets").to_vec();
    if !subnets.iter().any(|s| s.text("name") == subnet.text("name")) {
        subnets.push(subnet);
        cluster.spec.put("networking.subnets", subnets);
    }
}

fn create_gce_subnets(options: &Options, cluster: &mut Object) -> Result<Subnets, Error> {
    if options.subnet_ids.len() > 1 {
        let count = options.subnet_ids.len().to_string();
        return Err(Error::value(
            "--subnets",
            count,
            "is more than one subnet, but a cluster on GCE has exactly one",
        ));
    }
    let mut subnets = Subnets::default();
    for zone in options.all_zones() {
        let (region, _) =
            zone.rsplit_once('-').filter(|(region, _)| region.contains('-')).ok_or_else(|| {
                Error::value("--zones", &zone, "is not a zone of GCE such as us-east1-b")
            })?;
        let mut subnet = json!({"name": region, "region": region});
        if let Some(id) = options.subnet_ids.first() {
            subnet.put("id", id.clone());
        }
        add(cluster, subnet);
        subnets.0.entry(zone.clone()).or_default().push(region.to_owned());
    }
    Ok(subnets)
}

fn create_zonal_subnets(
    options: &Options,
    cluster: &mut Object,
    shared: &BTreeMap<String, String>,
) -> Subnets {
    let mut subnets = Subnets::default();
    let mut make = |name: String, zone: &str, cidr: Option<&String>| {
        let mut subnet = json!({"name": name, "zone": zone});
        if !options.egress.is_empty() {
            subnet.put("egress", options.egress.clone());
        }
        if let Some(cidr) = cidr {
            subnet.put("cidr", cidr.clone());
        }
        if let Some(id) = shared.get(zone) {
            subnet.put("id", id.clone());
        }
        add(cluster, subnet);
        subnets.0.entry(zone.to_owned()).or_default().push(name);
    };
    for zone in options.all_zones() {
        make(zone.clone(), &zone, None);
    }
    // Each additional range becomes a subnet of its own, alternating among the zones.
    for (number, cidr) in options.network_cidrs.iter().skip(1).enumerate() {
        let zone = &options.zones[number % options.zones.len()];
        make(format!("{zone}-{}", number + 1), zone, Some(cidr));
    }
    subnets
}

/// Sets the Pod network.
pub(super) fn set_pod_network(options: &Options, cluster: &mut Object) -> Result<(), Error> {
    let (field, settings) = match options.networking.as_str() {
        "kubenet" => ("kubenet", json!({})),
        "external" => ("external", json!({})),
        "cni" => ("cni", json!({})),
        "kopeio-vxlan" | "kopeio" => ("kopeio", json!({})),
        "flannel" | "flannel-vxlan" => ("flannel", json!({"backend": "vxlan"})),
        "flannel-udp" => ("flannel", json!({"backend": "udp"})),
        "calico" => ("calico", json!({})),
        "kube-router" => ("kubeRouter", json!({})),
        "amazonvpc" | "amazon-vpc-routed-eni" => ("amazonVPC", json!({})),
        "cilium" | "" => ("cilium", json!({"enableNodePort": true})),
        "cilium-etcd" => ("cilium", json!({"enableNodePort": true, "etcdManaged": true})),
        "cilium-eni" => ("cilium", json!({"enableNodePort": true, "ipam": "eni"})),
        "gcp" | "gce" => ("gcp", json!({})),
        "kindnet" => ("kindnet", json!({})),
        other => return Err(Error::value("--networking", other, "is not a known network")),
    };
    // These replace kube-proxy.
    if ["cilium", "kubeRouter"].contains(&field) {
        cluster.spec.put("kubeProxy.enabled", false);
    }
    cluster.spec.put(&format!("networking.{field}"), settings);
    Ok(())
}

pub(super) fn set_topology(
    options: &Options,
    cluster: &mut Object,
    world: &World,
) -> Result<(), Error> {
    let dns = match (options.dns.to_ascii_lowercase().as_str(), options.dns_zone.as_str()) {
        ("", "") | ("none", _) => "None",
        ("" | "public", _) => "Public",
        ("private", _) => "Private",
        _ => {
            return Err(Error::value(
                "--dns",
                &options.dns,
                "is not one of public, private and none",
            ));
        }
    };
    cluster.spec.put("networking.topology.dns", dns);
    match options.topology.as_str() {
        "public" if options.bastion => {
            return Err(Error::value("--bastion", "true", "is for --topology private"));
        }
        "public" => set_type(cluster, "Public"),
        "private" => make_private(options, cluster, world)?,
        other => return Err(Error::value("--topology", other, "is neither public nor private")),
    }
    if options.ipv6 {
        if cluster.cloud() != CloudName::Aws {
            let what = format!("IPv6 on {:?}", options.cloud);
            return Err(Error::Unsupported { what, remedy: "IPv6-only clusters run only on AWS" });
        }
        cluster.spec.put("networking.nonMasqueradeCIDR", "::/0");
        cluster.spec.put("cloudControllerManager", json!({}));
        for (number, subnet) in cluster.spec.items_mut("networking.subnets").enumerate() {
            subnet.put("ipv6CIDR", format!("/64#{number:x}"));
        }
    }
    Ok(())
}

fn set_type(cluster: &mut Object, kind: &str) {
    cluster.spec.items_mut("networking.subnets").for_each(|s| s.put("type", kind));
}

/// Makes the subnets private, and adds a utility subnet to each zone for load balancers and NAT.
fn make_private(options: &Options, cluster: &mut Object, world: &World) -> Result<(), Error> {
    if cluster.spec.has("networking.kubenet") {
        return Err(Error::value("--networking", "kubenet", "does not work in a private topology"));
    }
    set_type(cluster, "Private");
    let shared = match cluster.cloud() {
        CloudName::Aws => shared_subnets(
            world,
            cluster.spec.text("networking.networkID"),
            &options.utility_subnet_ids,
        )?,
        _ => BTreeMap::new(),
    };
    let beside = |subnet: &Value, prefix: &str, kind: &str| {
        let mut new = json!({"name": format!("{prefix}-{}", subnet.text("name")), "type": kind});
        for field in ["zone", "region"] {
            new.put_some(field, subnet.get(field));
        }
        if let Some(id) = shared.get(subnet.text("zone")) {
            new.put("id", id.clone());
        }
        new
    };
    let own = cluster.spec.items("networking.subnets").to_vec();
    let mut all = own.clone();
    if options.ipv6 {
        all.extend(own.iter().map(|subnet| beside(subnet, "dualstack", "DualStack")));
    }
    if cluster.cloud() != CloudName::Gce {
        all.extend(own.iter().map(|subnet| beside(subnet, "utility", "Utility")));
    }
    cluster.spec.put("networking.subnets", all);
    if options.bastion && cluster.publishes_dns() {
        let name = format!("bastion.{}", cluster.name());
        cluster.spec.put("networking.topology.bastion.publicName", name);
    }
    Ok(())
}

/// Adds a load balancer, unless the machines are public and their addresses are published.
pub(super) fn set_api_access(options: &Options, cluster: &mut Object) -> Result<(), Error> {
    let wanted =
        !options.api_load_balancer_type.is_empty() || !options.api_ssl_certificate.is_empty();
    let published = !matches!(cluster.dns(), Dns::None | Dns::Gossip);
    if cluster.cloud().is_bare() {
        return Ok(());
    }
    if !wanted && options.topology == "public" && published {
        cluster.spec.put("api.dns", json!({}));
        return Ok(());
    }
    let kind = match options.api_load_balancer_type.as_str() {
        "" | "public" => "Public",
        "internal" => "Internal",
        other => {
            return Err(Error::value(
                "--api-loadbalancer-type",
                other,
                "is neither public nor internal",
            ));
        }
    };
    cluster.spec.put("api.loadBalancer.type", kind);
    if !options.api_ssl_certificate.is_empty() {
        cluster.spec.put("api.loadBalancer.sslCertificate", options.api_ssl_certificate.clone());
    }
    if cluster.cloud() == CloudName::Aws {
        let class = match options.api_load_balancer_class.as_str() {
            "" | "network" => "Network",
            "classic" => "Classic",
            other => {
                return Err(Error::value(
                    "--api-loadbalancer-class",
                    other,
                    "is neither network nor classic",
                ));
            }
        };
        cluster.spec.put("api.loadBalancer.class", class);
    }
    Ok(())
}
