//! Computes the next write for one claim or one volume.
//!
//! Binding takes four writes, and the process may end between any two. So each plan starts from the stored state and
//! returns only the next write. The first write sets the volume's `claimRef` on the version that was read, and decides
//! which claim gets the volume.

use std::sync::Arc;

use serde_json::{Value, json};

use super::matching::{best, mismatch, same_mode};
use crate::views::{ClaimRef, PersistentVolume, StorageClass, VolumeClaim};

pub(super) const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
pub(super) const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
pub(super) const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
pub(super) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const PROVISIONERS: [&str; 2] =
    ["volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner"];
/// The provisioner of classes whose volumes administrators create.
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Target {
    Claim,
    /// The volume of this name.
    Volume(String),
}

/// A merge patch that applies only to the version of the object that was planned on.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Write {
    pub(super) target: Target,
    pub(super) subresource: &'static str,
    pub(super) change: Value,
}

/// An Event.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PlannedEvent {
    pub(super) about: Target,
    pub(super) warning: bool,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Plan {
    pub(super) write: Option<Write>,
    pub(super) event: Option<PlannedEvent>,
    /// `true` if the claim must be reconciled next.
    pub(super) wakes_claim: bool,
}

impl Plan {
    fn of(write: Option<Write>) -> Self {
        Self { write, ..Self::default() }
    }

    fn with_event(self, warning: bool, reason: &'static str, message: impl Into<String>) -> Self {
        let event = PlannedEvent { about: Target::Claim, warning, reason, message: message.into() };
        Self { event: Some(event), ..self }
    }
}

/// The objects that a claim's plan depends on.
pub(super) struct Surroundings<'a> {
    pub(super) volumes: &'a [Arc<PersistentVolume>],
    pub(super) classes: &'a [Arc<StorageClass>],
    /// The names of the claim's unscheduled Pods.
    pub(super) waiting: &'a [String],
    /// `false` if no provisioner may be asked for a volume.
    pub(super) provisions: bool,
}

fn status(target: Target, status: Value) -> Write {
    Write { target, subresource: "status", change: json!({"status": status}) }
}

fn phase(claim: &VolumeClaim, phase: &str) -> Option<Write> {
    let lost = json!({"phase": phase, "accessModes": null, "capacity": null});
    (claim.status.phase != phase).then(|| status(Target::Claim, lost))
}

fn volume_phase(volume: &PersistentVolume, phase: &str, message: Option<&str>) -> Option<Write> {
    let target = Target::Volume(volume.metadata.name.clone());
    let new_status = json!({"phase": phase, "message": message, "reason": null});
    (volume.status.phase != phase).then(|| status(target, new_status))
}

/// Returns the next of the writes that bind the claim and the volume.
fn bind(claim: &VolumeClaim, volume: &PersistentVolume) -> Option<Write> {
    let (own, name) = (&claim.metadata, &volume.metadata.name);
    let reference = volume.spec.claim_ref.as_ref();
    if reference.is_none_or(|reference| reference.uid != own.uid) {
        let mut change = json!({"spec": {"claimRef": {
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": own.namespace,
            "name": own.name, "uid": own.uid, "resourceVersion": own.resource_version,
        }}});
        if reference.is_none() {
            api_meta::Tree::put(
                &mut change,
                &["metadata", "annotations", BOUND_BY_CONTROLLER],
                json!("yes"),
            );
        }
        return Some(Write { target: Target::Volume(name.clone()), subresource: "", change });
    }
    if let Some(write) = volume_phase(volume, "Bound", None) {
        return Some(write);
    }
    let chosen = claim.spec.volume_name != *name;
    if chosen || !claim.annotated(BIND_COMPLETED) {
        let mut change = json!({"spec": {"volumeName": name},
            "metadata": {"annotations": {BIND_COMPLETED: "yes"}}});
        if chosen {
            api_meta::Tree::put(
                &mut change,
                &["metadata", "annotations", BOUND_BY_CONTROLLER],
                json!("yes"),
            );
        }
        return Some(Write { target: Target::Claim, subresource: "", change });
    }
    let mut bound = json!({"phase": "Bound", "accessModes": volume.spec.access_modes,
        "capacity": {"storage": volume.size().to_string()}});
    if let Some(class) = volume.spec.volume_attributes_class_name.as_ref().filter(|c| !c.is_empty())
    {
        api_meta::Tree::put(&mut bound, &["currentVolumeAttributesClassName"], json!(class));
    }
    (claim.status.phase != "Bound").then(|| status(Target::Claim, bound))
}

