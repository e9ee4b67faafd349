//! Device manager: registered device plugins, the calls to them, and the allocation of devices (the pure
//! [`Allocations`]). Read [`Devices`] first.
//!
//! - The checkpoint lists a device as allocated before its container starts, and as free only after all of the Pod has
//!   ended. So a device has one holder even if the kubelet is killed.
//! - Devices of one plugin are allocated to one Pod at a time. A hanging plugin blocks only the Pods that request its
//!   devices, and each for a bounded time.

pub(crate) mod allocation;
pub(crate) mod server;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use deviceplugin::{HEALTHY, Plugin, v1beta1::DevicePluginOptions};
use k8s_openapi::api::core::v1::{Container, Pod, PodStatus, ResourceHealth, ResourceStatus};
use parking_lot::{Mutex, MutexGuard};
use pod_core::{
    devices::{Allocations, Count, Device, DeviceError, GRACE, is_resource_name},
    timestamp,
    topology::Hints,
};
use tokio::{sync::watch, time::Instant};

use crate::checkpoint::Checkpoint;

/// The checkpoint file of allocated devices, named as upstream.
const CHECKPOINT: &str = "kubelet_internal_checkpoint";
/// The delay between two device lists that are read from a plugin, however fast it sends them.
const SETTLE: Duration = Duration::from_millis(50);
/// The first delay before a plugin's list is requested again after its end. Later delays are longer.
const MIN_DELAY: Duration = Duration::from_secs(1);
const MAX_DELAY: Duration = Duration::from_secs(30);

/// The error of registering a plugin, or of allocating devices to a container.
#[derive(Debug, thiserror::Error)]
pub enum DevicesError {
    #[error(
        "requested API version {0:?} is not supported by kubelet. Supported version is [\"v1beta1\"]"
    )]
    Version(String),
    #[error("the ResourceName {0:?} is invalid")]
    Name(String),
    #[error("the endpoint {0:?} is not a path below the directory of device plugins")]
    Endpoint(String),
    #[error("failed to get device plugin options: {0}")]
    Options(deviceplugin::Error),
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error("unknown Device Plugin {0}")]
    NoPlugin(String),
    #[error("device plugin GetPreferredAllocation rpc failed with err: {0}")]
    Preferred(deviceplugin::Error),
    #[error(transparent)]
    Allocate(deviceplugin::Error),
    #[error("no containers return in allocation response of {0}'s plugin")]
    NoContainer(String),
    #[error("device plugin PreStartContainer rpc failed with err: {0}")]
    PreStart(deviceplugin::Error),
    #[error("failed to write checkpoint file {CHECKPOINT:?}: {0}")]
    Checkpoint(io::Error),
}

/// A device of the node.
pub(crate) struct NodeDevice {
    /// The name of its resource.
    pub(crate) resource: String,
    /// The device's ID.
    pub(crate) id: String,
    /// The near NUMA nodes.
    pub(crate) nodes: Vec<i64>,
}

/// The device plugins of one node and their devices.
pub struct Devices {
    directory: PathBuf,
    state: Mutex<State>,
    checkpoint: Checkpoint,
    changed: watch::Sender<()>,
    clock: Arc<dyn rt::Clock>,
    tasks: rt::Tasks,
}

#[derive(Default)]
struct State {
    allocations: Allocations,
    endpoints: BTreeMap<String, Endpoint>,
    /// A lock per resource, held while its devices are allocated.
    turns: BTreeMap<String, Arc<tokio::sync::Mutex<()>>>,
    /// Pods that must be woken because the health of their devices changed.
    changed_pods: BTreeSet<String>,
    registrations: u64,
}

/// A registered plugin.
struct Endpoint {
    /// The number of the registration. Lists of an earlier registration of the resource are ignored.
    number: u64,
    plugin: Plugin,
    options: DevicePluginOptions,
    /// Ends the task that follows the plugin's devices when dropped.
    _alive: watch::Sender<()>,
}

