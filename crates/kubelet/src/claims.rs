//! Claims for devices of drivers (dynamic resource allocation): which Pods use them (the pure [`Book`]), which drivers there
//! are, and what they are asked.
//!
//! - That a Pod uses a claim is on the disk before a driver hears of it, and what the driver made ready is before the
//!   Pod's containers start; both stay there until the driver has taken it back, whenever the kubelet dies.
//! - One claim is made ready and taken back by one Pod at a time. A driver that hangs stops only those Pods that use its
//!   claims, each for a bounded time.

mod counts;
mod health;
mod prepare;
mod slices;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use deviceplugin::{
    DRIVER_SERVICES, Driver, DriverVersion,
    podresources::{CdiDevice, ClaimResource, DynamicResource},
};
use futures_util::future::join_all;
use k8s_openapi::api::core::v1::{Container, Pod};
use pod_core::claims::{Book, Claim, ClaimError, Device, Key};
use telemetry::metrics::Metrics;
use tokio::{sync::watch, time::Instant};

use crate::{checkpoint::Checkpoint, context::Context, pods::Pods, runtime};
use counts::Counts;
use health::Healths;
pub(crate) use slices::run as remove_slices;

/// The file in which the claims stand that Pods use, by upstream's name.
const CHECKPOINT: &str = "dra_manager_state";
/// How often what Pods left that are no more is looked for, as upstream.
const ORPHANS: Duration = Duration::from_secs(60);

/// Why a kubelet cannot go on with the claims of the one before it.
#[derive(Debug, thiserror::Error)]
#[error(
    "create ResourceClaim cache: failed to get checkpoint {CHECKPOINT}: {source}, please drain this node and delete the DRA state file \"{}\" before restarting Kubelet", path.display()
)]
pub struct ClaimsStateError {
    path: PathBuf,
    source: Box<dyn std::error::Error + Send + Sync>,
}

/// Why a driver is not registered, or a Pod's claims are not made ready or taken back; in upstream's words.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClaimsError {
    #[error("{0}")]
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
    Unasked { call: &'static str, uid: String },
    #[error("{call} skipped {count} ResourceClaims")]
    Skipped { call: &'static str, count: usize },
    #[error("checkpoint ResourceClaim state: {0}")]
    Checkpoint(io::Error),
    #[error(
        "invalid supported gRPC versions of DRA driver plugin {driver} at endpoint {endpoint}: empty list of supported gRPC services (aka supported versions)"
    )]
    NoServices { driver: String, endpoint: String },
    #[error(
        "invalid supported gRPC versions of DRA driver plugin {driver} at endpoint {endpoint}: none of services supported by the plugin ({listed:?}) are supported by the kubelet ({DRIVER_SERVICES:?})"
    )]
    Services { driver: String, endpoint: String, listed: Vec<String> },
    #[error("endpoint {endpoint} already registered for DRA driver plugin {driver}")]
    Taken { driver: String, endpoint: String },
}

/// How long things take; tests have less time.
#[derive(Clone, Copy)]
struct Times {
    /// A driver may be away for so long before its node's ResourceSlices are deleted.
    grace: Duration,
    /// A driver's health is asked for again after so long, by which it is also seen whether it is there.
    again: Duration,
    /// A driver that says nothing of health for so long is there.
    silent: Duration,
    /// How long a driver has for one call.
    call: Duration,
}

const TIMES: Times = Times {
    grace: Duration::from_secs(30),
    again: Duration::from_secs(5),
    silent: Duration::from_secs(1),
    call: deviceplugin::DRIVER_TIMEOUT,
};

/// The claims that Pods of one node use, and the drivers.
pub(crate) struct Claims {
    state: Mutex<State>,
    checkpoint: Checkpoint,
    changed: watch::Sender<()>,
    counts: Counts,
    times: Times,
    tasks: rt::Tasks,
}

#[derive(Default)]
struct State {
    book: Book,
    drivers: BTreeMap<String, Vec<Registered>>,
    /// Who works on a claim goes first.
    turns: BTreeMap<Key, Arc<tokio::sync::Mutex<()>>>,
    healths: Healths,
    /// Pods whose devices' health has changed and who have not been told.
    concerned: BTreeSet<String>,
    /// When the ResourceSlices of which drivers are to be deleted; those of all where no driver is named.
    wipes: BTreeMap<String, Instant>,
}

/// A driver's plugin that has registered. There are several while one takes over from another.
struct Registered {
    endpoint: PathBuf,
    driver: Driver,
    /// Whether it is there, as far as is known.
    connected: bool,
    /// Dropped with it, which ends the task that follows it.
    _alive: watch::Sender<()>,
}

