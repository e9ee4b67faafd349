//! Certificate requests: approved for kubelets that may have them, signed when approved, removed when old.

mod approve;
mod clean;
mod sign;

use base64::{Engine, engine::general_purpose::STANDARD};
use client::{Error, Resource, WorkQueue};
use pki::SigningRequest;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    context::{Context, synced},
    shared::Watched,
    views::{Condition, Meta, condition, nullable},
};
pub(crate) use approve::start as start_approving;
pub(crate) use clean::start as start_cleaning;
pub(crate) use sign::start as start_signing;

const KUBELET_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const KUBELET_SERVING: &str = "kubernetes.io/kubelet-serving";
const API_CLIENT: &str = "kubernetes.io/kube-apiserver-client";
const LEGACY: &str = "kubernetes.io/legacy-unknown";

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Csr {
    metadata: Meta,
    spec: Spec,
    status: Status,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    request: String,
    signer_name: String,
    expiration_seconds: Option<u64>,
    #[serde(deserialize_with = "nullable")]
    usages: Vec<String>,
    username: String,
    uid: String,
    #[serde(deserialize_with = "nullable")]
    groups: Vec<String>,
    extra: Value,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    #[serde(deserialize_with = "nullable")]
    conditions: Vec<Condition>,
    certificate: Option<String>,
}

impl Csr {
    fn has(&self, kind: &str) -> bool {
        condition(&self.status.conditions, kind).is_some()
    }

    fn request(&self) -> Result<SigningRequest, String> {
        let pem = STANDARD.decode(&self.spec.request).map_err(|error| error.to_string())?;
        let pem = String::from_utf8(pem).map_err(|error| error.to_string())?;
        SigningRequest::from_pem(&pem).map_err(|error| error.to_string())
    }

    /// The usages are these, the optional one with or without.
    fn uses_exactly(&self, required: &[&str], optional: &str) -> bool {
        let given = &self.spec.usages;
        required.iter().all(|usage| given.iter().any(|g| g == usage))
            && given.iter().all(|g| required.contains(&g.as_str()) || g == optional)
    }

    /// What is wrong with a kubelet's request for a client certificate.
    fn check_kubelet_client(&self, request: &SigningRequest) -> Result<(), String> {
        let info = request.info().map_err(|error| error.to_string())?;
        if info.subject.organizations != ["system:nodes"] {
            return Err("subject organization is not system:nodes".into());
        }
        if !info.alt_names.is_empty() {
            return Err("subjectAltNames are not allowed".into());
        }
        if !info.subject.common_name.starts_with("system:node:") {
            return Err("subject common name does not begin with system:node:".into());
        }
        if !self.uses_exactly(&["client auth", "digital signature"], "key encipherment") {
            return Err(
                "usages did not match [client auth digital signature key encipherment]".into()
            );
        }
        Ok(())
    }
}

type Requests = Watched<Csr>;

/// Starts a loop over the requests that `wants` says are its business.
fn follow<F, Fut>(context: &Context, wants: fn(&Csr) -> bool, reconcile: F)
where
    F: Fn(Context, std::sync::Arc<Csr>) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Result<(), Error>> + Send + 'static,
{
    let queue = WorkQueue::default();
    let requests: Requests = context.watch::<Csr>(Resource::CERTIFICATE_SIGNING_REQUESTS);
    let add = queue.clone();
    requests.on(move |change| {
        if change.new.is_some_and(|csr| wants(csr)) {
            add.add(change.key.to_owned());
        }
    });
    let run = context.clone();
    context.run(&queue, 2, vec![synced(&requests)], move |key| {
        let (context, requests, reconcile) = (run.clone(), requests.clone(), reconcile.clone());
        async move {
            match requests.get(&key).filter(|csr| wants(csr)) {
                Some(csr) => reconcile(context, csr).await,
                None => Ok(()),
            }
        }
    });
}

/// Adds a condition through a subresource.
async fn add_condition(
    context: &Context,
    csr: &Csr,
    subresource: &str,
    (kind, reason, message): (&str, &str, &str),
    certificate: Option<String>,
) -> Result<(), Error> {
    let (resource, name) = (&Resource::CERTIFICATE_SIGNING_REQUESTS, csr.metadata.name.as_str());
    let mut fresh: Value = context.client.get(resource, "", name).await?;
    if fresh["metadata"]["uid"] != csr.metadata.uid.as_str() {
        return Ok(());
    }
    if let Some(certificate) = certificate {
        fresh["status"]["certificate"] = json!(certificate);
    } else {
        let now = context.now().to_seconds();
        let mut all = fresh["status"]["conditions"].as_array().cloned().unwrap_or_default();
        all.push(json!({"type": kind, "status": "True", "reason": reason, "message": message,
            "lastUpdateTime": now, "lastTransitionTime": now}));
        fresh["status"]["conditions"] = json!(all);
    }
    context
        .client
        .update_subresource::<_, Value>(resource, "", name, subresource, &fresh)
        .await
        .map(drop)
}

#[cfg(test)]
mod tests;
