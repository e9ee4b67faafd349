//! kube-controller-manager: loops that bring what is towards what is wanted.
//!
//! Invariants:
//! - A controller is one module of one shape: a pure `plan` from a snapshot to what to do, and a thin
//!   `reconcile` that reads the snapshot from informers and carries the plan out. All are listed in
//!   [`registry`].
//! - Reconciling is level-triggered: a key says what to look at, never what happened.
//! - Reads go through shared informers under the controller manager's identity; writes go out under the
//!   controller's own service account, as upstream's do, so that RBAC says what each may do.
//! - Informers lag behind our own writes. A controller that creates or deletes in numbers keeps
//!   [`expectations`](crate::expectations) until its informer has caught up, so nothing is made twice.

mod blocks;
mod config;
mod context;
mod credentials;
mod discovery;
mod expectations;
mod flags;
mod history;
mod indexes;
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
mod local_volumes;
mod namespace;
mod node_ipam;
mod node_lifecycle;
mod pod_gc;
mod protection;
mod quota;
mod replicaset;
mod resource_claims;
mod root_ca;
mod service_account;
mod service_cidr;
mod statefulset;
mod ttl;

use std::sync::Arc;

use client::{Client, LeaderElection, LeaderElectionConfig};
use context::Context;

pub use config::Config;
pub use credentials::ServiceAccounts;
pub use flags::{Args, FlagError};
pub use registry::{Controller, registry};

/// The name that shared informers read under.
pub const SHARED_IDENTITY: &str = "system:kube-controller-manager";

/// Runs the controllers that the configuration names until shutdown, or until the lease is lost, which is the error.
/// Controllers cannot be stopped one by one, so the process is to end then with a failure, as upstream's does: its
/// supervisor begins it anew.
///
/// `clients` gives the client of a service account in kube-system (`deployment-controller` …); called with
/// [`SHARED_IDENTITY`] it gives the one for shared informers and the lease.
pub async fn run(
    config: Config,
    clients: impl Fn(&str) -> Client + Send + Sync + 'static,
    tasks: &rt::Tasks,
) -> Result<(), client::Error> {
    let own = clients(SHARED_IDENTITY);
    let config = config.identified();
    if !config.leader_election {
        start(config, &clients, tasks);
        tasks.shutdown().stopping().await;
        return Ok(());
    }
    let identity = format!("{}_{}", config.host, config.identity);
    let lease = LeaderElectionConfig::new("kube-system", "kube-controller-manager", identity);
    let leading = LeaderElection::new(own, lease).run(|| async {
        start(config, &clients, tasks);
        tasks.shutdown().stopping().await;
    });
    tasks.shutdown().unless_stopping(leading).await.unwrap_or(Ok(()))
}

fn start(config: Config, clients: &dyn Fn(&str) -> Client, tasks: &rt::Tasks) {
    let config = Arc::new(config);
    let shared = Arc::new(shared::Shared::new(clients(SHARED_IDENTITY), tasks.clone()));
    for controller in registry() {
        if !config.enables(controller.name) {
            continue;
        }
        let client = clients(controller.account);
        let context = Context::new(controller, client, &shared, &config, tasks);
        tracing::debug!(controller = controller.name, "starting");
        (controller.start)(context);
    }
}

#[cfg(test)]
mod tests;
