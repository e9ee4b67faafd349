//! A Pod, compiled for scheduling.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Deserializer};

use crate::{
    host_port::HostPort,
    labels::{Labels, Selector},
    nodeaffinity::{NodeSelector, NodeTerm},
    resources::{Resources, pod_limits, pod_requests},
    sym::Sym,
    taints::Toleration,
    terms::PodTerm,
    view::{ContainerView, PodSpecView, PodTermView, PodView, SpreadView},
};

/// A Pod's identity.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct PodRef {
    /// The namespace.
    pub namespace: Arc<str>,
    /// The name.
    pub name: Arc<str>,
    /// The uid.
    pub uid: Arc<str>,
}

impl fmt::Display for PodRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A topology spread constraint.
#[derive(Clone, Debug)]
pub(crate) struct Spread {
    pub(crate) topology: Sym,
    pub(crate) max_skew: i64,
    pub(crate) min_domains: i64,
    pub(crate) hard: bool,
    pub(crate) selector: Selector,
    pub(crate) honor_affinity: bool,
    pub(crate) honor_taints: bool,
}

/// An entry of a Pod's ResourceClaims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PodClaim {
    /// A claim that the Pod names.
    Named(Box<str>),
    /// A claim that a controller created for the Pod.
    Generated(Box<str>),
    /// A claim that a controller has yet to create for the Pod.
    Pending,
    /// No claim is needed, as a controller found.
    NotNeeded,
}

/// The time at which a container runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContainerRole {
    /// An init container, which ends before the next one starts.
    Init,
    /// An init container that runs beside all later ones.
    Sidecar,
    /// A container that runs after the init containers.
    Main,
}

/// An amount of an extended resource that a container requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExtendedRequest {
    /// The name of the container.
    pub(crate) container: Box<str>,
    /// The position of the container, init containers first.
    pub(crate) container_index: usize,
    pub(crate) role: ContainerRole,
    /// The position among the container's extended resources, by name.
    pub(crate) index: usize,
    /// The extended resource.
    pub(crate) resource: Box<str>,
    pub(crate) symbol: Sym,
    pub(crate) amount: i64,
}

/// A Pod with the fields that scheduling needs. Informers decode it from the API's JSON and cache nothing else.
#[derive(Debug)]
pub struct Pod {
    /// The identity.
    pub id: PodRef,
    /// The resourceVersion.
    pub resource_version: Box<str>,
    /// The generation, which conditions report as observed.
    pub generation: i64,
    /// The scheduler name, which selects a profile.
    pub scheduler_name: Arc<str>,
    /// The node; `None` before binding.
    pub node_name: Option<Arc<str>>,
    /// The node that preemption nominated for the Pod.
    pub nominated_node: Option<Arc<str>>,
    /// The priority.
    pub priority: i32,
    /// `true` if the preemption policy is `Never`.
    pub never_preempts: bool,
    /// The creation time in RFC 3339, which sorts as text.
    pub created: Box<str>,
    /// The start time in RFC 3339; empty before the start.
    pub started: Box<str>,
    /// `true` if the Pod is being deleted. It uses its resources until it is gone.
    pub terminating: bool,
    /// `true` if the Pod succeeded or failed, and so uses no resources of its node.
    pub finished: bool,
    /// The name of the PodGroup that the Pod belongs to.
    pub group: Option<Arc<str>>,
    /// The names of the scheduling gates; a gated Pod is not tried.
    pub gates: Vec<Box<str>>,
    /// The reason and message of the PodScheduled condition if the Pod has no node.
    unscheduled: Option<(Box<str>, Box<str>)>,
    /// The labels.
    pub labels: Labels,
    /// The requested resources.
    pub requests: Resources,
    /// The limits, for metrics.
    pub limits: Resources,
    /// The names of the requested extended resources, in the order of `requests`.
    pub extended_names: Vec<Box<str>>,
    /// The features that a node must declare.
    pub(crate) required_features: Vec<&'static str>,
    pub(crate) namespace_symbol: Sym,
    pub(crate) scored: [i64; 2],
    pub(crate) ports: Vec<HostPort>,
    pub(crate) node_selector: Option<NodeSelector>,
    pub(crate) preferred_nodes: Vec<(i64, NodeTerm)>,
    pub(crate) tolerations: Vec<Toleration>,
    pub(crate) spread: Vec<Spread>,
    pub(crate) affinity: Vec<Arc<PodTerm>>,
    pub(crate) anti_affinity: Vec<Arc<PodTerm>>,
    /// The preferred terms with weights; negative ones are anti-affinity.
    pub(crate) preferred_pods: Vec<(i64, Arc<PodTerm>)>,
    pub(crate) images: Vec<Sym>,
    pub(crate) claims: Vec<Box<str>>,
    pub(crate) device_claims: Vec<PodClaim>,
    pub(crate) extended_requests: Vec<ExtendedRequest>,
    pub(crate) controller: Option<(Sym, Sym)>,
}

