//! Allocates the devices of a Pod's ResourceClaims before the Pod is bound (PreBind of `DynamicResources`), and
//! deallocates them after a failure. Creates the claim for extended resources that devices serve.

use std::{collections::BTreeSet, time::Duration};

use api_meta::Tree as _;
use client::{DeleteOptions, Error, Preconditions, Resource};
use sched_core::{
    Allocation, CLAIM_FINALIZER, ClassRequest, DeviceBinding, EXTENDED_RESOURCE_CLAIM,
    ExtendedClaim, Pod, Progress,
};
use serde_json::{Value, json};

use crate::work::Worker;

/// The time that drivers may take to make devices ready; upstream's default of `bindingTimeout`.
const BINDING_TIMEOUT: Duration = Duration::from_secs(600);
/// The number of attempts to write a claim after conflicts.
const TRIES: usize = 5;
const CLAIMS: Resource = Resource::RESOURCE_CLAIMS;

/// The devices of a Pod are not allocated or not ready.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DevicesError {
    #[error("{action} claim {claim}: {source}")]
    Write { action: &'static str, claim: String, source: Error },
    #[error("claim {claim} got {change} in the meantime")]
    Changed { claim: String, change: &'static str },
    #[error("encode the allocation of claim {claim}: {source}")]
    Encode { claim: String, source: serde_json::Error },
    #[error("{action} for extended resources: {source}")]
    Extended { action: &'static str, source: Error },
    #[error("{reason}")]
    Refused { reason: String },
    #[error("the scheduler is stopping")]
    Stopping,
    #[error("device binding timeout: the devices were not ready within {} s", .0.as_secs())]
    Late(Duration),
}

fn has_conditions(claim: &Value) -> bool {
    let results = claim.items("status.allocation.devices.results");
    results.iter().any(|device| !device.items("bindingConditions").is_empty())
}

/// Reports whether a claim is reserved for a Pod.
fn is_reserved(claim: &Value, pod: &Pod) -> bool {
    claim.items("status.reservedFor").iter().any(|user| user["uid"] == *pod.id.uid)
}

/// Builds the claim for the extended resources of a Pod.
fn extended_claim(pod: &Pod, requests: &[ClassRequest]) -> Value {
    let request = |request: &ClassRequest| {
        json!({"name": request.name, "exactly": {"deviceClassName": request.class,
            "allocationMode": "ExactCount", "count": request.count}})
    };
    let id = &pod.id;
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": id.name, "uid": id.uid,
        "controller": true, "blockOwnerDeletion": true});
    json!({
        "metadata": {
            "generateName": format!("{}-extended-resources-", id.name),
            "namespace": id.namespace,
            "annotations": {EXTENDED_RESOURCE_CLAIM: "true"},
            "finalizers": [CLAIM_FINALIZER],
            "ownerReferences": [owner],
        },
        "spec": {"devices": {"requests": requests.iter().map(request).collect::<Vec<_>>()}},
    })
}

/// Returns the allocation to write. Each share of a device gets a new id.
fn allocated(allocation: &Allocation) -> Result<Value, serde_json::Error> {
    let mut allocation = allocation.clone();
    let shares = allocation.devices.results.iter_mut();
    shares.filter_map(|device| device.share_id.as_mut()).for_each(|id| *id = rt::id().into());
    serde_json::to_value(&allocation)
}

