//! `kops validate cluster`: machines, Nodes and the Pods that a cluster cannot do without, beside what they are to be.

use std::time::Duration;

use client::{Client, ListOptions, Resource};
use instances::Wanted;
use kops_api::Spec as _;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use crate::{
    Error, Surroundings, flags::ValidateCluster, get, kubeconfig, local, registry::Registry, table,
};

const PAUSE: Duration = Duration::from_secs(2);
/// How long the API server has to answer one question.
const ANSWER: Duration = Duration::from_secs(10);
const CRITICAL: [&str; 2] = ["system-cluster-critical", "system-node-critical"];
/// What every control plane runs.
const COMPONENTS: [&str; 3] = ["kube-apiserver", "kube-controller-manager", "kube-scheduler"];

/// What is wrong with something.
#[derive(Clone, Debug, PartialEq)]
struct Failure {
    kind: &'static str,
    name: String,
    message: String,
}

impl ValidateCluster {
    /// As an update waits for what it has begun.
    pub(crate) fn patient() -> Self {
        Self {
            cluster: None,
            wait: Some(api_config::GoDuration::from_secs(600)),
            count: 1,
            output: "table".to_owned(),
        }
    }
}

pub(crate) async fn run(
    registry: &Registry,
    command: &ValidateCluster,
    name: &str,
    around: &mut Surroundings<'_>,
) -> Result<(), Error> {
    let cluster = get::named(registry, name)?;
    let fleet = local::fleet(registry, name);
    let wanted = fleet.wanted()?.unwrap_or_default();
    if wanted.cluster != name {
        return Err(Error::known(
            "cluster",
            name,
            "has no machines yet; run kops update cluster --yes",
        ));
    }
    let client = kubeconfig::admin(registry, &cluster, around.now)?;
    let until =
        Instant::now() + command.wait.map(api_config::GoDuration::to_std).unwrap_or_default();
    // A Node is Ready for a while after its machine's end, and another machine has its name by then.
    let done = crate::nodeup::DONE.trim_start_matches('/');
    let set_up = |machine: &str| fleet.disk(machine).join(done).exists();
    let mut times = 0;
    writeln!(around.out, "Validating cluster {name}\n")?;
    loop {
        let (nodes, failures) = look(&client, &wanted, &set_up).await;
        times = if failures.is_empty() { times + 1 } else { 0 };
        if times >= command.count.max(1) || (Instant::now() >= until && !failures.is_empty()) {
            return report(name, &wanted, &nodes, &failures, &command.output, around);
        }
        sleep(PAUSE).await;
    }
}

async fn list(client: &Client, resource: &Resource, namespace: &str) -> Result<Vec<Value>, String> {
    let options = ListOptions::default();
    let asked = client.list::<Value>(resource, namespace, &options);
    match timeout(ANSWER, asked).await {
        Ok(Ok(list)) => Ok(list.items),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {} s", ANSWER.as_secs())),
    }
}

/// The cluster's Nodes, and what is wrong.
async fn look(
    client: &Client,
    wanted: &Wanted,
    set_up: &dyn Fn(&str) -> bool,
) -> (Vec<Value>, Vec<Failure>) {
    let unreachable =
        |message| vec![Failure { kind: "API", name: wanted.cluster.clone(), message }];
    let nodes = match list(client, &Resource::NODES, "").await {
        Ok(nodes) => nodes,
        Err(message) => return (Vec::new(), unreachable(message)),
    };
    match list(client, &Resource::PODS, "kube-system").await {
        Ok(pods) => {
            let failures = judge(wanted, set_up, &nodes, &pods);
            (nodes, failures)
        }
        Err(message) => (nodes, unreachable(message)),
    }
}

fn is_true(object: &Value, condition: &str) -> bool {
    let conditions = object.list("status.conditions");
    conditions.iter().any(|c| c.text("type") == condition && c.text("status") == "True")
}

/// Compares what there is with what is to be.
fn judge(
    wanted: &Wanted,
    set_up: &dyn Fn(&str) -> bool,
    nodes: &[Value],
    pods: &[Value],
) -> Vec<Failure> {
    let mut failures = Vec::new();
    let mut fail = |kind, name: &str, message: String| {
        failures.push(Failure { kind, name: name.to_owned(), message });
    };
    for group in &wanted.groups {
        for name in group.names() {
            let node = nodes.iter().find(|node| node.text("metadata.name") == name);
            match node.filter(|_| set_up(&name)) {
                None => {
                    fail("Machine", &name, format!("machine {name:?} has not yet joined cluster"));
                    continue;
                }
                Some(node) if !is_true(node, "Ready") => {
                    fail(
                        "Node",
                        &name,
                        format!("node {name:?} of role {:?} is not ready", role(group)),
                    );
                }
                Some(_) => {}
            }
            for component in COMPONENTS.iter().filter(|_| group.trusted) {
                let runs = pods.iter().any(|pod| {
                    pod.text("spec.nodeName") == name
                        && pod.at("metadata.labels").is_some_and(|l| {
                            l.get("component").and_then(Value::as_str) == Some(component)
                        })
                });
                if !runs {
                    fail(
                        "Node",
                        &name,
                        format!("control-plane node {name:?} is missing {component} pod"),
                    );
                }
            }
        }
    }
    for pod in pods.iter().filter(|pod| CRITICAL.contains(&pod.text("spec.priorityClassName"))) {
        let (name, phase) =
            (format!("kube-system/{}", pod.text("metadata.name")), pod.text("status.phase"));
        let critical = pod.text("spec.priorityClassName");
        match phase {
            "Succeeded" => {}
            "Pending" | "Unknown" => {
                let phase = phase.to_ascii_lowercase();
                fail(
                    "Pod",
                    &name,
                    format!("{critical} pod {:?} is {phase}", pod.text("metadata.name")),
                );
            }
            _ => {
                // Its containers say it: a condition is the Node's, too.
                let of = pod.list("status.containerStatuses").iter();
                let waiting: Vec<_> =
                    of.filter(|c| !c.is("ready")).map(|container| container.text("name")).collect();
                if !waiting.is_empty() {
                    let (own, names) = (pod.text("metadata.name"), waiting.join(","));
                    fail("Pod", &name, format!("{critical} pod {own:?} is not ready ({names})"));
                }
            }
        }
    }
    if !pods.iter().any(|pod| {
        pod.at("metadata.labels")
            .is_some_and(|l| l.get("k8s-app").and_then(Value::as_str) == Some("kube-dns"))
    }) {
        fail("Pod", "kube-system/coredns", "no Pod of cluster DNS has been made yet".to_owned());
    }
    failures
}

