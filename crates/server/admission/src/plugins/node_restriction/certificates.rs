//! PodCertificateRequests of nodes: only for a Pod that runs on the node, and only for the signers of its volumes.

use api_meta::{GroupResource, Status, Tree as _, go_quote};
use serde_json::Value;

use super::{objects::find, refusal::Refusal};
use crate::{plugins::service_account::MIRROR, request::Request};

/// Validates a new request. A mismatch that an older view of the cluster may have caused is an internal error, so that
/// kubelets try again.
pub(super) fn check(request: &Request<'_>, node: &str, object: &Value) -> Result<(), Refusal> {
    if !request.creates() {
        return Err(format!("unexpected operation {}", request.operation).into());
    }
    if !request.subresource.is_empty() {
        return Err(format!("unexpected subresource {}", request.subresource).into());
    }
    let spec = object.at("spec");
    let named = spec.text("nodeName");
    if named != node {
        return Err(format!(
            "PodCertificateRequest.Spec.NodeName={}, which is not the requesting node {}",
            go_quote(named),
            go_quote(node)
        )
        .into());
    }
    let pod_name = spec.text("podName");
    let shown = go_quote(&format!("{}/{pod_name}", request.namespace));
    let own = find(request, &GroupResource::NODES, "", node)?;
    if own.uid() != spec.text("nodeUID") {
        let (wrong, right) = (go_quote(spec.text("nodeUID")), go_quote(own.uid()));
        return Err(stale(format!(
            "PodCertificateRequest for pod {shown} names node UID {wrong}, inconsistent with the running node ({right})"
        )));
    }
    let pod = find(request, &GroupResource::PODS, request.namespace, pod_name)?;
    if pod.uid() != spec.text("podUID") {
        let (wrong, right) = (go_quote(spec.text("podUID")), go_quote(pod.uid()));
        return Err(stale(format!(
            "PodCertificateRequest for pod {shown} contains pod UID ({wrong}) which differs from running pod {right}"
        )));
    }
    if pod.text("spec.nodeName") != node {
        let node = go_quote(node);
        return Err(format!(
            "pod {shown} is not running on node {node} named in the PodCertificateRequest"
        )
        .into());
    }
    if pod.annotation(MIRROR).is_some() {
        return Err(format!("pod {shown} is a mirror pod").into());
    }
    check_account(request, spec, &pod, &shown)?;
    check_signer(spec, &pod, &shown)
}

fn check_account(
    request: &Request<'_>,
    spec: &Value,
    pod: &Value,
    shown: &str,
) -> Result<(), Refusal> {
    let (name, right) = (spec.text("serviceAccountName"), pod.text("spec.serviceAccountName"));
    if name != right {
        let (name, right) = (go_quote(name), go_quote(right));
        return Err(format!(
            "PodCertificateRequest for pod {shown} contains serviceAccountName ({name}) that differs from \
            running pod ({right})"
        )
        .into());
    }
    let account = find(request, &GroupResource::SERVICE_ACCOUNTS, request.namespace, name)?;
    if account.uid() == spec.text("serviceAccountUID") {
        return Ok(());
    }
    let (wrong, right) = (go_quote(spec.text("serviceAccountUID")), go_quote(account.uid()));
    Err(stale(format!(
        "PodCertificateRequest for pod {shown} names service account UID {wrong}, which differs from the \
        running service account ({right})"
    )))
}

/// Returns an error unless a volume of the Pod has a certificate of the signer. A node gets no others for the Pod.
fn check_signer(spec: &Value, pod: &Value, shown: &str) -> Result<(), Refusal> {
    let signer = spec.text("signerName");
    let volumes = pod.items("spec.volumes").iter();
    let mut sources = volumes.flat_map(|volume| volume.items("projected.sources"));
    let is_signer = |source: &Value| source.text("podCertificate.signerName") == signer;
    if sources.any(is_signer) {
        return Ok(());
    }
    let signer = go_quote(signer);
    Err(format!("no volume of pod {shown} has a podCertificate source with signerName {signer}")
        .into())
}

fn stale(message: String) -> Refusal {
    Refusal::Status(Box::new(Status::internal(message)))
}
