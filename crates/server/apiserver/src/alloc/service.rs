//! The addresses and ports that a Service has and requests.

use std::{collections::BTreeSet, net::IpAddr};

use api_meta::{FieldError, Path, Tree as _, validation};
use api_rules::service::{
    is_headless, needs_cluster_ip, needs_health_check_port, needs_node_ports,
};
use serde_json::{Value, json};

use super::bitmap::{Bitmap, PortError};

/// Returns the addresses that a Service has or requests.
pub(crate) fn addresses(service: &Value) -> Vec<IpAddr> {
    let listed = service.texts("spec.clusterIPs");
    let mut all: Vec<IpAddr> = listed.filter_map(|a| a.parse().ok()).collect();
    if all.is_empty() {
        all.extend(service.text("spec.clusterIP").parse::<IpAddr>().ok());
    }
    all
}

/// Returns the node ports that a Service has. TCP and UDP may share one.
pub(crate) fn ports(service: &Value) -> BTreeSet<u16> {
    let listed = service.items("spec.ports").iter().map(|p| &p["nodePort"]);
    let all = listed.chain([service.at("spec.healthCheckNodePort")]);
    all.filter_map(|p| u16::try_from(p.as_u64()?).ok()).filter(|p| *p != 0).collect()
}

pub(crate) fn strings(list: &Value) -> Vec<String> {
    list.texts("").map(str::to_owned).collect()
}

pub(crate) fn family(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "IPv4" } else { "IPv6" }
}

/// The address that a Service is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AddressRequest {
    /// The Service already has it.
    Keep(IpAddr),
    /// The Service requests it.
    Exact(IpAddr),
    Any,
}

/// Sets a Service's families and returns the address request for each. `cluster` holds the configured families, the
/// primary one first.
pub(crate) fn requested_addresses(
    tree: &mut Value,
    old: Option<&Value>,
    cluster: &[&str],
) -> Result<Vec<AddressRequest>, FieldError> {
    if !needs_cluster_ip(tree) {
        return Ok(Vec::new());
    }
    families(tree, old, cluster)?;
    if is_headless(tree) {
        if tree.blank("spec.clusterIPs") {
            tree.put(&["spec", "clusterIPs"], json!(["None"]));
        }
        return Ok(Vec::new());
    }
    let current = old.map(addresses).unwrap_or_default();
    let mut requested = strings(tree.at("spec.clusterIPs"));
    if requested.is_empty()
        && let Some(one) = tree.opt_text("spec.clusterIP")
    {
        requested.push(one.to_owned());
    }
    let families = 0..strings(tree.at("spec.ipFamilies")).len();
    let requests =
        families.map(|i| match requested.get(i).map(|text| (text, validation::ip(text))) {
            None => Ok(AddressRequest::Any),
            Some((_, Ok(address))) if current.contains(&address) => {
                Ok(AddressRequest::Keep(address))
            }
            Some((_, Ok(address))) => Ok(AddressRequest::Exact(address)),
            Some((text, Err(detail))) => {
                let field = Path::new("spec").child("clusterIPs").index(i);
                Err(FieldError::invalid(&field, text.as_str(), detail))
            }
        });
    requests.collect()
}

