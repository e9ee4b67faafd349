//! Claims, volumes and classes for scheduling, and the volumes reserved for Pods that are being bound.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use api_meta::Quantity;

use crate::{
    labels::{Labels, Selector},
    maps::set,
    node::Node,
    nodeaffinity::NodeSelector,
    pod::Pod,
    sym::Sym,
    view::{
        BindingMetaView, CsiDriverView, CsiNodeView, PersistentVolumeView, StorageCapacityView,
        StorageClassView, VolumeClaimView,
    },
};

const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const CLASS: &str = "volume.beta.kubernetes.io/storage-class";
/// The provisioner of classes whose volumes administrators create.
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";
/// The labels that hold a volume's zone or region.
const ZONES: [&str; 4] = [
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
];

/// The fields of a claim that scheduling needs.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    uid: Box<str>,
    /// The volume that the claim names, and whether the binding is complete.
    volume: Option<Box<str>>,
    is_bound: bool,
    pub(crate) terminating: bool,
    pub(crate) lost: bool,
    pub(crate) one_pod_only: bool,
    class: Box<str>,
    selected_node: Option<Box<str>>,
    block: bool,
    modes: Vec<Box<str>>,
    size: Quantity,
    selector: Option<Selector>,
}

impl Claim {
    fn new(view: &VolumeClaimView) -> Self {
        let (meta, spec) = (&view.metadata, &view.spec);
        Self {
            uid: meta.uid.clone(),
            volume: spec.volume_name.clone().filter(|v| !v.is_empty()),
            is_bound: meta.annotations.contains_key(BIND_COMPLETED),
            terminating: meta.deletion_timestamp.is_some(),
            lost: &*view.status.phase == "Lost",
            one_pod_only: spec.access_modes.iter().any(|m| &**m == "ReadWriteOncePod"),
            class: class(meta, spec.storage_class_name.as_deref()),
            selected_node: meta.annotations.get(SELECTED_NODE).cloned(),
            block: spec.volume_mode.as_deref() == Some("Block"),
            modes: spec.access_modes.clone(),
            size: spec.resources.requests.get("storage").copied().unwrap_or_default(),
            selector: spec.selector.as_ref().map(Selector::new),
        }
    }

    /// Returns the bound volume.
    pub(crate) fn bound(&self) -> Option<&str> {
        self.volume.as_deref().filter(|_| self.is_bound)
    }
}

fn class(meta: &BindingMetaView, field: Option<&str>) -> Box<str> {
    let annotated = meta.annotations.get(CLASS).map(|class| &**class);
    annotated.or(field).unwrap_or("").into()
}

/// The claim that a volume is reserved for.
#[derive(Clone, Debug)]
struct ClaimRef {
    namespace: Box<str>,
    name: Box<str>,
    /// The uid; empty before binding.
    uid: Box<str>,
}

/// The fields of a volume that scheduling needs.
#[derive(Clone, Debug)]
pub(crate) struct Volume {
    /// The nodes that can reach the volume; `None` for all.
    pub(crate) nodes: Option<NodeSelector>,
    /// Labels that the node must have, each with its allowed values.
    pub(crate) zones: Vec<(Sym, Vec<Sym>)>,
    labels: Labels,
    class: Box<str>,
    block: bool,
    modes: Vec<Box<str>>,
    size: Quantity,
    free: bool,
    /// The CSI driver and the volume handle.
    csi: Option<(Box<str>, Box<str>)>,
    /// The claim that the volume is reserved for.
    claim: Option<ClaimRef>,
}

impl Volume {
    fn new(view: &PersistentVolumeView) -> Self {
        let (meta, spec) = (&view.metadata, &view.spec);
        let required = spec.node_affinity.as_ref().and_then(|a| a.required.as_ref());
        let zones = ZONES.iter().filter_map(|zone| {
            let values = meta.labels.get(*zone)?;
            Some((Sym::of(zone), values.split("__").map(Sym::of).collect()))
        });
        let claim = spec.claim_ref.as_ref();
        let csi = spec.csi.as_ref();
        Self {
            csi: csi.map(|csi| (csi.driver.clone(), csi.volume_handle.clone())),
            nodes: NodeSelector::new(&Default::default(), required),
            zones: zones.collect(),
            labels: Labels::from_map(&meta.labels),
            class: class(meta, spec.storage_class_name.as_deref()),
            block: spec.volume_mode.as_deref() == Some("Block"),
            modes: spec.access_modes.clone(),
            size: spec.capacity.get("storage").copied().unwrap_or_default(),
            free: &*view.status.phase == "Available" && meta.deletion_timestamp.is_none(),
            claim: claim.map(|claim| ClaimRef {
                namespace: claim.namespace.clone(),
                name: claim.name.clone(),
                uid: claim.uid.clone().unwrap_or_default(),
            }),
        }
    }

