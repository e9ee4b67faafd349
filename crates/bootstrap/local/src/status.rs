//! `windlass status`: reports running processes, problems, and their causes.

use std::time::Duration;

use api_meta::Tree as _;
use client::{ListOptions, Resource};
use serde_json::{Value, json};

use crate::{
    cluster::Cluster, cluster_args::ClusterArgs, error::Error, images, manifests, preflight,
    process::Role,
};

/// Reports which parts of a cluster run, and the causes of problems.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// Prints the state. Returns `true` if there is no problem.
pub async fn run(args: Args) -> Result<bool, Error> {
    let cluster = args.cluster.load()?;
    let mut well = true;
    println!("cluster {} at {}", cluster.name, cluster.root.display());
    for role in [Role::Supervisor].iter().chain(cluster.roles()) {
        well &= report_process(*role, &cluster, "");
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
            well &= report_process(*role, &node, &format!(" of {name}"));
        }
        well &= runtime_answers(&node).await;
    }
    well &= runtime_answers(&cluster).await;
    well &= have_archives(&cluster)?;
    well &= has_space(&cluster);
    well &= manifests::report(&cluster.root);
    let client = cluster.admin_client()?;
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
                    println!("  ✗ node {name} has {pressure}: no new Pods are scheduled to it");
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

/// Returns `true` if every node has the images of the cluster's archives, as far as `up` tried.
fn have_archives(cluster: &Cluster) -> Result<bool, Error> {
    let nodes = std::iter::once(cluster.clone()).chain(cluster.members()?);
    let errors: Vec<_> = nodes.flat_map(|node| images::archives::errors(&node)).collect();
    errors.iter().for_each(|error| println!("  ✗ {error}"));
    Ok(errors.is_empty())
}

/// Returns `true` if containerd responds or does not run. The kubelet reports a hung runtime only after minutes, as
/// upstream's does.
async fn runtime_answers(node: &Cluster) -> bool {
    if Role::Containerd.running(node).is_none() {
        return true;
    }
    let endpoint = format!("unix://{}", node.containerd_socket().display());
    let version = cri::Client::new(&endpoint, Duration::from_secs(3)).version().await;
    if let Err(error) = &version {
        let name = &node.settings.node_name;
        println!("  ✗ containerd of {name} runs and does not answer: {error}");
    }
    version.is_ok()
}

/// The free space in MiB below which the store may fail to write.
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

/// Returns the true pressure conditions of a node. Each of them prevents new Pods.
fn pressures(node: &Value) -> Vec<String> {
    let conditions = node["status"]["conditions"].as_array();
    let wrong =
        conditions.into_iter().flatten().filter(|c| c["type"] != "Ready" && c["status"] == "True");
    wrong.map(|c| format!("{} ({})", c.text("type"), c.text("message"))).collect()
}

/// Prints a process's state, with the end of its log if it does not run. Returns `true` if it runs.
fn report_process(role: Role, node: &Cluster, whose: &str) -> bool {
    if let Some(pid) = role.running(node) {
        println!("  ✓ {}{whose} runs (pid {pid})", role.name());
        return true;
    }
    println!("  ✗ {}{whose} does not run; its log {} ends:", role.name(), role.log(node).display());
    role.last_words(node).lines().for_each(|line| println!("      {line}"));
    false
}

/// Prints an object's condition, with the cause if it is not met. Returns `true` if it is met.
fn report(object: &Value, kind: &str, condition: &str) -> bool {
    let name = name(object);
    let Some(cause) = unmet_cause(object, condition) else {
        println!("  ✓ {kind} {name} is {condition}");
        return true;
    };
    println!("  ✗ {kind} {name} is not {condition}: {cause}");
    false
}

/// Returns `namespace/name`, or the name of a cluster-scoped object.
pub(crate) fn name(object: &Value) -> String {
    match object.namespace() {
        "" => object.name().to_owned(),
        namespace => format!("{namespace}/{}", object.name()),
    }
}

/// Returns the cause in an object's status why a condition is not met; `None` if the condition is met.
pub fn unmet_cause(object: &Value, condition: &str) -> Option<String> {
    let conditions = object["status"]["conditions"].as_array();
    let find = |kind: &str| conditions.into_iter().flatten().find(|c| c["type"] == kind);
    let main = find(condition);
    if main.is_some_and(|c| c["status"] == "True") {
        return None;
    }
    // A Pod without a node has only this condition, with the cause.
    let unscheduled = find("PodScheduled").filter(|c| c["status"] == "False");
    let reason =
        unscheduled.or(main).map(|c| format!("{} {}", c.text("reason"), c.text("message")));
    let reason = reason.unwrap_or_default();
    let cause = match reason.trim() {
        "" => match object["status"]["phase"].as_str() {
            Some(phase) => format!("it is {phase}, and no cause has been reported yet"),
            None => "no status has been reported yet".to_owned(),
        },
        reason => reason.to_owned(),
    };
    Some(format!("{cause}{}", waiting_reasons(object)))
}

/// Returns the reasons of waiting containers.
fn waiting_reasons(pod: &Value) -> String {
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
    fn lists_pressure_conditions_of_node() {
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
    fn complaint_names_the_most_specific_cause() {
        for (status, wanted) in [
            (json!({"conditions": [{"type": "Ready", "status": "True"}]}), None),
            (json!({}), Some("no status has been reported yet")),
            (
                json!({"phase": "Pending"}),
                Some("it is Pending, and no cause has been reported yet"),
            ),
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
            assert_eq!(unmet_cause(&object, "Ready").as_deref(), wanted, "{object}");
        }
    }
}