/// Sets `ipFamilies` and `ipFamilyPolicy` from the request and the cluster's families.
fn families(tree: &mut Value, old: Option<&Value>, cluster: &[&str]) -> Result<(), FieldError> {
    let headless_without_selector =
        is_headless(tree) && tree.at("spec.selector").as_object().is_none_or(|s| s.is_empty());
    let policy = tree.at("spec.ipFamilyPolicy").as_str().map(str::to_owned);
    let policy = policy.unwrap_or_else(|| {
        if headless_without_selector { "RequireDualStack".into() } else { "SingleStack".into() }
    });
    let mut families = strings(tree.at("spec.ipFamilies"));
    if families.is_empty() {
        // A requested address determines the family.
        let requested = tree.text("spec.clusterIP").parse::<IpAddr>().ok();
        families = match (requested, old) {
            (Some(address), _) => vec![family(address).to_owned()],
            (None, Some(old)) => strings(old.at("spec.ipFamilies")),
            (None, None) => Vec::new(),
        };
    }
    if families.is_empty() {
        families.extend(cluster.first().map(|family| (*family).to_owned()));
    }
    let was = |spec: &Value| (spec["ipFamilyPolicy"] == policy, strings(&spec["ipFamilies"]));
    let (is_kept, before) = old.map(|old| was(&old["spec"])).unwrap_or_default();
    if policy == "SingleStack" && !is_kept && families == before {
        // A Service that changes from two families to one keeps the first.
        families.truncate(1);
    }
    // The cluster may have become dual-stack since. A Service receives its second family when its policy changes, not
    // by an unrelated update.
    let is_content = policy == "PreferDualStack" && is_kept && families == before;
    if policy != "SingleStack" && families.len() == 1 && !is_content {
        let other = if families[0] == "IPv4" { "IPv6" } else { "IPv4" };
        if cluster.contains(&other) || headless_without_selector {
            families.push(other.to_owned());
        } else if policy == "RequireDualStack" {
            let field = Path::new("spec").child("ipFamilyPolicy");
            let detail = "this cluster is not configured for dual-stack services";
            return Err(FieldError::invalid(&field, policy, detail));
        }
    }
    tree.put(&["spec", "ipFamilyPolicy"], json!(policy));
    tree.put(&["spec", "ipFamilies"], json!(families));
    Ok(())
}

/// The error of allocating ports.
#[derive(Debug)]
pub(crate) enum PortsRejection {
    /// The Service is invalid.
    Field(FieldError),
    /// The allocation failed, in upstream's words.
    Internal(String),
}

/// The node ports allocated to a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodePorts {
    /// The node port of each Service port, in order; 0 for none.
    node_ports: Vec<u16>,
    health_check: Option<u16>,
    /// The newly allocated ports.
    pub(crate) taken: BTreeSet<u16>,
}

impl NodePorts {
    pub(crate) fn apply(&self, tree: &mut Value) {
        let ports = tree.at_mut(&["spec", "ports"]).and_then(Value::as_array_mut);
        for (port, number) in ports.into_iter().flatten().zip(&self.node_ports) {
            if *number != 0 {
                port.put(&["nodePort"], json!(number));
            }
        }
        if let Some(number) = self.health_check {
            tree.put(&["spec", "healthCheckNodePort"], json!(number));
        }
    }

    fn take(&mut self, map: &mut Bitmap, node_port: i64) -> Result<u16, PortError> {
        // A number that is not a port is outside every range.
        let port = u16::try_from(node_port).unwrap_or(0);
        map.take(port)?;
        self.taken.insert(port);
        Ok(port)
    }

    fn take_any(&mut self, map: &mut Bitmap) -> Result<u16, PortError> {
        let port = map.take_any()?;
        self.taken.insert(port);
        Ok(port)
    }
}

/// Allocates the node ports that a Service needs.
pub(crate) fn choose_ports(
    tree: &Value,
    old: Option<&Value>,
    map: &mut Bitmap,
) -> Result<NodePorts, PortsRejection> {
    let mut chosen = NodePorts::default();
    if matches!(tree.text("spec.type"), "NodePort" | "LoadBalancer") {
        match old {
            None => new_ports(tree, map, &mut chosen)?,
            Some(old) => changed_ports(tree, old, map, &mut chosen)?,
        }
    }
    if needs_health_check_port(tree) && !old.is_some_and(needs_health_check_port) {
        let node_port = tree.int("spec.healthCheckNodePort");
        chosen.health_check = Some(match node_port {
            0 => chosen.take_any(map).map_err(|cause| {
                PortsRejection::Internal(format!(
                    "failed to allocate a HealthCheck NodePort 0: {cause}"
                ))
            })?,
            _ => chosen.take(map, node_port).map_err(|cause| {
                PortsRejection::Internal(format!(
                    "failed to allocate requested HealthCheck NodePort {node_port}: {cause}"
                ))
            })?,
        });
    }
    Ok(chosen)
}

fn service_ports(tree: &Value) -> &[Value] {
    tree.items("spec.ports")
}

fn refused(i: usize, node_port: i64, cause: &PortError) -> PortsRejection {
    let field = Path::new("spec").child("ports").index(i).child("nodePort");
    PortsRejection::Field(FieldError::invalid(&field, node_port, cause.to_string()))
}

