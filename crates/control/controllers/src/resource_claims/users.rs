//! Maintains existing claims: reserves them for Pods that were bound without the scheduler, deallocates them after
//! their last user, and deletes them when their Pod has ended.

use std::collections::HashSet;

use api_meta::Tree as _;
use client::{DeleteOptions, Error, NotFoundExt as _, Preconditions, Resource};
use sched_core::CLAIM_FINALIZER;
use serde_json::{Value, json};

use super::{CLAIMS, Claims};
use crate::views::{Consumer, Pod, ResourceClaim};

impl Claims {
    /// Reserves allocated claims for a Pod that was bound without the scheduler.
    pub(super) async fn reserve(&self, pod: &Pod) -> Result<(), Error> {
        let meta = &pod.metadata;
        for claim in &pod.spec.resource_claims {
            let Some((name, generated)) = pod.device_claim(claim) else { continue };
            let key = format!("{}/{name}", meta.namespace);
            let Some(cached) = self.claims.get(&key) else { continue };
            let foreign = generated && !cached.metadata.controlled_by(&meta.uid);
            let reserved = cached.status.reserved_for.iter().any(|user| user.uid == meta.uid);
            if foreign || reserved || cached.status.allocation.is_none() {
                continue;
            }
            let mut claim = self.read(&cached).await?;
            let mut users = claim.items("status.reservedFor").to_vec();
            let reserved = users.iter().any(|user| user.text("uid") == meta.uid);
            if claim.has("status.allocation") && !reserved {
                users.push(json!({"resource": "pods", "name": meta.name, "uid": meta.uid}));
                claim.put("status.reservedFor", users);
                self.write(&claim, "status").await?;
            }
        }
        Ok(())
    }

    /// Reconciles one claim with its users.
    pub(super) async fn claim(&self, key: &str) -> Result<(), Error> {
        let Some(claim) = self.claims.get(key) else { return Ok(()) };
        let mut gone = HashSet::new();
        for user in claim.status.reserved_for.iter().filter(|user| user.is_pod()) {
            if !self.is_used(&claim, user).await? {
                gone.insert(user.uid.clone());
            }
        }
        let unused = claim.status.reserved_for.iter().all(|user| gone.contains(&user.uid));
        let has_finalizer = claim.metadata.finalizers.iter().any(|f| f == CLAIM_FINALIZER);
        if !gone.is_empty() || has_finalizer && unused && claim.metadata.terminating() {
            self.give_back(&claim, &gone).await?;
        }
        if unused && self.is_left_over(&claim) {
            let meta = &claim.metadata;
            let uid = Some(meta.uid.clone());
            let this = Some(Preconditions { uid, resource_version: None });
            let options = DeleteOptions { preconditions: this, ..DeleteOptions::default() };
            let client = &self.context.client;
            client.delete(&CLAIMS, &meta.namespace, &meta.name, &options).await.or_none()?;
        }
        Ok(())
    }

    /// Reports whether the Pod may still use the claim. A Pod unknown to the informer is read from the API.
    async fn is_used(&self, claim: &ResourceClaim, user: &Consumer) -> Result<bool, Error> {
        let namespace = &claim.metadata.namespace;
        if let Some(pod) = self.pods.get(&format!("{namespace}/{}", user.name)) {
            return Ok(pod.metadata.uid == user.uid && !pod.is_done());
        }
        let pod = self.context.client.get::<Value>(&Resource::PODS, namespace, &user.name).await;
        Ok(pod.or_none()?.is_some_and(|pod| pod.uid() == user.uid))
    }

    /// Removes users from a claim. With the last user, it also removes the allocation and the finalizer.
    async fn give_back(&self, cached: &ResourceClaim, gone: &HashSet<String>) -> Result<(), Error> {
        let mut claim = self.read(cached).await?;
        let users = claim.items("status.reservedFor").iter();
        let left: Vec<_> = users.filter(|user| !gone.contains(user.text("uid"))).cloned().collect();
        let last = left.is_empty();
        let has_finalizer = claim.texts("metadata.finalizers").any(|f| f == CLAIM_FINALIZER);
        let changed = left.len() < claim.items("status.reservedFor").len();
        claim.put("status.reservedFor", left);
        let frees = last && has_finalizer && claim.has("status.allocation");
        if frees {
            claim.remove("status.allocation");
        }
        if changed || frees {
            claim = self.write(&claim, "status").await?;
        }
        if last && has_finalizer && !claim.has("status.allocation") {
            let finalizers = claim.texts("metadata.finalizers").filter(|f| *f != CLAIM_FINALIZER);
            let finalizers: Vec<_> = finalizers.map(str::to_owned).collect();
            claim.put("metadata.finalizers", json!(finalizers));
            self.write(&claim, "").await?;
        }
        Ok(())
    }

    /// Reports whether the claim's Pod no longer needs it. The garbage collector deletes claims of deleted Pods.
    fn is_left_over(&self, claim: &ResourceClaim) -> bool {
        let meta = &claim.metadata;
        let owner = meta.controller().filter(|owner| owner.kind == "Pod");
        let Some(owner) = owner.filter(|_| !meta.terminating()) else { return false };
        let pod = self.pods.get(&format!("{}/{}", meta.namespace, owner.name));
        pod.is_some_and(|pod| pod.metadata.uid != owner.uid || pod.is_done())
    }

    /// Reads the current claim for a write on its version. A claim of the same name with another uid is a conflict.
    async fn read(&self, cached: &ResourceClaim) -> Result<Value, Error> {
        let meta = &cached.metadata;
        let claim = self.context.client.get(&CLAIMS, &meta.namespace, &meta.name).await;
        let mut claim: Value = claim?;
        claim.put("metadata.uid", json!(meta.uid));
        Ok(claim)
    }

    async fn write(&self, claim: &Value, subresource: &str) -> Result<Value, Error> {
        let (namespace, name) = (claim.namespace(), claim.name());
        let client = &self.context.client;
        client.update_subresource(&CLAIMS, namespace, name, subresource, claim).await
    }
}
