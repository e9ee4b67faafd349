//! Prepares claims for a Pod and unprepares them when the Pod has ended.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use client::{Client, Resource};
use deviceplugin::{
    Driver,
    dra::{self, NodePrepareResourceResponse, NodeUnprepareResourceResponse},
};
use futures_util::future::join_all;
use k8s_openapi::api::{core::v1::Pod, resource::v1::ResourceClaim};
use pod_core::claims::{self, Claim, Device, Key};
use tokio::{sync::OwnedMutexGuard, time::Instant};

use super::{Claims, ClaimsError};

const PREPARE: &str = "NodePrepareResources";
const UNPREPARE: &str = "NodeUnprepareResources";

impl Claims {
    /// Has drivers prepare the claims of a Pod, if the API allows the Pod to use them. The caller may retry after any
    /// error.
    pub async fn prepare(&self, client: Option<&Client>, pod: &Pod) -> Result<(), ClaimsError> {
        let start = Instant::now();
        let done = self.prepare_all(client, pod).await;
        if !matches!(done, Ok(false)) {
            self.counts.operation("PrepareResources", done.is_err(), start.elapsed());
        }
        done.map(drop)
    }

    /// Prepares the claims and returns `false` if the Pod has none.
    async fn prepare_all(&self, client: Option<&Client>, pod: &Pod) -> Result<bool, ClaimsError> {
        let references = claims::references(pod)?;
        if references.is_empty() {
            return Ok(false);
        }
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        let keys = references.iter().map(|reference| (namespace.clone(), reference.name.clone()));
        let _turns = self.lock_claims(keys.collect()).await;
        let (mut all, mut drivers) = (Vec::new(), BTreeMap::new());
        for reference in &references {
            let name = || reference.name.clone();
            let client = client.ok_or_else(|| ClaimsError::Standalone(name()))?;
            let object = client.get(&Resource::RESOURCE_CLAIMS, &namespace, &reference.name).await;
            let object: ResourceClaim =
                object.map_err(|source| ClaimsError::Fetch { name: name(), source })?;
            let claim = reference.check(pod, &object)?;
            // Check all drivers before anything is recorded: otherwise the Pod could not end until they have
            // registered.
            for driver in claim.drivers.keys() {
                drivers.insert(driver.clone(), self.driver(driver)?);
            }
            all.push(claim);
        }
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let lacking = self.lock().allocations.add_pod(uid, all)?;
        self.save().await?;
        let batches = batches(&lacking);
        let each = batches.iter().map(|(name, claims)| {
            let driver = drivers.get(name).cloned();
            async move {
                let driver = driver.map_or_else(|| self.driver(name), Ok)?;
                self.prepare_by_driver(name, driver, claims).await
            }
        });
        join_all(each).await.into_iter().collect::<Result<(), _>>()?;
        self.save().await?;
        lacking.iter().for_each(|claim| self.lock().allocations.set_prepared(&claim.key()));
        self.counts.measure(&self.lock().allocations);
        Ok(true)
    }

    async fn prepare_by_driver(
        &self,
        name: &str,
        driver: Driver,
        claims: &[Claim],
    ) -> Result<(), ClaimsError> {
        let start = Instant::now();
        let response = driver.prepare(claims.iter().map(dra_claim).collect()).await;
        self.counts.call(name, driver.prepare_method(), response.as_ref().err(), start.elapsed());
        let response = response.map_err(|source| ClaimsError::Call { call: PREPARE, source })?;
        let error = |response: &NodePrepareResourceResponse| response.error.clone();
        for (key, response) in match_responses(PREPARE, claims, response, error)? {
            let devices = response.devices.into_iter().map(device).collect();
            self.lock().allocations.set_devices(&key, name, devices);
        }
        Ok(())
    }

    /// Has drivers unprepare the claims that no Pod but this one uses. Succeeds if that is done already.
    pub async fn unprepare(&self, uid: &str) -> Result<(), ClaimsError> {
        let keys: BTreeSet<Key> = self.lock().allocations.used_by(uid).into_iter().collect();
        if keys.is_empty() {
            return Ok(());
        }
        let start = Instant::now();
        let done = self.unprepare_all(uid, keys).await;
        self.counts.operation("UnprepareResources", done.is_err(), start.elapsed());
        done
    }