fn ports_exhausted(cause: &PortError) -> PortsRejection {
    PortsRejection::Internal(format!("failed to allocate a nodePort: {cause}"))
}

/// Allocates the ports of a new Service. As upstream, Service ports with the same number (one for TCP, one for UDP)
/// share a node port: the first one that is requested.
fn new_ports(tree: &Value, map: &mut Bitmap, chosen: &mut NodePorts) -> Result<(), PortsRejection> {
    let ports = service_ports(tree);
    let mut shared: Vec<(i64, u16)> = Vec::new();
    for (i, port) in ports.iter().enumerate() {
        let (port, node_port) = (port.int("port"), port.int("nodePort"));
        if node_port == 0 && !needs_node_ports(tree) {
            chosen.node_ports.push(0);
            continue;
        }
        let allocated = match shared.iter().find(|(known, _)| *known == port) {
            Some((_, allocated)) if node_port == 0 || node_port == i64::from(*allocated) => {
                *allocated
            }
            Some(_) => {
                chosen.take(map, node_port).map_err(|cause| refused(i, node_port, &cause))?
            }
            None => {
                let of_port = ports.iter().filter(|other| other.int("port") == port);
                let requested = of_port.map(|other| other.int("nodePort")).find(|n| *n != 0);
                let allocated = match requested {
                    Some(requested) => chosen
                        .take(map, requested)
                        .map_err(|cause| refused(i, requested, &cause))?,
                    None => chosen.take_any(map).map_err(|cause| ports_exhausted(&cause))?,
                };
                shared.push((port, allocated));
                allocated
            }
        };
        chosen.node_ports.push(allocated);
    }
    Ok(())
}

