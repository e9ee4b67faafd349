//! Matches volumes with claims.

use std::sync::Arc;

use api_meta::LabelSelector;

use crate::views::{PersistentVolume, VolumeClaim};

/// A volume mode, `Filesystem` if it is not set.
fn mode(of: Option<&String>) -> &str {
    of.map_or("Filesystem", String::as_str)
}

pub(super) fn same_mode(volume: &PersistentVolume, claim: &VolumeClaim) -> bool {
    mode(volume.spec.volume_mode.as_ref()) == mode(claim.spec.volume_mode.as_ref())
}

fn has_access_modes(volume: &PersistentVolume, claim: &VolumeClaim) -> bool {
    claim.spec.access_modes.iter().all(|mode| volume.spec.access_modes.contains(mode))
}

fn attributes(of: Option<&String>) -> &str {
    of.map_or("", String::as_str)
}

fn same_attributes(volume: &PersistentVolume, claim: &VolumeClaim) -> bool {
    attributes(volume.spec.volume_attributes_class_name.as_ref())
        == attributes(claim.spec.volume_attributes_class_name.as_ref())
}

/// Returns the reason why a claim cannot use the volume that it names.
pub(super) fn mismatch(volume: &PersistentVolume, claim: &VolumeClaim) -> Option<String> {
    if volume.metadata.terminating() {
        return Some(format!("the volume is marked for deletion \"{}\"", volume.metadata.name));
    }
    let reasons = [
        (volume.size() < claim.size(), "requested PV is too small"),
        (volume.class() != claim.class().unwrap_or(""), "storageClassName does not match"),
        (!same_attributes(volume, claim), "volumeAttributesClassName does not match"),
        (!same_mode(volume, claim), "incompatible volumeMode"),
        (!has_access_modes(volume, claim), "incompatible accessMode"),
    ];
    reasons.into_iter().find(|(wrong, _)| *wrong).map(|(_, reason)| reason.to_owned())
}

/// Chooses a volume for a claim that names none: one reserved for the claim, else the smallest that fits, then the
/// first by name. If the claim waits for its first Pod, only reserved volumes are considered.
pub(super) fn best<'a>(
    claim: &VolumeClaim,
    volumes: &'a [Arc<PersistentVolume>],
    waits: bool,
) -> Option<&'a Arc<PersistentVolume>> {
    let usable = |volume: &&Arc<PersistentVolume>| {
        same_mode(volume, claim)
            && same_attributes(volume, claim)
            && has_access_modes(volume, claim)
            && volume.size() >= claim.size()
            && !volume.metadata.terminating()
    };
    let reserved = |volume: &&Arc<PersistentVolume>| {
        volume.spec.claim_ref.as_ref().is_some_and(|own| own.names(&claim.metadata))
    };
    let order = |volume: &&Arc<PersistentVolume>| (volume.size(), volume.metadata.name.clone());
    if let Some(own) = volumes.iter().filter(usable).filter(reserved).min_by_key(order) {
        return Some(own);
    }
    // An invalid selector selects nothing.
    let selector = LabelSelector::selector_of(claim.spec.selector.as_ref());
    let selector = match &claim.spec.selector {
        None => api_meta::Selector::everything(),
        Some(_) => selector.unwrap_or_else(|_| api_meta::Selector::nothing()),
    };
    let free = |volume: &&Arc<PersistentVolume>| {
        !waits
            && volume.spec.claim_ref.is_none()
            && volume.status.phase == "Available"
            && volume.class() == claim.class().unwrap_or("")
            && selector.matches(&volume.metadata.labels)
    };
    volumes.iter().filter(usable).filter(free).min_by_key(order)
}
