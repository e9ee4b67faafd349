//! How claims are made ready for a Pod, and taken back after it.

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
    /// Has drivers make ready what a Pod's claims are for, if the API lets the Pod use them. Whatever fails may be tried
    /// again.
    pub(crate) async fn prepare(
        &self,
        client: Option<&Client>,
        pod: &Pod,
    ) -> Result<(), ClaimsError> {
        let begun = Instant::now();
        let done = self.prepare_all(client, pod).await;
        if !matches!(done, Ok(false)) {
            self.counts.operation("PrepareResources", done.is_err(), begun.elapsed());
        }
        done.map(drop)
    }

    /// Returns whether there was anything to do.
    async fn prepare_all(&self, client: Option<&Client>, pod: &Pod) -> Result<bool, ClaimsError> {
        let wanted = claims::wanted(pod)?;
        if wanted.is_empty() {
            return Ok(false);
        }
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        let keys = wanted.iter().map(|wanted| (namespace.clone(), wanted.name.clone()));
        let _turns = self.turns(keys.collect()).await;
        let (mut all, mut drivers) = (Vec::new(), BTreeMap::new());
        for wanted in &wanted {
            let name = || wanted.name.clone();
            let client = client.ok_or_else(|| ClaimsError::Standalone(name()))?;
            let object = client.get(&Resource::RESOURCE_CLAIMS, &namespace, &wanted.name).await;
            let object: ResourceClaim =
                object.map_err(|source| ClaimsError::Fetch { name: name(), source })?;
            let claim = wanted.check(pod, &object)?;
            // Nothing is begun without the drivers: the Pod could not end before they have come.
            for driver in claim.drivers.keys() {
                drivers.insert(driver.clone(), self.driver(driver)?);
            }
            all.push(claim);
        }
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let lacking = self.lock().book.begin(uid, all)?;
        self.save().await?;
        let batches = batches(&lacking);
        let each = batches.iter().map(|(name, claims)| {
            let driver = drivers.get(name).cloned();
            async move {
                let driver = driver.map_or_else(|| self.driver(name), Ok)?;
                self.ask_to_prepare(name, driver, claims).await
            }
        });
        join_all(each).await.into_iter().collect::<Result<(), _>>()?;
        self.save().await?;
        lacking.iter().for_each(|claim| self.lock().book.prepared(&claim.key()));
        self.counts.measure(&self.lock().book);
        Ok(true)
    }

    async fn ask_to_prepare(
        &self,
        name: &str,
        driver: Driver,
        claims: &[Claim],
    ) -> Result<(), ClaimsError> {
        let begun = Instant::now();
        let answer = driver.prepare(claims.iter().map(asked).collect()).await;
        self.counts.call(name, driver.prepare_method(), answer.as_ref().err(), begun.elapsed());
        let answer = answer.map_err(|source| ClaimsError::Call { call: PREPARE, source })?;
        let said = |answer: &NodePrepareResourceResponse| answer.error.clone();
        for (key, answer) in matched(PREPARE, claims, answer, said)? {
            let devices = answer.devices.into_iter().map(device).collect();
            self.lock().book.give(&key, name, devices);
        }
        Ok(())
    }

    /// Has drivers take back what they made ready for a Pod and no other Pod uses. Success if that is done already.
    pub(crate) async fn unprepare(&self, uid: &str) -> Result<(), ClaimsError> {
        let keys: BTreeSet<Key> = self.lock().book.used_by(uid).into_iter().collect();
        if keys.is_empty() {
            return Ok(());
        }
        let begun = Instant::now();
        let done = self.unprepare_all(uid, keys).await;
        self.counts.operation("UnprepareResources", done.is_err(), begun.elapsed());
        done
    }

    async fn unprepare_all(&self, uid: &str, keys: BTreeSet<Key>) -> Result<(), ClaimsError> {
        let _turns = self.turns(keys).await;
        let alone = self.lock().book.leave(uid);
        let batches = batches(&alone);
        let each = batches.iter().map(|(name, claims)| self.ask_to_unprepare(name, claims));
        let done: BTreeMap<&String, Result<(), ClaimsError>> =
            batches.keys().zip(join_all(each).await).collect();
        let over = |claim: &&Claim| {
            claim.drivers.keys().all(|name| matches!(done.get(name), Some(Ok(()))))
        };
        for claim in alone.iter().filter(over) {
            self.lock().book.remove(&claim.key());
        }
        self.save().await?;
        done.into_values().collect()
    }

    async fn ask_to_unprepare(&self, name: &str, claims: &[Claim]) -> Result<(), ClaimsError> {
        let driver = self.driver(name)?;
        let begun = Instant::now();
        let answer = driver.unprepare(claims.iter().map(asked).collect()).await;
        self.counts.call(name, driver.unprepare_method(), answer.as_ref().err(), begun.elapsed());
        let answer = answer.map_err(|source| ClaimsError::Call { call: UNPREPARE, source })?;
        let said = |answer: &NodeUnprepareResourceResponse| answer.error.clone();
        matched(UNPREPARE, claims, answer, said).map(drop)
    }

    /// Waits until nobody else works on these claims. Everybody takes their turns in the same order.
    async fn turns(&self, keys: BTreeSet<Key>) -> Vec<OwnedMutexGuard<()>> {
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

/// What each driver has part in.
fn batches(claims: &[Claim]) -> BTreeMap<String, Vec<Claim>> {
    let mut batches: BTreeMap<String, Vec<Claim>> = BTreeMap::new();
    for claim in claims {
        for driver in claim.drivers.keys() {
            batches.entry(driver.clone()).or_default().push(claim.clone());
        }
    }
    batches
}

fn asked(claim: &Claim) -> dra::Claim {
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

/// A driver's answer for each claim that it was asked about: for all of these, and for no other.
fn matched<A>(
    call: &'static str,
    claims: &[Claim],
    mut answer: HashMap<String, A>,
    error: impl Fn(&A) -> String,
) -> Result<Vec<(Key, A)>, ClaimsError> {
    let mut all = Vec::new();
    for claim in claims {
        let Some(said) = answer.remove(&claim.uid) else { continue };
        let message = error(&said);
        if !message.is_empty() {
            let message = deviceplugin::shortened(&message).to_owned();
            return Err(ClaimsError::Refused { call, claim: claim.name.clone(), message });
        }
        all.push((claim.key(), said));
    }
    if let Some(uid) = answer.into_keys().next() {
        let uid = deviceplugin::shortened(&uid).to_owned();
        return Err(ClaimsError::Unasked { call, uid });
    }
    match claims.len() - all.len() {
        0 => Ok(all),
        count => Err(ClaimsError::Skipped { call, count }),
    }
}
