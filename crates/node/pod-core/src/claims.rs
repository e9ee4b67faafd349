//! ResourceClaims of Pods (dynamic resource allocation): whether a Pod may use a claim, the prepared devices, and the
//! devices of each container. Read [`allocations`] first. This module does no I/O.
//!
//! The caller writes the [`allocations`] to the disk (see [`checkpoint`]) before it calls a driver and before a
//! container starts. So a driver unprepares everything that it prepared, even if the kubelet is killed.

pub mod allocations;
pub mod checkpoint;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::{
    core::v1::{Container, Pod, PodResourceClaim},
    resource::v1::ResourceClaim,
};

use crate::spec::namespaced_name;

/// A claim's namespace and name.
pub type Key = (String, String);

/// A device that a driver has prepared, as the driver describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// The pool of the device.
    pub pool: String,
    /// The name of the device in its pool.
    pub name: String,
    /// The ID of the share, for a device that several claims share.
    pub share: Option<String>,
    /// The requests of the claim that the device serves. Empty for all requests.
    pub requests: Vec<String>,
    /// The CDI names of the device.
    pub cdi: Vec<String>,
}

impl Device {
    /// Reports whether the device serves a request. An empty request stands for all requests.
    pub fn is_for(&self, request: &str) -> bool {
        request.is_empty() || self.requests.is_empty() || self.requests.iter().any(|r| r == request)
    }
}

/// A claim that Pods of this node hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// The UID of the ResourceClaim.
    pub uid: String,
    /// The namespace of the ResourceClaim.
    pub namespace: String,
    /// The name of the ResourceClaim.
    pub name: String,
    /// The UIDs of the Pods that hold the claim.
    pub pods: BTreeSet<String>,
    /// The prepared devices by driver. The list of a driver is empty until it has prepared the claim.
    pub drivers: BTreeMap<String, Vec<Device>>,
    /// `true` if all drivers have prepared the claim since this kubelet started.
    pub prepared: bool,
}

impl Claim {
    /// Returns namespace and name of the claim.
    pub fn key(&self) -> Key {
        (self.namespace.clone(), self.name.clone())
    }
}

/// The error of a claim that a Pod may not use. The messages are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    #[error("pod \"{0}\": ResourceClaim not created yet")]
    NotCreated(String),
    #[error("pod \"{pod}\", spec.resourceClaim {claim:?}: none of the supported fields are set")]
    NoName { pod: String, claim: String },
    #[error("ResourceClaim {claim} was not created for Pod {pod} (Pod is not owner)")]
    NotOwner { claim: String, pod: String },
    #[error("pod {pod} ({uid}) is not allowed to use ResourceClaim {claim} ({claim_uid})")]
    NotReserved { pod: String, uid: String, claim: String, claim_uid: String },
    #[error("ResourceClaim {0}: not allocated")]
    NotAllocated(String),
    #[error(
        "old ResourceClaim with same name {name} and different UID {uid} still exists (previous pod force-deleted?!)"
    )]
    Old { name: String, uid: String },
    #[error("unable to get claim info for ResourceClaim {name} in namespace {namespace}")]
    Unknown { name: String, namespace: String },
}

/// A claim to which a Pod refers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimReference {
    /// The name of the ResourceClaim.
    pub name: String,
    /// `true` if the claim was generated from a template for this Pod.
    own: bool,
}

/// Returns the claims of a Pod. Omits references whose template has generated no claim.
pub fn references(pod: &Pod) -> Result<Vec<ClaimReference>, ClaimError> {
    let listed = pod.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten());
    let mut all = Vec::new();
    for reference in listed {
        all.extend(claim_name(pod, reference)?);
    }
    all.extend(extended(pod).map(|name| ClaimReference { name: name.to_owned(), own: false }));
    Ok(all)
}

/// Returns the claim that the scheduler created for extended resources backed by DRA drivers.
fn extended(pod: &Pod) -> Option<&str> {
    let status = pod.status.as_ref()?.extended_resource_claim_status.as_ref()?;
    Some(&status.resource_claim_name)
}

