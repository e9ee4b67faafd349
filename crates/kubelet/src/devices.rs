//! Devices of plugins: who has them (the pure [`Book`]), which plugins there are, and what they are asked.
//!
//! - A device is written down as given away before its container starts, and given back when all of the Pod has ended,
//!   so that it has one holder whenever the kubelet dies.
//! - What one plugin gives away is asked of it by one Pod after the other; a plugin that hangs stops only those Pods that
//!   want its devices, each for a bounded time.

mod allot;
mod server;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use deviceplugin::{HEALTHY, Plugin, v1beta1::DevicePluginOptions};
use k8s_openapi::api::core::v1::{Container, Pod, PodStatus, ResourceHealth, ResourceStatus};
use pod_core::{
    devices::{Book, Count, Device, DeviceError, GRACE, is_resource_name},
    topology::Hints,
};
use tokio::{sync::watch, time::Instant};

use crate::{checkpoint::Checkpoint, context::timestamp};

pub(crate) use allot::ForContainer;
pub(crate) use server::run;

/// The file in which the devices given away stand, by upstream's name.
const CHECKPOINT: &str = "kubelet_internal_checkpoint";
/// A plugin's lists are looked at no faster than so, whatever it sends.
const SETTLE: Duration = Duration::from_millis(50);
/// A list that has ended is asked for again after so long, and later each time.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(30);

/// Why a plugin is not registered, or a container not given devices.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DevicesError {
    #[error(
        "requested API version {0:?} is not supported by kubelet. Supported version is [\"v1beta1\"]"
    )]
    Version(String),
    #[error("the ResourceName {0:?} is invalid")]
    Name(String),
    #[error("the endpoint {0:?} is no path below the directory of device plugins")]
    Endpoint(String),
    #[error("failed to get device plugin options: {0}")]
    Options(deviceplugin::Error),
    #[error("{0}")]
    Device(#[from] DeviceError),
    #[error("unknown Device Plugin {0}")]
    NoPlugin(String),
    #[error("device plugin GetPreferredAllocation rpc failed with err: {0}")]
    Preferred(deviceplugin::Error),
    #[error("{0}")]
    Allocate(deviceplugin::Error),
    #[error("no containers return in allocation response of {0}'s plugin")]
    NoContainer(String),
    #[error("device plugin PreStartContainer rpc failed with err: {0}")]
    PreStart(deviceplugin::Error),
    #[error("failed to write checkpoint file {CHECKPOINT:?}: {0}")]
    Checkpoint(io::Error),
}

/// The devices of one node's plugins.
pub(crate) struct Devices {
    directory: PathBuf,
    state: Mutex<State>,
    checkpoint: Checkpoint,
    changed: watch::Sender<()>,
    clock: Arc<dyn rt::Clock>,
    tasks: rt::Tasks,
}

#[derive(Default)]
struct State {
    book: Book,
    endpoints: BTreeMap<String, Endpoint>,
    /// Who is giving away devices of a resource goes first.
    turns: BTreeMap<String, Arc<tokio::sync::Mutex<()>>>,
    /// Pods whose devices' health has changed and who have not been told.
    concerned: BTreeSet<String>,
    registrations: u64,
}

/// A plugin that has registered.
struct Endpoint {
    /// Which registration it is: what an earlier one of the resource goes on to say does not count.
    number: u64,
    plugin: Plugin,
    options: DevicePluginOptions,
    /// Dropped with the endpoint, which ends the task that follows it.
    _alive: watch::Sender<()>,
}