    async fn unprepare_all(&self, uid: &str, keys: BTreeSet<Key>) -> Result<(), ClaimsError> {
        let _turns = self.lock_claims(keys).await;
        let alone = self.lock().allocations.remove_pod(uid);
        let batches = batches(&alone);
        let each = batches.iter().map(|(name, claims)| self.unprepare_by_driver(name, claims));
        let done: BTreeMap<&String, Result<(), ClaimsError>> =
            batches.keys().zip(join_all(each).await).collect();
        let over = |claim: &&Claim| {
            claim.drivers.keys().all(|name| matches!(done.get(name), Some(Ok(()))))
        };
        for claim in alone.iter().filter(over) {
            self.lock().allocations.remove(&claim.key());
        }
        self.save().await?;
        done.into_values().collect()
    }

    async fn unprepare_by_driver(&self, name: &str, claims: &[Claim]) -> Result<(), ClaimsError> {
        let driver = self.driver(name)?;
        let start = Instant::now();
        let response = driver.unprepare(claims.iter().map(dra_claim).collect()).await;
        self.counts.call(name, driver.unprepare_method(), response.as_ref().err(), start.elapsed());
        let response = response.map_err(|source| ClaimsError::Call { call: UNPREPARE, source })?;
        let error = |response: &NodeUnprepareResourceResponse| response.error.clone();
        match_responses(UNPREPARE, claims, response, error).map(drop)
    }

    /// Locks the claims. Every caller locks them in the order of their keys, which prevents deadlocks.
    async fn lock_claims(&self, keys: BTreeSet<Key>) -> Vec<OwnedMutexGuard<()>> {
        let mut turns = Vec::new();
        for key in keys {
            let turn = {
                let all = &mut self.lock().turns;
                all.retain(|other, turn| *other == key || std::sync::Arc::strong_count(turn) > 1);
                all.entry(key).or_default().clone()
            };
            turns.push(turn.lock_owned().await);
        }
        turns
    }
}

/// Groups claims by driver. A claim with several drivers is in several groups.
fn batches(claims: &[Claim]) -> BTreeMap<String, Vec<Claim>> {
    let mut batches: BTreeMap<String, Vec<Claim>> = BTreeMap::new();
    for claim in claims {
        for driver in claim.drivers.keys() {
            batches.entry(driver.clone()).or_default().push(claim.clone());
        }
    }
    batches
}

fn dra_claim(claim: &Claim) -> dra::Claim {
    let Claim { namespace, uid, name, .. } = claim.clone();
    dra::Claim { namespace, uid, name }
}

fn device(device: dra::Device) -> Device {
    Device {
        pool: device.pool_name,
        name: device.device_name,
        share: device.share_id,
        requests: device.request_names,
        cdi: device.cdi_device_ids,
    }
}

/// Returns a driver's answer per claim. An answer that misses a claim or names an unknown one is an error.
fn match_responses<A>(
    call: &'static str,
    claims: &[Claim],
    mut response: HashMap<String, A>,
    error: impl Fn(&A) -> String,
) -> Result<Vec<(Key, A)>, ClaimsError> {
    let mut all = Vec::new();
    for claim in claims {
        let Some(result) = response.remove(&claim.uid) else { continue };
        let message = error(&result);
        if !message.is_empty() {
            let message = deviceplugin::shorten(&message).to_owned();
            return Err(ClaimsError::Refused { call, claim: claim.name.clone(), message });
        }
        all.push((claim.key(), result));
    }
    if let Some(uid) = response.into_keys().next() {
        let uid = deviceplugin::shorten(&uid).to_owned();
        return Err(ClaimsError::UnknownUid { call, uid });
    }
    match claims.len() - all.len() {
        0 => Ok(all),
        count => Err(ClaimsError::Skipped { call, count }),
    }
}