impl Worker {
    /// Writes the allocations, reserves the claims for the Pod, and waits until their devices are ready.
    pub(crate) async fn bind_devices(
        &self,
        pod: &Pod,
        devices: &mut [DeviceBinding],
    ) -> Result<(), DevicesError> {
        let mut waits = false;
        for binding in &mut *devices {
            if let Some(extended) = &binding.extended
                && binding.claim.is_empty()
            {
                let claim = self.create_extended(pod, extended).await?;
                let uid = claim.text("metadata.uid");
                self.shared.update(|core, _| core.device_claim_created(&binding.uid, uid));
                binding.claim = claim.text("metadata.name").into();
                binding.uid = uid.into();
            }
            waits |= has_conditions(&self.bind_claim(pod, binding).await?);
            if let Some(extended) = &binding.extended {
                self.publish_extended(pod, &binding.claim, extended).await?;
            }
        }
        let devices = &*devices;
        if !waits {
            return Ok(());
        }
        let mut updates = self.shared.updates.subscribe();
        let ready = async {
            loop {
                updates.mark_unchanged();
                match self.shared.core().device_progress(pod, devices) {
                    Progress::Bound => return Ok(()),
                    Progress::Refused(reason) => return Err(DevicesError::Refused { reason }),
                    Progress::Waiting => {}
                }
                if updates.changed().await.is_err() {
                    return Err(DevicesError::Stopping);
                }
            }
        };
        let ready = async { tokio::time::timeout(BINDING_TIMEOUT, ready).await };
        let stopping = || Ok(Err(DevicesError::Stopping));
        let ready = self.tasks.shutdown().unless_stopping(ready).await.unwrap_or_else(stopping);
        if let Ok(ready) = ready {
            return ready;
        }
        // Release the devices, because others may become ready.
        for binding in devices {
            self.deallocate(pod, &binding.claim, &binding.uid).await;
        }
        Err(DevicesError::Late(BINDING_TIMEOUT))
    }

    /// Creates the claim for extended resources of the Pod. The garbage collector deletes it with the Pod.
    async fn create_extended(
        &self,
        pod: &Pod,
        extended: &ExtendedClaim,
    ) -> Result<Value, DevicesError> {
        let id = &pod.id;
        let claim = extended_claim(pod, &extended.requests);
        let created = self.client.create(&CLAIMS, &id.namespace, &claim).await;
        created.map_err(|source| DevicesError::Extended { action: "create claim", source })
    }

    /// Writes into the Pod's status which request of the claim serves each container.
    async fn publish_extended(
        &self,
        pod: &Pod,
        claim: &str,
        extended: &ExtendedClaim,
    ) -> Result<(), DevicesError> {
        let status = json!({"resourceClaimName": claim, "requestMappings": extended.mappings});
        let written = self.write_status(pod, json!({"extendedResourceClaimStatus": status})).await;
        let action = "write the Pod's status";
        written.map_err(|source| DevicesError::Extended { action, source })
    }

    /// Deletes the claim that was created for extended resources, because the Pod is not bound.
    async fn delete_extended(&self, pod: &Pod, binding: &DeviceBinding) {
        if binding.claim.is_empty() {
            return;
        }
        self.deallocate(pod, &binding.claim, &binding.uid).await;
        let uid = Some(binding.uid.to_string());
        let preconditions = Some(Preconditions { uid, resource_version: None });
        let options = DeleteOptions { preconditions, ..DeleteOptions::default() };
        let namespace = &pod.id.namespace;
        match self.client.delete(&CLAIMS, namespace, &binding.claim, &options).await {
            Err(error) if !error.is_not_found() && !error.is_conflict() => {
                let claim = &*binding.claim;
                tracing::warn!(pod = %pod.id, claim, %error, "could not delete the claim");
            }
            _ => {}
        }
    }

    async fn bind_claim(&self, pod: &Pod, binding: &DeviceBinding) -> Result<Value, DevicesError> {
        let mut tries = 0;
        loop {
            tries += 1;
            match self.try_bind_claim(pod, binding).await {
                Err(DevicesError::Write { source, .. })
                    if source.is_conflict() && tries < TRIES => {}
                done => return done,
            }
        }
    }