impl Devices {
    /// Goes on with what a kubelet before this one has left.
    pub(crate) fn new(root: &Path, clock: Arc<dyn rt::Clock>, tasks: &rt::Tasks) -> Self {
        let directory = root.join("device-plugins");
        let checkpoint = Checkpoint::new(directory.join(CHECKPOINT));
        let path = checkpoint.path().display();
        let book = match checkpoint.read() {
            Ok(None) => Book::default(),
            Ok(Some(bytes)) => Book::restore(&bytes, timestamp(clock.now())).unwrap_or_else(|error| {
                tracing::error!(%path, %error, "read which devices were given away; those of running Pods may be given away again: end them, or the kubelet's devices");
                Book::default()
            }),
            Err(error) => {
                tracing::error!(%path, %error, "read which devices were given away");
                Book::default()
            }
        };
        Self {
            directory,
            state: Mutex::new(State { book, ..State::default() }),
            checkpoint,
            changed: watch::channel(()).0,
            clock,
            tasks: tasks.clone(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells of every change in what devices there are.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// The Pods whose devices' health has changed since this was last asked.
    pub(crate) fn concerned(&self) -> BTreeSet<String> {
        std::mem::take(&mut self.lock().concerned)
    }

    /// How many devices of each resource the node has.
    pub(crate) async fn count(&self) -> BTreeMap<String, Count> {
        let (counts, forgot) = {
            let mut state = self.lock();
            let (counts, forgot) = state.book.count(timestamp(self.clock.now()));
            let State { book, endpoints, turns, .. } = &mut *state;
            let known: BTreeSet<&str> = book.names().collect();
            endpoints.retain(|name, _| known.contains(name.as_str()));
            turns.retain(|name, turn| known.contains(name.as_str()) || Arc::strong_count(turn) > 1);
            (counts, forgot)
        };
        if forgot && let Err(error) = self.save().await {
            tracing::warn!(%error, "forget the devices of plugins that have gone");
        }
        counts
    }

    /// The Pods that have devices.
    pub(crate) fn holders(&self) -> Vec<String> {
        self.lock().book.holders().map(str::to_owned).collect()
    }

    /// What a container has: the resource, the device, and the NUMA nodes that it is near.
    pub(crate) fn given_to(&self, uid: &str, container: &str) -> Vec<(String, String, Vec<i64>)> {
        let state = self.lock();
        let given = state.book.given((uid, container)).into_iter().flatten();
        let each = given.flat_map(|(resource, given)| {
            given.ids().into_iter().map(move |id| {
                let near = given.devices.iter().filter(|(_, ids)| ids.iter().any(|i| i == id));
                (resource.clone(), id.to_owned(), near.map(|(node, _)| *node).collect())
            })
        });
        each.collect()
    }

    /// All devices that work, likewise.
    pub(crate) fn allocatable(&self) -> Vec<(String, String, Vec<i64>)> {
        let book = &self.lock().book;
        let each = book.names().flat_map(|name| {
            let healthy = book.devices(name).into_iter().filter(|(_, device)| device.healthy);
            healthy.map(|(id, device)| (name.to_owned(), id, device.nodes.into_iter().collect()))
        });
        each.collect()
    }

    /// Where the resources can be had that a container asks for, or all of a Pod, on a machine with these NUMA nodes.
    pub(crate) fn hints(
        &self,
        pod: &Pod,
        container: Option<&Container>,
        nodes: &[i64],
    ) -> Vec<Hints> {
        let book = &self.lock().book;
        container.map_or_else(|| book.pod_hints(pod, nodes), |one| book.hints(pod, one, nodes))
    }

    /// Whether a Pod has devices, of this resource if one is named.
    pub(crate) fn holds(&self, uid: &str, resource: Option<&str>) -> bool {
        let book = &self.lock().book;
        resource.map_or_else(|| book.holders().any(|holder| holder == uid), |r| book.holds(uid, r))
    }

    /// All of a Pod has ended: what it had may be given to others.
    pub(crate) async fn release(&self, uid: &str) {
        let had = self.lock().book.release(uid);
        if had && let Err(error) = self.save().await {
            tracing::warn!(uid, %error, "give back a Pod's devices");
        }
    }

    /// Writes down who has what; the disk has it when this returns.
    async fn save(&self) -> Result<(), DevicesError> {
        let content = || self.lock().book.checkpoint();
        self.checkpoint.write(content).await.map_err(DevicesError::Checkpoint)
    }

    /// Says in a Pod's status which devices its containers have, and whether these work.
    pub(crate) fn describe(&self, uid: &str, status: &mut PodStatus) {
        let state = self.lock();
        for container in status.container_statuses.iter_mut().flatten() {
            let Some(given) = state.book.given((uid, &container.name)) else { continue };
            let resources = given.iter().map(|(name, given)| {
                let health = |id: &str| ResourceHealth {
                    resource_id: id.to_owned(),
                    health: Some(
                        if state.book.is_healthy(name, id) { HEALTHY } else { "Unhealthy" }
                            .to_owned(),
                    ),
                    ..ResourceHealth::default()
                };
                let resources = given.ids().into_iter().map(health).collect();
                ResourceStatus { name: name.clone(), resources: Some(resources) }
            });
            container.allocated_resources_status = Some(resources.collect());
        }
    }

    /// Takes a plugin for a resource in, in the place of any before it, and follows what devices it has. Returns the
    /// registration's number.
    pub(crate) async fn connect(
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
            state.book.connect(resource)?;
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
                () = own.follow(&resource, &plugin, number, &socket) => {}
                // Nothing is ever sent: another has registered in its place.
                _ = ended.changed() => {}
            }
        });
        Ok(number)
    }

