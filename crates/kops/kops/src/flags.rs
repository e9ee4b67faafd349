//! Upstream's commands and flags.

mod access;
mod connection;
mod create_cluster;
mod get;
mod instance;
mod stored;
mod target;
mod toolbox;
mod update;
mod upgrade;

use api_config::GoFlag as _;
use clap::Subcommand;

pub use self::target::Target;
pub(crate) use self::{
    access::{
        Completion, Descriptions, Export, ExportKubeconfig, Helpers, KubectlAuth, ShowVersion,
    },
    connection::Connection,
    create_cluster::{CloudFlag, Clouds, CreateCluster},
    get::{Get, GetTarget},
    instance::DeleteInstance,
    stored::{CreateGroup, CreateSecret, CreateSshKey, Edit, FieldChanges, SecretFile},
    toolbox::{AddonsCommand, DumpFlags, EnrollFlags, SelectorFlags, TemplateFlags, Toolbox},
    update::{Update, UpdateCluster, UpdatePhase},
    upgrade::{ReconcileCluster, ReconcileCommand, UpgradeCluster, UpgradeCommand},
};

/// kOps' commands: clusters in a state store, and their machines on this host (cloud local) or on AWS
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The state store: file:///path, s3://bucket/path or gs://bucket/path (or KOPS_STATE_STORE)
    /// [default: file:///var/lib/windlass/kops]
    #[arg(long, global = true)]
    pub(crate) state: Option<String>,
    /// The cluster (or KOPS_CLUSTER_NAME)
    #[arg(long, global = true)]
    pub(crate) name: Option<String>,
    /// The file with settings [default: ~/.kops.yaml]
    #[arg(long, global = true)]
    pub(crate) config: Option<String>,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The implemented commands; upstream's other commands are unknown.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Stores new objects, from files or flags
    Create(Create),
    /// Edits a stored object, in an editor or by flags
    #[command(subcommand)]
    Edit(Edit),
    /// Applies the stored objects to a cluster
    #[command(subcommand)]
    Update(Update),
    /// Replaces machines that differ from the configuration of their group
    #[command(subcommand, visible_alias = "rolling-updates")]
    RollingUpdate(RollingUpdate),
    /// Reports whether a cluster is healthy
    #[command(subcommand)]
    Validate(Validate),
    /// Writes the access to a cluster
    #[command(subcommand)]
    Export(Export),
    /// Shows stored objects
    Get(Get),
    /// Replaces stored objects
    Replace(Replace),
    /// Deletes stored objects and machines
    Delete(DeleteArgs),
    /// Makes a keypair the primary, which signs
    #[command(subcommand)]
    Promote(KeypairCommand),
    /// Distrusts keypairs
    #[command(subcommand)]
    Distrust(KeypairCommand),
    /// Trusts distrusted keypairs again
    #[command(subcommand)]
    Trust(KeypairCommand),
    /// Stores newer versions of Kubernetes and images
    #[command(subcommand)]
    Upgrade(UpgradeCommand),
    /// Updates a cluster and replaces its machines
    #[command(subcommand)]
    Reconcile(ReconcileCommand),
    /// Renders templates, shows clusters, and applies add-ons
    #[command(subcommand)]
    Toolbox(Toolbox),
    /// Shows the version of kOps
    Version(ShowVersion),
    /// Writes the completion script for a shell
    #[command(subcommand)]
    Completion(Completion),
    /// Helps other programs
    #[command(subcommand, hide = true)]
    Helpers(Helpers),
}

/// The flags of `create -f`.
#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Create {
    /// Files with objects; - is the standard input
    #[arg(short, long, value_delimiter = ',')]
    pub(crate) filename: Vec<String>,
    #[command(subcommand)]
    pub(crate) target: Option<CreateTarget>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CreateTarget {
    /// Creates a cluster and its instance groups from flags
    Cluster(Box<CreateCluster>),
    /// Adds a certificate authority and its private key to a keyset
    Keypair(CreateKeypair),
    /// Stores an instance group
    #[command(name = "instancegroup", aliases = ["instancegroups", "ig"])]
    Group(CreateGroup),
    /// Stores a secret
    #[command(subcommand)]
    Secret(CreateSecret),
    /// Stores the SSH public key of a cluster's machines
    #[command(name = "sshpublickey")]
    SshKey(CreateSshKey),
}

