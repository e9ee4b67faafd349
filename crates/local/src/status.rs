//! `windlass status`: what runs, what is wrong, and why.

use std::path::PathBuf;

use client::{ListOptions, Resource};
use serde_json::{Value, json};

use crate::{Cluster, Error, process::Role, up::admin};

/// Says what of a cluster runs, what is wrong and why.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The cluster's name
    #[arg(long, default_value = crate::DEFAULT_NAME)]
    pub name: String,
    /// Where the cluster keeps its files [default: /var/lib/windlass/NAME]
    #[arg(long)]
    pub root: Option<PathBuf>,
}

/// Prints the state; returns whether all is well.
pub async fn run(args: Args) -> Result<bool, Error> {
    let root = Cluster::at(&args.name, args.root.as_deref());
    let cluster = Cluster::load(&args.name, &root)?;
    let mut well = true;
    println!("cluster {} at {}", cluster.name, root.display());
    for role in [Role::Supervisor].into_iter().chain(Role::SUPERVISED) {
        match role.running(&cluster) {
            Some(pid) => println!("  ✓ {} runs (pid {pid})", role.name()),
            None => {
                well = false;
                println!(
                    "  ✗ {} does not run; its log {} ends:",
                    role.name(),
                    role.log(&cluster).display()
                );
                role.last_words(&cluster).lines().for_each(|line| println!("      {line}"));
            }
        }
    }
    let client = admin(&cluster)?;
    match client.list::<Value>(&Resource::NODES, "", &ListOptions::default()).await {
        Err(error) => {
            well = false;
            println!("  ✗ the API server does not answer: {error}");
        }
        Ok(nodes) => {
            println!(
                "  ✓ the API server answers at https://{}:{}",
                cluster.settings.address, cluster.settings.api_port
            );
            for node in nodes.items {
                well &= report(&node, "node", "Ready");
            }
            let pods = client.list::<Value>(&Resource::PODS, "", &ListOptions::default()).await?;
            for pod in pods.items.iter().filter(|p| p["status"]["phase"] != json!("Succeeded")) {
                well &= report(pod, "Pod", "Ready");
            }
        }
    }
    Ok(well)
}

/// One object's condition: a mark, and the reason where it does not hold.
fn report(object: &Value, kind: &str, condition: &str) -> bool {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let name = match text("/metadata/namespace") {
        "" => text("/metadata/name").to_owned(),
        namespace => format!("{namespace}/{}", text("/metadata/name")),
    };
    let conditions = object["status"]["conditions"].as_array();
    let found = conditions.into_iter().flatten().find(|c| c["type"] == condition);
    if found.is_some_and(|c| c["status"] == "True") {
        println!("  ✓ {kind} {name} is {condition}");
        return true;
    }
    let cause = found.map_or_else(
        || text("/status/phase").to_owned(),
        |c| {
            format!(
                "{} {}",
                c["reason"].as_str().unwrap_or_default(),
                c["message"].as_str().unwrap_or_default()
            )
        },
    );
    println!("  ✗ {kind} {name} is not {condition}: {}{}", cause.trim(), waiting(object));
    false
}

/// Why containers wait, where they do.
fn waiting(pod: &Value) -> String {
    let all = ["initContainerStatuses", "containerStatuses"];
    let statuses = all.iter().flat_map(|list| pod["status"][list].as_array().into_iter().flatten());
    let mut reasons = String::new();
    for status in statuses {
        let waiting = &status["state"]["waiting"];
        if let Some(reason) = waiting["reason"].as_str() {
            let message = waiting["message"].as_str().unwrap_or_default();
            reasons.push_str(&format!(
                "; {}: {reason} {message}",
                status["name"].as_str().unwrap_or_default()
            ));
        }
    }
    reasons
}