impl<'de> Deserialize<'de> for Pod {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        PodView::deserialize(deserializer).map(|view| Pod::new(&view))
    }
}

impl Pod {
    /// Compiles a Pod: sums its requests and converts its terms to symbols.
    pub fn new(view: &PodView) -> Self {
        let (meta, spec) = (&view.metadata, &view.spec);
        let labels = Labels::from_map(&meta.labels);
        let namespace_symbol = Sym::of(&meta.namespace);
        let (requests, scored) = pod_requests(spec);
        let term = |view: &PodTermView| Arc::new(PodTerm::new(view, namespace_symbol, &labels));
        let affinity = spec.affinity.as_ref();
        let pods = affinity.and_then(|a| a.pod_affinity.as_ref());
        let anti = affinity.and_then(|a| a.pod_anti_affinity.as_ref());
        let nodes = affinity.and_then(|a| a.node_affinity.as_ref());
        let preferred = |view: Option<&crate::view::PodAffinityView>, sign: i64| {
            let terms = view.map_or(&[][..], |v| &v.preferred);
            terms.iter().map(|p| (sign * p.weight, term(&p.pod_affinity_term))).collect::<Vec<_>>()
        };
        Self {
            id: PodRef {
                namespace: meta.namespace.clone(),
                name: meta.name.clone(),
                uid: meta.uid.clone(),
            },
            resource_version: meta.resource_version.clone(),
            generation: meta.generation,
            scheduler_name: spec
                .scheduler_name
                .clone()
                .unwrap_or_else(|| "default-scheduler".into()),
            node_name: spec.node_name.clone().filter(|n| !n.is_empty()),
            nominated_node: view.status.nominated_node_name.clone().filter(|n| !n.is_empty()),
            priority: spec.priority.unwrap_or(0),
            never_preempts: spec.preemption_policy.as_deref() == Some("Never"),
            created: meta.creation_timestamp.clone().unwrap_or_default(),
            started: view.status.start_time.clone().unwrap_or_default(),
            terminating: meta.deletion_timestamp.is_some(),
            finished: matches!(&*view.status.phase, "Succeeded" | "Failed"),
            unscheduled: unscheduled(view),
            group: spec.scheduling_group.as_ref().and_then(|group| group.pod_group_name.clone()),
            gates: spec.scheduling_gates.iter().map(|g| g.name.clone()).collect(),
            extended_names: extended_names(spec, &requests),
            required_features: required_features(spec),
            requests,
            limits: pod_limits(spec),
            scored,
            ports: host_ports(spec),
            node_selector: NodeSelector::new(
                &spec.node_selector,
                nodes.and_then(|n| n.required.as_ref()),
            ),
            preferred_nodes: nodes.map_or_else(Vec::new, |n| {
                n.preferred.iter().map(|p| (p.weight, NodeTerm::new(&p.preference))).collect()
            }),
            tolerations: spec.tolerations.iter().map(Toleration::new).collect(),
            spread: spec.topology_spread_constraints.iter().map(|v| spread(v, &labels)).collect(),
            affinity: pods.map_or_else(Vec::new, |a| a.required.iter().map(term).collect()),
            anti_affinity: anti.map_or_else(Vec::new, |a| a.required.iter().map(term).collect()),
            preferred_pods: [preferred(pods, 1), preferred(anti, -1)].concat(),
            images: spec.init_containers.iter().chain(&spec.containers).map(image).collect(),
            claims: claims(&meta.name, spec),
            device_claims: device_claims(view),
            extended_requests: extended_requests(spec),
            controller: meta
                .owner_references
                .iter()
                .find(|o| o.controller == Some(true))
                .map(|o| (Sym::of(&o.kind), Sym::of(&o.name))),
            namespace_symbol,
            labels,
        }
    }

    /// Returns `true` if the Pod's status says that it has no node, for this reason.
    pub fn has_condition(&self, reason: &str, message: &str) -> bool {
        self.unscheduled.as_ref().is_some_and(|(r, m)| **r == *reason && **m == *message)
    }

    /// Returns `true` if an update cannot help a waiting Pod; most updates only change the status.
    pub(crate) fn schedules_like(&self, other: &Pod) -> bool {
        self.labels == other.labels
            && self.tolerations == other.tolerations
            && self.requests == other.requests
            && self.gates == other.gates
            && self.priority == other.priority
            && self.device_claims == other.device_claims
    }

    pub(crate) fn requests_nothing(&self) -> bool {
        self.requests.cpu == 0 && self.requests.memory == 0
    }
}

