//! What is to be written next for one claim or one volume.
//!
//! Binding is four writes, and the process may end between any two. So each plan looks at what is written and gives the
//! one write that comes next; the first, of the volume's `claimRef` on the version of the volume that was looked at,
//! decides whose the volume is.

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
/// The provisioner of classes whose volumes are all made by people.
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Target {
    Claim,
    /// The volume of this name.
    Volume(String),
}

/// A merge patch, for the version of the object that was looked at and for no other.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Write {
    pub(super) target: Target,
    pub(super) subresource: &'static str,
    pub(super) change: Value,
}

/// An Event.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Said {
    pub(super) about: Target,
    pub(super) warning: bool,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Plan {
    pub(super) write: Option<Write>,
    pub(super) said: Option<Said>,
    /// The claim is to be looked at: what comes next is its own.
    pub(super) wakes_claim: bool,
}

impl Plan {
    fn of(write: Option<Write>) -> Self {
        Self { write, ..Self::default() }
    }

    fn saying(self, warning: bool, reason: &'static str, message: impl Into<String>) -> Self {
        let said = Said { about: Target::Claim, warning, reason, message: message.into() };
        Self { said: Some(said), ..self }
    }
}

/// What a claim is looked at beside.
pub(super) struct Around<'a> {
    pub(super) volumes: &'a [Arc<PersistentVolume>],
    pub(super) classes: &'a [Arc<StorageClass>],
    /// The claim's Pods that have no node yet.
    pub(super) waiting: &'a [String],
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
    let said = json!({"phase": phase, "message": message, "reason": null});
    (volume.status.phase != phase).then(|| status(target, said))
}

/// The next of the writes that bind the two.
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

pub(super) fn plan_claim(claim: &VolumeClaim, around: &Around<'_>) -> Plan {
    let named = around.volumes.iter().find(|v| v.metadata.name == claim.spec.volume_name);
    if claim.annotated(BIND_COMPLETED) {
        return bound_claim(claim, named);
    }
    if claim.metadata.terminating() {
        // Whatever was bound to it now would have to be reclaimed at once.
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
                pending.saying(true, "VolumeMismatch", message)
            }
        },
        Some(reference) if reference.names(&claim.metadata) => Plan::of(bind(claim, volume)),
        Some(_) => {
            let message = format!("volume \"{name}\" already bound to a different claim.");
            pending.saying(true, "FailedBinding", message)
        }
    }
}

/// A claim that was bound stays bound, or has lost its volume.
fn bound_claim(claim: &VolumeClaim, volume: Option<&Arc<PersistentVolume>>) -> Plan {
    let lost = |reason, message: &str| match phase(claim, "Lost") {
        Some(write) => Plan::of(Some(write)).saying(true, reason, message),
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

fn unbound_claim(claim: &VolumeClaim, around: &Around<'_>) -> Plan {
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
        return pending.saying(false, reason, message);
    }
    if named.is_empty() {
        let message = "no persistent volumes available for this claim and no storage class is set";
        return pending.saying(false, "FailedBinding", message);
    }
    match class {
        Some(class) => provision(claim, class, pending),
        None => {
            let message = format!("storageclass.storage.k8s.io \"{named}\" not found");
            pending.saying(true, "ProvisioningFailed", message)
        }
    }
}

/// The class for a claim that was made when there was no default one.
fn default_class<'a>(claim: &VolumeClaim, classes: &'a [Arc<StorageClass>]) -> Option<&'a str> {
    let defaults = classes.iter().filter(|class| class.is_default() && claim.class().is_none());
    let newest = defaults.min_by_key(|class| {
        (std::cmp::Reverse(class.metadata.creation_timestamp), class.metadata.name.clone())
    });
    newest.map(|class| class.metadata.name.as_str())
}

/// Tells the provisioner of the class, which watches claims, that this one is its own.
fn provision(claim: &VolumeClaim, class: &StorageClass, pending: Plan) -> Plan {
    let provisioner = &class.provisioner;
    if provisioner == NO_PROVISIONER {
        let message = format!(
            "no volume plugin matched name: {NO_PROVISIONER}: the volumes of this class are made by hand"
        );
        return pending.saying(true, "ProvisioningFailed", message);
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
    pending.saying(false, "ExternalProvisioning", message)
}

/// `claim` is the one that the volume refers to by name, as the API has it now.
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
                "Cannot bind PersistentVolume to requested PersistentVolumeClaim \"{}\" due to incompatible volumeMode.",
                claim.metadata.name
            );
            let about = Target::Volume(name.clone());
            let said = Said { about, warning: true, reason: "VolumeMismatch", message };
            return Plan { said: Some(said), ..Plan::default() };
        }
        return Plan { wakes_claim: true, ..Plan::default() };
    }
    // The claim has another volume.
    let made_for_it = volume.annotated(PROVISIONED_BY)
        && volume.spec.persistent_volume_reclaim_policy == "Delete";
    if made_for_it { released(volume) } else { Plan::of(Some(unbind(volume, reference))) }
}

/// Takes back what the controller wrote, and leaves what a person wrote.
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

/// A volume whose claim is gone. It is nobody else's from then on: what is on it was the claim's.
fn released(volume: &PersistentVolume) -> Plan {
    let name = &volume.metadata.name;
    if !matches!(volume.status.phase.as_str(), "Released" | "Failed") {
        return Plan::of(volume_phase(volume, "Released", None));
    }
    let failed = |reason, message: String| {
        let about = Target::Volume(name.clone());
        let write = volume_phase(volume, "Failed", Some(&message));
        let said = write.is_some().then_some(Said { about, warning: true, reason, message });
        Plan { write, said, wakes_claim: false }
    };
    match volume.spec.persistent_volume_reclaim_policy.as_str() {
        // Who made it removes it.
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
