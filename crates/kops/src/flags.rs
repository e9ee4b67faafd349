//! Upstream's commands and flags, and the settings that come from the environment and from `~/.kops.yaml`.

use api_codec::from_yaml;
use clap::Subcommand;
use kops_api::Spec as _;

use crate::Error;

/// kOps' commands. Specs are kept in the state store; machines are not made yet
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Where clusters are kept: file:///path (or KOPS_STATE_STORE)
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
    /// Keeps new objects
    Create(Create),
    /// Shows what is kept
    #[command(subcommand)]
    Get(Get),
    /// Writes objects over those that are kept
    Replace(Replace),
    /// Removes what is kept
    #[command(subcommand)]
    Delete(Delete),
}

/// The flags of `create -f`.
#[derive(clap::Args, Debug)]
pub struct Create {
    /// Files with objects; - is the standard input
    #[arg(short, long, required = true, value_delimiter = ',')]
    pub(crate) filename: Vec<String>,
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
    /// Removes a cluster from the state store
    Cluster {
        cluster: Option<String>,
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
    if state.is_empty() {
        let text =
            "--state is required: name the state store, as file:///path, or set KOPS_STATE_STORE";
        return Err(Error::Usage(text.to_owned()));
    }
    Ok(Settings { state, name: given(&args.name, "KOPS_CLUSTER_NAME").unwrap_or_default() })
}
