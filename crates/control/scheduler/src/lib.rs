//! kube-scheduler: feeds `sched-core` from informers and carries out its decisions.
//!
//! The choice of nodes is the responsibility of `sched-core`. Read [`run`] and `Worker` in `work.rs` first.
//!
//! Invariants:
//! - All decisions are made in the core, under one lock that is never held across an await.
//! - The writes of a decision (binding, condition, Event, deleted victims) run concurrently with later decisions. Their
//!   number is limited, except for Pods that first wait for claims.
//! - A failed binding is reported to the core.

mod arguments;
mod claims;
mod config;
mod devices;
mod feed;
mod profiles;
mod work;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use client::{Client, LeaderElection, LeaderElectionConfig};
use events::EventRecorder;
use sched_core::Core;
use tokio::{
    sync::{Notify, Semaphore, watch},
    time::Instant,
};

pub use config::{Args, Config, ConfigError};
pub use profiles::Profile;

/// The core and the state that its users share.
pub(crate) struct Shared {
    core: Mutex<Core>,
    /// Notified when the core may have a decision.
    changed: Notify,
    /// The number of changes applied to the core, for tasks that wait for one.
    updates: watch::Sender<u64>,
    start: Instant,
    // The source of state for a core that replaces one after a panic.
    feed: OnceLock<Weak<feed::Feed>>,
}

impl Shared {
    fn new(core: Core) -> Arc<Self> {
        Arc::new(Self {
            core: Mutex::new(core),
            changed: Notify::new(),
            updates: watch::Sender::new(0),
            start: Instant::now(),
            feed: OnceLock::new(),
        })
    }

    /// Locks the core. After a panic under the lock its state is unreliable, so it is rebuilt from the informers.
    fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(|poisoned| {
            let mut core = poisoned.into_inner();
            if let Some(feed) = self.feed.get().and_then(Weak::upgrade) {
                tracing::warn!("rebuilding the scheduler's state after a panic");
                *core = core.afresh(self.now());
                feed.add_all(&mut core, self.now());
                self.core.clear_poison();
            }
            core
        })
    }

    /// The core's clock, in milliseconds.
    fn now(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    /// Applies a change to the core, then wakes the scheduling loop.
    fn update(&self, change: impl FnOnce(&mut Core, u64)) {
        change(&mut self.core(), self.now());
        self.changed.notify_one();
        self.updates.send_modify(|count| *count = count.wrapping_add(1));
    }
}

/// Runs the scheduler until shutdown. A lost lease is the error: another instance schedules now, and the process must
/// exit with a failure, as upstream's does. With leader election, the configuration's `identity` must be unique to this
/// process.
pub async fn run(config: Config, client: Client, tasks: &rt::Tasks) -> Result<(), client::Error> {
    run_deciding(config, client, tasks, Arc::new(Core::next)).await
}

async fn run_deciding(
    config: Config,
    client: Client,
    tasks: &rt::Tasks,
    decide: Arc<work::Decide>,
) -> Result<(), client::Error> {
    let config = config.identified();
    let core_config = sched_core::Config {
        profiles: config.profiles.iter().map(|profile| profile.core.clone()).collect(),
        first_backoff_ms: config.first_backoff.as_millis() as u64,
        max_backoff_ms: config.max_backoff.as_millis() as u64,
        seed: config.seed,
    };
    let shared = Shared::new(Core::new(core_config));
    let name = config.profiles.first().map_or("default-scheduler", |p| &p.core.scheduler_name);
    let events = EventRecorder::start(client.clone(), name, &config.host, tasks);
    let feed = feed::Feed::start(&client, &shared, tasks);
    if tasks.shutdown().unless_stopping(feed.synced()).await.is_none() {
        return Ok(());
    }
    tracing::info!("the scheduler's informers have synced");
    let worker = work::Worker {
        decide,
        client: client.clone(),
        events,
        shared,
        profiles: config.profiles.clone().into(),
        permits: Arc::new(Semaphore::new(config.parallel_writes)),
        tasks: tasks.clone(),
    };
    if !config.leader_election {
        tasks.shutdown().unless_stopping(worker.run()).await;
        return Ok(());
    }
    let identity = format!("{}_{}", config.host, config.identity);
    let lease = LeaderElectionConfig { identity, ..config.lease };
    let leading = LeaderElection::new(client, lease).run(|| worker.run());
    tasks.shutdown().unless_stopping(leading).await.unwrap_or(Ok(()))
}

#[cfg(test)]
mod tests;
