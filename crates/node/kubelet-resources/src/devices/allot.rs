//! Allocates devices to containers.

use std::collections::{BTreeMap, BTreeSet};

use cri::v1;
use deviceplugin::{
    Plugin,
    v1beta1::{ContainerAllocateResponse, DevicePluginOptions},
};
use k8s_openapi::api::core::v1::{Container, Pod};
use pod_core::{devices::Choice, topology::Mask};
use prost::Message as _;

use super::{Devices, DevicesError};

/// Container settings that give access to allocated devices.
#[derive(Debug, Default)]
pub struct ForContainer {
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

impl ForContainer {
    /// Adds a plugin's answer. The first of several values for one name or path wins.
    fn add(&mut self, answer: ContainerAllocateResponse) {
        for (name, value) in answer.envs {
            self.envs.entry(name).or_insert(value);
        }
        for (name, value) in answer.annotations {
            self.annotations.entry(name).or_insert(value);
        }
        for mount in answer.mounts {
            if self.mounts.iter().all(|known| known.container_path != mount.container_path) {
                self.mounts.push(v1::Mount {
                    container_path: mount.container_path,
                    host_path: mount.host_path,
                    readonly: mount.read_only,
                    ..Default::default()
                });
            }
        }
        for device in answer.devices {
            if self.devices.iter().all(|known| known.container_path != device.container_path) {
                self.devices.push(v1::Device {
                    container_path: device.container_path,
                    host_path: device.host_path,
                    permissions: device.permissions,
                });
            }
        }
        self.add_cdi(answer.cdi_devices.into_iter().map(|device| device.name));
    }

    /// Adds CDI device names, each once.
    pub fn add_cdi(&mut self, names: impl IntoIterator<Item = String>) {
        for name in names {
            if self.cdi.iter().all(|known| known.name != name) {
                self.cdi.push(v1::CdiDevice { name });
            }
        }
    }
}

impl Devices {
    /// Allocates the devices that a container lacks, near the wanted NUMA nodes if possible.
    pub async fn allot(
        &self,
        pod: &Pod,
        container: &Container,
        near: Option<Mask>,
    ) -> Result<(), DevicesError> {
        let requested = self.lock().allocations.asked(container);
        for (resource, wanted) in requested {
            let turn = self.lock().turns.entry(resource.clone()).or_default().clone();
            let _turn = turn.lock().await;
            let wanted = (resource.as_str(), wanted);
            let choice = self.lock().allocations.choose(pod, &container.name, wanted, near)?;
            let Choice::These(mut ids, question) = choice else { continue };
            let (plugin, options) = self.plugin(&resource)?;
            if let Some(question) = question.filter(|_| options.get_preferred_allocation_available)
            {
                let list = |ids: &BTreeSet<String>| ids.iter().cloned().collect();
                let (available, must) = (list(&question.available), list(&question.must_include));
                let preferred = plugin.preferred(available, must, question.size).await;
                ids = question.answered(&preferred.map_err(DevicesError::Preferred)?);
            }
            let answer = plugin.allocate(ids.iter().cloned().collect()).await;
            let answer = answer.map_err(DevicesError::Allocate)?;
            let answer = answer.ok_or_else(|| DevicesError::NoContainer(resource.clone()))?;
            let uid = pod.metadata.uid.as_deref().unwrap_or_default();
            let whom = (uid, container.name.as_str());
            self.lock().allocations.give(whom, &resource, &ids, answer.encode_to_vec());
            if let Err(error) = self.save().await {
                self.lock().allocations.take_back(whom, &resource);
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
    ) -> Result<ForContainer, DevicesError> {
        self.allot(pod, container, None).await?;
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let given =
            self.lock().allocations.given((uid, &container.name)).cloned().unwrap_or_default();
        let mut all = ForContainer::default();
        for (resource, given) in given {
            // A disconnected plugin is skipped: its answer was recorded when the devices were allocated.
            if let Ok((plugin, options)) = self.plugin(&resource)
                && options.pre_start_required
            {
                let ids = given.ids().into_iter().map(str::to_owned).collect();
                plugin.pre_start(ids).await.map_err(DevicesError::PreStart)?;
            }
            let answer = ContainerAllocateResponse::decode(&given.answer[..]);
            all.add(answer.map_err(|_| DevicesError::NoContainer(resource))?);
        }
        Ok(all)
    }
}