    fn fits(&self, key: &Key, claim: &Claim) -> bool {
        let is_for_claim = |of: &ClaimRef| {
            *of.namespace == *key.0
                && of.name == key.1
                && (of.uid.is_empty() || of.uid == claim.uid)
        };
        self.free
            && self.claim.as_ref().is_none_or(is_for_claim)
            && self.class == claim.class
            && self.block == claim.block
            && self.size >= claim.size
            && claim.modes.iter().all(|mode| self.modes.contains(mode))
            && claim.selector.as_ref().is_none_or(|selector| selector.matches(&self.labels))
    }

    pub(crate) fn reaches(&self, node: &Node) -> bool {
        self.nodes.as_ref().is_none_or(|nodes| nodes.matches(node))
    }
}

#[derive(Clone, Debug)]
struct Class {
    waits: bool,
    provisions: bool,
    provisioner: Box<str>,
    /// The allowed topologies: label keys with allowed values. Empty for any node.
    topologies: Vec<Vec<(Sym, Vec<Sym>)>>,
}

impl Class {
    fn new(view: &StorageClassView) -> Self {
        let topologies = view.allowed_topologies.iter().map(|term| {
            let labels = term.match_label_expressions.iter();
            labels
                .map(|l| (Sym::of(&l.key), l.values.iter().map(|v| Sym::of(v)).collect()))
                .collect()
        });
        Self {
            waits: view.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"),
            provisioner: view.provisioner.clone(),
            provisions: !view.provisioner.is_empty() && &*view.provisioner != NO_PROVISIONER,
            topologies: topologies.collect(),
        }
    }

    fn allows(&self, node: &Node) -> bool {
        let holds = |(key, values): &(Sym, Vec<Sym>)| {
            node.labels.get(*key).is_some_and(|value| values.contains(&value))
        };
        self.topologies.is_empty() || self.topologies.iter().any(|term| term.iter().all(holds))
    }
}

/// The storage capacity for volumes of a class on some nodes.
#[derive(Clone, Debug)]
struct StorageCapacity {
    class: Box<str>,
    /// The nodes; `None` for no node.
    nodes: Option<Selector>,
    /// The largest volume that can be created; `None` if unknown.
    largest: Option<Quantity>,
}

impl StorageCapacity {
    fn new(view: &StorageCapacityView) -> Self {
        Self {
            class: view.storage_class_name.clone(),
            nodes: view.node_topology.as_ref().map(Selector::new),
            largest: view.maximum_volume_size.or(view.capacity),
        }
    }

    fn is_for(&self, claim: &Claim, node: &Node) -> bool {
        self.class == claim.class
            && self.largest.is_some_and(|largest| largest >= claim.size)
            && self.nodes.as_ref().is_some_and(|nodes| nodes.matches(&node.labels))
    }
}

/// The thing that a node lacks for a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lack {
    Volume,
    Capacity,
}

type Key = (Arc<str>, Box<str>);

/// The binding to write for one claim of a Pod that was given a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimBinding {
    /// The claim's name.
    pub claim: Box<str>,
    /// The claim's uid.
    pub uid: Box<str>,
    /// The volume to bind; `None` if a volume is to be provisioned for the node.
    pub volume: Option<Box<str>>,
}

/// The progress of a Pod's bindings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    Bound,
    Waiting,
    /// The binding failed; the Pod needs another node.
    Refused(String),
}

/// The identity of a driver's volume: its handle, or the claim that it is provisioned for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum VolumeIdentity<'a> {
    Handle(&'a str),
    Claim(&'a str, &'a str),
}

/// Claims, volumes, and the number of running Pods that use each claim.
#[derive(Default)]
pub(crate) struct Volumes {
    claims: HashMap<Key, Claim>,
    volumes: HashMap<Box<str>, Volume>,
    classes: HashMap<Box<str>, Class>,
    users: HashMap<Key, u32>,
    /// The largest number of volumes, by node and driver.
    limits: HashMap<Box<str>, HashMap<Box<str>, u32>>,
    /// The drivers that publish storage capacity, and the capacities by namespace and name.
    capacity_drivers: HashSet<Box<str>>,
    capacities: HashMap<Key, StorageCapacity>,
    /// Volumes that are being bound, by the uids of their Pods.
    reserved: HashMap<Arc<str>, Vec<Box<str>>>,
}

