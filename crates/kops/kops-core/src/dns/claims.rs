//! The names that objects claim, and their targets.

use std::{collections::BTreeSet, net::IpAddr};

use api_meta::Tree as _;
use serde_json::Value;

use super::name::parse_name;

/// The annotation with names for addresses inside of the cluster's network, separated by commas.
pub const INTERNAL: &str = "dns.alpha.kubernetes.io/internal";
/// The annotation with names for addresses that are reachable from outside, separated by commas.
pub const EXTERNAL: &str = "dns.alpha.kubernetes.io/external";
/// The most names in an annotation of an object.
const MOST_NAMES: usize = 100;
/// The length of a value in a message.
const SHOWN: usize = 60;
const ROLE_LABEL: &str = "node-role.kubernetes.io/";
const OLD_ROLE_LABEL: &str = "kubernetes.io/role";
/// The role of workers, whose addresses NodePort Services have.
const WORKERS: &str = "node";

/// The kind of a Node's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Scope {
    Internal,
    External,
}

/// A set of Nodes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum NodeSet {
    /// The Node of a name: upstream's alias `node/NAME/SCOPE`.
    Name(String),
    /// The Nodes of a role: upstream's alias `node/role=ROLE/SCOPE`.
    Role(String),
}

/// A target of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Address(IpAddr, Scope),
    /// Another name, to which a CNAME record points.
    Host(String),
    /// The addresses of Nodes.
    Nodes(NodeSet, Scope),
}

/// Names with the same targets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) names: Vec<String>,
    pub(super) targets: Vec<Target>,
}

/// The names that an object claims. Most objects claim none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    /// The object, such as `Pod kube-system/a`; empty if it claims no name.
    pub(super) object: String,
    pub(super) namespace: String,
    pub(super) claims: Vec<Claim>,
    /// The reasons why parts of the annotations are ignored.
    pub(super) problems: Vec<String>,
}

/// A Node's addresses and roles.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeAddresses {
    pub(super) name: String,
    pub(super) roles: BTreeSet<String>,
    pub(super) internal: BTreeSet<IpAddr>,
    pub(super) external: BTreeSet<IpAddr>,
}

/// Reads the addresses and roles of a Node. An internal IPv6 address is external, too.
pub fn node_addresses(node: &Value) -> NodeAddresses {
    let mut found = NodeAddresses { name: node.name().to_owned(), ..NodeAddresses::default() };
    for (label, value) in node.pairs("metadata.labels") {
        if let Some(role) = label.strip_prefix(ROLE_LABEL) {
            found.roles.insert(role.to_owned());
        }
        if label == OLD_ROLE_LABEL {
            found.roles.extend(value.as_str().map(str::to_owned));
        }
    }
    for address in node.items("status.addresses") {
        let Ok(ip) = address.text("address").parse::<IpAddr>() else { continue };
        match address.text("type") {
            "InternalIP" => {
                found.internal.insert(ip);
                if ip.is_ipv6() {
                    found.external.insert(ip);
                }
            }
            "ExternalIP" => {
                found.external.insert(ip);
            }
            _ => {}
        }
    }
    found
}

/// Reads the claims of a Pod. Only Pods in their Node's network have some. A Pod that has ended keeps its names and
/// contributes no address.
pub fn pod_claims(pod: &Value) -> Claims {
    let mut reader = Reader::new("Pod", pod);
    if !pod.flag("spec.hostNetwork") {
        return reader.finish();
    }
    let node = NodeSet::Name(pod.text("spec.nodeName").to_owned());
    let (external, internal) = (reader.names(EXTERNAL), reader.names(INTERNAL));
    let ended = ["Succeeded", "Failed"].contains(&pod.text("status.phase"));
    let of_node = |scope| if ended { vec![] } else { vec![Target::Nodes(node.clone(), scope)] };
    let addresses: Vec<_> = match pod.items("status.podIPs") {
        _ if ended => vec![],
        // A Pod with addresses of both families has those of its Node.
        [_, _, ..] => of_node(Scope::Internal),
        ips => {
            let listed = ips.iter().map(|ip| ip.text("ip"));
            let first = listed.chain([pod.text("status.podIP")]).find_map(|ip| ip.parse().ok());
            first.into_iter().map(|ip| Target::Address(ip, Scope::Internal)).collect()
        }
    };
    reader.claim(external, of_node(Scope::External));
    reader.claim(internal, addresses);
    reader.finish()
}

