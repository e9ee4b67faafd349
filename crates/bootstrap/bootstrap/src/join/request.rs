//! Describes the state of a kubelet's certificate signing request.

use api_meta::Tree as _;
use client::{Client, ListOptions, Resource};
use pki::SigningRequest;
use serde_json::Value;

/// Returns the reason why the kubelet's request is pending.
pub(super) async fn pending_reason(client: &Client, node: &str) -> Option<String> {
    let options = ListOptions {
        field_selector: "spec.signerName=kubernetes.io/kube-apiserver-client-kubelet".to_owned(),
        ..ListOptions::default()
    };
    let requests = Resource::CERTIFICATE_SIGNING_REQUESTS;
    let all = client.list::<Value>(&requests, "", &options).await.ok()?.items;
    let common_name = format!("system:node:{node}");
    let mut own: Vec<Value> = all.into_iter().filter(|csr| is_for(csr, &common_name)).collect();
    own.sort_by_key(|csr| csr.at("metadata.creationTimestamp").to_string());
    own.last().map(describe)
}

/// Returns `true` if the request is for a certificate with this common name.
fn is_for(csr: &Value, common_name: &str) -> bool {
    let request = csr.text("spec.request");
    SigningRequest::from_base64(request)
        .and_then(|request| request.info())
        .is_ok_and(|info| info.subject.common_name == common_name)
}

/// Describes the state of a request and the next step.
fn describe(csr: &Value) -> String {
    let name = csr.name();
    let conditions = csr.items("status.conditions");
    let of = |kind: &str| conditions.iter().find(|c| c["type"] == kind);
    let why = |condition: &Value| condition.text("message").to_owned();
    if let Some(denied) = of("Denied") {
        return format!("its request {name} was denied: {}", why(denied));
    }
    if let Some(failed) = of("Failed") {
        return format!("its request {name} could not be signed: {}", why(failed));
    }
    if of("Approved").is_none() {
        return format!(
            "its request {name} waits for approval (kubectl certificate approve {name})"
        );
    }
    format!(
        "its request {name} is approved and nobody signs it: the key of the cluster's CA is kept elsewhere, or the \
         controller manager does not run. Have the CA sign the request and put the certificate into its status, or \
         reset this machine and give it a kubelet.conf with a certificate before it joins \
         (--ignore-preflight-errors=FileAvailable--etc-kubernetes-kubelet.conf)"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn describes_state_of_signing_request() {
        let said_of = |conditions: Value| {
            describe(&json!({"metadata": {"name": "csr-1"}, "status": {"conditions": conditions}}))
        };
        for (conditions, words) in [
            (json!(null), "waits for approval (kubectl certificate approve csr-1)"),
            (json!([{"type": "Approved"}]), "is approved and nobody signs it"),
            (json!([{"type": "Denied", "message": "no"}]), "was denied: no"),
            (
                json!([{"type": "Approved"}, {"type": "Failed", "message": "x"}]),
                "could not be signed: x",
            ),
        ] {
            let said = said_of(conditions);
            assert!(said.contains(words), "{said}");
        }
    }
}
