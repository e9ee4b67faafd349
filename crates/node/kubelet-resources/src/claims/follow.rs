//! Follows the health of claimed devices, and reports it in Pods' statuses.

use std::{path::Path, pin::pin};

use deviceplugin::{Driver, drahealth::DeviceHealth};
use k8s_openapi::api::core::v1::{Pod, PodStatus, ResourceHealth, ResourceStatus};
use pod_core::claims::Device;
use tokio::time::{Instant, timeout};

use super::{Claims, health::Health};

/// The limit of devices with known health per driver.
const MAX_DEVICES: usize = 4096;

impl Claims {
    /// Follows a driver's health reports and whether its plugin is connected, until the task ends.
    pub(super) async fn follow(&self, name: &str, endpoint: &Path, driver: &Driver) {
        loop {
            if let Err(error) = self.listen(name, endpoint, driver).await {
                tracing::debug!(name, %error, "follow the health of a driver's devices");
                // A plugin that answers with an error is connected. Most drivers do not implement the health service.
                self.set_connected(name, endpoint, !error.is_unavailable());
            }
            self.set_health(name, &[]);
            tokio::time::sleep(self.times.again).await;
        }
    }

    async fn listen(
        &self,
        name: &str,
        endpoint: &Path,
        driver: &Driver,
    ) -> Result<(), deviceplugin::Error> {
        let mut call = pin!(driver.health());
        let first = timeout(self.times.silent, &mut call).await;
        // A driver without reports may delay its response headers, so a timeout counts as connected.
        if !matches!(first, Ok(Err(_))) {
            self.set_connected(name, endpoint, true);
        }
        let mut healths = match first {
            Ok(response) => response?,
            Err(_) => call.await?,
        };
        while let Some(devices) = healths.next().await? {
            self.set_health(name, &devices);
        }
        Ok(())
    }

    /// Stores health reports of a driver's devices. An empty list forgets all of the driver's reports.
    pub(super) fn set_health(&self, driver: &str, devices: &[DeviceHealth]) {
        let mut state = self.lock();
        let healths = state.healths.entry(driver.to_owned()).or_default();
        let before = healths.clone();
        if devices.is_empty() {
            healths.clear();
        }
        for reported in devices {
            let Some(device) = &reported.device else { continue };
            let key = (device.pool_name.clone(), device.device_name.clone());
            if healths.len() < MAX_DEVICES || healths.contains_key(&key) {
                healths.insert(key, Health::of(reported));
            }
        }
        let after = healths.clone();
        let differs = |device: &Device| {
            let key = (device.pool.clone(), device.name.clone());
            before.get(&key).map(Health::health_and_message)
                != after.get(&key).map(Health::health_and_message)
        };
        let changed_pods = state.allocations.users_of(driver, differs);
        if after.is_empty() {
            state.healths.remove(driver);
        }
        if !changed_pods.is_empty() {
            state.changed_pods.extend(changed_pods);
            drop(state);
            self.changed.send_replace(());
        }
    }

    /// Adds the devices of claims and their health to the container statuses of a Pod.
    pub fn describe(&self, pod: &Pod, status: &mut PodStatus) {
        let state = self.lock();
        let now = Instant::now();
        let health = |(driver, device): (&str, &Device)| {
            let key = (device.pool.clone(), device.name.clone());
            let health = state.healths.get(driver).and_then(|healths| healths.get(&key));
            let health = health.filter(|health| health.until > now);
            let id = || format!("{driver}/{}/{}", device.pool, device.name);
            ResourceHealth {
                resource_id: device.cdi.first().cloned().unwrap_or_else(id),
                health: Some(health.map_or("Unknown", |health| health.word).to_owned()),
                message: health.and_then(|health| health.message.clone()),
            }
        };
        let containers = || pod.spec.iter().flat_map(|spec| &spec.containers);
        for status_of_container in status.container_statuses.iter_mut().flatten() {
            let Some(container) = containers().find(|c| c.name == status_of_container.name) else {
                continue;
            };
            let parts = state.allocations.allocated_devices(pod, container).into_iter().map(
                |(name, devices)| {
                    let mut resources: Vec<ResourceHealth> = Vec::new();
                    for health in devices.into_iter().map(health) {
                        if resources.iter().all(|other| other.resource_id != health.resource_id) {
                            resources.push(health);
                        }
                    }
                    ResourceStatus { name, resources: Some(resources) }
                },
            );
            let mut parts = parts
                .filter(|part| part.resources.as_ref().is_some_and(|all| !all.is_empty()))
                .peekable();
            if parts.peek().is_some() {
                status_of_container
                    .allocated_resources_status
                    .get_or_insert_default()
                    .extend(parts);
            }
        }
    }
}
