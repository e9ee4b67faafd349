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
    let name = name(object);
    let Some(cause) = complaint(object, condition) else {
        println!("  ✓ {kind} {name} is {condition}");
        return true;
    };
    println!("  ✗ {kind} {name} is not {condition}: {cause}");
    false
}

/// `namespace/name`, or the name alone.
pub(crate) fn name(object: &Value) -> String {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
    match text("namespace") {
        "" => text("name").to_owned(),
        namespace => format!("{namespace}/{}", text("name")),
    }
}

/// Why an object's condition does not hold, as far as the object tells; nothing if it holds.
pub(crate) fn complaint(object: &Value, condition: &str) -> Option<String> {
    let conditions = object["status"]["conditions"].as_array();
    let find = |kind: &str| conditions.into_iter().flatten().find(|c| c["type"] == kind);
    let found = find(condition);
    if found.is_some_and(|c| c["status"] == "True") {
        return None;
    }
    // A Pod that has no node has no condition but this one, which says why.
    let unscheduled = find("PodScheduled").filter(|c| c["status"] == "False");
    let told = unscheduled.or(found).map(|c| {
        let text = |field: &str| c[field].as_str().unwrap_or_default();
        format!("{} {}", text("reason"), text("message"))
    });
    let told = told.unwrap_or_default();
    let cause = match told.trim() {
        "" => match object["status"]["phase"].as_str() {
            Some(phase) => format!("it is {phase}, and nobody says why yet"),
            None => "nobody has said anything of it yet".to_owned(),
        },
        told => told.to_owned(),
    };
    Some(format!("{cause}{}", waiting(object)))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complaint_names_the_cause_that_is_known_best() {
        for (status, wanted) in [
            (json!({"conditions": [{"type": "Ready", "status": "True"}]}), None),
            (json!({}), Some("nobody has said anything of it yet")),
            (json!({"phase": "Pending"}), Some("it is Pending, and nobody says why yet")),
            (
                json!({"conditions": [{"type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": "runtime is down"}]}),
                Some("KubeletNotReady runtime is down"),
            ),
            (
                json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False",
                    "reason": "Unschedulable", "message": "0/1 nodes are available"}]}),
                Some("Unschedulable 0/1 nodes are available"),
            ),
            (
                json!({"conditions": [{"type": "PodScheduled", "status": "True"},
                        {"type": "Ready", "status": "False", "reason": "ContainersNotReady", "message": "unready: [c]"}],
                    "containerStatuses": [{"name": "c", "state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}}]}),
                Some("ContainersNotReady unready: [c]; c: ErrImagePull no such image"),
            ),
        ] {
            let object = json!({"status": status});
            assert_eq!(complaint(&object, "Ready").as_deref(), wanted, "{object}");
        }
    }
}
