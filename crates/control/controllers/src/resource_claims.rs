//! Creates ResourceClaims from templates for Pods, deallocates claims without users, and deletes claims of ended Pods.

mod users;

use std::{collections::HashMap, sync::Arc};

use api_meta::{OwnerReference, Tree as _};
use client::{Error, PatchKind, PatchTarget, Resource, WorkQueue};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::{
    context::{Context, synced},
    indexes::{OwnerIndex, impl_has_meta},
    pods::OwnerOf,
    shared::Watched,
    views::{Pod, PodClaim, ResourceClaim},
};

const CLAIMS: Resource = Resource::RESOURCE_CLAIMS;
/// The annotation that holds the name of the claim in the Pod's spec.
const POD_CLAIM: &str = "resource.kubernetes.io/pod-claim-name";
/// The longest base of a generated name; a hyphen and five characters follow.
const MAX_BASE: usize = 57;
const WORKERS: usize = 10;

impl_has_meta!(ResourceClaim);

struct Claims {
    context: Context,
    pods: Watched<Pod>,
    claims: Watched<ResourceClaim>,
    of_pod: OwnerIndex<ResourceClaim>,
    templates: Watched<Template>,
    /// Claims that were created and that informers may not show yet.
    created: Mutex<HashMap<PodClaimKey, CreatedClaim>>,
}

/// The key of a Pod, and the name of one of its claims in the spec.
type PodClaimKey = (String, String);

struct CreatedClaim {
    /// The uid of the Pod.
    uid: String,
    /// The name of the claim.
    name: String,
}

/// A ResourceClaimTemplate as stored.
type Template = Value;

/// Returns the queue key of a claim or a Pod.
fn key_of(kind: &str, key: &str) -> String {
    format!("{kind}:{key}")
}

pub(crate) fn start(context: Context) {
    let queue = WorkQueue::default();
    let pods = context.watch::<Pod>(Resource::PODS);
    let claims = context.watch::<ResourceClaim>(CLAIMS);
    let templates = context.watch::<Template>(Resource::RESOURCE_CLAIM_TEMPLATES);
    watch(&queue, &pods, &claims, &templates);
    let waits = vec![synced(&pods), synced(&claims), synced(&templates)];
    let own = Arc::new(Claims {
        of_pod: OwnerIndex::of(&claims),
        context: context.clone(),
        pods,
        claims,
        templates,
        created: Mutex::default(),
    });
    context.run(&queue, WORKERS, waits, own, |own, key| async move {
        match key.split_once(':') {
            Some(("pod", key)) => own.pod(key).await,
            Some((_, key)) => own.claim(key).await,
            None => Ok(()),
        }
    });
}

fn watch(
    queue: &WorkQueue<String>,
    pods: &Watched<Pod>,
    claims: &Watched<ResourceClaim>,
    templates: &Watched<Template>,
) {
    let add = queue.clone();
    pods.on(move |change| {
        let uses = |pod: &&Arc<Pod>| pod.uses_device_claims();
        if change.new.filter(uses).is_some() {
            add.add(key_of("pod", change.key));
        }
        // Whether the Pod has ended is checked when the claim is reconciled.
        let ended = change.new.is_none_or(|pod| pod.is_done());
        let last = change.new.or(change.old).filter(|_| ended);
        for claim in last.filter(uses).iter().flat_map(|pod| pod.device_claim_keys()) {
            add.add(key_of("claim", &claim));
        }
    });
    let add = queue.clone();
    claims.on(move |change| {
        add.add(key_of("claim", change.key));
        // Recreate a deleted claim while its Pod exists.
        let gone = change.old.filter(|_| change.new.is_none());
        let owner = gone.and_then(|claim| claim.metadata.controller());
        if let (Some(claim), Some(pod)) = (gone, owner.filter(|owner| owner.kind == "Pod")) {
            add.add(key_of("pod", &format!("{}/{}", claim.metadata.namespace, pod.name)));
        }
    });
    let (add, waiting) = (queue.clone(), pods.clone());
    templates.on(move |change| {
        let Some(template) = change.new else { return };
        for pod in waiting.in_namespace(template.namespace()) {
            let wants = |claim: &PodClaim| {
                claim.resource_claim_template_name.as_deref() == Some(template.name())
            };
            if pod.spec.resource_claims.iter().any(wants) {
                add.add(key_of("pod", &pod.metadata.key()));
            }
        }
    });
}

/// Returns the base of a generated name: both names, each shortened if they are too long together.
fn base(pod: &str, claim: &str) -> String {
    let whole = format!("{pod}-{claim}-");
    if whole.len() <= MAX_BASE {
        return whole;
    }
    let part = |name: &str| {
        name[..name.floor_char_boundary(name.len() * MAX_BASE / whole.len())].to_owned()
    };
    format!("{}-{}", part(pod), part(claim))
}

