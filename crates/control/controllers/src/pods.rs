//! Functions shared by the controllers that own Pods: creating, claiming, and choosing Pods to delete.

use std::sync::Arc;

use api_meta::{ObjectMeta, OwnerReference, PartialObject, Selector, Timestamp, Tree as _};
use client::{DeleteOptions, Error, NotFoundExt as _, PatchKind, PatchTarget, Resource};
use events::ObjectRef;
use serde_json::{Value, json};

use crate::{
    api_error::namespace_is_terminating,
    context::Context,
    expectations::Expectations,
    indexes::{HasMeta, HasSelector, Selectors},
    shared::Watched,
    views::Pod,
};

/// An object that owns Pods or ReplicaSets.
#[derive(Clone)]
pub(crate) struct OwnerOf {
    pub(crate) resource: Resource,
    pub(crate) meta: ObjectMeta,
}

impl OwnerOf {
    pub(crate) fn new(resource: Resource, meta: &ObjectMeta) -> Self {
        Self { resource, meta: meta.clone() }
    }

    pub(crate) fn reference(&self) -> OwnerReference {
        OwnerReference {
            api_version: self.resource.api_version(),
            kind: self.resource.kind.to_string(),
            name: self.meta.name.clone(),
            uid: self.meta.uid.clone(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }
    }

    pub(crate) fn object(&self) -> ObjectRef {
        ObjectRef {
            api_version: self.resource.api_version(),
            kind: self.resource.kind.to_string(),
            namespace: self.meta.namespace.clone(),
            name: self.meta.name.clone(),
            uid: self.meta.uid.clone(),
            resource_version: self.meta.resource_version.clone(),
            field_path: String::new(),
        }
    }
}

/// Builds a Pod from the template, owned by `owner`.
pub(crate) fn from_template(owner: &OwnerOf, template: &Value) -> Value {
    let meta = &template["metadata"];
    let mut metadata = json!({
        "generateName": format!("{}-", owner.meta.name),
        "namespace": owner.meta.namespace,
        "ownerReferences": [owner.reference()],
    });
    for field in ["labels", "annotations", "finalizers"] {
        if !meta[field].is_null() {
            metadata.put(&[field], meta[field].clone());
        }
    }
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})
}

impl Context {
    /// Creates one Pod and records an Event.
    pub(crate) async fn create_pod(
        &self,
        owner: &OwnerOf,
        pod: &Value,
    ) -> Result<PartialObject, Error> {
        let created = self
            .client
            .create::<_, PartialObject>(&Resource::PODS, &owner.meta.namespace, pod)
            .await;
        match &created {
            Ok(pod) => {
                let message = format!("Created pod: {}", pod.metadata.name);
                self.events.normal(owner.object(), "SuccessfulCreate", message);
            }
            Err(error) if namespace_is_terminating(error) => {}
            Err(error) => {
                self.events.warning(
                    owner.object(),
                    "FailedCreate",
                    format!("Error creating: {}", error.server_message()),
                );
            }
        }
        created
    }

    /// Deletes one Pod and records an Event. A missing Pod returns its error without an Event.
    pub(crate) async fn delete_pod(&self, owner: &OwnerOf, pod: &ObjectMeta) -> Result<(), Error> {
        let deleted = self
            .client
            .delete(&Resource::PODS, &pod.namespace, &pod.name, &DeleteOptions::default())
            .await;
        match deleted {
            Err(error) if !error.is_not_found() => {
                let message = format!("Error deleting: {}", error.server_message());
                self.events.warning(owner.object(), "FailedDelete", message);
                Err(error)
            }
            Err(error) => Err(error),
            Ok(()) => {
                let message = format!("Deleted pod: {}", pod.name);
                self.events.normal(owner.object(), "SuccessfulDelete", message);
                Ok(())
            }
        }
    }

    /// Creates `pods` in batches of doubling size, so that a quota or an invalid template causes few failures. Failed
    /// and unattempted creations are removed from the expectations.
    pub(crate) async fn create_pods(
        &self,
        owner: &OwnerOf,
        pods: &[Value],
        expectations: &Expectations,
    ) -> Result<(), Error> {
        let key = owner.meta.key();
        let (mut done, mut batch) = (0, 1);
        while done < pods.len() {
            let size = batch.min(pods.len() - done);
            let creating = pods[done..done + size].iter().map(|pod| self.create_pod(owner, pod));
            let results = futures_util::future::join_all(creating).await;
            done += size;
            batch *= 2;
            let mut failed = None;
            for error in results.into_iter().filter_map(Result::err) {
                expectations.created(&key);
                failed = Some(error);
            }
            if let Some(error) = failed {
                (done..pods.len()).for_each(|_| expectations.created(&key));
                return if namespace_is_terminating(&error) { Ok(()) } else { Err(error) };
            }
        }
        Ok(())
    }

    /// Deletes Pods concurrently.
    pub(crate) async fn delete_pods(
        &self,
        owner: &OwnerOf,
        pods: &[Arc<Pod>],
        expectations: &Expectations,
    ) -> Result<(), Error> {
        let key = owner.meta.key();
        let deleting = pods.iter().map(|pod| self.delete_pod(owner, &pod.metadata));
        let results = futures_util::future::join_all(deleting).await;
        let mut failed = Ok(());
        for (pod, result) in pods.iter().zip(results) {
            if let Err(error) = result {
                expectations.deleted(&key, &pod.metadata.uid);
                if !error.is_not_found() {
                    failed = Err(error);
                }
            }
        }
        failed
    }

