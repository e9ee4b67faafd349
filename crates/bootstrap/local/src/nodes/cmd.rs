//! `windlass node`: lists a cluster's nodes, and stops, disconnects and enters them.

use std::{ffi::OsString, fs, path::PathBuf, time::Duration};

use client::Resource;
use serde_json::Value;

use super::{link, power, space};
use crate::{
    cluster::{Cluster, DEFAULT_NAME},
    error::Error,
    process::Role,
};

/// Lists, stops, starts, disconnects and enters the nodes of a cluster on this host.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The cluster's name
    #[arg(long, default_value = DEFAULT_NAME, global = true)]
    pub name: String,
    /// The directory of the cluster's files [default: /var/lib/windlass/NAME]
    #[arg(long, global = true)]
    pub root: Option<PathBuf>,
    /// The action.
    #[command(subcommand)]
    pub action: Action,
}

/// An action on the nodes.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Action {
    /// Lists the nodes with their addresses and states
    List,
    /// Kills all processes of a node at once, like a power failure
    Stop { node: String },
    /// Starts a node that was stopped
    Start { node: String },
    /// Disconnects a node from the network
    Cut { node: String },
    /// Connects a node to the network again
    Heal { node: String },
    /// Runs a command inside a node
    Exec {
        node: String,
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
}

/// The time to wait for the API server's view of a node.
const ANSWER: Duration = Duration::from_secs(2);

/// Performs the action on a running cluster. `exec` ends the process if the command fails.
pub async fn run(args: Args) -> Result<(), Error> {
    let cluster = Cluster::load(&args.name, &Cluster::at(&args.name, args.root.as_deref()))?;
    match args.action {
        Action::List => list(&cluster).await,
        Action::Stop { node } => power::stop(&cluster.member(&node)?).await,
        Action::Start { node } => power::start(&cluster, &cluster.member(&node)?),
        Action::Cut { node } => set_cut(&cluster, &cluster.member(&node)?, true),
        Action::Heal { node } => set_cut(&cluster, &cluster.member(&node)?, false),
        // The command uses the caller's terminal, and this process exits with its code.
        Action::Exec { node, command } => {
            match space::exit_code(space::run(&cluster.member(&node)?, &command).await?) {
                0 => Ok(()),
                code => std::process::exit(code),
            }
        }
    }
}

/// Connects or disconnects a node. The marker file outlives the node's processes, so a node that is stopped while
/// disconnected starts disconnected.
fn set_cut(cluster: &Cluster, node: &Cluster, cut: bool) -> Result<(), Error> {
    let mark = node.cut();
    if cut {
        fs::write(&mark, "").map_err(Error::file("writing", &mark))?;
    } else if mark.exists() {
        fs::remove_file(&mark).map_err(Error::file("removing", &mark))?;
    }
    if Role::Holder.running(node).is_none() {
        return Ok(());
    }
    link::set_cut(cluster, node, cut)
}

async fn list(cluster: &Cluster) -> Result<(), Error> {
    let client = cluster.admin_client()?;
    let mut rows = vec![["NAME", "ADDRESS", "STATE", "READY"].map(str::to_owned)];
    for node in std::iter::once(cluster.clone()).chain(cluster.members()?) {
        let name = &node.settings.node_name;
        let request = async { client.get::<Value>(&Resource::NODES, "", name).await };
        let ready = match tokio::time::timeout(ANSWER, request).await {
            Ok(Ok(object)) => condition(&object),
            _ => "unknown".to_owned(),
        };
        rows.push([name.clone(), node.settings.address.to_string(), state(&node), ready]);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths = [width(0), width(1), width(2)];
    for [name, address, state, ready] in &rows {
        let [a, b, c] = widths;
        println!("{name:a$}  {address:b$}  {state:c$}  {ready}");
    }
    Ok(())
}

fn state(node: &Cluster) -> String {
    if node.stopped().exists() {
        return "stopped".to_owned();
    }
    let missing: Vec<_> = node
        .roles()
        .iter()
        .filter(|role| role.running(node).is_none())
        .map(|role| role.name())
        .collect();
    match (missing.is_empty(), node.is_cut()) {
        (true, false) => "running".to_owned(),
        (true, true) => "cut off".to_owned(),
        (false, _) => format!("without {}", missing.join(", ")),
    }
}

fn condition(node: &Value) -> String {
    let conditions = node["status"]["conditions"].as_array();
    let ready = conditions.into_iter().flatten().find(|c| c["type"] == "Ready");
    ready.and_then(|c| c["status"].as_str()).unwrap_or("Unknown").to_owned()
}