fn claim_name(
    pod: &Pod,
    reference: &PodResourceClaim,
) -> Result<Option<ClaimReference>, ClaimError> {
    if let Some(name) = &reference.resource_claim_name {
        return Ok(Some(ClaimReference { name: name.clone(), own: false }));
    }
    if reference.resource_claim_template_name.is_none() {
        let (pod, claim) = (namespaced_name(pod), reference.name.clone());
        return Err(ClaimError::NoName { pod, claim });
    }
    let mut statuses = pod.status.iter().flat_map(|s| s.resource_claim_statuses.iter().flatten());
    let status = statuses.find(|status| status.name == reference.name);
    let status = status.ok_or_else(|| ClaimError::NotCreated(namespaced_name(pod)))?;
    Ok(status.resource_claim_name.clone().map(|name| ClaimReference { name, own: true }))
}

impl ClaimReference {
    /// Checks with the API server's object that the Pod may use the claim. Returns the claim without devices.
    pub fn check(&self, pod: &Pod, claim: &ResourceClaim) -> Result<Claim, ClaimError> {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let (meta, uid) = (&claim.metadata, text(&pod.metadata.uid));
        let owners = || meta.owner_references.iter().flatten();
        if self.own && !owners().any(|owner| owner.controller == Some(true) && owner.uid == uid) {
            let claim = format!("{}/{}", text(&meta.namespace), text(&meta.name));
            return Err(ClaimError::NotOwner { claim, pod: namespaced_name(pod) });
        }
        let status = claim.status.as_ref();
        let mut users = status.iter().flat_map(|status| status.reserved_for.iter().flatten());
        if uid.is_empty() || !users.any(|user| user.uid == uid) {
            let (pod, claim_uid) = (text(&pod.metadata.name), text(&meta.uid));
            return Err(ClaimError::NotReserved { pod, uid, claim: self.name.clone(), claim_uid });
        }
        let allocation = status.and_then(|status| status.allocation.as_ref());
        let allocation = allocation.ok_or_else(|| ClaimError::NotAllocated(self.name.clone()))?;
        let results = allocation.devices.iter().flat_map(|d| d.results.iter().flatten());
        Ok(Claim {
            uid: text(&meta.uid),
            namespace: text(&pod.metadata.namespace),
            name: self.name.clone(),
            drivers: results.map(|result| (result.driver.clone(), Vec::new())).collect(),
            ..Claim::default()
        })
    }
}

/// Returns the claims of a container as the claim's name in the Pod, the claim's name, and the request. An empty
/// request stands for all requests.
pub fn of_container(
    pod: &Pod,
    container: &Container,
) -> Result<Vec<(String, String, String)>, ClaimError> {
    let requested = container.resources.iter().flat_map(|r| r.claims.iter().flatten());
    let listed = || pod.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten());
    let mut all = Vec::new();
    for claim in requested {
        for reference in listed().filter(|reference| reference.name == claim.name) {
            let request = claim.request.clone().unwrap_or_default();
            if let Some(claim) = claim_name(pod, reference)? {
                all.push((reference.name.clone(), claim.name, request));
            }
        }
    }
    Ok(all)
}

/// Returns the scheduler's claim for a container's extended resources, as claim name and request.
fn of_extended(pod: &Pod, container: &Container) -> Vec<(String, String)> {
    let status = pod.status.as_ref().and_then(|s| s.extended_resource_claim_status.as_ref());
    let Some(status) = status else { return Vec::new() };
    let requests = || container.resources.iter().flat_map(|r| r.requests.iter().flatten());
    let is_requested = |name: &str| {
        requests()
            .any(|(resource, amount)| resource == name && crate::resources::whole(amount) != 0)
    };
    let own = status.request_mappings.iter().filter(|m| m.container_name == container.name);
    let own = own.filter(|mapping| is_requested(&mapping.resource_name));
    own.map(|m| (status.resource_claim_name.clone(), m.request_name.clone())).collect()
}