pub(super) fn plan_claim(claim: &VolumeClaim, around: &Surroundings<'_>) -> Plan {
    let named = around.volumes.iter().find(|v| v.metadata.name == claim.spec.volume_name);
    if claim.annotated(BIND_COMPLETED) {
        return bound_claim(claim, named);
    }
    if claim.metadata.terminating() {
        // A volume that was bound now would have to be reclaimed at once.
        return Plan::default();
    }
    if claim.spec.volume_name.is_empty() {
        return unbound_claim(claim, around);
    }
    let pending = Plan::of(phase(claim, "Pending"));
    let Some(volume) = named else { return pending };
    let name = &volume.metadata.name;
    match &volume.spec.claim_ref {
        None => match mismatch(volume, claim) {
            None => Plan::of(bind(claim, volume)),
            Some(why) => {
                let message = format!("Cannot bind to requested volume \"{name}\": {why}");
                pending.with_event(true, "VolumeMismatch", message)
            }
        },
        Some(reference) if reference.names(&claim.metadata) => Plan::of(bind(claim, volume)),
        Some(_) => {
            let message = format!("volume \"{name}\" already bound to a different claim.");
            pending.with_event(true, "FailedBinding", message)
        }
    }
}

/// Plans for a claim that was bound: it stays bound or has lost its volume.
fn bound_claim(claim: &VolumeClaim, volume: Option<&Arc<PersistentVolume>>) -> Plan {
    let lost = |reason, message: &str| match phase(claim, "Lost") {
        Some(write) => Plan::of(Some(write)).with_event(true, reason, message),
        None => Plan::default(),
    };
    if claim.spec.volume_name.is_empty() {
        let message =
            "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!";
        return lost("ClaimLost", message);
    }
    let Some(volume) = volume else {
        let message = "Bound claim has lost its PersistentVolume. Data on the volume is lost!";
        return lost("ClaimLost", message);
    };
    match &volume.spec.claim_ref {
        Some(reference) if reference.uid != claim.metadata.uid => {
            let message = "Two claims are bound to the same volume, this one is bound incorrectly";
            lost("ClaimMisbound", message)
        }
        _ => Plan::of(bind(claim, volume)),
    }
}

fn unbound_claim(claim: &VolumeClaim, around: &Surroundings<'_>) -> Plan {
    let named = claim.class().unwrap_or("");
    let class = around.classes.iter().find(|class| class.metadata.name == named);
    let waits = class.is_some_and(|class| class.waits());
    if let Some(volume) = best(claim, around.volumes, waits) {
        return Plan::of(bind(claim, volume));
    }
    if let Some(default) = default_class(claim, around.classes) {
        let change = json!({"spec": {"storageClassName": default}});
        return Plan::of(Some(Write { target: Target::Claim, subresource: "", change }));
    }
    let pending = Plan::of(phase(claim, "Pending"));
    if waits && !claim.annotated(SELECTED_NODE) {
        let (reason, message) = match around.waiting {
            [] => (
                "WaitForFirstConsumer",
                "waiting for first consumer to be created before binding".to_owned(),
            ),
            [pod] => ("WaitForPodScheduled", format!("waiting for pod {pod} to be scheduled")),
            pods => (
                "WaitForPodScheduled",
                format!("waiting for pods {} to be scheduled", pods.join(",")),
            ),
        };
        return pending.with_event(false, reason, message);
    }
    if named.is_empty() {
        let message = "no persistent volumes available for this claim and no storage class is set";
        return pending.with_event(false, "FailedBinding", message);
    }
    if !around.provisions {
        return pending;
    }
    match class {
        Some(class) => provision(claim, class, pending),
        None => {
            let message = format!("storageclass.storage.k8s.io \"{named}\" not found");
            pending.with_event(true, "ProvisioningFailed", message)
        }
    }
}

/// Returns the default class for a claim that was created when there was none.
fn default_class<'a>(claim: &VolumeClaim, classes: &'a [Arc<StorageClass>]) -> Option<&'a str> {
    let defaults = classes.iter().filter(|class| class.is_default() && claim.class().is_none());
    let newest = defaults.min_by_key(|class| {
        (std::cmp::Reverse(class.metadata.creation_timestamp), class.metadata.name.clone())
    });
    newest.map(|class| class.metadata.name.as_str())
}