/// Builds a claim of a Pod from its template.
fn claim_for(pod: &Pod, name: &str, template: &Value) -> Value {
    let meta = template.at("spec.metadata");
    let mut annotations = meta.at("annotations").clone();
    if !annotations.is_object() {
        annotations = json!({});
    }
    annotations.put(&[POD_CLAIM], name);
    let owner = OwnerReference {
        block_owner_deletion: None,
        ..OwnerOf::new(Resource::PODS, &pod.metadata).reference()
    };
    json!({
        "metadata": {
            "generateName": base(&pod.metadata.name, name),
            "namespace": pod.metadata.namespace,
            "labels": meta.at("labels"),
            "annotations": annotations,
            "ownerReferences": [owner],
        },
        "spec": template.at("spec.spec"),
    })
}

impl Claims {
    fn created(&self) -> parking_lot::MutexGuard<'_, HashMap<PodClaimKey, CreatedClaim>> {
        self.created.lock()
    }

    /// Creates a Pod's claims and writes their names into its status.
    async fn pod(&self, key: &str) -> Result<(), Error> {
        let pod = self.pods.get(key);
        let Some(pod) = pod.filter(|pod| !pod.is_done() && !pod.metadata.terminating()) else {
            self.created().retain(|(pod, _), _| pod != key);
            return Ok(());
        };
        let mut names = Vec::new();
        let mut failed = None;
        for claim in &pod.spec.resource_claims {
            match self.ensure(&pod, claim).await {
                Ok(Some(name)) => {
                    names.push(json!({"name": claim.name, "resourceClaimName": name}));
                }
                Ok(None) => {}
                Err(error) => {
                    self.warn(&pod, claim, &error);
                    failed = Some(error);
                }
            }
        }
        if !names.is_empty() {
            let meta = &pod.metadata;
            let at =
                PatchTarget { namespace: &meta.namespace, name: &meta.name, subresource: "status" };
            let patch =
                json!({"metadata": {"uid": meta.uid}, "status": {"resourceClaimStatuses": names}});
            let client = &self.context.client;
            client.patch::<Value>(&Resource::PODS, at, PatchKind::Strategic, &patch).await?;
        }
        if let Some(error) = failed {
            return Err(error);
        }
        if pod.node().is_empty() { Ok(()) } else { self.reserve(&pod).await }
    }

    fn warn(&self, pod: &Pod, claim: &PodClaim, why: &dyn std::fmt::Display) {
        let about = OwnerOf::new(Resource::PODS, &pod.metadata).object();
        let message = format!("PodResourceClaim {}: {why}", claim.name);
        self.context.events.warning(about, "FailedResourceClaimCreation", message);
    }

    /// Finds or creates a claim and returns its name if the Pod's status does not have it yet.
    async fn ensure(&self, pod: &Pod, claim: &PodClaim) -> Result<Option<String>, Error> {
        let namespace = &pod.metadata.namespace;
        let Some(template) = &claim.resource_claim_template_name else { return Ok(None) };
        let status = pod.status.resource_claim_statuses.iter().find(|s| s.name == claim.name);
        let key = (pod.metadata.key(), claim.name.clone());
        match status.map(|status| &status.resource_claim_name) {
            // The status says that no claim is needed.
            Some(None) => return Ok(None),
            Some(Some(name)) => {
                let existing = self.claims.get(&format!("{namespace}/{name}"));
                if existing
                    .is_some_and(|existing| existing.metadata.controlled_by(&pod.metadata.uid))
                {
                    self.created().remove(&key);
                    return Ok(None);
                }
            }
            None => {}
        }
        // The claim may exist without an entry in the Pod's status.
        let is_it = |own: &&Arc<ResourceClaim>| {
            let of = own.metadata.annotations.get(POD_CLAIM);
            of.is_some_and(|of| *of == claim.name) && !own.metadata.terminating()
        };
        if let Some(own) = self.of_pod.by(&pod.metadata.uid).iter().find(is_it) {
            return Ok(Some(own.metadata.name.clone()));
        }
        let of_this = |created: &&CreatedClaim| created.uid == pod.metadata.uid;
        let created = self.created().get(&key).filter(of_this).map(|claim| claim.name.clone());
        if let Some(name) = created {
            // Check that the claim still exists.
            match self.context.client.get::<Value>(&CLAIMS, namespace, &name).await {
                Err(error) if error.is_not_found() => drop(self.created().remove(&key)),
                other => return other.map(|_| Some(name)),
            }
        }
        let Some(template) = self.templates.get(&format!("{namespace}/{template}")) else {
            // The creation of the template requeues the Pod.
            let why = format!(
                "resource claim template {template:?}: resourceclaimtemplate.resource.k8s.io {template:?} not found"
            );
            self.warn(pod, claim, &why);
            return Ok(None);
        };
        let claim = claim_for(pod, &claim.name, &template);
        let created: Value = self.context.client.create(&CLAIMS, namespace, &claim).await?;
        let name = created.name().to_owned();
        self.created()
            .insert(key, CreatedClaim { uid: pod.metadata.uid.clone(), name: name.clone() });
        Ok(Some(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generates_names_from_pod_and_claim() {
        assert_eq!(base("pod", "gpu"), "pod-gpu-");
        let long = base(&"p".repeat(60), &"c".repeat(30));
        assert_eq!(
            (long.len(), long.matches('p').count(), long.matches('c').count()),
            (56, 37, 18)
        );
        assert!(base(&"ü".repeat(80), "c").starts_with('ü'));
    }
}
