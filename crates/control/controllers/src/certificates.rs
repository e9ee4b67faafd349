//! Certificate signing requests: approves those of kubelets, signs approved ones, and deletes old ones.

mod approve;
mod clean;
mod sign;

use std::collections::BTreeSet;

use api_meta::{ObjectMeta, Tree as _, null_default};
use client::{Error, Resource, WorkQueue};
use pki::{AltName, RequestInfo, SigningRequest};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    context::{Context, synced},
    shared::Watched,
    views::{Condition, condition},
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
    metadata: ObjectMeta,
    spec: Spec,
    status: Status,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    request: String,
    signer_name: String,
    expiration_seconds: Option<u64>,
    #[serde(deserialize_with = "null_default")]
    usages: Vec<String>,
    username: String,
    uid: String,
    #[serde(deserialize_with = "null_default")]
    groups: Vec<String>,
    extra: Value,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    #[serde(deserialize_with = "null_default")]
    conditions: Vec<Condition>,
    certificate: Option<String>,
}

impl Csr {
    fn has(&self, kind: &str) -> bool {
        condition(&self.status.conditions, kind).is_some()
    }

    /// Decodes the request for the approver and the signer.
    fn request(&self) -> Result<(SigningRequest, RequestInfo), String> {
        let request = SigningRequest::from_base64(&self.spec.request)
            .and_then(|request| request.info().map(|info| (request, info)));
        request.map_err(|error| error.to_string())
    }

    /// Checks that the usages are `wanted`, in any order. Key encipherment is optional, because only RSA keys use it.
    fn check_usages(&self, wanted: [&str; 3]) -> Result<(), String> {
        let given: BTreeSet<&str> = self.spec.usages.iter().map(String::as_str).collect();
        let mut of_others = BTreeSet::from(wanted);
        of_others.remove("key encipherment");
        if given == BTreeSet::from(wanted) || given == of_others {
            return Ok(());
        }
        Err(format!("usages did not match [{}]", wanted.join(" ")))
    }

    /// Validates a kubelet's request for a client certificate.
    fn check_kubelet_client(&self, request: &RequestInfo) -> Result<(), String> {
        check_group(request)?;
        if let Some(name) = request.alt_names.first() {
            return Err(format!("{} subjectAltNames are not allowed", kind_of(name)));
        }
        check_node(request)?;
        self.check_usages(["client auth", "digital signature", "key encipherment"])
    }

    /// Validates a kubelet's request for a serving certificate.
    fn check_kubelet_serving(&self, request: &RequestInfo) -> Result<(), String> {
        check_group(request)?;
        let served = |name: &&AltName| matches!(name, AltName::Dns(_) | AltName::Ip(_));
        if !request.alt_names.iter().any(|name| served(&name)) {
            return Err("DNS or IP subjectAltName is required".into());
        }
        if let Some(name) = request.alt_names.iter().find(|name| !served(name)) {
            return Err(format!("{} subjectAltNames are not allowed", kind_of(name)));
        }
        self.check_usages(["digital signature", "key encipherment", "server auth"])?;
        check_node(request)
    }

    /// Validates a request for a client certificate of any user.
    fn check_api_client(&self) -> Result<(), String> {
        let usages = &self.spec.usages;
        let known = ["client auth", "digital signature", "key encipherment"];
        if let Some(usage) = usages.iter().find(|usage| !known.contains(&usage.as_str())) {
            return Err(format!("invalid usage for client certificate: {usage}"));
        }
        if usages.iter().any(|usage| usage == "client auth") {
            Ok(())
        } else {
            Err("missing required usage for client certificate: client auth".into())
        }
    }
}

fn check_group(request: &RequestInfo) -> Result<(), String> {
    if request.subject.organizations == ["system:nodes"] {
        Ok(())
    } else {
        Err("subject organization is not system:nodes".into())
    }
}

fn check_node(request: &RequestInfo) -> Result<(), String> {
    if request.subject.common_name.starts_with("system:node:") {
        Ok(())
    } else {
        Err("subject common name does not begin with system:node:".into())
    }
}

fn kind_of(name: &AltName) -> &'static str {
    match name {
        AltName::Dns(_) => "DNS",
        AltName::Email(_) => "Email",
        AltName::Ip(_) => "IP",
        AltName::Uri(_) => "URI",
    }
}

type Requests = Watched<Csr>;

/// Starts a loop over the requests that `wants` accepts.
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
        fresh.put(&["status", "certificate"], json!(certificate));
    } else {
        let now = context.now().to_seconds();
        let mut all = fresh.items("status.conditions").to_vec();
        all.push(json!({"type": kind, "status": "True", "reason": reason, "message": message,
            "lastUpdateTime": now, "lastTransitionTime": now}));
        fresh.put(&["status", "conditions"], json!(all));
    }
    context
        .client
        .update_subresource::<_, Value>(resource, "", name, subresource, &fresh)
        .await
        .map(drop)
}

#[cfg(test)]
mod tests;
