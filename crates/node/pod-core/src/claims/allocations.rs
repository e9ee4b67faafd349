//! The state of the claims of one node.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, Pod};

use super::{Claim, ClaimError, Device, Key, of_container, of_extended, references};

/// The claims that Pods of this node hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocations {
    claims: BTreeMap<Key, Claim>,
}

impl Allocations {
    pub(super) fn with(claims: impl IntoIterator<Item = Claim>) -> Self {
        Self { claims: claims.into_iter().map(|claim| (claim.key(), claim)).collect() }
    }

    /// Returns all claims.
    pub fn claims(&self) -> impl Iterator<Item = &Claim> {
        self.claims.values()
    }

    /// Records that a Pod holds these claims. An error changes nothing. Returns the claims that drivers must still
    /// prepare.
    pub fn add_pod(&mut self, uid: &str, claims: Vec<Claim>) -> Result<Vec<Claim>, ClaimError> {
        for claim in &claims {
            if let Some(old) = self.claims.get(&claim.key()).filter(|k| k.uid != claim.uid) {
                let (name, uid) = (old.name.clone(), old.uid.clone());
                return Err(ClaimError::Old { name, uid });
            }
        }
        let mut lacking: Vec<Claim> = Vec::new();
        for claim in claims {
            let drivers: Vec<String> = claim.drivers.keys().cloned().collect();
            let held = self.claims.entry(claim.key()).or_insert(claim);
            for driver in drivers {
                // The claim may have been reallocated before its last Pod ended.
                held.prepared &= held.drivers.contains_key(&driver);
                held.drivers.entry(driver).or_default();
            }
            held.pods.insert(uid.to_owned());
            if !held.prepared && lacking.iter().all(|other| other.uid != held.uid) {
                lacking.push(held.clone());
            }
        }
        Ok(lacking)
    }

    /// Records the devices that a driver has prepared. Replaces earlier ones of the driver.
    pub fn set_devices(&mut self, key: &Key, driver: &str, devices: Vec<Device>) {
        if let Some(claim) = self.claims.get_mut(key) {
            claim.drivers.insert(driver.to_owned(), devices);
        }
    }

    /// Records that all drivers have prepared a claim.
    pub fn set_prepared(&mut self, key: &Key) {
        if let Some(claim) = self.claims.get_mut(key) {
            claim.prepared = true;
        }
    }

    /// Removes a Pod from claims that other Pods hold, too. Returns the claims that only this Pod holds: the caller has
    /// drivers unprepare them and then [removes](Self::remove) them.
    pub fn remove_pod(&mut self, uid: &str) -> Vec<Claim> {
        let mut alone = Vec::new();
        for claim in self.claims.values_mut().filter(|claim| claim.pods.contains(uid)) {
            if claim.pods.len() == 1 {
                // From now on the claim counts as not prepared, whether or not unpreparing succeeds.
                claim.prepared = false;
                alone.push(claim.clone());
            } else {
                claim.pods.remove(uid);
            }
        }
        alone
    }

    /// Removes a claim after all drivers have unprepared it.
    pub fn remove(&mut self, key: &Key) {
        self.claims.remove(key);
    }

    /// Returns the claims that a Pod holds.
    pub fn used_by(&self, uid: &str) -> Vec<Key> {
        let used = self.claims.iter().filter(|(_, claim)| claim.pods.contains(uid));
        used.map(|(key, _)| key.clone()).collect()
    }

    /// Reports whether a Pod holds all the claims that it refers to.
    pub fn has_all(&self, pod: &Pod) -> bool {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let uses = |name: &str| self.get(pod, name).is_some_and(|claim| claim.pods.contains(uid));
        references(pod).is_ok_and(|all| all.iter().all(|reference| uses(&reference.name)))
    }

    fn get(&self, pod: &Pod, name: &str) -> Option<&Claim> {
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        self.claims.get(&(namespace, name.to_owned()))
    }

    /// Returns a claim, provided that the Pod holds it.
    fn held_claim(&self, pod: &Pod, name: &str) -> Result<&Claim, ClaimError> {
        let namespace = || pod.metadata.namespace.clone().unwrap_or_default();
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let claim = self.get(pod, name).filter(|claim| claim.pods.contains(uid));
        claim.ok_or_else(|| ClaimError::Unknown { name: name.to_owned(), namespace: namespace() })
    }

    /// Returns the CDI names of a container's devices, without duplicates.
    pub fn cdi(&self, pod: &Pod, container: &Container) -> Result<Vec<String>, ClaimError> {
        let listed = of_container(pod, container)?.into_iter();
        let listed = listed.map(|(_, name, request)| (name, request));
        let mut names = Vec::new();
        for (name, request) in listed.chain(of_extended(pod, container)) {
            let devices = self.held_claim(pod, &name)?.drivers.values().flatten();
            for id in devices.filter(|device| device.is_for(&request)).flat_map(|d| &d.cdi) {
                if !names.contains(id) {
                    names.push(id.clone());
                }
            }
        }
        Ok(names)
    }

    /// Returns the claims of a container by name, without duplicates.
    pub fn of_container(&self, pod: &Pod, container: &Container) -> Vec<&Claim> {
        let listed = of_container(pod, container).unwrap_or_default().into_iter();
        let mut names: BTreeSet<String> = listed.map(|(_, name, _)| name).collect();
        names.extend(of_extended(pod, container).into_iter().map(|(name, _)| name));
        names.iter().filter_map(|name| self.held_claim(pod, name).ok()).collect()
    }

    /// Returns the devices of a container by claim or request, named as in container statuses. Each device comes with
    /// its driver.
    pub fn allocated_devices(
        &self,
        pod: &Pod,
        container: &Container,
    ) -> Vec<(String, Vec<(&str, &Device)>)> {
        let requested = of_container(pod, container).unwrap_or_default();
        let part = |(in_pod, name, request): (String, String, String)| {
            let title = match request.as_str() {
                "" => format!("claim:{in_pod}"),
                request => format!("claim:{in_pod}/{request}"),
            };
            let drivers = &self.held_claim(pod, &name).ok()?.drivers;
            let all = drivers.iter().flat_map(|(driver, devices)| {
                devices.iter().map(move |device| (driver.as_str(), device))
            });
            Some((title, all.filter(|(_, device)| device.is_for(&request)).collect()))
        };
        requested.into_iter().filter_map(part).collect()
    }

    /// Returns the Pods that hold a device of a driver for which `concerned` returns `true`.
    pub fn users_of(&self, driver: &str, concerned: impl Fn(&Device) -> bool) -> Vec<String> {
        let has =
            |claim: &&Claim| claim.drivers.get(driver).is_some_and(|d| d.iter().any(&concerned));
        self.claims.values().filter(has).flat_map(|claim| claim.pods.iter().cloned()).collect()
    }
}
