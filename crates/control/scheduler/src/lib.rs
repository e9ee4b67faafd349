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
mod extenders;
mod feed;
mod groups;
mod metrics;
mod profile;
mod profile_config;
mod state;
mod work;

use std::sync::Arc;

use client::{Client, ClientMetrics, LeaderElection};
use events::EventRecorder;
use sched_core::Core;
use tokio::sync::Semaphore;

pub use config::{Args, Config, ConfigError};
pub use extenders::Extender;
pub use metrics::ResourcePage;
pub use profile::Profile;

/// Runs the scheduler until shutdown. A lost lease is the error: another instance schedules now, and the process must
/// exit with a failure, as upstream's does.
pub async fn run(config: Config, client: Client, tasks: &rt::Tasks) -> Result<(), client::Error> {
    run_deciding(config, client, tasks, Arc::new(Core::next)).await
}

async fn run_deciding(
    config: Config,
    client: Client,
    tasks: &rt::Tasks,
    decide: Arc<work::Decide>,
) -> Result<(), client::Error> {
    let host = rt::hostname();
    let core_config = sched_core::Config {
        profiles: config.core_profiles(),
        first_backoff_ms: config.first_backoff.as_millis() as u64,
        max_backoff_ms: config.max_backoff.as_millis() as u64,
        seed: config.seed,
        gangs: feed::has_gangs(&config.features),
        extenders: config.extenders.iter().map(|extender| extender.core.clone()).collect(),
    };
    let shared = state::Shared::new(Core::new(core_config));
    let measured = ClientMetrics::new(&config.metrics);
    let metrics = metrics::SchedulerMetrics::new(&config.metrics);
    metrics.follow(&shared, &config.metrics);
    config.resources.set(&shared);
    let client = client.measured(&measured);
    let name = config.profiles.first().map_or("default-scheduler", |p| &p.core.scheduler_name);
    let events = EventRecorder::start(client.clone(), name, &host, tasks);
    let feed = feed::Feed::start(&client, &shared, &config.features, tasks);
    let extenders = extenders::Extenders::start(&config.extenders, &client, &shared, tasks);
    let synced = async { tokio::join!(feed.synced(), extenders.synced()) };
    if tasks.shutdown().unless_stopping(synced).await.is_none() {
        return Ok(());
    }
    tracing::info!("the scheduler's informers have synced");
    let worker = work::Worker {
        decide,
        client: client.clone(),
        events,
        shared,
        extenders,
        profiles: config.profiles.clone().into(),
        permits: Arc::new(Semaphore::new(config.parallel_writes)),
        tasks: tasks.clone(),
        metrics,
    };
    if !config.leader_election {
        tasks.shutdown().unless_stopping(worker.run()).await;
        return Ok(());
    }
    let lease = config.lease.of_process(&config.features);
    let leading = LeaderElection::new(client, lease).measured(&measured).run(|| worker.run());
    tasks.shutdown().unless_stopping(leading).await.unwrap_or(Ok(()))
}

#[cfg(test)]
mod tests;