impl Devices {
    /// Creates the manager from the checkpoint of an earlier kubelet, if there is one.
    pub fn new(root: &Path, clock: Arc<dyn rt::Clock>, tasks: &rt::Tasks) -> Self {
        let directory = root.join("device-plugins");
        let checkpoint = Checkpoint::new(directory.join(CHECKPOINT));
        let path = checkpoint.path().display();
        let allocations = match checkpoint.read() {
            Ok(None) => Allocations::default(),
            Ok(Some(bytes)) => Allocations::restore(&bytes, timestamp(clock.now())).unwrap_or_else(|error| {
                tracing::error!(%path, %error, "decode the checkpoint of allocated devices; devices of running Pods \
                     may be allocated twice: delete these Pods, or drain the node");
                Allocations::default()
            }),
            Err(error) => {
                tracing::error!(%path, %error, "read the checkpoint of allocated devices");
                Allocations::default()
            }
        };
        Self {
            directory,
            state: Mutex::new(State { allocations, ..State::default() }),
            checkpoint,
            changed: watch::channel(()).0,
            clock,
            tasks: tasks.clone(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Returns a channel that changes whenever the set of devices changes.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Returns and clears the Pods whose devices changed health.
    pub fn take_changed_pods(&self) -> BTreeSet<String> {
        std::mem::take(&mut self.lock().changed_pods)
    }

    /// Returns the number of devices of each resource. Forgets plugins that disconnected long ago.
    pub async fn count(&self) -> BTreeMap<String, Count> {
        let (counts, forgot) = {
            let mut state = self.lock();
            let (counts, forgot) = state.allocations.count(timestamp(self.clock.now()));
            let State { allocations, endpoints, turns, .. } = &mut *state;
            let names: BTreeSet<&str> = allocations.names().collect();
            endpoints.retain(|name, _| names.contains(name.as_str()));
            turns.retain(|name, turn| names.contains(name.as_str()) || Arc::strong_count(turn) > 1);
            (counts, forgot)
        };
        if forgot && let Err(error) = self.save().await {
            tracing::warn!(%error, "write the device checkpoint without plugins that have disconnected");
        }
        counts
    }

    /// Returns the UIDs of the Pods that hold devices.
    pub fn holders(&self) -> Vec<String> {
        self.lock().allocations.holders().map(str::to_owned).collect()
    }

    /// Returns a container's devices.
    pub(crate) fn devices_of(&self, uid: &str, container: &str) -> Vec<NodeDevice> {
        let state = self.lock();
        let allocated = state.allocations.of_container((uid, container)).into_iter().flatten();
        let each = allocated.flat_map(|(resource, allocated)| {
            allocated.ids().into_iter().map(move |id| {
                let near = allocated.devices.iter().filter(|(_, ids)| ids.iter().any(|i| i == id));
                NodeDevice {
                    resource: resource.clone(),
                    id: id.to_owned(),
                    nodes: near.map(|(node, _)| *node).collect(),
                }
            })
        });
        each.collect()
    }

    /// Returns all healthy devices.
    pub(crate) fn allocatable(&self) -> Vec<NodeDevice> {
        let allocations = &self.lock().allocations;
        let each = allocations.names().flat_map(|name| {
            let healthy =
                allocations.devices(name).into_iter().filter(|(_, device)| device.healthy);
            healthy.map(|(id, device)| NodeDevice {
                resource: name.to_owned(),
                id,
                nodes: device.nodes.into_iter().collect(),
            })
        });
        each.collect()
    }

    /// Returns the topology hints for the devices that a container, or all of a Pod, requests on these NUMA nodes.
    pub fn hints(&self, pod: &Pod, container: Option<&Container>, nodes: &[i64]) -> Vec<Hints> {
        let allocations = &self.lock().allocations;
        container.map_or_else(
            || allocations.pod_hints(pod, nodes),
            |one| allocations.hints(pod, one, nodes),
        )
    }

    /// Reports whether a Pod holds devices, of this resource if `resource` is `Some`.
    pub fn holds(&self, uid: &str, resource: Option<&str>) -> bool {
        let allocations = &self.lock().allocations;
        resource.map_or_else(
            || allocations.holders().any(|holder| holder == uid),
            |r| allocations.holds(uid, r),
        )
    }

    /// Frees the devices of a Pod. Call it only when all of the Pod has ended.
    pub async fn release(&self, uid: &str) {
        let released = self.lock().allocations.release(uid);
        if released && let Err(error) = self.save().await {
            tracing::warn!(uid, %error, "write the device checkpoint after a Pod has ended");
        }
    }

    /// Writes the checkpoint. The content is on the disk when this returns.
    async fn save(&self) -> Result<(), DevicesError> {
        let content = || self.lock().allocations.checkpoint();
        self.checkpoint.write(content).await.map_err(DevicesError::Checkpoint)
    }

    /// Adds the devices and their health to the container statuses of a Pod.
    pub fn describe(&self, uid: &str, status: &mut PodStatus) {
        let state = self.lock();
        for container in status.container_statuses.iter_mut().flatten() {
            let Some(allocated) = state.allocations.of_container((uid, &container.name)) else {
                continue;
            };
            let resources = allocated.iter().map(|(name, allocated)| {
                let health = |id: &str| ResourceHealth {
                    resource_id: id.to_owned(),
                    health: Some(
                        if state.allocations.is_healthy(name, id) { HEALTHY } else { "Unhealthy" }
                            .to_owned(),
                    ),
                    ..ResourceHealth::default()
                };
                let resources = allocated.ids().into_iter().map(health).collect();
                ResourceStatus { name: name.clone(), resources: Some(resources) }
            });
            container.allocated_resources_status = Some(resources.collect());
        }
    }

    /// Registers a plugin for a resource, replaces an earlier one, and starts to follow its device lists. Returns the
    /// number of the registration.
    pub async fn connect(
        self: &Arc<Self>,
        resource: &str,
        socket: PathBuf,
    ) -> Result<u64, DevicesError> {
        if !is_resource_name(resource) {
            return Err(DevicesError::Name(resource.to_owned()));
        }
        let plugin = Plugin::new(socket.clone());
        let options = plugin.options().await.map_err(DevicesError::Options)?;
        let (alive, ended) = watch::channel(());
        let number = {
            let mut state = self.lock();
            state.allocations.connect(resource)?;
            state.registrations += 1;
            let number = state.registrations;
            let endpoint = Endpoint { number, plugin: plugin.clone(), options, _alive: alive };
            state.endpoints.insert(resource.to_owned(), endpoint);
            number
        };
        tracing::info!(resource, socket = %socket.display(), "a device plugin is registered");
        let (own, resource) = (self.clone(), resource.to_owned());
        self.tasks.spawn_until_shutdown("kubelet device plugin", async move {
            let mut ended = ended;
            tokio::select! {
                () = own.follow_lists(&resource, &plugin, number, &socket) => {}
                // Nothing is ever sent on this channel; it changes when another plugin registers for the resource.
                _ = ended.changed() => {}
            }
        });
        Ok(number)
    }

    /// Removes a plugin whose socket has disappeared, unless another has registered for the resource.
    pub fn disconnect(&self, resource: &str, number: u64) {
        self.mark_disconnected(resource, number);
        let mut state = self.lock();
        if state.endpoints.get(resource).is_some_and(|endpoint| endpoint.number == number) {
            state.endpoints.remove(resource);
        }
    }

    /// Follows a plugin's device lists. Retries after an error or an end of the list, until the socket is gone.
    async fn follow_lists(&self, resource: &str, plugin: &Plugin, number: u64, socket: &Path) {
        let mut failures = rt::Backoff::new(MIN_DELAY, MAX_DELAY);
        let mut since = Instant::now();
        loop {
            let mut listed = false;
            match self.listen(resource, plugin, number, &mut listed).await {
                Ok(()) => tracing::warn!(resource, "a device plugin has ended its list"),
                Err(error) => tracing::warn!(resource, %error, "list a plugin's devices"),
            }
            self.mark_disconnected(resource, number);
            if listed {
                failures.reset();
                since = Instant::now();
            }
            tokio::time::sleep(failures.next(rt::random())).await;
            if since.elapsed() > GRACE || !socket.exists() {
                return;
            }
        }
    }

    async fn listen(
        &self,
        resource: &str,
        plugin: &Plugin,
        number: u64,
        listed: &mut bool,
    ) -> Result<(), deviceplugin::Error> {
        let mut lists = plugin.devices().await?;
        while let Some(devices) = lists.next().await? {
            self.apply_list(resource, number, devices, !*listed).await;
            *listed = true;
            tokio::time::sleep(SETTLE).await;
        }
        Ok(())
    }

    async fn apply_list(
        &self,
        resource: &str,
        number: u64,
        reported: Vec<deviceplugin::v1beta1::Device>,
        first: bool,
    ) {
        let nodes = |device: &deviceplugin::v1beta1::Device| {
            let nodes = device.topology.iter().flat_map(|topology| &topology.nodes);
            nodes.map(|node| node.id).filter(|node| (0..64).contains(node)).collect()
        };
        let devices = reported.into_iter().filter(|device| !device.id.is_empty()).map(|device| {
            let (healthy, nodes) = (device.health == HEALTHY, nodes(&device));
            (device.id, Device { healthy, nodes })
        });
        let devices = devices.collect();
        {
            let mut state = self.lock();
            if state.endpoints.get(resource).is_none_or(|endpoint| endpoint.number != number) {
                return;
            }
            let before = state.allocations.devices(resource);
            let changed_pods = state.allocations.list(resource, devices);
            state.changed_pods.extend(changed_pods);
            if !first && before == state.allocations.devices(resource) {
                return;
            }
        }
        if let Err(error) = self.save().await {
            tracing::warn!(resource, %error, "write the device checkpoint after a new device list");
        }
        self.changed.send_replace(());
    }

    /// Marks a plugin as disconnected.
    fn mark_disconnected(&self, resource: &str, number: u64) {
        let mut state = self.lock();
        if state.endpoints.get(resource).is_some_and(|endpoint| endpoint.number == number) {
            state.allocations.disconnect(resource, timestamp(self.clock.now()));
            drop(state);
            self.changed.send_replace(());
        }
    }
}
