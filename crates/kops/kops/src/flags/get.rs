//! The flags of `get`.

use clap::Subcommand;

use super::connection::Connection;

/// The flags of `get`. Without a subcommand it is `get all`.
#[derive(clap::Args, Debug)]
pub struct Get {
    #[command(subcommand)]
    pub(crate) target: Option<GetTarget>,
    /// The cluster
    pub(crate) cluster: Option<String>,
    /// Output format; plaintext is for secrets
    #[arg(
        short,
        long,
        global = true,
        default_value = "table",
        value_parser = ["table", "yaml", "json", "plaintext"]
    )]
    pub(crate) output: String,
}

/// The subcommands of `get`.
#[derive(Debug, Subcommand)]
pub(crate) enum GetTarget {
    /// Shows a cluster, its instance groups and its additional objects
    All { cluster: Option<String> },
    /// Shows the images and files that a cluster's machines download, as of the last update
    Assets {
        cluster: Option<String>,
        /// Copy assets to the local repository; not supported
        #[arg(long)]
        copy: bool,
    },
    /// Shows clusters
    #[command(alias = "cluster")]
    Clusters {
        clusters: Vec<String>,
        /// Show the complete configuration, as of the last update
        #[arg(long)]
        full: bool,
    },
    /// Shows a cluster's instance groups
    #[command(name = "instancegroups", aliases = ["instancegroup", "ig"])]
    Groups { groups: Vec<String> },
    /// Shows a cluster's machines
    #[command(alias = "instance")]
    Instances {
        cluster: Option<String>,
        #[command(flatten)]
        connection: Connection,
    },
    /// Shows a cluster's keypairs
    #[command(alias = "keypair")]
    Keypairs {
        keysets: Vec<String>,
        /// Include distrusted keypairs
        #[arg(long)]
        distrusted: bool,
    },
    /// Shows the names of a cluster's secrets, and with -o plaintext their content
    #[command(alias = "secret")]
    Secrets {
        secrets: Vec<String>,
        /// The kind of secrets
        #[arg(long, hide = true, default_value = "")]
        r#type: String,
    },
    /// Shows the SSH public keys of a cluster's machines
    #[command(name = "sshpublickeys", aliases = ["sshpublickey", "ssh"])]
    SshKeys { cluster: Option<String> },
}
