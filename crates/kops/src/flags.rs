//! Upstream's commands and flags, and the settings that come from the environment and from `~/.kops.yaml`.

use api_codec::from_yaml;
use clap::Subcommand;
use kops_api::Spec as _;

use crate::Error;
pub(crate) use crate::create::CreateCluster;

/// Where clusters are kept of which nobody says where: those of this machine.
const DEFAULT_STATE: &str = "file:///var/lib/windlass/kops";

/// kOps' commands: clusters in a state store, and their machines on this one (cloud local)
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Where clusters are kept: file:///path or s3://bucket/path (or KOPS_STATE_STORE) [default: file:///var/lib/windlass/kops]
    #[arg(long, global = true)]
    state: Option<String>,
    /// The cluster (or KOPS_CLUSTER_NAME)
    #[arg(long, global = true)]
    name: Option<String>,
    /// The file with settings [default: ~/.kops.yaml]
    #[arg(long, global = true)]
    config: Option<String>,
    #[command(subcommand)]
    pub command: Command,
}

/// The commands that act; others of upstream's are unknown.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Keeps new objects, from files or flags
    Create(Create),
    /// Changes an object that is kept in an editor
    #[command(subcommand)]
    Edit(Edit),
    /// Brings what there is of a cluster towards what is kept of it
    #[command(subcommand)]
    Update(Update),
    /// Replaces machines that were made of something else than their group is made of now
    #[command(subcommand, visible_alias = "rolling-updates")]
    RollingUpdate(RollingUpdate),
    /// Says whether a cluster is as it is to be
    #[command(subcommand)]
    Validate(Validate),
    /// Writes what others reach a cluster by
    #[command(subcommand)]
    Export(Export),
    /// Shows what is kept
    #[command(subcommand)]
    Get(Get),
    /// Writes objects over those that are kept
    Replace(Replace),
    /// Removes what is kept
    #[command(subcommand)]
    Delete(Delete),
    /// Has a keypair sign from now on
    #[command(subcommand)]
    Promote(OfKeypair),
    /// Has nobody believe keypairs any more
    #[command(subcommand)]
    Distrust(OfKeypair),
    /// Has keypairs believed again
    #[command(subcommand)]
    Trust(OfKeypair),
}

/// The flags of `create -f`.
#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Create {
    /// Files with objects; - is the standard input
    #[arg(short, long, value_delimiter = ',')]
    pub(crate) filename: Vec<String>,
    #[command(subcommand)]
    pub(crate) what: Option<Made>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Made {
    /// Makes a cluster and its instance groups by flags
    Cluster(Box<CreateCluster>),
    /// Adds a certificate authority and its private key to a keyset
    Keypair(MakeKeypair),
}

/// What `edit` takes.
#[derive(Debug, Subcommand)]
pub enum Edit {
    /// Changes a cluster
    Cluster { cluster: Option<String> },
    /// Changes an instance group
    #[command(name = "instancegroup", aliases = ["instancegroups", "ig"])]
    Group { group: String },
}

/// What `update` takes.
#[derive(Debug, Subcommand)]
pub enum Update {
    /// Shows what would change, and with --yes changes it
    Cluster(UpdateCluster),
}

/// Who changes things.
#[derive(clap::ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Target {
    /// This program
    #[default]
    Direct,
    /// Terraform, by a configuration that is written
    Terraform,
}

/// The flags of `update cluster`.
#[derive(clap::Args, Debug, Default)]
pub struct UpdateCluster {
    pub(crate) cluster: Option<String>,
    /// Change it
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Write what would change, as JSON, to this file
    #[arg(long)]
    pub(crate) plan_out: Option<String>,
    #[arg(long, value_enum, default_value_t)]
    pub(crate) target: Target,
    /// The directory that the configuration is written to [default: out/terraform]
    #[arg(long)]
    pub(crate) out: Option<String>,
    /// For aws: a file that says files with their hashes, and with --target=terraform what AWS would be asked (account, images,
    /// machineTypes, dnsZones, networks, bucketRegions)
    #[arg(long)]
    pub(crate) known: Option<String>,
    /// For aws: a directory with upstream's add-ons, as they lie in a state store [default: those of the store]
    #[arg(long)]
    pub(crate) addons: Option<String>,
    /// The SSH key that machines are reached with
    #[arg(long)]
    pub(crate) ssh_public_key: Option<String>,
}

