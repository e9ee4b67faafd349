//! The flags of `update cluster`.

use api_config::GoFlag as _;
use clap::Subcommand;
use kops_core::direct::Phase;

use super::{connection::Connection, target::TargetFlags};

/// The subcommands of `update`.
#[derive(Debug, Subcommand)]
pub enum Update {
    /// Shows the necessary changes, and with --yes makes them
    Cluster(Box<UpdateCluster>),
}

/// The flags of `update cluster`.
#[derive(clap::Args, Debug, Default)]
pub struct UpdateCluster {
    pub(crate) cluster: Option<String>,
    /// Make the changes
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Write the changes as JSON to this file
    #[arg(long)]
    pub(crate) plan_out: Option<String>,
    /// Make exactly the changes of this file of --plan-out, or none if the cluster or its resources differ since
    #[arg(long, conflicts_with = "plan_out")]
    pub(crate) plan: Option<String>,
    /// Only this part of the changes, on AWS
    #[arg(long, value_enum)]
    pub(crate) phase: Option<UpdatePhase>,
    /// The treatment of kinds of resources on AWS, such as SecurityGroup=Ignore,InternetGateway=ExistsAndWarnIfChanges
    #[arg(long, value_delimiter = ',')]
    pub(crate) lifecycle_overrides: Vec<String>,
    /// Delete what an earlier update has left until clients no longer use it, such as old load balancers
    #[arg(long)]
    pub(crate) prune: bool,
    /// Only these instance groups; the machines of others keep their configuration
    #[arg(long, value_delimiter = ',')]
    pub(crate) instance_group: Vec<String>,
    /// Only instance groups of these roles: control-plane, apiserver, node, bastion
    #[arg(long, value_delimiter = ',')]
    pub(crate) instance_group_roles: Vec<String>,
    /// Set the version of all kubelets, including those that are then newer than a control plane
    #[arg(long)]
    pub(crate) ignore_kubelet_version_skew: bool,
    /// Include a new administrator's certificate with this lifetime in the kubeconfig [default: 18h]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "18h")]
    pub(crate) admin: Option<api_config::GoDuration>,
    /// Write the cluster's context into the kubeconfig [default: true, on AWS false]
    #[arg(long, go_bool())]
    pub(crate) create_kube_config: Option<bool>,
    /// An existing user of the kubeconfig for the context; implies --create-kube-config
    #[arg(long)]
    pub(crate) user: Option<String>,
    /// Use the API server's internal DNS name in the kubeconfig; implies --create-kube-config
    #[arg(long)]
    pub(crate) internal: bool,
    #[command(flatten)]
    pub(crate) api: Connection,
    /// Allow an older kOps than the one of the last update
    #[arg(long)]
    pub(crate) allow_kops_downgrade: bool,
    #[command(flatten)]
    pub(crate) target: TargetFlags,
    /// A directory for aws, gce and metal with upstream's add-ons in the layout of a state store [default: those of the
    /// store]
    #[arg(long)]
    pub(crate) addons: Option<String>,
    /// The SSH public key for the machines
    #[arg(long)]
    pub(crate) ssh_public_key: Option<String>,
}

impl UpdateCluster {
    /// Reports whether a flag limits the update to some instance groups.
    pub(crate) fn selects_groups(&self) -> bool {
        !self.instance_group.is_empty() || !self.instance_group_roles.is_empty()
    }

    /// Reports whether the plan is written to a file or compared with one.
    pub(crate) fn uses_plan_file(&self) -> bool {
        self.plan_out.is_some() || self.plan.is_some()
    }

    /// Reports whether a flag that needs a kubeconfig is given.
    pub(crate) fn needs_kubeconfig(&self) -> bool {
        self.admin.is_some() || self.user.is_some() || self.internal
    }
}

/// A part of the changes of an update.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UpdatePhase {
    /// The VPC, its subnets, gateways and routes
    Network,
    /// Security groups, roles and SSH keys
    Security,
    /// Everything else
    Cluster,
}

impl From<UpdatePhase> for Phase {
    fn from(phase: UpdatePhase) -> Self {
        match phase {
            UpdatePhase::Network => Self::Network,
            UpdatePhase::Security => Self::Security,
            UpdatePhase::Cluster => Self::Cluster,
        }
    }
}