    /// Returns the owner's objects: those it controls, with matching orphans adopted and non-matching objects released.
    pub(crate) async fn claim<T: HasMeta>(
        &self,
        owner: &OwnerOf,
        selector: &Selector,
        resource: &Resource,
        all: Vec<Arc<T>>,
    ) -> Result<Vec<Arc<T>>, Error> {
        let mut claimed = Vec::new();
        for object in all {
            match claim_of(owner, selector, object.meta()) {
                Claim::Owned => claimed.push(object),
                Claim::Foreign => {}
                Claim::Adopt => {
                    // A deleted owner must not adopt an orphan.
                    if self.is_alive(owner).await?
                        && self.set_owner(owner, resource, object.meta(), None).await?
                    {
                        claimed.push(object);
                    }
                }
                Claim::Release => {
                    self.set_owner(owner, resource, object.meta(), Some("delete")).await?;
                }
            }
        }
        Ok(claimed)
    }

    async fn is_alive(&self, owner: &OwnerOf) -> Result<bool, Error> {
        let (namespace, name) = (&owner.meta.namespace, &owner.meta.name);
        let response = self.client.get::<PartialObject>(&owner.resource, namespace, name).await;
        Ok(response.or_none()?.is_some_and(|fresh| {
            fresh.metadata.uid == owner.meta.uid && !fresh.metadata.terminating()
        }))
    }

    /// Adds or removes the owner reference. Returns `false` if the object is gone or has been replaced.
    async fn set_owner(
        &self,
        owner: &OwnerOf,
        resource: &Resource,
        object: &ObjectMeta,
        directive: Option<&str>,
    ) -> Result<bool, Error> {
        let reference = match directive {
            Some(directive) => json!({"$patch": directive, "uid": owner.meta.uid}),
            None => json!(owner.reference()),
        };
        let patch = json!({"metadata": {"uid": object.uid, "ownerReferences": [reference]}});
        let at = PatchTarget { namespace: &object.namespace, name: &object.name, subresource: "" };
        match self.client.patch::<Value>(resource, at, PatchKind::Strategic, &patch).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_not_found() || error.is_invalid() || error.is_conflict() => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

#[derive(Debug, PartialEq)]
enum Claim {
    Owned,
    Foreign,
    Adopt,
    Release,
}

fn claim_of(owner: &OwnerOf, selector: &Selector, object: &ObjectMeta) -> Claim {
    let matches = selector.matches(&object.labels);
    match object.controller() {
        Some(controller) if controller.uid != owner.meta.uid => Claim::Foreign,
        Some(_) if matches => Claim::Owned,
        Some(_) if owner.meta.terminating() => Claim::Foreign,
        Some(_) => Claim::Release,
        None if !matches || object.terminating() || owner.meta.terminating() => Claim::Foreign,
        None => Claim::Adopt,
    }
}

/// Sorts the Pods to delete first to the front. `crowd` returns the number of the owner's Pods on the Pod's node.
pub(crate) fn removal_order(pods: &mut [Arc<Pod>], crowd: impl Fn(&Pod) -> usize, now: Timestamp) {
    pods.sort_by_cached_key(|pod| {
        let phase = match pod.status.phase.as_str() {
            "Pending" => 0,
            "Running" => 2,
            _ => 1,
        };
        let cost = pod.metadata.annotations.get("controller.kubernetes.io/pod-deletion-cost");
        let cost: i32 = cost.and_then(|c| c.parse().ok()).unwrap_or(0);
        // Compare ages by their logarithm, so that Pods of similar age are chosen at random.
        let age =
            |at: Option<Timestamp>| at.map_or(0, |at| now.since(at).as_secs().max(1).ilog2() + 1);
        (
            (!pod.node().is_empty(), phase, pod.is_ready(), cost),
            std::cmp::Reverse(crowd(pod)),
            age(pod.ready_since()),
            std::cmp::Reverse(pod.restarts()),
            age(pod.metadata.creation_timestamp),
            pod.metadata.uid.clone(),
        )
    });
}

/// Connects a Pod informer: the queue gets the owners of changed Pods and possible adopters of orphans, the
/// expectations get creations and deletions.
pub(crate) fn follow_pods(
    pods: &Watched<Pod>,
    kind: &'static str,
    queue: &client::WorkQueue<String>,
    expectations: &Arc<Expectations>,
    adopters: Selectors<impl HasSelector + serde::de::DeserializeOwned>,
) {
    let (queue, expectations) = (queue.clone(), expectations.clone());
    let owner_key = move |pod: &Pod| {
        let owner = pod.metadata.controller().filter(|owner| owner.kind == kind)?;
        Some(format!("{}/{}", pod.metadata.namespace, owner.name))
    };
    pods.on(move |change| {
        let (old, new) = (change.old.map(|p| &**p), change.new.map(|p| &**p));
        if let Some(old) = old
            && let Some(key) = owner_key(old)
        {
            let gone = new.is_none_or(|new| new.metadata.uid != old.metadata.uid);
            if gone || new.is_some_and(|new| new.metadata.terminating()) {
                expectations.deleted(&key, &old.metadata.uid);
            }
            queue.add(key);
        }
        let Some(new) = new else { return };
        match owner_key(new) {
            Some(key) => {
                if old.is_none_or(|old| old.metadata.uid != new.metadata.uid) {
                    expectations.created(&key);
                }
                if new.metadata.terminating() {
                    expectations.deleted(&key, &new.metadata.uid);
                }
                queue.add(key);
            }
            None if new.metadata.controller().is_none() => {
                let meta = &new.metadata;
                let adopters = adopters.keys(&meta.namespace, &meta.labels);
                adopters.into_iter().for_each(|key| queue.add(key));
            }
            None => {}
        }
    });
}
