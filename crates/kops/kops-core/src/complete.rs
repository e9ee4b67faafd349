//! Completes a cluster's spec: every default is written out, so that no reader applies defaults of its own.

mod builders;
mod context;
mod defaults;

use api_meta::{ErrorList, Tree as _};
use kops_api::{Object, validate_cluster};
use serde_json::{Value, json};

use self::{builders::run, context::BuildContext};
use crate::{
    assign::assign,
    cluster::{CloudName, Cluster, Dns},
    error::Error,
    ranges,
    version::Version,
    world::World,
};

/// The most rounds of builders; upstream's settle within this number or never.
const ROUNDS: usize = 10;

/// Facts about running machines, which the spec does not have.
#[derive(Clone, Debug, Default)]
pub struct Machines {
    /// The newest version allowed for kubelets: that of the control plane until it has been updated.
    pub kubelet: Option<String>,
}

/// Completes a cluster. `groups` are its instance groups.
pub fn complete(
    cluster: &Object,
    groups: &[Object],
    world: &World,
    machines: &Machines,
) -> Result<Object, Error> {
    let mut cluster = cluster.normalized();
    check("spec", validate_cluster(&cluster, false))?;
    if cluster.cloud() == CloudName::Other {
        let what = "this cloud".to_owned();
        return Err(Error::Unsupported {
            what,
            remedy: "clusters are made on aws, gce, metal and local",
        });
    }
    assign_ranges(&mut cluster.spec)?;
    cluster.spec.put_default("channel", "stable");
    assign(&mut cluster, world)?;
    let base = cluster.spec.text("configStore.base").trim_end_matches('/').to_owned();
    cluster.spec.put_default("configStore.keypairs", format!("{base}/pki"));
    cluster.spec.put_default("configStore.secrets", format!("{base}/secrets"));
    let version = cluster.spec.text("kubernetesVersion").trim().trim_start_matches('v').to_owned();
    cluster.spec.put("kubernetesVersion", version);
    complete_api(&mut cluster, groups);
    complete_dns(&mut cluster, world)?;
    let mut kubelet = cluster.spec.get("kubelet").cloned().unwrap_or_else(|| json!({}));
    overlay(&mut kubelet, cluster.spec.at("controlPlaneKubelet"));
    cluster.spec.put("controlPlaneKubelet", kubelet);
    let complete = settle(&cluster, world, machines)?;
    check("complete spec", validate_cluster(&complete, true))?;
    Ok(complete)
}

fn check(what: &str, problems: ErrorList) -> Result<(), Error> {
    if !problems.is_empty() {
        return Err(
            kops_api::Error::Fields { what: what.to_owned(), problems: problems.into() }.into()
        );
    }
    Ok(())
}

/// Runs the builders until nothing changes. In every round the user's values override theirs.
fn settle(user: &Object, world: &World, machines: &Machines) -> Result<Object, Error> {
    let control_plane: Version = user.spec.text("kubernetesVersion").parse()?;
    let node = machines.kubelet.as_deref().map(str::parse).transpose()?;
    let node = node.unwrap_or_else(|| control_plane.clone());
    let context = BuildContext { control_plane, node, world };
    let mut current = user.clone();
    for _ in 0..=ROUNDS {
        let mut next = current.clone();
        run(&mut next, &context)?;
        overlay(&mut next.spec, &user.spec);
        let next = next.normalized();
        if next == current {
            return Ok(current);
        }
        current = next;
    }
    Err(Error::Unsettled(ROUNDS))
}

/// Merges `over` into `under`. Items of lists are merged by index, as in Go's decoder.
pub(crate) fn overlay(under: &mut Value, over: &Value) {
    match (under, over) {
        (_, Value::Null) => {}
        (Value::Object(under), Value::Object(over)) => {
            for (key, value) in over {
                overlay(under.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (Value::Array(under), Value::Array(over)) => {
            under.resize(over.len(), Value::Null);
            for (under, over) in under.iter_mut().zip(over) {
                overlay(under, over);
            }
        }
        (under, over) => *under = over.clone(),
    }
}

/// Assigns Pods the upper half of the non-masqueraded range.
fn assign_ranges(spec: &mut Value) -> Result<(), Error> {
    let text = spec.text("networking.nonMasqueradeCIDR").to_owned();
    if text.is_empty() {
        return Ok(());
    }
    let range = ranges::parse("spec.nonMasqueradeCIDR", &text)?;
    let v4 = range.address.is_ipv4();
    if let (true, Some(half)) = (v4, ranges::upper_half(range)) {
        spec.put_default("networking.podCIDR", half.to_string());
    }
    let services = if v4 { "100.64.0.0/13" } else { "fd00:5e4f:ce::/108" };
    spec.put_default("networking.serviceClusterIPRange", services);
    spec.put_default("kubeControllerManager", json!({}));
    Ok(())
}

/// Sets how clients reach the API: by DNS if its machines are in public subnets, otherwise by a load balancer.
fn complete_api(cluster: &mut Object, groups: &[Object]) {
    let spec = &cluster.spec;
    if !spec.has("api.dns") && !spec.has("api.loadBalancer") {
        let role = |group: &&Object, role: &str| group.spec.text("role") == role;
        let serves =
            if groups.iter().any(|g| role(&g, "APIServer")) { "APIServer" } else { "ControlPlane" };
        let subnets =
            groups.iter().filter(|g| role(g, serves)).flat_map(|g| g.spec.texts("subnets"));
        let kinds: Vec<_> = subnets
            .filter_map(|name| {
                spec.items("networking.subnets").iter().find(|s| s.text("name") == name)
            })
            .map(|subnet| subnet.text("type").to_owned())
            .collect();
        if kinds.iter().any(|kind| kind == "Private") {
            cluster.spec.put("api.loadBalancer", json!({}));
        } else if kinds.iter().any(|kind| kind == "Public") {
            cluster.spec.put("api.dns", json!({}));
        }
    }
    if cluster.spec.has("api.loadBalancer") {
        cluster.spec.put_default("api.loadBalancer.type", "Public");
        if cluster.cloud() == CloudName::Aws {
            cluster.spec.put_default("api.loadBalancer.class", "Classic");
        }
    }
}

fn complete_dns(cluster: &mut Object, world: &World) -> Result<(), Error> {
    if cluster.publishes_dns()
        && cluster.spec.text("dnsZone").is_empty()
        && !cluster.cloud().is_bare()
    {
        let private = cluster.dns() == Dns::Private;
        let zone = world.zone_of(cluster.name(), private).ok_or_else(|| Error::Unknown {
            what: "one DNS zone for",
            name: cluster.name().to_owned(),
            remedy: "create it, or name one with --dns-zone, or use --dns none",
        })?;
        cluster.spec.put("dnsZone", zone);
    }
    if cluster.dns() != Dns::None {
        if !cluster.spec.text("dnsZone").is_empty() {
            let name = format!("api.{}", cluster.name());
            cluster.spec.put_default("api.publicName", name);
        }
        cluster.spec.put_default("externalDNS.provider", "dns-controller");
    }
    Ok(())
}
