//! The flags of `upgrade cluster` and `reconcile cluster`.

use clap::Subcommand;

use super::connection::Connection;

/// The subcommands of `upgrade`.
#[derive(Debug, Subcommand)]
pub enum UpgradeCommand {
    /// Sets the versions that the channel recommends
    Cluster(UpgradeCluster),
}

/// The flags of `upgrade cluster`.
#[derive(clap::Args, Debug)]
pub struct UpgradeCluster {
    /// The cluster
    pub(crate) cluster: Option<String>,
    /// A file with the recommended versions [default: the cluster's channel]
    #[arg(long, default_value = "")]
    pub(crate) channel: String,
    /// The version of Kubernetes [default: the recommended one]
    #[arg(long, default_value = "")]
    pub(crate) kubernetes_version: String,
    /// Store the changes
    #[arg(short, long)]
    pub(crate) yes: bool,
}

/// The subcommands of `reconcile`.
#[derive(Debug, Subcommand)]
pub enum ReconcileCommand {
    /// Updates the control plane, replaces its machines, and then does the same with all others
    Cluster(ReconcileCluster),
}

/// The flags of `reconcile cluster`.
#[derive(clap::Args, Debug)]
pub struct ReconcileCluster {
    /// The cluster
    pub(crate) cluster: Option<String>,
    /// Make the changes
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Allow an older kOps than the one of the last update
    #[arg(long)]
    pub(crate) allow_kops_downgrade: bool,
    #[command(flatten)]
    pub(crate) api: Connection,
}