/// Keeps all node ports that the Service has, regardless of the Service port they belonged to.
fn changed_ports(
    tree: &Value,
    old: &Value,
    map: &mut Bitmap,
    chosen: &mut NodePorts,
) -> Result<(), PortsRejection> {
    let current: Vec<i64> = service_ports(old).iter().map(|p| p.int("nodePort")).collect();
    for (i, port) in service_ports(tree).iter().enumerate() {
        let node_port = port.int("nodePort");
        let mine =
            |chosen: &NodePorts| chosen.taken.iter().any(|port| i64::from(*port) == node_port);
        let allocated = match node_port {
            0 if !needs_node_ports(tree) => 0,
            0 => chosen.take_any(map).map_err(|cause| ports_exhausted(&cause))?,
            _ if current.contains(&node_port) || mine(chosen) => 0,
            _ => chosen.take(map, node_port).map_err(|cause| refused(i, node_port, &cause))?,
        };
        chosen.node_ports.push(allocated);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(kind: &str, ports: Value) -> Value {
        json!({"spec": {"type": kind, "clusterIP": "10.0.0.1", "ports": ports}})
    }

    fn message(refused: PortsRejection) -> String {
        match refused {
            PortsRejection::Field(error) => error.to_string(),
            PortsRejection::Internal(text) => text,
        }
    }

    #[test]
    fn shares_node_port_between_protocols() {
        let mut map = Bitmap::new((30_000, 30_099));
        let both = json!([{"port": 53, "protocol": "TCP"}, {"port": 53, "protocol": "UDP", "nodePort": 30053}, {"port": 80}]);
        let mut tree = service("NodePort", both);
        let chosen = choose_ports(&tree, None, &mut map).unwrap();
        chosen.apply(&mut tree);
        let given: Vec<i64> = service_ports(&tree).iter().map(|p| p.int("nodePort")).collect();
        assert_eq!((given[0], given[1]), (30_053, 30_053));
        assert_ne!(given[2], 30_053);
        assert_eq!(chosen.taken, ports(&tree));
    }

    #[test]
    fn allocates_requested_port_without_automatic_ports() {
        let mut map = Bitmap::new((30_000, 30_099));
        let mut tree =
            service("LoadBalancer", json!([{"port": 80, "nodePort": 30080}, {"port": 81}]));
        tree["spec"]["allocateLoadBalancerNodePorts"] = json!(false);
        let chosen = choose_ports(&tree, None, &mut map).unwrap();
        assert_eq!((chosen.node_ports, map.has(30_080)), (vec![30_080, 0], true));
        let again = message(choose_ports(&tree, None, &mut map).unwrap_err());
        assert_eq!(
            again,
            "spec.ports[0].nodePort: Invalid value: 30080: provided port is already allocated"
        );
    }

    #[test]
    fn keeps_ports_on_update_and_allocates_new_ones() {
        let mut map = Bitmap::new((30_000, 30_099));
        map.take(30_001).unwrap();
        let old = service("NodePort", json!([{"port": 80, "nodePort": 30001}]));
        let new = service(
            "NodePort",
            json!([{"port": 81, "nodePort": 30001}, {"port": 82, "nodePort": 30002}]),
        );
        let chosen = choose_ports(&new, Some(&old), &mut map).unwrap();
        assert_eq!(chosen.taken, BTreeSet::from([30_002]));
        let greedy = service("NodePort", json!([{"port": 83, "nodePort": 30002}]));
        assert!(
            message(choose_ports(&greedy, Some(&old), &mut map).unwrap_err())
                .contains("already allocated")
        );
        for (port, said) in [(80, "80"), (-1, "-1"), (99_999, "99999")] {
            let outside = service("NodePort", json!([{"port": 83, "nodePort": port}]));
            let told = message(choose_ports(&outside, None, &mut map).unwrap_err());
            assert_eq!(
                told,
                format!(
                    "spec.ports[0].nodePort: Invalid value: {said}: provided port is not in the valid range. The range of valid ports is 30000-30099"
                )
            );
        }
    }

    #[test]
    fn allocates_separate_health_check_port() {
        let mut map = Bitmap::new((30_000, 30_001));
        let mut tree = service("LoadBalancer", json!([{"port": 80, "nodePort": 30000}]));
        tree["spec"]["externalTrafficPolicy"] = json!("Local");
        tree["spec"]["healthCheckNodePort"] = json!(30_001);
        let chosen = choose_ports(&tree, None, &mut map).unwrap();
        assert_eq!((chosen.health_check, chosen.taken.len()), (Some(30_001), 2));
        tree["spec"]["ports"][0]["nodePort"] = Value::Null;
        let full = message(choose_ports(&tree, None, &mut map).unwrap_err());
        assert_eq!(full, "failed to allocate a nodePort: range is full");
        map.release(30_000);
        let taken = message(choose_ports(&tree, None, &mut map).unwrap_err());
        assert_eq!(
            taken,
            "failed to allocate requested HealthCheck NodePort 30001: provided port is already allocated"
        );
        let before = service("NodePort", json!([{"port": 80, "nodePort": 30000}]));
        let mut full = Bitmap::new((30_000, 30_000));
        full.take(30_000).unwrap();
        tree["spec"]["healthCheckNodePort"] = Value::Null;
        tree["spec"]["ports"][0]["nodePort"] = json!(30_000);
        let none = message(choose_ports(&tree, Some(&before), &mut full).unwrap_err());
        assert_eq!(none, "failed to allocate a HealthCheck NodePort 0: range is full");
    }

    #[test]
    fn derives_address_requests_from_families() {
        let both = ["IPv4", "IPv6"];
        let wanted =
            |mut tree: Value, old: Option<&Value>| requested_addresses(&mut tree, old, &both);
        assert_eq!(wanted(json!({"spec": {"type": "ExternalName"}}), None), Ok(vec![]));
        assert_eq!(
            wanted(json!({"spec": {"clusterIP": "None", "selector": {"a": "b"}}}), None),
            Ok(vec![])
        );
        assert_eq!(wanted(json!({"spec": {}}), None), Ok(vec![AddressRequest::Any]));
        let dual = json!({"spec": {"ipFamilyPolicy": "PreferDualStack", "clusterIP": "10.0.0.9"}});
        let requested: IpAddr = "10.0.0.9".parse().unwrap();
        assert_eq!(
            wanted(dual.clone(), None),
            Ok(vec![AddressRequest::Exact(requested), AddressRequest::Any])
        );
        let old = json!({"spec": {"clusterIPs": ["10.0.0.9"], "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack"}});
        assert_eq!(
            wanted(dual, Some(&old)),
            Ok(vec![AddressRequest::Keep(requested), AddressRequest::Any])
        );
        assert!(wanted(json!({"spec": {"clusterIP": "10.0.0"}}), None).is_err());
    }
}