fn role(group: &instances::Group) -> &'static str {
    if group.trusted { "control-plane" } else { "node" }
}

fn report(
    name: &str,
    wanted: &Wanted,
    nodes: &[Value],
    failures: &[Failure],
    output: &str,
    around: &mut Surroundings<'_>,
) -> Result<(), Error> {
    let failed = || {
        let count = failures.len();
        Error::Usage(format!(
            "Validation failed: {count} of cluster {name}'s parts are not as they are to be"
        ))
    };
    if output != "table" {
        let failures: Vec<_> = failures
            .iter()
            .map(|f| json!({"type": f.kind, "name": f.name, "message": f.message}))
            .collect();
        let nodes: Vec<_> = nodes
            .iter()
            .map(|node| {
                let ready = if is_true(node, "Ready") { "True" } else { "False" };
                json!({"name": node.text("metadata.name"), "status": ready})
            })
            .collect();
        let tree = json!({"failures": failures, "nodes": nodes});
        match output {
            "json" => writeln!(around.out, "{tree}")?,
            _ => write!(around.out, "{}", kops_api::yaml::to_string(&tree))?,
        }
        return if failures.is_empty() { Ok(()) } else { Err(failed()) };
    }
    writeln!(around.out, "INSTANCE GROUPS")?;
    let row = |group: &instances::Group| {
        let size = group.size.to_string();
        let role = if group.trusted { "ControlPlane" } else { "Node" };
        [group.name.clone(), role.to_owned(), size.clone(), size]
    };
    let rows = wanted.groups.iter().map(row).collect();
    table::print(around.out, ["NAME", "ROLE", "MIN", "MAX"], rows)?;
    writeln!(around.out, "\nNODE STATUS")?;
    let row = |node: &Value| {
        let name = node.text("metadata.name");
        let role = wanted.group_of(name).map_or("", role);
        let ready = if is_true(node, "Ready") { "True" } else { "False" };
        [name.to_owned(), role.to_owned(), ready.to_owned()]
    };
    table::print(around.out, ["NAME", "ROLE", "READY"], nodes.iter().map(row).collect())?;
    if failures.is_empty() {
        writeln!(around.out, "\nYour cluster {name} is ready")?;
        return Ok(());
    }
    writeln!(around.out, "\nVALIDATION ERRORS")?;
    let row = |f: &Failure| [f.kind.to_owned(), f.name.clone(), f.message.clone()];
    table::print(around.out, ["KIND", "NAME", "MESSAGE"], failures.iter().map(row).collect())?;
    writeln!(around.out, "\nValidation Failed")?;
    Err(failed())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted() -> Wanted {
        let group = |name: &str, trusted| instances::Group {
            name: name.to_owned(),
            size: 1,
            trusted,
            ..instances::Group::default()
        };
        Wanted { groups: vec![group("cp", true), group("nodes", false)], ..Wanted::default() }
    }

    fn node(name: &str, ready: &str) -> Value {
        json!({"metadata": {"name": name}, "status": {"conditions": [{"type": "Ready", "status": ready}]}})
    }

    fn pod(name: &str, label: (&str, &str), node: &str, ready: bool) -> Value {
        json!({
            "metadata": {"name": name, "labels": {label.0: label.1}},
            "spec": {"nodeName": node, "priorityClassName": CRITICAL[0]},
            "status": {"phase": "Running", "containerStatuses": [{"name": "c", "ready": ready}]},
        })
    }

    #[test]
    fn each_lack_is_named() {
        let nodes = [node("cp-1", "True"), node("nodes-1", "True")];
        let mut pods: Vec<_> =
            COMPONENTS.iter().map(|c| pod(c, ("component", c), "cp-1", true)).collect();
        pods.push(pod("coredns", ("k8s-app", "kube-dns"), "nodes-1", true));
        let all = |_: &str| true;
        assert_eq!(judge(&wanted(), &all, &nodes, &pods), []);
        // Another machine has the name, and is not set up yet.
        assert_eq!(judge(&wanted(), &|name| name == "cp-1", &nodes, &pods).len(), 1);
        let said = |nodes: &[Value], pods: &[Value]| {
            let all = judge(&wanted(), &all, nodes, pods).into_iter().map(|f| f.message);
            all.collect::<Vec<_>>().join("\n")
        };
        assert!(said(&nodes[..1], &pods).contains("machine \"nodes-1\" has not yet joined"));
        assert!(
            said(&[nodes[0].clone(), node("nodes-1", "Unknown")], &pods).contains("is not ready")
        );
        assert!(said(&nodes, &pods[1..]).contains("is missing kube-apiserver pod"));
        assert!(said(&nodes, &pods[..3]).contains("cluster DNS"));
        pods[3] = pod("coredns", ("k8s-app", "kube-dns"), "nodes-1", false);
        assert!(said(&nodes, &pods).contains("pod \"coredns\" is not ready (c)"));
    }
}