/// What `rolling-update` takes.
#[derive(Debug, Subcommand)]
pub enum RollingUpdate {
    /// Shows which machines are to be replaced, and with --yes replaces them
    Cluster(Box<RollCluster>),
}

/// The flags of `rolling-update cluster`.
#[derive(clap::Args, Clone, Debug)]
pub struct RollCluster {
    pub(crate) cluster: Option<String>,
    /// Replace them
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Replace all machines, also those that are up to date
    #[arg(long)]
    pub(crate) force: bool,
    /// Ask nothing of the cluster: machines are not drained, and it is not looked at
    #[arg(long)]
    pub(crate) cloudonly: bool,
    /// These instance groups only
    #[arg(long, value_delimiter = ',')]
    pub(crate) instance_group: Vec<String>,
    /// Not these instance groups
    #[arg(long, value_delimiter = ',')]
    pub(crate) exclude_instance_group: Vec<String>,
    /// Instance groups of these roles only: control-plane, node
    #[arg(long, value_delimiter = ',')]
    pub(crate) instance_group_roles: Vec<String>,
    /// End if a Node cannot be drained
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false, action = clap::ArgAction::Set)]
    pub(crate) fail_on_drain_error: bool,
    /// End if the cluster does not validate
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = true, action = clap::ArgAction::Set)]
    pub(crate) fail_on_validate_error: bool,
    /// How long a Node's Pods have to go
    #[arg(long, default_value = "15m")]
    pub(crate) drain_timeout: api_config::GoDuration,
    /// How long to wait after a Node was drained
    #[arg(long, default_value = "5s")]
    pub(crate) post_drain_delay: api_config::GoDuration,
    /// How long the cluster has to validate
    #[arg(long, default_value = "15m")]
    pub(crate) validation_timeout: api_config::GoDuration,
    /// How many times in a row it has to
    #[arg(long, default_value_t = 2)]
    pub(crate) validate_count: u32,
    /// How long to wait after a control plane was ended, before the cluster is looked at
    #[arg(long, alias = "master-interval", default_value = "0s")]
    pub(crate) control_plane_interval: api_config::GoDuration,
    /// How long to wait after a node was ended, before the cluster is looked at
    #[arg(long, default_value = "0s")]
    pub(crate) node_interval: api_config::GoDuration,
}

#[cfg(test)]
impl Default for RollCluster {
    /// What no flag says otherwise.
    fn default() -> Self {
        #[derive(clap::Parser)]
        struct Only {
            #[command(flatten)]
            own: RollCluster,
        }
        <Only as clap::Parser>::parse_from(["roll"]).own
    }
}

/// What `validate` takes.
#[derive(Debug, Subcommand)]
pub enum Validate {
    /// Compares machines, Nodes and Pods with what they are to be
    Cluster(ValidateCluster),
}

/// The flags of `validate cluster`.
#[derive(clap::Args, Debug)]
pub struct ValidateCluster {
    pub(crate) cluster: Option<String>,
    /// How long to wait for it, as 10m
    #[arg(long)]
    pub(crate) wait: Option<api_config::GoDuration>,
    /// How many times in a row it must be valid
    #[arg(long, default_value_t = 1)]
    pub(crate) count: u32,
    #[arg(short, long, default_value = "table", value_parser = ["table", "yaml", "json"])]
    pub(crate) output: String,
}

/// What `export` takes.
#[derive(Debug, Subcommand)]
pub enum Export {
    /// Puts a cluster's context into a kubeconfig
    #[command(alias = "kubecfg")]
    Kubeconfig(ExportKubeconfig),
}

/// The flags of `export kubeconfig`.
#[derive(clap::Args, Debug)]
pub struct ExportKubeconfig {
    pub(crate) cluster: Option<String>,
    /// The file [default: kubectl's own]
    #[arg(long)]
    pub(crate) kubeconfig: Option<std::path::PathBuf>,
    /// With a new certificate of the cluster's administrator, good for so long [default: 18h]
    #[arg(long, num_args = 0..=1, default_missing_value = "18h")]
    pub(crate) admin: Option<api_config::GoDuration>,
}

/// The flags of `replace -f`.
#[derive(clap::Args, Debug)]
pub struct Replace {
    /// Files with objects; - is the standard input
    #[arg(short, long, required = true, value_delimiter = ',')]
    pub(crate) filename: Vec<String>,
    /// Also keep objects that are new
    #[arg(long)]
    pub(crate) force: bool,
}

