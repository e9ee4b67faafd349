//! The flags of leader election that the controller manager and the scheduler share.

use api_meta::GoDuration;

use crate::scheduler::LeaderElection;

/// The flags of the leader's lease. Absent ones keep the default or the configuration file's value.
#[derive(clap::Args, Clone, Debug, Default)]
#[group(skip)]
pub struct LeaderElectionFlags {
    /// Time without a renewal after which another instance may take the lease [default: 15s]
    #[arg(long, allow_hyphen_values = true)]
    pub leader_elect_lease_duration: Option<GoDuration>,
    /// Time without a renewal after which the leader gives up; less than the lease duration [default: 10s]
    #[arg(long, allow_hyphen_values = true)]
    pub leader_elect_renew_deadline: Option<GoDuration>,
    /// Time between two attempts to acquire or renew the lease [default: 2s]
    #[arg(long, allow_hyphen_values = true)]
    pub leader_elect_retry_period: Option<GoDuration>,
    /// Kind of the lock; only leases
    #[arg(long)]
    pub leader_elect_resource_lock: Option<String>,
    /// Name of the lease [default: the component's name]
    #[arg(long)]
    pub leader_elect_resource_name: Option<String>,
    /// Namespace of the lease [default: kube-system]
    #[arg(long)]
    pub leader_elect_resource_namespace: Option<String>,
}

impl LeaderElectionFlags {
    /// Returns the flags in the form of a configuration file.
    pub fn settings(&self) -> LeaderElection {
        LeaderElection {
            leader_elect: None,
            lease_duration: self.leader_elect_lease_duration,
            renew_deadline: self.leader_elect_renew_deadline,
            retry_period: self.leader_elect_retry_period,
            resource_lock: self.leader_elect_resource_lock.clone(),
            resource_name: self.leader_elect_resource_name.clone(),
            resource_namespace: self.leader_elect_resource_namespace.clone(),
        }
    }
}
