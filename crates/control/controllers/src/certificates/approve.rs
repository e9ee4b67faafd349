//! Approves a kubelet's request for its client certificate if the requester is authorized.

use std::sync::Arc;

use api_meta::Tree as _;
use client::{Error, Resource, Status};
use serde_json::{Value, json};

use super::{
    reconcile::{StatusChange, change_status, follow},
    request::{Csr, KUBELET_CLIENT},
};
use crate::context::Context;

/// The permissions to check, in order, each with the message of the approval.
pub(super) fn plan(csr: &Csr) -> Vec<(&'static str, &'static str)> {
    let Ok((_, request)) = csr.request() else { return vec![] };
    if csr.validate_kubelet_client(&request).is_err() {
        return vec![];
    }
    let mut out = Vec::new();
    if request.subject.common_name == csr.spec.username {
        out.push((
            "selfnodeclient",
            "Auto approving self kubelet client certificate after SubjectAccessReview.",
        ));
    }
    out.push((
        "nodeclient",
        "Auto approving kubelet client certificate after SubjectAccessReview.",
    ));
    out
}

pub(crate) fn start(context: Context) {
    let pending = |csr: &Csr| {
        csr.spec.signer_name == KUBELET_CLIENT
            && csr.status.certificate.is_none()
            && !csr.has("Approved")
            && !csr.has("Denied")
    };
    follow(&context, pending, |context, csr| async move { approve(&context, &csr).await });
}

async fn approve(context: &Context, csr: &Arc<Csr>) -> Result<(), Error> {
    let permissions = plan(csr);
    for &(subresource, message) in &permissions {
        if is_authorized(context, csr, subresource).await? {
            let approval =
                StatusChange::Condition { kind: "Approved", reason: "AutoApproved", message };
            return change_status(context, csr, "approval", approval).await;
        }
    }
    if permissions.is_empty() {
        return Ok(());
    }
    // The requester may get the permission soon, as the first control plane node does, so return an error to retry.
    let message = format!(
        "recognized csr {:?} as {:?} but subject access review was not approved",
        csr.metadata.name,
        permissions.iter().map(|(subresource, _)| *subresource).collect::<Vec<_>>()
    );
    Err(Error::Api {
        method: http::Method::POST,
        path: "/apis/authorization.k8s.io/v1/subjectaccessreviews".to_owned(),
        status: Box::new(Status {
            code: 403,
            reason: "Forbidden".to_owned(),
            message,
            details: None,
        }),
    })
}

/// Reports whether the requester may create the subresource of requests.
async fn is_authorized(context: &Context, csr: &Csr, subresource: &str) -> Result<bool, Error> {
    let spec = &csr.spec;
    let review = json!({"spec": {
        "user": spec.username, "uid": spec.uid, "groups": spec.groups, "extra": spec.extra,
        "resourceAttributes": {"group": "certificates.k8s.io", "resource": "certificatesigningrequests",
            "verb": "create", "subresource": subresource, "version": "*"},
    }});
    let review: Value =
        context.client.create(&Resource::SUBJECT_ACCESS_REVIEWS, "", &review).await?;
    Ok(review.flag("status.allowed"))
}
