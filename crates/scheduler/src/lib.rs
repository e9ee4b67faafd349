//! kube-scheduler: feeds `sched-core` with what the API shows and carries its decisions out.
//!
//! Invariants: all deciding happens in the core, under one lock that is never held across an await; a
//! decision's writes (binding, condition, Event, deleted victims) run beside the next decisions, in bounded
//! number, and a refused binding is given back to the core. A Pod whose claims are bound first waits outside of that number.

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

/// The core and what its users share.
pub(crate) struct Shared {
    core: Mutex<Core>,
    /// The core may have a decision.
    changed: Notify,
    /// For those who wait until the core knows of something: how often it was told.
    told: watch::Sender<u64>,
    start: Instant,
    // What tells a core that takes the place of one that panicked.
    feed: OnceLock<Weak<feed::Feed>>,
}

impl Shared {
    fn new(core: Core) -> Arc<Self> {
        Arc::new(Self {
            core: Mutex::new(core),
            changed: Notify::new(),
            told: watch::Sender::new(0),
            start: Instant::now(),
            feed: OnceLock::new(),
        })
    }

    /// The core. One that panicked while somebody had it may hold anything, and is made anew of what the informers have.
    fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(|poisoned| {
            let mut core = poisoned.into_inner();
            if let Some(feed) = self.feed.get().and_then(Weak::upgrade) {
                tracing::warn!("what the scheduler knows is built again after a panic");
                *core = core.afresh(self.now());
                feed.tell_all(&mut core, self.now());
                self.core.clear_poison();
            }
            core
        })
    }

    /// Milliseconds on the clock that the core is given.
    fn now(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    /// Tells the core something, then the loop.
    fn tell(&self, change: impl FnOnce(&mut Core, u64)) {
        change(&mut self.core(), self.now());
        self.changed.notify_one();
        self.told.send_modify(|count| *count = count.wrapping_add(1));
    }
}

/// Runs the scheduler until shutdown, or until its lease is lost, which is the error: another one decides now, and the
/// process is to end with a failure, as upstream's does. `identity` of the configuration must be unique to this process
/// when leaders are elected.
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
    tracing::info!("the scheduler knows the cluster");
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
