//! Allocates devices to containers.

use std::collections::{BTreeMap, BTreeSet};

use cri::v1;
use deviceplugin::{
    Plugin,
    v1beta1::{ContainerAllocateResponse, DevicePluginOptions},
};
use k8s_openapi::api::core::v1::{Container, Pod};
use pod_core::{devices::choice::Choice, topology::Mask};
use prost::Message as _;

use super::{Devices, DevicesError};

/// Container settings that give access to allocated devices.
#[derive(Debug, Default)]
pub struct DeviceSettings {
    /// Environment variables.
    pub envs: BTreeMap<String, String>,
    /// Mounts of files and directories of the host.
    pub mounts: Vec<v1::Mount>,
    /// Device nodes.
    pub devices: Vec<v1::Device>,
    /// Annotations for the runtime.
    pub annotations: BTreeMap<String, String>,
    /// The names of CDI devices.
    pub cdi: Vec<v1::CdiDevice>,
}

impl DeviceSettings {
    /// Adds a plugin's response. The first of several values for one name or path wins.
    fn add(&mut self, response: ContainerAllocateResponse) {
        for (name, value) in response.envs {
            self.envs.entry(name).or_insert(value);
        }
        for (name, value) in response.annotations {
            self.annotations.entry(name).or_insert(value);
        }
        for mount in response.mounts {
            if self.mounts.iter().all(|other| other.container_path != mount.container_path) {
                self.mounts.push(v1::Mount {
                    container_path: mount.container_path,
                    host_path: mount.host_path,
                    readonly: mount.read_only,
                    ..Default::default()
                });
            }
        }
        for device in response.devices {
            if self.devices.iter().all(|other| other.container_path != device.container_path) {
                self.devices.push(v1::Device {
                    container_path: device.container_path,
                    host_path: device.host_path,
                    permissions: device.permissions,
                });
            }
        }
        self.add_cdi(response.cdi_devices.into_iter().map(|device| device.name));
    }

    /// Adds CDI device names, each once.
    pub fn add_cdi(&mut self, names: impl IntoIterator<Item = String>) {
        for name in names {
            if self.cdi.iter().all(|other| other.name != name) {
                self.cdi.push(v1::CdiDevice { name });
            }
        }
    }
}

impl Devices {
    /// Allocates the devices that a container lacks, near the preferred NUMA nodes if possible.
    pub async fn allocate(
        &self,
        pod: &Pod,
        container: &Container,
        near: Option<Mask>,
    ) -> Result<(), DevicesError> {
        let requested = self.lock().allocations.requests(container);
        for (resource, count) in requested {
            let turn = self.lock().turns.entry(resource.clone()).or_default().clone();
            let _turn = turn.lock().await;
            let choice =
                self.lock().allocations.choose(pod, &container.name, &resource, count, near)?;
            let Choice::New(mut ids, request) = choice else { continue };
            let (plugin, options) = self.plugin(&resource)?;
            if let Some(request) = request.filter(|_| options.get_preferred_allocation_available) {
                let list = |ids: &BTreeSet<String>| ids.iter().cloned().collect();
                let (available, must) = (list(&request.available), list(&request.must_include));
                let preferred = plugin.preferred(available, must, request.size).await;
                ids = request.choose(&preferred.map_err(DevicesError::Preferred)?);
            }
            let response = plugin.allocate(ids.iter().cloned().collect()).await;
            let response = response.map_err(DevicesError::Allocate)?;
            let response = response.ok_or_else(|| DevicesError::NoContainer(resource.clone()))?;
            let uid = pod.metadata.uid.as_deref().unwrap_or_default();
            let key = (uid, container.name.as_str());
            self.lock().allocations.allocate(key, &resource, &ids, response.encode_to_vec());
            if let Err(error) = self.save().await {
                self.lock().allocations.revert(key, &resource);
                return Err(error);
            }
        }
        Ok(())
    }

    fn plugin(&self, resource: &str) -> Result<(Plugin, DevicePluginOptions), DevicesError> {
        let state = self.lock();
        let endpoint = state.endpoints.get(resource);
        let endpoint = endpoint.map(|endpoint| (endpoint.plugin.clone(), endpoint.options));
        endpoint.ok_or_else(|| DevicesError::NoPlugin(resource.to_owned()))
    }

    /// Returns the settings that a starting container needs for its devices, after plugins have prepared them
    /// (PreStartContainer). If the allocation of a container was lost, devices are allocated first, or this fails.
    pub async fn for_start(
        &self,
        pod: &Pod,
        container: &Container,
    ) -> Result<DeviceSettings, DevicesError> {
        self.allocate(pod, container, None).await?;
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let allocated = self
            .lock()
            .allocations
            .of_container((uid, &container.name))
            .cloned()
            .unwrap_or_default();
        let mut all = DeviceSettings::default();
        for (resource, allocated) in allocated {
            // A disconnected plugin is skipped: its response was recorded when the devices were allocated.
            if let Ok((plugin, options)) = self.plugin(&resource)
                && options.pre_start_required
            {
                let ids = allocated.ids().into_iter().map(str::to_owned).collect();
                plugin.pre_start(ids).await.map_err(DevicesError::PreStart)?;
            }
            let response = ContainerAllocateResponse::decode(&allocated.response[..]);
            all.add(response.map_err(|_| DevicesError::NoContainer(resource))?);
        }
        Ok(all)
    }
}
