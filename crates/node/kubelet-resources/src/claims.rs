//! Dynamic resource allocation (DRA): claims that Pods of this node use, registered drivers, and the calls to them. The
//! pure state is in [`Allocations`]. Read [`Claims`] first.
//!
//! - The checkpoint lists a claim before a driver is called for it, and the prepared devices before the Pod's
//!   containers start. Both stay in the checkpoint until the driver has unprepared the claim, so a restart loses
//!   nothing.
//! - Only one Pod at a time prepares or unprepares a claim. A hanging driver blocks only the Pods that use its claims,
//!   and each for a bounded time.

mod counts;
mod follow;
mod health;
mod prepare;
pub(crate) mod slices;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use deviceplugin::{
    DRIVER_SERVICES, Driver, DriverVersion,
    podresources::{CdiDevice, ClaimResource, DynamicResource},
};
use futures_util::future::join_all;
use k8s_openapi::api::core::v1::{Container, Pod};
use parking_lot::{Mutex, MutexGuard};
use pod_core::{
    PodRegistry,
    claims::{Claim, ClaimError, Device, Key, allocations::Allocations},
};
use telemetry::metrics::Metrics;
use tokio::{sync::watch, time::Instant};

use crate::checkpoint::Checkpoint;
use counts::Counts;
use health::Healths;

/// The checkpoint file of the claims in use, named as upstream.
const CHECKPOINT: &str = "dra_manager_state";
/// The interval between two searches for claims of deleted Pods, as upstream.
const ORPHANS: Duration = Duration::from_secs(60);

/// The error for a claim checkpoint of an earlier kubelet that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error(
    "create ResourceClaim cache: failed to get checkpoint {CHECKPOINT}: {source}, please drain this node and delete \
     the DRA state file \"{}\" before restarting Kubelet", path.display()
)]
pub struct ClaimsStateError {
    path: PathBuf,
    source: Box<dyn std::error::Error + Send + Sync>,
}

/// The error of registering a driver, or of preparing or unpreparing a Pod's claims. The messages are upstream's.
#[derive(Debug, thiserror::Error)]
pub enum ClaimsError {
    #[error(transparent)]
    Claim(#[from] ClaimError),
    #[error("fetch ResourceClaim {name}: {source}")]
    Fetch { name: String, source: client::Error },
    #[error("fetch ResourceClaim {0}: this kubelet has no API server (no --kubeconfig)")]
    Standalone(String),
    #[error("DRA driver {0} is not registered")]
    NoDriver(String),
    #[error("{call}: {source}")]
    Call { call: &'static str, source: deviceplugin::Error },
    #[error("{call} failed for ResourceClaim {claim}: {message}")]
    Refused { call: &'static str, claim: String, message: String },
    #[error("{call} returned result for unknown claim UID {uid}")]
    UnknownUid { call: &'static str, uid: String },
    #[error("{call} skipped {count} ResourceClaims")]
    Skipped { call: &'static str, count: usize },
    #[error("checkpoint ResourceClaim state: {0}")]
    Checkpoint(io::Error),
    #[error(
        "invalid supported gRPC versions of DRA driver plugin {driver} at endpoint {endpoint}: empty list of \
         supported gRPC services (aka supported versions)"
    )]
    NoServices { driver: String, endpoint: String },
    #[error(
        "invalid supported gRPC versions of DRA driver plugin {driver} at endpoint {endpoint}: none of services \
         supported by the plugin ({listed:?}) are supported by the kubelet ({DRIVER_SERVICES:?})"
    )]
    Services { driver: String, endpoint: String, listed: Vec<String> },
    #[error("endpoint {endpoint} already registered for DRA driver plugin {driver}")]
    Taken { driver: String, endpoint: String },
}

/// Delays and timeouts. Tests use shorter ones.
#[derive(Clone, Copy)]
struct Times {
    /// The time that a driver may be disconnected before its node's ResourceSlices are deleted.
    grace: Duration,
    /// The delay between two health calls to a driver. The calls also show whether the driver is reachable.
    again: Duration,
    /// The time without an answer to a health call after which a driver counts as connected.
    silent: Duration,
    /// The timeout of one call to a driver.
    call: Duration,
}

const TIMES: Times = Times {
    grace: Duration::from_secs(30),
    again: Duration::from_secs(5),
    silent: Duration::from_secs(1),
    call: deviceplugin::DRIVER_TIMEOUT,
};

/// The claims in use by Pods of this node, and the registered drivers.
pub struct Claims {
    state: Mutex<State>,
    checkpoint: Checkpoint,
    changed: watch::Sender<()>,
    counts: Counts,
    times: Times,
    tasks: rt::Tasks,
}

#[derive(Default)]
struct State {
    allocations: Allocations,
    drivers: BTreeMap<String, Vec<Registered>>,
    /// A lock per claim, held while a driver is called for the claim.
    turns: BTreeMap<Key, Arc<tokio::sync::Mutex<()>>>,
    healths: Healths,
    /// Pods that must be woken because the health of their devices changed.
    changed_pods: BTreeSet<String>,
    /// The time at which each driver's ResourceSlices are deleted. The empty key stands for all drivers.
    wipes: BTreeMap<String, Instant>,
}

/// A registered plugin of a driver. A driver has several plugins during a rolling update.
struct Registered {
    endpoint: PathBuf,
    driver: Driver,
    /// `true` if the last call reached the plugin.
    connected: bool,
    /// Ends the task that follows the plugin's health when dropped.
    _alive: watch::Sender<()>,
}

impl Claims {
    /// Creates the manager from the checkpoint of an earlier kubelet, if there is one.
    pub fn new(
        root: &Path,
        metrics: &Metrics,
        tasks: &rt::Tasks,
    ) -> Result<Self, ClaimsStateError> {
        Self::with_times(root, metrics, tasks, TIMES)
    }