/// What `get` shows.
#[derive(Debug, Subcommand)]
pub enum Get {
    /// Shows clusters
    #[command(alias = "cluster")]
    Clusters(Show),
    /// Shows a cluster's instance groups
    #[command(name = "instancegroups", aliases = ["instancegroup", "ig"])]
    Groups(Show),
    /// Shows a cluster and its instance groups
    All(Show),
    /// Shows a cluster's machines
    #[command(alias = "instance")]
    Instances(Show),
    /// Shows a cluster's keypairs
    #[command(alias = "keypair")]
    Keypairs(ShowKeypairs),
}

/// The flags of `get keypairs`.
#[derive(clap::Args, Debug)]
pub struct ShowKeypairs {
    #[command(flatten)]
    pub(crate) show: Show,
    /// Include distrusted keypairs
    #[arg(long)]
    pub(crate) distrusted: bool,
}

/// The flags of `create keypair`.
#[derive(clap::Args, Debug)]
pub(crate) struct MakeKeypair {
    /// The keyset, or all for one more in each that is rotated
    pub(crate) keyset: String,
    /// A file with the certificate, if it is not to be made
    #[arg(long)]
    pub(crate) cert: Option<String>,
    /// A file with the private key, if it is not to be made
    #[arg(long)]
    pub(crate) key: Option<String>,
    /// Sign with it from now on
    #[arg(long)]
    pub(crate) primary: bool,
}

/// What `promote`, `distrust` and `trust` take.
#[derive(Debug, Subcommand)]
pub enum OfKeypair {
    /// Of one or several keypairs of a keyset
    Keypair(KeypairNames),
}

/// Which keypairs are meant.
#[derive(clap::Args, Debug)]
pub struct KeypairNames {
    /// The keyset, or all
    pub(crate) keyset: String,
    /// The keypairs, as get keypairs shows them
    pub(crate) ids: Vec<String>,
}

/// What to show, and in which form.
#[derive(clap::Args, Debug)]
pub struct Show {
    pub(crate) names: Vec<String>,
    #[arg(short, long, default_value = "table", value_parser = ["table", "yaml", "json"])]
    pub(crate) output: String,
}

/// What `delete` removes.
#[derive(Debug, Subcommand)]
pub enum Delete {
    /// Ends a cluster's machines, and removes it from the state store
    Cluster {
        cluster: Option<String>,
        /// Really remove it
        #[arg(short, long)]
        yes: bool,
    },
    /// Removes an instance group, and its machines with the next update
    #[command(name = "instancegroup", aliases = ["instancegroups", "ig"])]
    Group {
        group: String,
        /// Really remove it
        #[arg(short, long)]
        yes: bool,
    },
}

pub(crate) struct Settings {
    pub(crate) state: String,
    /// Empty if no cluster is named.
    pub(crate) name: String,
}

/// What flags say goes before the environment, and that before the file.
pub(crate) fn settings(
    args: &Args,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<Settings, Error> {
    let usual = || environment("HOME").map(|home| format!("{home}/.kops.yaml"));
    let file = match args.config.clone().or_else(usual) {
        None => None,
        Some(path) => match std::fs::read(&path) {
            Ok(text) => Some((path, text)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && args.config.is_none() => {
                None
            }
            Err(error) => return Err(Error::file("reading", &path)(error)),
        },
    };
    let kept = match file {
        None => String::new(),
        Some((path, text)) => {
            let tree = from_yaml(&text)
                .map_err(|e| kops_api::Error::Yaml { what: path, cause: e.to_string() })?;
            // Upstream reads both names.
            let names = ["kops_state_store", "KOPS_STATE_STORE"];
            names.map(|name| tree.text(name)).concat()
        }
    };
    let given = |flag: &Option<String>, variable| {
        let given = flag.clone().or_else(|| environment(variable));
        given.filter(|text| !text.is_empty())
    };
    let state = given(&args.state, "KOPS_STATE_STORE").unwrap_or(kept);
    let state = if state.is_empty() { DEFAULT_STATE.to_owned() } else { state };
    Ok(Settings { state, name: given(&args.name, "KOPS_CLUSTER_NAME").unwrap_or_default() })
}
