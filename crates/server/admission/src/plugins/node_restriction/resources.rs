use api_meta::{Attributes, GroupResource, Tree as _, go_quote};
use pki::SigningRequest;
use serde_json::Value;

use super::{objects::find, refusal::Refusal};
use crate::request::{Operation, Request};

const KUBELET_SERVING: &str = "kubernetes.io/kubelet-serving";
const KUBELET_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";

const CSI_DRIVERS: GroupResource = GroupResource {
    group: std::borrow::Cow::Borrowed("storage.k8s.io"),
    resource: std::borrow::Cow::Borrowed("csidrivers"),
};

/// Validates a TokenRequest: it must be bound to a Pod of the node, with an audience that the Pod's volumes use.
pub(super) fn check_token(
    request: &Request<'_>,
    node: &str,
    review: &Value,
) -> Result<(), Refusal> {
    let bound = review.at("spec.boundObjectRef");
    let (kind, name, uid) = (bound.text("kind"), bound.text("name"), bound.text("uid"));
    if kind != "Pod" || bound.text("apiVersion") != "v1" || name.is_empty() {
        return Err("node requested token not bound to a pod".into());
    }
    if uid.is_empty() {
        return Err("node requested token with a pod binding without a uid".into());
    }
    let pod = find(request, &GroupResource::PODS, request.namespace, name)?;
    if pod.uid() != uid {
        return Err(format!(
            "the UID in the bound object reference ({uid}) does not match the UID \
            in record. The object might have been deleted and then recreated"
        )
        .into());
    }
    if pod.text("spec.nodeName") != node {
        return Err("node requested token bound to a pod scheduled on a different node".into());
    }
    let requested: Vec<&str> = review.texts("spec.audiences").collect();
    let [audience] = requested.as_slice() else {
        // No audience means the API server's own. A kubelet requests at most one.
        return if requested.is_empty() {
            check_audience(request, &pod, "")
        } else {
            Err("node may only request 0 or 1 audiences".into())
        };
    };
    check_audience(request, &pod, audience)
}

fn check_audience(request: &Request<'_>, pod: &Value, audience: &str) -> Result<(), Refusal> {
    let in_token = |sources: &Value| {
        sources
            .items("sources")
            .iter()
            .filter(|source| source.has("serviceAccountToken"))
            .any(|source| source.text("serviceAccountToken.audience") == audience)
    };
    let in_driver = |name: &str| {
        let driver =
            if name.is_empty() { None } else { request.objects.get(&CSI_DRIVERS, "", name) };
        driver.is_some_and(|driver| {
            driver.items("spec.tokenRequests").iter().any(|t| t.text("audience") == audience)
        })
    };
    let of_claim = |claim: &str| -> Option<String> {
        let claim = request.objects.get(
            &GroupResource::PERSISTENT_VOLUME_CLAIMS,
            request.namespace,
            claim,
        )?;
        let volume = request.objects.get(
            &GroupResource::PERSISTENT_VOLUMES,
            "",
            claim.text("spec.volumeName"),
        )?;
        Some(volume.text("spec.csi.driver").to_owned())
    };
    let named = pod.items("spec.volumes").iter().any(|volume| {
        // The claim of an ephemeral volume is named after the Pod and the volume.
        let own = volume
            .has("ephemeral.volumeClaimTemplate")
            .then(|| format!("{}-{}", pod.name(), volume.text("name")));
        let claim = own.as_deref().unwrap_or(volume.text("persistentVolumeClaim.claimName"));
        in_token(&volume["projected"])
            || in_driver(volume.text("csi.driver"))
            || (!claim.is_empty() && of_claim(claim).is_some_and(|driver| in_driver(&driver)))
    });
    if named {
        return Ok(());
    }
    let verb = "request-serviceaccounts-token-audience";
    let may = Attributes::resource(request.user, verb, "", audience);
    if request
        .authorizer
        .authorize(&may.in_namespace(request.namespace).named(request.name))
        .is_allowed()
    {
        return Ok(());
    }
    Err(format!(
        "audience {} not found in pod spec volume, {} is not authorized to request tokens for this audience",
        go_quote(audience),
        request.user.name
    )
    .into())
}

/// Validates a CSR: a node may only request certificates for its own name. The signer validates the rest.
pub(super) fn check_signing_request(
    request: &Request<'_>,
    node: &str,
    csr: &Value,
) -> Result<(), Refusal> {
    let signer = csr.text("spec.signerName");
    if !request.creates() || ![KUBELET_SERVING, KUBELET_CLIENT].contains(&signer) {
        return Ok(());
    }
    let requested = SigningRequest::from_base64(csr.text("spec.request"))
        .and_then(|requested| requested.info())
        .map_err(|cause| format!("unable to parse csr: {cause}"))?;
    let own = format!("system:node:{node}");
    if requested.subject.common_name == own {
        return Ok(());
    }
    Err(format!("can only create a node CSR with CN={own}").into())
}

/// Validates a claim's update. A kubelet may only change the resize fields of the status.
pub(super) fn check_claim(request: &Request<'_>, node: &str, claim: &Value) -> Result<(), Refusal> {
    let me = go_quote(node);
    if request.subresource != "status" || request.operation != Operation::Update {
        return Err(format!(
            "unexpected pvc subresource {}, only 'status' is allowed",
            go_quote(request.subresource)
        )
        .into());
    }
    let Some(old) = request.old else { return Ok(()) };
    let rest = |claim: &Value| {
        let mut claim = claim.clone();
        if let Some(status) = claim.get_mut("status").and_then(Value::as_object_mut) {
            for field in
                ["capacity", "conditions", "allocatedResources", "allocatedResourceStatuses"]
            {
                status.remove(field);
            }
        }
        if let Some(meta) = claim.get_mut("metadata").and_then(Value::as_object_mut) {
            meta.remove("managedFields");
        }
        if claim["status"].as_object().is_some_and(serde_json::Map::is_empty) {
            claim.put(&["status"], Value::Null);
        }
        claim
    };
    if rest(old) == rest(claim) {
        return Ok(());
    }
    Err(format!(
        "node {me} is not allowed to update fields other than status.capacity and status.conditions"
    )
    .into())
}

pub(super) fn check_lease(request: &Request<'_>, node: &str, lease: &Value) -> Result<(), Refusal> {
    if request.namespace != "kube-node-lease" {
        return Err("can only access leases in the \"kube-node-lease\" system namespace".into());
    }
    check_own_name(request, node, lease, "node lease")
}

pub(super) fn check_own_name(
    request: &Request<'_>,
    node: &str,
    object: &Value,
    kind: &str,
) -> Result<(), Refusal> {
    let name = if request.creates() { object.name() } else { request.name };
    if name == node {
        Ok(())
    } else {
        Err(format!("can only access {kind} with the same name as the requesting node").into())
    }
}

pub(super) fn check_resource_slice(
    request: &Request<'_>,
    node: &str,
    slice: &Value,
) -> Result<(), Refusal> {
    let (checked, verb) = match request.operation {
        Operation::Create => (slice, "create"),
        Operation::Update => (request.old.unwrap_or(slice), "update"),
        Operation::Delete => (request.old.unwrap_or(slice), "delete"),
        Operation::Connect => return Ok(()),
    };
    if checked.text("spec.nodeName") == node {
        return Ok(());
    }
    Err(format!("can only {verb} ResourceSlice with the same NodeName as the requesting node")
        .into())
}
