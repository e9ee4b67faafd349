//! Whether drivers' devices work, by the drivers' word, which holds for a while.

use std::{collections::BTreeMap, path::Path, pin::pin, time::Duration};

use deviceplugin::{
    Driver,
    drahealth::{DeviceHealth, HealthStatus},
};
use k8s_openapi::api::core::v1::{Pod, PodStatus, ResourceHealth, ResourceStatus};
use pod_core::claims::Device;
use tokio::time::{Instant, timeout};

use super::Claims;

/// How long a driver's word holds if it does not say.
const HOLDS: Duration = Duration::from_secs(30);
/// So many bytes of its message are told, as upstream.
const LONGEST: usize = 1024;
/// Of so many devices of one driver at most.
const MOST: usize = 4096;

/// What is known of each driver's devices, by pool and name.
pub(super) type Healths = BTreeMap<String, BTreeMap<(String, String), Health>>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Health {
    word: &'static str,
    message: Option<String>,
    pub(super) until: Instant,
}

impl Health {
    pub(super) fn of(told: &DeviceHealth) -> Self {
        let word = match told.health() {
            HealthStatus::Healthy => "Healthy",
            HealthStatus::Unhealthy => "Unhealthy",
            HealthStatus::Unknown => "Unknown",
        };
        let seconds = u64::try_from(told.health_check_timeout_seconds).unwrap_or(0);
        let holds = if seconds > 0 { Duration::from_secs(seconds).min(rt::FAR) } else { HOLDS };
        let message = (!told.message.is_empty()).then(|| shortened(&told.message));
        Self { word, message, until: Instant::now() + holds }
    }

    pub(super) fn says(&self) -> (&'static str, Option<&String>) {
        (self.word, self.message.as_ref())
    }
}

fn shortened(message: &str) -> String {
    if message.len() <= LONGEST {
        return message.to_owned();
    }
    let end = message.floor_char_boundary(LONGEST - 3);
    format!("{}...", message.get(..end).unwrap_or_default())
}

impl Claims {
    /// Follows what a driver says of its devices' health, and whether its plugin is there, until it is forgotten.
    pub(super) async fn follow(&self, name: &str, endpoint: &Path, driver: &Driver) {
        loop {
            if let Err(error) = self.listen(name, endpoint, driver).await {
                tracing::debug!(name, %error, "follow the health of a driver's devices");
                // Whoever refuses is there; most drivers know nothing of health.
                self.reached(name, endpoint, !error.is_unavailable());
            }
            self.tell_health(name, &[]);
            tokio::time::sleep(self.times.again).await;
        }
    }

    async fn listen(
        &self,
        name: &str,
        endpoint: &Path,
        driver: &Driver,
    ) -> Result<(), deviceplugin::Error> {
        let mut asked = pin!(driver.health());
        let begun = timeout(self.times.silent, &mut asked).await;
        // Whoever has nothing to tell yet need not even begin to answer.
        if !matches!(begun, Ok(Err(_))) {
            self.reached(name, endpoint, true);
        }
        let mut healths = match begun {
            Ok(begun) => begun?,
            Err(_) => asked.await?,
        };
        while let Some(told) = healths.next().await? {
            self.tell_health(name, &told);
        }
        Ok(())
    }

    /// Takes down what a driver says of its devices, of none if it says nothing any more.
    pub(super) fn tell_health(&self, driver: &str, told: &[DeviceHealth]) {
        let mut state = self.lock();
        let known = state.healths.entry(driver.to_owned()).or_default();
        let before = known.clone();
        if told.is_empty() {
            known.clear();
        }
        for told in told {
            let Some(device) = &told.device else { continue };
            let key = (device.pool_name.clone(), device.device_name.clone());
            if known.len() < MOST || known.contains_key(&key) {
                known.insert(key, Health::of(told));
            }
        }
        let after = known.clone();
        let differs = |device: &Device| {
            let key = (device.pool.clone(), device.name.clone());
            before.get(&key).map(Health::says) != after.get(&key).map(Health::says)
        };
        let concerned = state.book.having(driver, differs);
        if after.is_empty() {
            state.healths.remove(driver);
        }
        if !concerned.is_empty() {
            state.concerned.extend(concerned);
            drop(state);
            self.changed.send_replace(());
        }
    }

    /// Says in a Pod's status which devices of claims its containers have, and whether these work.
    pub(crate) fn describe(&self, pod: &Pod, status: &mut PodStatus) {
        let state = self.lock();
        let now = Instant::now();
        let health = |(driver, device): (&str, &Device)| {
            let key = (device.pool.clone(), device.name.clone());
            let known = state.healths.get(driver).and_then(|known| known.get(&key));
            let known = known.filter(|health| health.until > now);
            let id = || format!("{driver}/{}/{}", device.pool, device.name);
            ResourceHealth {
                resource_id: device.cdi.first().cloned().unwrap_or_else(id),
                health: Some(known.map_or("Unknown", |health| health.word).to_owned()),
                message: known.and_then(|health| health.message.clone()),
            }
        };
        let containers = || pod.spec.iter().flat_map(|spec| &spec.containers);
        for told in status.container_statuses.iter_mut().flatten() {
            let Some(container) = containers().find(|c| c.name == told.name) else { continue };
            let parts = state.book.parts(pod, container).into_iter().map(|(name, devices)| {
                let mut resources: Vec<ResourceHealth> = Vec::new();
                for health in devices.into_iter().map(health) {
                    if resources.iter().all(|known| known.resource_id != health.resource_id) {
                        resources.push(health);
                    }
                }
                ResourceStatus { name, resources: Some(resources) }
            });
            let mut parts = parts
                .filter(|part| part.resources.as_ref().is_some_and(|all| !all.is_empty()))
                .peekable();
            if parts.peek().is_some() {
                told.allocated_resources_status.get_or_insert_default().extend(parts);
            }
        }
    }
}
