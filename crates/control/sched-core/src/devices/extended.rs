//! Extended resources that devices serve: the DeviceClass of each resource, and the claim that the scheduler creates
//! for a Pod that requests them (KEP-5004).

use std::{cmp::Reverse, collections::HashMap};

use api_meta::ObjectMeta;
use serde::Serialize;

use crate::{
    devices::view::{
        DeviceClaimView, DeviceClassView, DeviceRequestView, ExactRequestView,
        ResourceClaimSpecView, ResourceClaimView,
    },
    pod::{ContainerRole, ExtendedRequest, Pod},
    sym::{Sym, SymMap},
};

/// The annotation of a claim that the scheduler created for extended resources.
pub const EXTENDED_RESOURCE_CLAIM: &str = "resource.kubernetes.io/extended-resource-claim";
/// The prefix of the resource name that every class has without naming an extended resource.
const CLASS_PREFIX: &str = "deviceclass.resource.kubernetes.io/";

/// A request of a claim for extended resources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassRequest {
    /// The name of the request.
    pub name: Box<str>,
    /// The DeviceClass.
    pub class: Box<str>,
    /// The number of devices.
    pub count: i64,
}

/// The request that serves an extended resource of a container, as in the Pod's status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestMapping {
    /// The name of the container.
    pub container_name: Box<str>,
    /// The extended resource.
    pub resource_name: Box<str>,
    /// The name of the request in the claim.
    pub request_name: Box<str>,
}

/// The claim that the scheduler creates for the extended resources of a Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtendedClaim {
    /// The requests of the claim.
    pub requests: Vec<ClassRequest>,
    /// The requests that serve each container.
    pub mappings: Vec<RequestMapping>,
}

/// Returns the class of each extended resource. Of several classes the newest serves the resource, then the first by
/// name.
pub(super) fn classes_by_resource(
    classes: &HashMap<Box<str>, DeviceClassView>,
) -> SymMap<Box<str>> {
    let mut sorted: Vec<_> = classes.iter().collect();
    // The last class of the order serves the resource.
    sorted.sort_by_key(|(name, class)| (class.metadata.creation_timestamp, Reverse(*name)));
    let mut by_resource = SymMap::default();
    for (name, class) in sorted {
        by_resource.insert(Sym::of(&format!("{CLASS_PREFIX}{name}")), name.clone());
        if let Some(resource) = &class.spec.extended_resource_name {
            by_resource.insert(Sym::of(resource), name.clone());
        }
    }
    by_resource
}

/// A request for an extended resource that devices of a class serve.
#[derive(Clone, Copy)]
pub(super) struct ServedRequest<'a> {
    pub(super) request: &'a ExtendedRequest,
    /// The DeviceClass.
    pub(super) class: &'a str,
}

/// Returns the claim for those of a Pod's requests that devices serve.
///
/// Sidecars and containers get requests of their own. An init container shares the request of a container that starts
/// after it or of another init container, if that has enough devices, because they never run at the same time.
pub(super) fn claim_for(served: &[ServedRequest<'_>]) -> ExtendedClaim {
    let mut claim = ExtendedClaim::default();
    let mut owners: Vec<&ExtendedRequest> = Vec::new();
    let (mut init, others): (Vec<_>, Vec<_>) =
        served.iter().copied().partition(|served| served.request.role == ContainerRole::Init);
    for ServedRequest { request, class } in others {
        add(&mut claim, request, class);
        owners.push(request);
    }
    // The largest request comes first, so that smaller ones can share it.
    init.sort_by_key(|served| Reverse(served.request.amount));
    for ServedRequest { request, class } in init {
        let is_free = |owner: &ExtendedRequest| match owner.role {
            ContainerRole::Sidecar => owner.container_index > request.container_index,
            // Two resources of one container need devices of their own.
            ContainerRole::Init => owner.container_index != request.container_index,
            ContainerRole::Main => true,
        };
        let shared = owners.iter().zip(&claim.requests).filter(|(owner, own)| {
            is_free(owner) && *own.class == *class && own.count >= request.amount
        });
        let shared = shared.min_by_key(|(_, own)| own.count).map(|(_, own)| own.name.clone());
        if let Some(name) = shared {
            claim.mappings.push(mapping(request, name));
        } else {
            add(&mut claim, request, class);
            owners.push(request);
        }
    }
    claim
}

fn add(claim: &mut ExtendedClaim, request: &ExtendedRequest, class: &str) {
    let name = format!("container-{}-request-{}", request.container_index, request.index);
    let name: Box<str> = name.into();
    claim.mappings.push(mapping(request, name.clone()));
    claim.requests.push(ClassRequest { name, class: class.into(), count: request.amount });
}

fn mapping(request: &ExtendedRequest, request_name: Box<str>) -> RequestMapping {
    RequestMapping {
        container_name: request.container.clone(),
        resource_name: request.resource.clone(),
        request_name,
    }
}

/// Returns the claim as the search for devices reads it. It has no name before it is created.
pub(super) fn view(pod: &Pod, claim: &ExtendedClaim) -> ResourceClaimView {
    let requests = claim.requests.iter().map(|request| DeviceRequestView {
        name: request.name.clone(),
        exactly: Some(ExactRequestView {
            device_class_name: request.class.clone(),
            allocation_mode: "ExactCount".into(),
            count: request.count,
            ..ExactRequestView::default()
        }),
        ..DeviceRequestView::default()
    });
    let devices = DeviceClaimView { requests: requests.collect(), ..DeviceClaimView::default() };
    ResourceClaimView {
        metadata: ObjectMeta {
            namespace: pod.id.namespace.to_string(),
            uid: placeholder_uid(pod),
            ..ObjectMeta::default()
        },
        spec: ResourceClaimSpecView { devices },
        ..ResourceClaimView::default()
    }
}

/// Returns the uid that stands for the claim until the API server has created it.
pub(super) fn placeholder_uid(pod: &Pod) -> String {
    format!("extended-resources/{}", pod.id.uid)
}

/// Returns the uid of the Pod for which the scheduler created the claim.
pub(super) fn pod_of(claim: &ResourceClaimView) -> Option<&str> {
    let annotation = claim.metadata.annotations.get(EXTENDED_RESOURCE_CLAIM);
    annotation.filter(|value| *value == "true")?;
    claim.metadata.controller().filter(|owner| owner.kind == "Pod").map(|owner| &*owner.uid)
}