/// The subcommands of `rolling-update`.
#[derive(Debug, Subcommand)]
pub enum RollingUpdate {
    /// Shows the machines to replace, and with --yes replaces them
    Cluster(Box<RollCluster>),
}

/// The flags of `rolling-update cluster`.
#[derive(clap::Args, Clone, Debug)]
pub struct RollCluster {
    pub(crate) cluster: Option<String>,
    /// Replace them
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Replace all machines, including those that are up to date
    #[arg(long)]
    pub(crate) force: bool,
    /// Do not use the cluster's API: machines are not drained, and the cluster is not validated
    #[arg(long)]
    pub(crate) cloudonly: bool,
    /// Only these instance groups
    #[arg(long, value_delimiter = ',')]
    pub(crate) instance_group: Vec<String>,
    /// All but these instance groups
    #[arg(long, value_delimiter = ',')]
    pub(crate) exclude_instance_group: Vec<String>,
    /// Only instance groups of these roles: control-plane, node
    #[arg(long, value_delimiter = ',')]
    pub(crate) instance_group_roles: Vec<String>,
    /// Stop if a Node cannot be drained
    #[arg(long, go_bool(), default_value_t = false)]
    pub(crate) fail_on_drain_error: bool,
    /// Stop if the cluster does not validate
    #[arg(long, go_bool(), default_value_t = true)]
    pub(crate) fail_on_validate_error: bool,
    /// The time limit for draining a Node
    #[arg(long, default_value = "15m")]
    pub(crate) drain_timeout: api_config::GoDuration,
    /// The pause after a Node was drained
    #[arg(long, default_value = "5s")]
    pub(crate) post_drain_delay: api_config::GoDuration,
    /// The time limit for the cluster to validate
    #[arg(long, default_value = "15m")]
    pub(crate) validation_timeout: api_config::GoDuration,
    /// The number of consecutive successful validations
    #[arg(long, default_value_t = 2)]
    pub(crate) validate_count: u32,
    /// The pause after a control plane was terminated, before the cluster is validated
    #[arg(long, alias = "master-interval", default_value = "15s")]
    pub(crate) control_plane_interval: api_config::GoDuration,
    /// The pause after a node was terminated, before the cluster is validated
    #[arg(long, default_value = "15s")]
    pub(crate) node_interval: api_config::GoDuration,
    /// The pause after a bastion was terminated; cloud local has none
    #[arg(long)]
    pub(crate) bastion_interval: Option<api_config::GoDuration>,
    /// Prompt to continue after each instance is updated
    #[arg(short, long)]
    pub(crate) interactive: bool,
    /// The lifetime of the administrator's certificate for this update
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "18h", default_missing_value = "18h")]
    pub(crate) admin: api_config::GoDuration,
    #[command(flatten)]
    pub(crate) api: Connection,
}

impl Default for RollCluster {
    /// Returns the defaults of all flags.
    fn default() -> Self {
        #[derive(clap::Parser)]
        struct Only {
            #[command(flatten)]
            own: RollCluster,
        }
        <Only as clap::Parser>::parse_from(["roll"]).own
    }
}

/// The subcommands of `validate`.
#[derive(Debug, Subcommand)]
pub enum Validate {
    /// Compares machines, Nodes and Pods with the specification
    Cluster(ValidateCluster),
}

/// The flags of `validate cluster`.
#[derive(clap::Args, Debug)]
pub struct ValidateCluster {
    pub(crate) cluster: Option<String>,
    /// The time to wait for a valid cluster, such as 10m
    #[arg(long)]
    pub(crate) wait: Option<api_config::GoDuration>,
    /// The number of consecutive successful validations
    #[arg(long, default_value_t = 1)]
    pub(crate) count: u32,
    /// The pause between two validations
    #[arg(long, default_value = "10s")]
    pub(crate) interval: api_config::GoDuration,
    /// The kubeconfig whose context of the cluster is used, instead of a new administrator's certificate
    #[arg(long)]
    pub(crate) kubeconfig: Option<std::path::PathBuf>,
    #[command(flatten)]
    pub(crate) api: Connection,
    #[arg(short, long, default_value = "table", value_parser = ["table", "yaml", "json"])]
    pub(crate) output: String,
}