/// Annotates the claim for the class's external provisioner, which watches claims.
fn provision(claim: &VolumeClaim, class: &StorageClass, pending: Plan) -> Plan {
    let provisioner = &class.provisioner;
    if provisioner == NO_PROVISIONER {
        let message = format!(
            "no volume plugin matched name: {NO_PROVISIONER}: the volumes of this class are made by hand"
        );
        return pending.with_event(true, "ProvisioningFailed", message);
    }
    let annotations = &claim.metadata.annotations;
    if !PROVISIONERS.iter().all(|name| annotations.get(*name) == Some(provisioner)) {
        let [name, former] = PROVISIONERS;
        let change = json!({"metadata": {"annotations": {name: provisioner, former: provisioner}}});
        return Plan::of(Some(Write { target: Target::Claim, subresource: "", change }));
    }
    let message = format!(
        "Waiting for a volume to be created either by the external provisioner '{provisioner}' or manually by the \
         system administrator. If volume creation is delayed, please verify that the provisioner is running and \
         correctly registered."
    );
    pending.with_event(false, "ExternalProvisioning", message)
}

/// Plans for a volume. `claim` is the claim that the volume refers to by name, as the API has it now.
pub(super) fn plan_volume(volume: &PersistentVolume, claim: Option<&VolumeClaim>) -> Plan {
    let Some(reference) = &volume.spec.claim_ref else {
        return Plan::of(volume_phase(volume, "Available", None));
    };
    if reference.uid.is_empty() {
        return Plan {
            wakes_claim: claim.is_some(),
            ..Plan::of(volume_phase(volume, "Available", None))
        };
    }
    let Some(claim) = claim.filter(|claim| claim.metadata.uid == reference.uid) else {
        return released(volume);
    };
    let name = &volume.metadata.name;
    if claim.spec.volume_name == *name {
        return Plan::of(volume_phase(volume, "Bound", None));
    }
    if claim.spec.volume_name.is_empty() {
        if !same_mode(volume, claim) {
            let message = format!(
                "Cannot bind PersistentVolume to requested PersistentVolumeClaim \"{}\" due to incompatible \
                 volumeMode.",
                claim.metadata.name
            );
            let about = Target::Volume(name.clone());
            let event = PlannedEvent { about, warning: true, reason: "VolumeMismatch", message };
            return Plan { event: Some(event), ..Plan::default() };
        }
        return Plan { wakes_claim: true, ..Plan::default() };
    }
    // The claim has another volume.
    let made_for_it = volume.annotated(PROVISIONED_BY)
        && volume.spec.persistent_volume_reclaim_policy == "Delete";
    if made_for_it { released(volume) } else { Plan::of(Some(unbind(volume, reference))) }
}

/// Removes the fields that the controller wrote and keeps those that a user wrote.
fn unbind(volume: &PersistentVolume, reference: &ClaimRef) -> Write {
    let change = if volume.annotated(BOUND_BY_CONTROLLER) {
        json!({"spec": {"claimRef": null},
            "metadata": {"annotations": {BOUND_BY_CONTROLLER: null}}})
    } else {
        json!({"spec": {"claimRef": {"namespace": reference.namespace, "name": reference.name,
            "uid": null, "resourceVersion": null}}})
    };
    Write { target: Target::Volume(volume.metadata.name.clone()), subresource: "", change }
}

/// Releases a volume whose claim is deleted. No other claim gets it, because it holds the former claim's data.
fn released(volume: &PersistentVolume) -> Plan {
    let name = &volume.metadata.name;
    if !matches!(volume.status.phase.as_str(), "Released" | "Failed") {
        return Plan::of(volume_phase(volume, "Released", None));
    }
    let failed = |reason, message: String| {
        let about = Target::Volume(name.clone());
        let write = volume_phase(volume, "Failed", Some(&message));
        let event =
            write.is_some().then_some(PlannedEvent { about, warning: true, reason, message });
        Plan { write, event, wakes_claim: false }
    };
    match volume.spec.persistent_volume_reclaim_policy.as_str() {
        // The external provisioner deletes the volumes that it created.
        "Delete" if volume.annotated(PROVISIONED_BY) => Plan::default(),
        "Delete" => failed(
            "VolumeFailedDelete",
            format!(
                "error getting deleter volume plugin for volume \"{name}\": no deletable volume plugin matched"
            ),
        ),
        "Recycle" => {
            failed("VolumeFailedRecycle", "No recycler plugin found for the volume!".to_owned())
        }
        _ => Plan::default(),
    }
}
