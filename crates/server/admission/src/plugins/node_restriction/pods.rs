use api_meta::{GroupResource, Tree as _, go_quote};
use serde_json::Value;

use super::{objects::find, refusal::Refusal};
use crate::{
    plugins::service_account::{MIRROR, secret_references},
    request::{Operation, Request},
};

pub(super) fn check(request: &Request<'_>, node: &str, pod: &Value) -> Result<(), Refusal> {
    let me = go_quote(node);
    match (request.subresource, request.operation) {
        ("", Operation::Create) => check_mirror(request, node, pod),
        ("", Operation::Delete) => bound_here(
            request,
            node,
            &format!("node {me} can only delete pods with spec.nodeName set to itself"),
        ),
        ("", operation) => Err(format!(
            "unexpected operation {}, node {me} can only create and delete mirror pods",
            go_quote(&operation.to_string())
        )
        .into()),
        ("status", Operation::Update) => {
            bound_here(
                request,
                node,
                &format!(
                    "node {me} can only update pod status for pods with spec.nodeName set to itself"
                ),
            )?;
            let Some(old) = request.old else { return Ok(()) };
            if old.at("metadata.labels") != pod.at("metadata.labels") {
                return Err(format!("node {me} cannot update labels through pod status").into());
            }
            if old.at("status.resourceClaimStatuses") != pod.at("status.resourceClaimStatuses") {
                return Err(format!("node {me} cannot update resource claim statuses").into());
            }
            let extended = "extendedResourceClaimStatus";
            if old["status"][extended] != pod["status"][extended] {
                let cause = format!("node {me} cannot update extended resource claim status");
                return Err(cause.into());
            }
            Ok(())
        }
        ("status", operation) => {
            Err(format!("unexpected operation {}", go_quote(&operation.to_string())).into())
        }
        ("eviction", Operation::Create) => bound_here(
            request,
            node,
            &format!("node {node} can only evict pods with spec.nodeName set to itself"),
        ),
        ("eviction", operation) => Err(format!("unexpected operation {operation}").into()),
        (other, _) => Err(format!(
            "unexpected pod subresource {}, only 'status' and 'eviction' are allowed",
            go_quote(other)
        )
        .into()),
    }
}

/// Returns an error unless the stored Pod is bound to the node, or NotFound if there is no such Pod.
fn bound_here(request: &Request<'_>, node: &str, otherwise: &str) -> Result<(), Refusal> {
    let pod = find(request, &GroupResource::PODS, request.namespace, request.name)?;
    if pod.text("spec.nodeName") == node { Ok(()) } else { Err(otherwise.into()) }
}

/// Validates a mirror Pod, which may not give the kubelet access to other objects.
fn check_mirror(request: &Request<'_>, node: &str, pod: &Value) -> Result<(), Refusal> {
    let me = go_quote(node);
    if pod.annotation(MIRROR).is_none() {
        return Err(format!(
            "pod does not have {} annotation, node {me} can only create mirror pods",
            go_quote(MIRROR)
        )
        .into());
    }
    if pod.text("spec.nodeName") != node {
        return Err(
            format!("node {me} can only create pods with spec.nodeName set to itself").into()
        );
    }
    check_owner(request, node, pod)?;
    if !pod.text("spec.serviceAccountName").is_empty() {
        return Err(
            format!("node {me} can not create pods that reference a service account").into()
        );
    }
    if secret_references(pod).next().is_some() {
        return Err(format!("node {me} can not create pods that reference secrets").into());
    }
    if names_config_map(pod) {
        return Err(format!("node {me} can not create pods that reference configmaps").into());
    }
    for volume in pod.items("spec.volumes") {
        if volume.has("persistentVolumeClaim") || volume.has("ephemeral") {
            return Err(format!(
                "node {me} can not create pods that reference persistentvolumeclaims"
            )
            .into());
        }
        let credentials = ["serviceAccountToken", "clusterTrustBundle", "podCertificate"];
        let sources = volume.items("projected.sources").iter();
        if sources.flat_map(|s| credentials.map(|kind| s.has(kind))).any(|is_used| is_used) {
            return Err(format!(
                "node {me} can not create pods that reference service account \
                tokens, cluster trust bundles or pod certificates"
            )
            .into());
        }
    }
    if !pod.items("spec.resourceClaims").is_empty() {
        return Err(format!("node {me} can not create pods that reference resourceclaims").into());
    }
    Ok(())
}

/// Checks that the Node is the only owner of a mirror Pod, so that the Pod is deleted with the Node.
fn check_owner(request: &Request<'_>, node: &str, pod: &Value) -> Result<(), Refusal> {
    let me = go_quote(node);
    let owners: Vec<&Value> = pod.items("metadata.ownerReferences").iter().collect();
    let owner = match owners.as_slice() {
        [] => {
            return Err(format!(
                "node {me} can only create pods with an owner reference set to itself"
            )
            .into());
        }
        [owner] => owner,
        _ => {
            return Err(format!(
                "node {me} can only create pods with a single owner reference set to itself"
            )
            .into());
        }
    };
    let identity = [("apiVersion", "v1"), ("kind", "Node"), ("name", node)];
    if identity.iter().any(|(pointer, wanted)| owner.text(pointer) != *wanted) {
        return Err(format!(
            "node {me} can only create pods with an owner reference set to itself"
        )
        .into());
    }
    if owner.opt_flag("controller") != Some(true) {
        return Err(format!(
            "node {me} can only create pods with a controller owner reference set to itself"
        )
        .into());
    }
    if owner.opt_flag("blockOwnerDeletion") == Some(true) {
        return Err(
            format!("node {me} must not set blockOwnerDeletion on an owner reference").into()
        );
    }
    let own = find(request, &GroupResource::NODES, "", node)?;
    let (given, uid) = (owner.text("uid"), own.uid());
    if given == uid {
        return Ok(());
    }
    Err(format!("node {me} UID mismatch: expected {uid} got {given}").into())
}

fn names_config_map(pod: &Value) -> bool {
    let containers = ["spec.initContainers", "spec.containers", "spec.ephemeralContainers"];
    let in_containers = containers.iter().flat_map(|list| pod.items(list)).any(|container| {
        container.items("env").iter().any(|e| e.has("valueFrom.configMapKeyRef"))
            || container.items("envFrom").iter().any(|e| e.has("configMapRef"))
    });
    in_containers
        || pod.items("spec.volumes").iter().any(|volume| {
            volume.has("configMap")
                || volume.items("projected.sources").iter().any(|s| s.has("configMap"))
        })
}