    /// A plugin's socket has gone, unless another has registered in its place.
    pub(crate) fn disconnect(&self, resource: &str, number: u64) {
        self.silent(resource, number);
        let mut state = self.lock();
        if state.endpoints.get(resource).is_some_and(|known| known.number == number) {
            state.endpoints.remove(resource);
        }
    }

    /// Follows a plugin's devices. One that ends its list, or dies, may come back as long as its socket is there.
    async fn follow(&self, resource: &str, plugin: &Plugin, number: u64, socket: &Path) {
        let mut failures = rt::Backoff::new(FIRST, LONGEST);
        let mut since = Instant::now();
        loop {
            let mut listed = false;
            match self.listen(resource, plugin, number, &mut listed).await {
                Ok(()) => tracing::warn!(resource, "a device plugin has ended its list"),
                Err(error) => tracing::warn!(resource, %error, "list a plugin's devices"),
            }
            self.silent(resource, number);
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
            self.listed(resource, number, devices, !*listed).await;
            *listed = true;
            tokio::time::sleep(SETTLE).await;
        }
        Ok(())
    }

    async fn listed(
        &self,
        resource: &str,
        number: u64,
        told: Vec<deviceplugin::v1beta1::Device>,
        first: bool,
    ) {
        let nodes = |device: &deviceplugin::v1beta1::Device| {
            let nodes = device.topology.iter().flat_map(|topology| &topology.nodes);
            nodes.map(|node| node.id).filter(|node| (0..64).contains(node)).collect()
        };
        let devices = told.into_iter().filter(|device| !device.id.is_empty()).map(|device| {
            let (healthy, nodes) = (device.health == HEALTHY, nodes(&device));
            (device.id, Device { healthy, nodes })
        });
        let devices = devices.collect();
        {
            let mut state = self.lock();
            if state.endpoints.get(resource).is_none_or(|known| known.number != number) {
                return;
            }
            let before = state.book.devices(resource);
            let concerned = state.book.list(resource, devices);
            state.concerned.extend(concerned);
            if !first && before == state.book.devices(resource) {
                return;
            }
        }
        if let Err(error) = self.save().await {
            tracing::warn!(resource, %error, "write down which devices there are");
        }
        self.changed.send_replace(());
    }

    /// A plugin says nothing any more.
    fn silent(&self, resource: &str, number: u64) {
        let mut state = self.lock();
        if state.endpoints.get(resource).is_some_and(|known| known.number == number) {
            state.book.disconnect(resource, timestamp(self.clock.now()));
            drop(state);
            self.changed.send_replace(());
        }
    }
}