impl Volumes {
    pub(crate) fn set_claim(
        &mut self,
        namespace: &Arc<str>,
        name: &str,
        view: Option<&VolumeClaimView>,
    ) {
        let key = (namespace.clone(), name.into());
        set(&mut self.claims, key, view.map(Claim::new));
    }

    pub(crate) fn set_volume(&mut self, name: &str, view: Option<&PersistentVolumeView>) {
        set(&mut self.volumes, name.into(), view.map(Volume::new));
    }

    pub(crate) fn set_class(&mut self, name: &str, view: Option<&StorageClassView>) {
        set(&mut self.classes, name.into(), view.map(Class::new));
    }

    pub(crate) fn set_csi_node(&mut self, node: &str, view: Option<&CsiNodeView>) {
        let drivers = view.into_iter().flat_map(|view| &view.spec.drivers);
        let limits: HashMap<_, _> = drivers
            .filter_map(|driver| Some((driver.name.clone(), driver.allocatable.as_ref()?.count?)))
            .collect();
        set(&mut self.limits, node.into(), (!limits.is_empty()).then_some(limits));
    }

    pub(crate) fn set_driver(&mut self, name: &str, view: Option<&CsiDriverView>) {
        match view.and_then(|view| view.spec.storage_capacity) {
            Some(true) => drop(self.capacity_drivers.insert(name.into())),
            _ => drop(self.capacity_drivers.remove(name)),
        }
    }

    pub(crate) fn set_capacity(
        &mut self,
        namespace: &Arc<str>,
        name: &str,
        view: Option<&StorageCapacityView>,
    ) {
        let key = (namespace.clone(), name.into());
        set(&mut self.capacities, key, view.map(StorageCapacity::new));
    }

    /// Reports whether any node limits the number of volumes.
    pub(crate) fn has_limits(&self) -> bool {
        !self.limits.is_empty()
    }