/// Reads the claims of a Service of type LoadBalancer or NodePort.
pub fn service_claims(service: &Value) -> Claims {
    let mut reader = Reader::new("Service", service);
    let workers = |scope| vec![Target::Nodes(NodeSet::Role(WORKERS.to_owned()), scope)];
    match service.text("spec.type") {
        "LoadBalancer" => {
            let mut names = reader.names(EXTERNAL);
            names.extend(reader.names(INTERNAL));
            reader.claim(names, balancer_targets(service));
        }
        "NodePort" => {
            let (external, internal) = (reader.names(EXTERNAL), reader.names(INTERNAL));
            if !external.is_empty() && !internal.is_empty() {
                reader.problem("a NodePort Service cannot have internal and external names");
                // The names stay as they are, because the object still claims them.
                reader.claim([external, internal].concat(), vec![]);
                return reader.finish();
            }
            reader.claim(external, workers(Scope::External));
            reader.claim(internal, workers(Scope::Internal));
        }
        _ => {}
    }
    reader.finish()
}

/// Reads the claims of an Ingress: the hosts of its rules.
pub fn ingress_claims(ingress: &Value) -> Claims {
    let mut reader = Reader::new("Ingress", ingress);
    let hosts = ingress.items("spec.rules").iter().map(|rule| rule.text("host"));
    let names = reader.parse("its rules", hosts);
    reader.claim(names, balancer_targets(ingress));
    reader.finish()
}

/// Returns the addresses and host names of an object's load balancers.
fn balancer_targets(object: &Value) -> Vec<Target> {
    let target = |ingress: &Value| match ingress.text("ip").parse() {
        Ok(ip) => Some(Target::Address(ip, Scope::External)),
        Err(_) => parse_name(ingress.text("hostname")).map(Target::Host),
    };
    object.items("status.loadBalancer.ingress").iter().filter_map(target).collect()
}

/// Collects the claims of an object.
struct Reader<'a> {
    kind: &'static str,
    object: &'a Value,
    claims: Vec<Claim>,
    problems: Vec<String>,
}

impl<'a> Reader<'a> {
    fn new(kind: &'static str, object: &'a Value) -> Self {
        Self { kind, object, claims: Vec::new(), problems: Vec::new() }
    }

    fn problem(&mut self, problem: impl Into<String>) {
        self.problems.push(problem.into());
    }

    /// Returns the names in an annotation.
    fn names(&mut self, annotation: &str) -> Vec<String> {
        let object = self.object;
        self.parse(annotation, object.annotation(annotation).unwrap_or_default().split(','))
    }

    /// Parses names, and notes invalid ones. Of too many, none is used.
    fn parse<'n>(&mut self, place: &str, names: impl Iterator<Item = &'n str>) -> Vec<String> {
        let mut found = Vec::new();
        for text in names.map(str::trim).filter(|text| !text.is_empty()) {
            match parse_name(text) {
                Some(name) => found.push(name),
                None if self.problems.len() < MOST_NAMES => {
                    let shown: String = text.chars().take(SHOWN).collect();
                    self.problem(format!("{shown:?} in {place} is not a DNS name"));
                }
                None => {}
            }
            if found.len() > MOST_NAMES {
                self.problem(format!("{place} names more than {MOST_NAMES} names"));
                return Vec::new();
            }
        }
        found
    }

    fn claim(&mut self, names: Vec<String>, targets: Vec<Target>) {
        if !names.is_empty() {
            self.claims.push(Claim { names, targets });
        }
    }

    fn finish(self) -> Claims {
        if self.claims.is_empty() && self.problems.is_empty() {
            return Claims::default();
        }
        let (namespace, name) = (self.object.namespace(), self.object.name());
        Claims {
            object: format!("{} {namespace}/{name}", self.kind),
            namespace: namespace.to_owned(),
            claims: self.claims,
            problems: self.problems,
        }
    }
}