/// The flags of `replace -f`.
#[derive(clap::Args, Debug)]
pub struct Replace {
    /// Files with objects; - is the standard input
    #[arg(short, long, required = true, value_delimiter = ',')]
    pub(crate) filename: Vec<String>,
    /// Also create objects that do not exist
    #[arg(long)]
    pub(crate) force: bool,
}

/// The flags of `create keypair`.
#[derive(clap::Args, Debug)]
pub(crate) struct CreateKeypair {
    /// The keyset, or all to add one to each rotated keyset
    pub(crate) keyset: String,
    /// A file with the certificate, instead of a new one
    #[arg(long)]
    pub(crate) cert: Option<String>,
    /// A file with the private key, instead of a new one
    #[arg(long)]
    pub(crate) key: Option<String>,
    /// Make it the primary, which signs
    #[arg(long)]
    pub(crate) primary: bool,
}

/// The subcommands of `promote`, `distrust` and `trust`.
#[derive(Debug, Subcommand)]
pub enum KeypairCommand {
    /// Selects keypairs of a keyset
    Keypair(KeypairNames),
}

/// The selected keypairs.
#[derive(clap::Args, Debug)]
pub struct KeypairNames {
    /// The keyset, or all
    pub(crate) keyset: String,
    /// The IDs of the keypairs, as shown by get keypairs
    pub(crate) ids: Vec<String>,
}

/// The flags of `delete -f`.
#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct DeleteArgs {
    /// Files with objects to delete; - is the standard input
    #[arg(short, long, value_delimiter = ',')]
    pub(crate) filename: Vec<String>,
    /// Confirm the deletion
    #[arg(short, long)]
    pub(crate) yes: bool,
    #[command(subcommand)]
    pub(crate) target: Option<DeleteTarget>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DeleteTarget {
    #[command(flatten)]
    Stored(Delete),
    /// Drains a machine of a cluster, and ends it; its instance group makes another one
    Instance(Box<DeleteInstance>),
    /// Deletes a secret
    Secret { secret: String },
    /// Deletes the SSH public keys of a cluster's machines
    #[command(name = "sshpublickey")]
    SshKey { cluster: Option<String> },
}

/// The subcommands of `delete` for clusters and instance groups.
#[derive(Debug, Subcommand)]
pub(crate) enum Delete {
    /// Terminates a cluster's machines, and deletes the cluster from the state store
    Cluster(DeleteCluster),
    /// Deletes an instance group; its machines are terminated by the next update
    #[command(name = "instancegroup", aliases = ["instancegroups", "ig"])]
    Group {
        group: String,
        /// Confirm the deletion
        #[arg(short, long)]
        yes: bool,
    },
}

/// The flags of `delete cluster`.
#[derive(clap::Args, Debug, Default)]
pub(crate) struct DeleteCluster {
    pub(crate) cluster: Option<String>,
    /// Confirm the deletion
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Delete only the cluster's objects in the state store; its resources stay
    #[arg(long)]
    pub(crate) unregister: bool,
    /// The time limit for the end of machines of cloud local [default: 10m]
    #[arg(long)]
    pub(crate) wait: Option<api_config::GoDuration>,
    /// The pause between two attempts to delete resources of AWS; machines of cloud local need no attempts
    #[arg(long)]
    pub(crate) interval: Option<api_config::GoDuration>,
    /// The number of attempts without progress; machines of cloud local need no attempts
    #[arg(long)]
    pub(crate) count: Option<u32>,
    /// Delete a cluster that is not in the state store; not supported
    #[arg(long)]
    pub(crate) external: bool,
    /// The region of a cluster that is not in the state store; not supported
    #[arg(long)]
    pub(crate) region: Option<String>,
}
