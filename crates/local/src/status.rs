//! `windlass status`: what runs, what is wrong, and why.

use std::{path::PathBuf, time::Duration};

use api_meta::Tree as _;
use client::{ListOptions, Resource};
use serde_json::{Value, json};

use crate::{Cluster, Error, preflight, process::Role, up::admin};

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
    for role in [Role::Supervisor].iter().chain(cluster.roles()) {
        well &= runs(*role, &cluster, "");
    }
    for node in cluster.members()? {
        let name = &node.settings.node_name;
        if node.stopped().exists() {
            println!("  - node {name} is stopped; `windlass node start {name}` starts it");
            continue;
        }
        if node.is_cut() {
            println!("  - node {name} is cut off; `windlass node heal {name}` connects it");
        }
        for role in node.roles() {
            well &= runs(*role, &node, &format!(" of {name}"));
        }
        well &= runtime_answers(&node).await;
    }
    well &= runtime_answers(&cluster).await;
    well &= has_space(&cluster);
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
                let name = name(&node);
                for pressure in pressures(&node) {
                    well = false;
                    println!("  ✗ node {name} has {pressure}: new Pods stay off it");
                }
            }
            let pods = client.list::<Value>(&Resource::PODS, "", &ListOptions::default()).await?;
            for pod in pods.items.iter().filter(|p| p["status"]["phase"] != json!("Succeeded")) {
                well &= report(pod, "Pod", "Ready");
            }
        }
    }
    Ok(well)
}

/// Whether containerd, if it runs, does what it runs for. The kubelet notices after minutes only, as upstream's does.
async fn runtime_answers(node: &Cluster) -> bool {
    if Role::Containerd.running(node).is_none() {
        return true;
    }
    let endpoint = format!("unix://{}", node.containerd_socket().display());
    let answer = cri::Client::new(&endpoint, Duration::from_secs(3)).version().await;
    if let Err(error) = &answer {
        let name = &node.settings.node_name;
        println!("  ✗ containerd of {name} runs and does not answer: {error}");
    }
    answer.is_ok()
}

/// Below this the store may not be able to write its next object.
const LOW_MIB: u64 = 64;

fn has_space(cluster: &Cluster) -> bool {
    // The store may have a disk of its own.
    let spaces = [cluster.store(), cluster.root.clone()].map(|place| preflight::free(&place));
    let low = spaces.into_iter().flatten().find(|(_, free)| *free < LOW_MIB);
    if let Some((place, free)) = &low {
        println!(
            "  ✗ the disk of {} has {free} MiB free; writes fail until there is more",
            place.display()
        );
    }
    low.is_none()
}

/// What a node runs short of: each of these keeps Pods off it.
fn pressures(node: &Value) -> Vec<String> {
    let conditions = node["status"]["conditions"].as_array();
    let wrong =
        conditions.into_iter().flatten().filter(|c| c["type"] != "Ready" && c["status"] == "True");
    wrong.map(|c| format!("{} ({})", c.text("type"), c.text("message"))).collect()
}

/// Whether a process runs: a mark, and what it said last where it does not.
fn runs(role: Role, node: &Cluster, whose: &str) -> bool {
    if let Some(pid) = role.running(node) {
        println!("  ✓ {}{whose} runs (pid {pid})", role.name());
        return true;
    }
    println!("  ✗ {}{whose} does not run; its log {} ends:", role.name(), role.log(node).display());
    role.last_words(node).lines().for_each(|line| println!("      {line}"));
    false
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
    match object.namespace() {
        "" => object.name().to_owned(),
        namespace => format!("{namespace}/{}", object.name()),
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
    let told = unscheduled.or(found).map(|c| format!("{} {}", c.text("reason"), c.text("message")));
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
            let message = waiting.text("message");
            reasons.push_str(&format!("; {}: {reason} {message}", status.text("name")));
        }
    }
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_node_runs_short_of_is_told() {
        let condition = |kind: &str, status: &str| json!({"type": kind, "status": status, "message": "kubelet has disk pressure"});
        let node = |conditions: &[Value]| json!({"status": {"conditions": conditions}});
        let ready = condition("Ready", "True");
        assert_eq!(pressures(&json!({})), Vec::<String>::new());
        assert_eq!(
            pressures(&node(&[ready.clone(), condition("DiskPressure", "False")])),
            Vec::<String>::new()
        );
        assert_eq!(
            pressures(&node(&[condition("DiskPressure", "True"), ready])),
            ["DiskPressure (kubelet has disk pressure)"]
        );
    }

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
