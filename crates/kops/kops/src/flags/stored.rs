//! The flags of commands for secrets, SSH keys and instance groups.

use api_config::GoFlag as _;
use clap::Subcommand;

/// The subcommands of `create secret`.
#[derive(Debug, Subcommand)]
pub(crate) enum CreateSecret {
    /// Stores the configuration of Cilium's encryption by IPsec
    #[command(name = "ciliumpassword")]
    CiliumPassword(SecretFile),
    /// Stores credentials for registries, a config.json of Docker
    #[command(name = "dockerconfig")]
    DockerConfig(SecretFile),
    /// Stores the API server's configuration of encryption at rest
    #[command(name = "encryptionconfig")]
    EncryptionConfig(SecretFile),
}

/// The file with a secret.
#[derive(clap::Args, Debug)]
pub(crate) struct SecretFile {
    pub(crate) cluster: Option<String>,
    /// The file; - is the standard input
    #[arg(short, long)]
    pub(crate) filename: String,
    /// Replace an existing secret
    #[arg(long)]
    pub(crate) force: bool,
}

/// The flags of `create sshpublickey`.
#[derive(clap::Args, Debug)]
pub(crate) struct CreateSshKey {
    pub(crate) cluster: Option<String>,
    /// The file with the public key
    #[arg(short = 'i', long, alias = "pubkey")]
    pub(crate) ssh_public_key: String,
}

/// The flags of `create instancegroup`.
#[derive(clap::Args, Debug)]
pub(crate) struct CreateGroup {
    pub(crate) group: String,
    /// The role of its machines: control-plane, node or bastion
    #[arg(long, default_value = "node")]
    pub(crate) role: String,
    /// Its subnets [default: all but utility subnets; required for control planes]
    #[arg(long, value_delimiter = ',')]
    pub(crate) subnet: Vec<String>,
    /// Its zones; required on GCE
    #[arg(long, value_delimiter = ',')]
    pub(crate) zone: Vec<String>,
    /// Its image [default: the one that the cluster's channel recommends]
    #[arg(long, default_value = "", hide_default_value = true)]
    pub(crate) image: String,
    /// A file for aws with facts that are then not queried from the cloud (machineTypes, defaultMachineTypes)
    #[arg(long)]
    pub(crate) known: Option<String>,
    /// Show the object, and store nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// yaml or json, with --dry-run
    #[arg(short, long, default_value = "", value_parser = ["", "yaml", "json"])]
    pub(crate) output: String,
    /// Open an editor before the object is stored
    #[arg(long, go_bool(), default_value_t = true)]
    pub(crate) edit: bool,
}

/// The subcommands of `edit`.
#[derive(Debug, Subcommand)]
pub enum Edit {
    /// Edits a cluster
    Cluster {
        cluster: Option<String>,
        #[command(flatten)]
        fields: FieldChanges,
    },
    /// Edits an instance group
    #[command(name = "instancegroup", aliases = ["instancegroups", "ig"])]
    Group {
        group: String,
        #[command(flatten)]
        fields: FieldChanges,
    },
}

/// The fields to change without an editor.
#[derive(clap::Args, Debug)]
pub struct FieldChanges {
    /// Fields to set: path=value, separated by commas
    #[arg(long)]
    pub(crate) set: Vec<String>,
    /// Fields to unset: paths, separated by commas
    #[arg(long, value_delimiter = ',')]
    pub(crate) unset: Vec<String>,
}