    async fn try_bind_claim(
        &self,
        pod: &Pod,
        binding: &DeviceBinding,
    ) -> Result<Value, DevicesError> {
        let (namespace, name) = (&*pod.id.namespace, &*binding.claim);
        let label = || format!("{namespace}/{name}");
        let failed = |action| move |source| DevicesError::Write { action, claim: label(), source };
        let changed = |change| Err(DevicesError::Changed { claim: label(), change });
        let mut claim: Value =
            self.client.get(&CLAIMS, namespace, name).await.map_err(failed("get"))?;
        if claim["metadata"]["uid"] != *binding.uid || claim.has("metadata.deletionTimestamp") {
            return changed("deleted");
        }
        match (&binding.allocation, claim.has("status.allocation")) {
            (Some(_), true) => return changed("allocated elsewhere"),
            (None, false) => return changed("deallocated elsewhere"),
            (None, true) if is_reserved(&claim, pod) => return Ok(claim),
            (None, true) => {}
            (Some(allocation), false) => {
                let finalizers = claim.items("metadata.finalizers");
                if !finalizers.iter().any(|f| f == CLAIM_FINALIZER) {
                    let mut finalizers = finalizers.to_vec();
                    finalizers.push(json!(CLAIM_FINALIZER));
                    claim.put(&["metadata", "finalizers"], json!(finalizers));
                    let updated = self.client.update(&CLAIMS, namespace, name, &claim).await;
                    claim = updated.map_err(failed("add finalizer to"))?;
                }
                let allocation = allocated(allocation)
                    .map_err(|source| DevicesError::Encode { claim: label(), source })?;
                claim.put(&["status", "allocation"], allocation);
            }
        }
        if !claim.has("status.allocation.allocationTimestamp") {
            let now = api_meta::Timestamp::from(rt::now()).to_seconds();
            claim.put(&["status", "allocation", "allocationTimestamp"], json!(now));
        }
        let mut users = claim.items("status.reservedFor").to_vec();
        users.push(json!({"resource": "pods", "name": pod.id.name, "uid": pod.id.uid}));
        claim.put(&["status", "reservedFor"], json!(users));
        let action = match binding.allocation {
            Some(_) => "add allocation and reservation to",
            None => "add reservation to",
        };
        let written = self.client.update_status(&CLAIMS, namespace, name, &claim).await;
        let written: Value = written.map_err(failed(action))?;
        if binding.allocation.is_some() {
            let version = written.text("metadata.resourceVersion").to_owned();
            self.shared.update(|core, _| core.allocation_written(&binding.uid, &version));
        }
        Ok(written)
    }

    /// Removes the Pod from the users of its claims. The claims stay allocated for its next attempt.
    pub(crate) async fn release(&self, pod: &Pod, devices: &[DeviceBinding]) {
        let (extended, named): (Vec<_>, Vec<_>) =
            devices.iter().partition(|binding| binding.extended.is_some());
        for binding in extended {
            self.delete_extended(pod, binding).await;
        }
        let names: BTreeSet<_> = named.iter().map(|binding| &binding.claim).collect();
        for name in names {
            let change = |claim: &mut Value| {
                let users = claim.items("status.reservedFor").iter();
                let others: Vec<_> =
                    users.filter(|user| user["uid"] != *pod.id.uid).cloned().collect();
                claim.put(&["status", "reservedFor"], json!(others));
            };
            let reserved = |claim: &Value| {
                // A write whose answer was lost may have succeeded; then its devices are not free.
                if claim.has("status.allocation") {
                    let of = |field| claim.text(field).to_owned();
                    let (uid, version) = (of("metadata.uid"), of("metadata.resourceVersion"));
                    self.shared.update(|core, _| core.allocation_written(&uid, &version));
                }
                is_reserved(claim, pod)
            };
            self.rewrite(pod, name, reserved, change).await;
        }
    }

    /// Deallocates a claim that only the Pod uses.
    pub(crate) async fn deallocate(&self, pod: &Pod, name: &str, uid: &str) {
        let change = |claim: &mut Value| {
            for field in ["allocation", "reservedFor", "devices"] {
                claim.remove(&["status", field]);
            }
        };
        let unused = |claim: &Value| {
            let mut users = claim.items("status.reservedFor").iter();
            claim["metadata"]["uid"] == *uid && users.all(|user| user["uid"] == *pod.id.uid)
        };
        self.rewrite(pod, name, unused, change).await;
    }

    /// Rewrites a claim's status if the condition `when` holds.
    async fn rewrite(
        &self,
        pod: &Pod,
        name: &str,
        when: impl Fn(&Value) -> bool,
        change: impl Fn(&mut Value),
    ) {
        let namespace = &*pod.id.namespace;
        for _ in 0..TRIES {
            let written = async {
                let mut claim: Value = self.client.get(&CLAIMS, namespace, name).await?;
                if when(&claim) {
                    change(&mut claim);
                    self.client.update_status::<_, Value>(&CLAIMS, namespace, name, &claim).await?;
                }
                Ok::<_, Error>(())
            };
            match written.await {
                Err(error) if error.is_conflict() => {}
                Err(error) if !error.is_not_found() => {
                    return tracing::warn!(pod = %pod.id, claim = name, %error, "could not release the claim");
                }
                _ => return,
            }
        }
    }
}