    /// Returns the CSI volumes of a Pod: the driver, and the identity of the volume.
    pub(crate) fn of_drivers<'a>(
        &'a self,
        pod: &'a Pod,
    ) -> impl Iterator<Item = (&'a str, VolumeIdentity<'a>)> {
        pod.claims.iter().filter_map(|name| {
            let claim = self.claim(pod, name)?;
            if let Some(volume) = &claim.volume {
                let (driver, handle) = self.volumes.get(volume)?.csi.as_ref()?;
                return Some((&**driver, VolumeIdentity::Handle(handle)));
            }
            let class = self.classes.get(&claim.class).filter(|class| class.provisions)?;
            Some((&*class.provisioner, VolumeIdentity::Claim(&pod.id.namespace, name)))
        })
    }

    /// Reports whether a node's limits allow these volumes beside those of its Pods.
    pub(crate) fn within_limits(
        &self,
        node: &Node,
        added: &HashSet<(&str, VolumeIdentity<'_>)>,
    ) -> bool {
        let Some(limits) = self.limits.get(&*node.name) else { return true };
        if !added.iter().any(|(driver, _)| limits.contains_key(*driver)) {
            return true;
        }
        let has: HashSet<_> = node.pods.iter().flat_map(|pod| self.of_drivers(pod)).collect();
        limits.iter().all(|(driver, most)| {
            let of = |volumes: &mut dyn Iterator<Item = &(&str, VolumeIdentity<'_>)>| {
                volumes.filter(|(of, _)| *of == &**driver).count()
            };
            let new = of(&mut added.iter().filter(|volume| !has.contains(*volume)));
            new == 0 || of(&mut has.iter()) + new <= *most as usize
        })
    }

    pub(crate) fn claim(&self, pod: &Pod, name: &str) -> Option<&Claim> {
        self.claims.get(&(pod.id.namespace.clone(), Box::from(name)))
    }

    pub(crate) fn users(&self, pod: &Pod, name: &str) -> u32 {
        self.users.get(&(pod.id.namespace.clone(), Box::from(name))).copied().unwrap_or(0)
    }

    pub(crate) fn volume(&self, name: &str) -> Option<&Volume> {
        self.volumes.get(name)
    }

    /// Reports whether the claim waits for the node of its first Pod.
    pub(crate) fn waits_for_consumer(&self, claim: &Claim) -> bool {
        claim.volume.is_none() && self.classes.get(&claim.class).is_some_and(|class| class.waits)
    }

    /// Chooses volumes for the Pod's waiting claims on the node, or returns what the node lacks. In the Pod's order,
    /// each claim gets the smallest matching volume that is not chosen yet.
    pub(crate) fn choose(&self, pod: &Pod, node: &Node) -> Result<Vec<ClaimBinding>, Lack> {
        if pod.claims.is_empty() {
            return Ok(Vec::new());
        }
        let mut reserved: HashSet<&str> =
            self.reserved.values().flatten().map(|volume| &**volume).collect();
        let mut out = Vec::new();
        for name in &pod.claims {
            let key = (pod.id.namespace.clone(), name.clone());
            let claim = self.claims.get(&key).ok_or(Lack::Volume)?;
            if claim.bound().is_some() || out.iter().any(|b: &ClaimBinding| b.claim == *name) {
                continue;
            }
            let fits = self.volumes.iter().filter(|(name, volume)| {
                !reserved.contains(&***name) && volume.fits(&key, claim) && volume.reaches(node)
            });
            // Prefer a volume that is reserved for the claim.
            let best = fits.min_by_key(|(name, v)| (v.claim.is_none(), v.size, (*name).clone()));
            let volume = best.map(|(name, _)| name);
            if volume.is_none() {
                self.can_provision(claim, node)?;
            }
            reserved.extend(volume.map(|volume| &**volume));
            let (claim, uid) = (name.clone(), claim.uid.clone());
            out.push(ClaimBinding { claim, uid, volume: volume.cloned() });
        }
        Ok(out)
    }

    fn can_provision(&self, claim: &Claim, node: &Node) -> Result<(), Lack> {
        let class = self.classes.get(&claim.class);
        let class = class.filter(|class| class.provisions && class.allows(node));
        // A volume may be in provisioning for another selected node.
        let other_node = claim.selected_node.as_ref().is_some_and(|chosen| **chosen != *node.name);
        let class = class.filter(|_| !other_node).ok_or(Lack::Volume)?;
        let publishes = self.capacity_drivers.contains(&class.provisioner);
        if !publishes || self.capacities.values().any(|room| room.is_for(claim, node)) {
            Ok(())
        } else {
            Err(Lack::Capacity)
        }
    }

    /// Reserves the chosen volumes for the Pod.
    pub(crate) fn reserve(&mut self, pod: &Pod, chosen: &[ClaimBinding]) {
        let volumes: Vec<_> = chosen.iter().filter_map(|binding| binding.volume.clone()).collect();
        if !volumes.is_empty() {
            self.reserved.insert(pod.id.uid.clone(), volumes);
        }
    }

    /// Releases the reservations of a Pod that is bound, deleted or gets another node.
    pub(crate) fn forget(&mut self, uid: &str) {
        self.reserved.remove(uid);
    }

    pub(crate) fn progress(&self, pod: &Pod, claims: &[ClaimBinding]) -> Progress {
        let mut progress = Progress::Bound;
        for binding in claims {
            let name = &binding.claim;
            let claim = self.claim(pod, name).filter(|claim| claim.uid == binding.uid);
            let Some(claim) = claim.filter(|claim| !claim.terminating) else {
                return Progress::Refused(format!("persistentvolumeclaim \"{name}\" is gone"));
            };
            match claim.bound() {
                Some(volume) if self.volumes.contains_key(volume) => {}
                _ => progress = Progress::Waiting,
            }
        }
        progress
    }

    /// Reports whether the provisioner has reset the selected node of a claim.
    pub(crate) fn is_node_rejected(&self, pod: &Pod, binding: &ClaimBinding) -> bool {
        let claim = self.claim(pod, &binding.claim);
        binding.volume.is_none()
            && claim.is_some_and(|claim| claim.bound().is_none() && claim.selected_node.is_none())
    }

    pub(crate) fn add_pod(&mut self, pod: &Pod) {
        for claim in &pod.claims {
            *self.users.entry((pod.id.namespace.clone(), claim.clone())).or_default() += 1;
        }
    }

    pub(crate) fn remove_pod(&mut self, pod: &Pod) {
        for claim in &pod.claims {
            let key = (pod.id.namespace.clone(), claim.clone());
            if let Some(users) = self.users.get_mut(&key) {
                *users -= 1;
                if *users == 0 {
                    self.users.remove(&key);
                }
            }
        }
    }
}