impl Claims {
    /// Goes on with what a kubelet before this one has left.
    pub(crate) fn new(
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
        let book = match checkpoint.read().map_err(|error| failed(error.into()))? {
            Some(bytes) => Book::restore(&bytes).map_err(|error| failed(error.into()))?,
            None => Book::default(),
        };
        // No driver has registered yet, and Pods that are sent here meanwhile would wait for it.
        let wipes = [(String::new(), Instant::now())].into();
        Ok(Self {
            state: Mutex::new(State { book, wipes, ..State::default() }),
            checkpoint,
            changed: watch::channel(()).0,
            counts: Counts::new(metrics),
            times,
            tasks: tasks.clone(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a driver's plugin in and follows whether it is there.
    pub(crate) fn connect(
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
            let listed = services.iter().map(|s| deviceplugin::shortened(s).to_owned()).collect();
            ClaimsError::Services { driver: name(), endpoint: path(), listed }
        })?;
        let plugin = Driver::new(endpoint.to_owned(), version).with_timeout(self.times.call);
        let (alive, ended) = watch::channel(());
        {
            let mut state = self.lock();
            let known = state.drivers.entry(name()).or_default();
            if known.iter().any(|other| other.endpoint == endpoint) {
                return Err(ClaimsError::Taken { driver: name(), endpoint: path() });
            }
            known.push(Registered {
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
                // Nothing is ever sent.
                _ = ended.changed() => {}
            }
        });
        Ok(())
    }

    /// A plugin's socket has gone.
    pub(crate) fn disconnect(&self, driver: &str, endpoint: &Path) {
        {
            let mut state = self.lock();
            let Some(known) = state.drivers.get_mut(driver) else { return };
            known.retain(|other| other.endpoint != endpoint);
            if known.is_empty() {
                state.drivers.remove(driver);
            }
            state.schedule(driver, self.times.grace);
        }
        self.tell_health(driver, &[]);
        self.changed.send_replace(());
    }

    /// A plugin is there, or not.
    fn reached(&self, driver: &str, endpoint: &Path, connected: bool) {
        let mut state = self.lock();
        let mut known = state.drivers.get_mut(driver).into_iter().flatten();
        let known = known.find(|plugin| plugin.endpoint == endpoint);
        let Some(known) = known.filter(|plugin| plugin.connected != connected) else { return };
        known.connected = connected;
        tracing::info!(driver, endpoint = %endpoint.display(), connected, "a DRA driver's plugin");
        state.schedule(driver, self.times.grace);
        drop(state);
        self.changed.send_replace(());
    }

    /// The driver's plugin that came last of those that are there, or else of all.
    fn driver(&self, name: &str) -> Result<Driver, ClaimsError> {
        let state = self.lock();
        let all = state.drivers.get(name).map(Vec::as_slice).unwrap_or_default();
        let there = all.iter().rfind(|plugin| plugin.connected).or(all.last());
        there
            .map(|plugin| plugin.driver.clone())
            .ok_or_else(|| ClaimsError::NoDriver(name.to_owned()))
    }

    /// Whether a Pod uses all its claims already; one without claims does.
    pub(crate) fn has_all(&self, pod: &Pod) -> bool {
        self.lock().book.has_all(pod)
    }

    /// By what names the container runtime gives a container the devices of its claims.
    pub(crate) fn for_start(
        &self,
        pod: &Pod,
        container: &Container,
    ) -> Result<Vec<String>, ClaimsError> {
        Ok(self.lock().book.cdi(pod, container)?)
    }

    /// What a container has of claims, as monitoring is told.
    pub(crate) fn told(&self, pod: &Pod, container: &Container) -> Vec<DynamicResource> {
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
        self.lock().book.given(pod, container).into_iter().map(claim).collect()
    }

    /// The Pods that use claims.
    fn users(&self) -> BTreeSet<String> {
        self.lock().book.claims().flat_map(|claim| claim.pods.iter().cloned()).collect()
    }

    /// Writes down who uses what; the disk has it when this returns.
    async fn save(&self) -> Result<(), ClaimsError> {
        self.counts.measure(&self.lock().book);
        let content = || self.lock().book.checkpoint();
        self.checkpoint.write(content).await.map_err(ClaimsError::Checkpoint)
    }
}

/// Has Pods look at their devices when these change, and takes back what Pods left that are no more, until shutdown.
pub(crate) async fn run(ctx: Arc<Context>, pods: Pods, mut sources: watch::Receiver<bool>) {
    let mut changes = ctx.claims.changed.subscribe();
    let mut next = Instant::now();
    loop {
        let concerned = std::mem::take(&mut ctx.claims.lock().concerned);
        concerned.iter().for_each(|uid| pods.wake(uid));
        tokio::select! {
            _ = changes.changed() => {}
            () = tokio::time::sleep_until(next) => {
                let _ = sources.wait_for(|read| *read).await;
                if let Err(error) = take_back_orphans(&ctx, &pods).await {
                    tracing::warn!(%error, "look for claims of Pods that are no more");
                }
                next = Instant::now() + ORPHANS;
            }
        }
    }
}

async fn take_back_orphans(ctx: &Context, pods: &Pods) -> Result<(), cri::Error> {
    let users = ctx.claims.users();
    if users.is_empty() {
        return Ok(());
    }
    let known = runtime::everything(ctx).await?;
    let orphans = users.iter().filter(|uid| !known.contains_key(*uid) && !pods.knows(uid));
    let each = orphans.map(|uid| async move {
        if let Err(error) = ctx.claims.unprepare(uid).await {
            tracing::warn!(uid, %error, "take back the claims of a Pod that is no more");
        }
    });
    join_all(each).await;
    Ok(())
}