    fn with_times(
        root: &Path,
        metrics: &Metrics,
        tasks: &rt::Tasks,
        times: Times,
    ) -> Result<Self, ClaimsStateError> {
        let checkpoint = Checkpoint::new(root.join(CHECKPOINT));
        let failed = |source: Box<dyn std::error::Error + Send + Sync>| {
            let path = checkpoint.path().to_owned();
            ClaimsStateError { path, source }
        };
        let allocations = match checkpoint.read().map_err(|error| failed(error.into()))? {
            Some(bytes) => Allocations::restore(&bytes).map_err(|error| failed(error.into()))?,
            None => Allocations::default(),
        };
        // No driver has registered yet. The scheduler must not send Pods here that would wait for one.
        let wipes = [(String::new(), Instant::now())].into();
        Ok(Self {
            state: Mutex::new(State { allocations, wipes, ..State::default() }),
            checkpoint,
            changed: watch::channel(()).0,
            counts: Counts::new(metrics),
            times,
            tasks: tasks.clone(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Registers a driver's plugin and starts to follow its health.
    pub fn connect(
        self: &Arc<Self>,
        driver: &str,
        endpoint: &Path,
        services: &[String],
    ) -> Result<(), ClaimsError> {
        let (name, path) = (|| driver.to_owned(), || endpoint.display().to_string());
        if services.is_empty() {
            return Err(ClaimsError::NoServices { driver: name(), endpoint: path() });
        }
        let version = DriverVersion::choose(services).ok_or_else(|| {
            let listed = services.iter().map(|s| deviceplugin::shorten(s).to_owned()).collect();
            ClaimsError::Services { driver: name(), endpoint: path(), listed }
        })?;
        let plugin = Driver::new(endpoint.to_owned(), version).with_timeout(self.times.call);
        let (alive, ended) = watch::channel(());
        {
            let mut state = self.lock();
            let plugins = state.drivers.entry(name()).or_default();
            if plugins.iter().any(|other| other.endpoint == endpoint) {
                return Err(ClaimsError::Taken { driver: name(), endpoint: path() });
            }
            plugins.push(Registered {
                endpoint: endpoint.to_owned(),
                driver: plugin.clone(),
                connected: true,
                _alive: alive,
            });
            state.schedule(driver, self.times.grace);
        }
        self.changed.send_replace(());
        let (own, driver, endpoint) = (self.clone(), driver.to_owned(), endpoint.to_owned());
        self.tasks.spawn_until_shutdown("kubelet dra driver", async move {
            let mut ended = ended;
            tokio::select! {
                () = own.follow(&driver, &endpoint, &plugin) => {}
                // Nothing is ever sent on this channel; it changes when the sender is dropped.
                _ = ended.changed() => {}
            }
        });
        Ok(())
    }

    /// Removes a plugin whose socket has disappeared.
    pub fn disconnect(&self, driver: &str, endpoint: &Path) {
        {
            let mut state = self.lock();
            let Some(plugins) = state.drivers.get_mut(driver) else { return };
            plugins.retain(|other| other.endpoint != endpoint);
            if plugins.is_empty() {
                state.drivers.remove(driver);
            }
            state.schedule(driver, self.times.grace);
        }
        self.set_health(driver, &[]);
        self.changed.send_replace(());
    }

    /// Records whether a plugin is connected.
    fn set_connected(&self, driver: &str, endpoint: &Path, connected: bool) {
        let mut state = self.lock();
        let mut plugins = state.drivers.get_mut(driver).into_iter().flatten();
        let plugin = plugins.find(|plugin| plugin.endpoint == endpoint);
        let Some(plugin) = plugin.filter(|plugin| plugin.connected != connected) else { return };
        plugin.connected = connected;
        tracing::info!(driver, endpoint = %endpoint.display(), connected, "the connection to a DRA driver's plugin \
             changed");
        state.schedule(driver, self.times.grace);
        drop(state);
        self.changed.send_replace(());
    }

    /// Returns the newest connected plugin of a driver, or the newest one if none is connected.
    fn driver(&self, name: &str) -> Result<Driver, ClaimsError> {
        let state = self.lock();
        let all = state.drivers.get(name).map(Vec::as_slice).unwrap_or_default();
        let there = all.iter().rfind(|plugin| plugin.connected).or(all.last());
        there
            .map(|plugin| plugin.driver.clone())
            .ok_or_else(|| ClaimsError::NoDriver(name.to_owned()))
    }

    /// Reports whether a Pod holds all its claims. A Pod without claims does.
    pub fn has_all(&self, pod: &Pod) -> bool {
        self.lock().allocations.has_all(pod)
    }

    /// Returns the CDI names of a container's claimed devices.
    pub fn for_start(&self, pod: &Pod, container: &Container) -> Result<Vec<String>, ClaimsError> {
        Ok(self.lock().allocations.cdi(pod, container)?)
    }

    /// Returns a container's claimed devices for the Pod resources API.
    pub fn dynamic_resources(&self, pod: &Pod, container: &Container) -> Vec<DynamicResource> {
        let device = |driver: &str, device: &Device| ClaimResource {
            cdi_devices: device.cdi.iter().map(|name| CdiDevice { name: name.clone() }).collect(),
            driver_name: driver.to_owned(),
            pool_name: device.pool.clone(),
            device_name: device.name.clone(),
            share_id: device.share.clone(),
        };
        let claim = |claim: &Claim| DynamicResource {
            claim_name: claim.name.clone(),
            claim_namespace: claim.namespace.clone(),
            claim_resources: {
                let all = claim.drivers.iter();
                all.flat_map(|(driver, all)| all.iter().map(|d| device(driver, d))).collect()
            },
        };
        self.lock().allocations.of_container(pod, container).into_iter().map(claim).collect()
    }

    /// Returns the UIDs of the Pods that hold claims.
    fn users(&self) -> BTreeSet<String> {
        self.lock().allocations.claims().flat_map(|claim| claim.pods.iter().cloned()).collect()
    }

    async fn unprepare_orphans(
        &self,
        cri: &cri::Client,
        pods: &dyn PodRegistry,
    ) -> Result<(), cri::Error> {
        let users = self.users();
        if users.is_empty() {
            return Ok(());
        }
        let running = cri.list_pods().await?;
        let orphans = users.iter().filter(|uid| !running.contains_key(*uid) && !pods.has_pod(uid));
        let each = orphans.map(|uid| async move {
            if let Err(error) = self.unprepare(uid).await {
                tracing::warn!(uid, %error, "unprepare the claims of a deleted Pod; trying again later");
            }
        });
        join_all(each).await;
        Ok(())
    }

    /// Writes the checkpoint. The content is on the disk when this returns.
    async fn save(&self) -> Result<(), ClaimsError> {
        self.counts.measure(&self.lock().allocations);
        let content = || self.lock().allocations.checkpoint();
        self.checkpoint.write(content).await.map_err(ClaimsError::Checkpoint)
    }
}

/// Wakes Pods whose devices changed health, and unprepares claims of deleted Pods, until shutdown.
pub async fn follow_claims(
    claims: Arc<Claims>,
    cri: cri::Client,
    pods: Arc<dyn PodRegistry>,
    mut sources: watch::Receiver<bool>,
) {
    let mut changes = claims.changed.subscribe();
    let mut next = Instant::now();
    loop {
        let changed_pods = std::mem::take(&mut claims.lock().changed_pods);
        changed_pods.iter().for_each(|uid| pods.wake(uid));
        tokio::select! {
            _ = changes.changed() => {}
            () = tokio::time::sleep_until(next) => {
                let _ = sources.wait_for(|read| *read).await;
                if let Err(error) = claims.unprepare_orphans(&cri, pods.as_ref()).await {
                    tracing::warn!(%error, "list Pods to find claims of deleted ones");
                }
                next = Instant::now() + ORPHANS;
            }
        }
    }
}