fn unscheduled(view: &PodView) -> Option<(Box<str>, Box<str>)> {
    let mut conditions = view.status.conditions.iter();
    let condition = conditions.find(|c| &*c.r#type == "PodScheduled" && &*c.status == "False")?;
    Some((condition.reason.clone(), condition.message.clone()))
}

/// Returns the features that a node must declare, because older kubelets ignore fields of the Pod.
fn required_features(spec: &PodSpecView) -> Vec<&'static str> {
    let containers = spec.init_containers.iter().chain(&spec.containers);
    let mut rules = containers.flat_map(|container| &container.restart_policy_rules);
    let restarts_all = rules.any(|rule| &*rule.action == "RestartAllContainers");
    restarts_all.then_some("RestartAllContainersOnContainerExits").into_iter().collect()
}

fn host_ports(spec: &PodSpecView) -> Vec<HostPort> {
    let sidecars =
        spec.init_containers.iter().filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let ports = sidecars.chain(&spec.containers).flat_map(|c| &c.ports);
    ports
        .filter_map(|port| {
            let number = port.host_port.filter(|p| *p != 0)?;
            let address = match port.host_ip.as_deref().unwrap_or("") {
                "" | "0.0.0.0" | "::" => Sym::NONE,
                one => Sym::of(one),
            };
            let protocol = Sym::of(port.protocol.as_deref().unwrap_or("TCP"));
            Some(HostPort { port: number, protocol, address })
        })
        .collect()
}

/// Returns the requests of containers for extended resources, whose names have a domain.
fn extended_requests(spec: &PodSpecView) -> Vec<ExtendedRequest> {
    let role = |container: &ContainerView| match container.restart_policy.as_deref() {
        Some("Always") => ContainerRole::Sidecar,
        _ => ContainerRole::Init,
    };
    let init = spec.init_containers.iter().map(|container| (role(container), container));
    let main = spec.containers.iter().map(|container| (ContainerRole::Main, container));
    let mut out = Vec::new();
    for (container_index, (role, container)) in init.chain(main).enumerate() {
        let requests = container.resources.iter().flat_map(|resources| &resources.requests);
        let extended = requests.filter(|(name, _)| name.contains('/'));
        out.extend(extended.enumerate().map(|(index, (resource, amount))| ExtendedRequest {
            container: container.name.clone(),
            container_index,
            role,
            index,
            resource: resource.clone(),
            symbol: Sym::of(resource),
            amount: amount.value(),
        }));
    }
    out.retain(|request| request.amount > 0);
    out
}

fn extended_names(spec: &PodSpecView, requests: &Resources) -> Vec<Box<str>> {
    let containers = spec.init_containers.iter().chain(&spec.containers);
    let keys = containers.flat_map(|c| c.resources.iter().flat_map(|r| r.requests.keys()));
    let keys = keys.chain(spec.overhead.keys());
    let names: std::collections::HashMap<Sym, &Box<str>> = keys.map(|n| (Sym::of(n), n)).collect();
    let name =
        |(symbol, _): &(Sym, i64)| names.get(symbol).map_or_else(Box::default, |n| (*n).clone());
    requests.extended.iter().map(name).collect()
}

pub(crate) fn spread(view: &SpreadView, labels: &Labels) -> Spread {
    // A constraint without a selector counts no Pods.
    let mut selector = view.label_selector.as_ref().map_or_else(nothing, Selector::new);
    for key in view.match_label_keys.iter().map(|k| Sym::of(k)) {
        labels.get(key).into_iter().for_each(|value| selector.require(key, value));
    }
    Spread {
        topology: Sym::of(&view.topology_key),
        max_skew: i64::from(view.max_skew),
        min_domains: i64::from(view.min_domains.unwrap_or(1)),
        hard: &*view.when_unsatisfiable != "ScheduleAnyway",
        selector,
        honor_affinity: view.node_affinity_policy.as_deref() != Some("Ignore"),
        honor_taints: view.node_taints_policy.as_deref() == Some("Honor"),
    }
}

fn nothing() -> Selector {
    let mut selector = Selector::default();
    selector.require(Sym::NONE, Sym::NONE);
    selector
}

fn image(container: &ContainerView) -> Sym {
    Sym::of_image(&container.image)
}

fn claims(pod: &str, spec: &PodSpecView) -> Vec<Box<str>> {
    let named = |volume: &crate::view::VolumeView| match &volume.persistent_volume_claim {
        Some(source) => Some(source.claim_name.clone()),
        // The claim of a generic ephemeral volume is named after Pod and volume.
        None => volume.ephemeral.map(|_| format!("{pod}-{}", volume.name).into()),
    };
    spec.volumes.iter().filter_map(named).collect()
}

fn device_claims(view: &PodView) -> Vec<PodClaim> {
    let statuses = &view.status.resource_claim_statuses;
    let of = |claim: &crate::view::PodClaimView| {
        if let Some(name) = &claim.resource_claim_name {
            return PodClaim::Named(name.clone());
        }
        match statuses.iter().find(|status| status.name == claim.name) {
            None => PodClaim::Pending,
            Some(status) => {
                status.resource_claim_name.clone().map_or(PodClaim::NotNeeded, PodClaim::Generated)
            }
        }
    };
    view.spec.resource_claims.iter().map(of).collect()
}
