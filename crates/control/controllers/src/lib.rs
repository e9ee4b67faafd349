//! The controllers of kube-controller-manager: each reconciles one kind of object with its spec.
//!
//! It does not parse the command line of the process or serve metrics and health checks; the binary does.
//! Read [`Controller`] first, then [`registry()`], which lists all controllers.
//!
//! Invariants:
//! - A controller is one module: a pure `plan` computes the actions from a snapshot, and a thin `reconcile` reads the
//!   snapshot from informers and carries the plan out.
//! - Reconciling is level-triggered: a key names the object to check, never the event that occurred.
//! - Reads go through shared informers under the controller manager's identity. Writes use the controller's own service
//!   account, as upstream's do, so that RBAC limits each controller.
//! - Informers lag behind the controller's own writes. A controller that creates or deletes many objects keeps
//!   [`expectations`](crate::expectations) until its informer has caught up, so that it creates nothing twice.

mod api_error;
mod blocks;
mod config;
mod context;
mod credentials;
mod discovery;
mod expectations;
mod flags;
mod history;
mod indexes;
mod metrics;
mod pods;
mod policy_status;
mod registry;
mod shared;
mod views;

mod attach_detach;
mod autoscaler;
mod binder;
mod bootstrap_tokens;
mod certificates;
mod cluster_role;
mod cronjob;
mod daemonset;
mod deployment;
mod device_taints;
mod disruption;
mod endpointslice;
mod ephemeral;
mod expander;
mod garbage;
mod job;
mod load_balancer;
mod local_volumes;
mod namespace;
mod node_ipam;
mod node_lifecycle;
mod node_ttl;
mod pod_gc;
mod protection;
mod quota;
mod replicaset;
mod resource_claims;
mod resource_pools;
mod root_ca;
mod service_account;
mod service_cidr;
mod statefulset;
mod storage_migration;
mod token_secrets;
mod trust_bundle;
mod ttl;

use std::sync::Arc;

use client::{Client, LeaderElection};
use context::Context;
use metrics::ControllerMetrics;

pub use config::{Config, EvictionRates, LoadBalancerSource};
pub use credentials::{SHARED_IDENTITY, ServiceAccounts};
pub use flags::{Args, FlagError};
pub use registry::{Controller, registry};

/// Runs the configured controllers until shutdown. Losing the lease is the error.
///
/// Controllers cannot be stopped one by one. After a lost lease the process must exit with a failure, as upstream's
/// does, so that its supervisor restarts it.
///
/// `clients` returns the client of a service account in kube-system (`deployment-controller` …). For
/// [`SHARED_IDENTITY`] it returns the client of the shared informers and the lease.
pub async fn run(
    config: Config,
    clients: impl Fn(&str) -> Client + Send + Sync + 'static,
    tasks: &rt::Tasks,
) -> Result<(), client::Error> {
    let metrics = Arc::new(ControllerMetrics::new(&config.metrics));
    let measured = metrics.client.clone();
    let clients = move |account: &str| clients(account).measured(&measured);
    let own = clients(SHARED_IDENTITY);
    if !config.leader_election {
        start(config, &clients, &metrics, tasks);
        tasks.shutdown().stopping().await;
        return Ok(());
    }
    let lease = config.lease.clone().of_process(&config.features);
    let election = LeaderElection::new(own, lease).measured(&metrics.client);
    let leading = election.run(|| async {
        start(config, &clients, &metrics, tasks);
        tasks.shutdown().stopping().await;
    });
    tasks.shutdown().unless_stopping(leading).await.unwrap_or(Ok(()))
}

fn start(
    config: Config,
    clients: &dyn Fn(&str) -> Client,
    metrics: &Arc<ControllerMetrics>,
    tasks: &rt::Tasks,
) {
    let config = Arc::new(config);
    let shared =
        Arc::new(shared::Shared::new(clients(SHARED_IDENTITY), metrics.clone(), tasks.clone()));
    for controller in registry() {
        let gated = controller.gate.is_some_and(|gate| !config.features.is_enabled(gate));
        if gated || !config.enables(controller.name) {
            continue;
        }
        let client = clients(controller.account);
        let context =
            Context::new(controller.name, controller.account, client, &shared, &config, tasks);
        tracing::debug!(controller = controller.name, "starting");
        metrics.started(controller.name);
        (controller.start)(context);
    }
}

#[cfg(test)]
mod tests;
