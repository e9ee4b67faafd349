//! Searches a cluster for what does not run, and why.
//!
//! The API server sends stored objects with little work, and a client skips most of their bytes. So a search reads
//! whole lists: tables, which the API server renders from the same objects, take several times as long.

use api_meta::{ListMeta, ObjectKey};
use client::{Client, List};
use futures_util::{
    FutureExt as _,
    future::{self, BoxFuture},
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json, value::RawValue};

use crate::{
    api::{self, PAGE, Query, Resource},
    error::PageError,
    pages::list::{object_path, shortened},
};

/// The objects of a kind that are searched: as many nodes as upstream supports in a cluster.
const SEARCHED: usize = 5000;
/// The longest cause in characters. The API server limits only the size of the object that contains it.
const CAUSE: usize = 1000;
/// The phases of Pods that run or have done so. Failed Pods are also shown by their owners.
const NOT_RUNNING: &str = "status.phase!=Running,status.phase!=Succeeded";

const NODE: Kind = Kind { name: "Node", group: "core", plural: "nodes" };
const POD: Kind = Kind { name: "Pod", group: "core", plural: "pods" };
/// The kinds of workloads whose replicas may be missing.
const WORKLOADS: [Kind; 3] = [
    Kind { name: "Deployment", group: "apps", plural: "deployments" },
    Kind { name: "StatefulSet", group: "apps", plural: "statefulsets" },
    Kind { name: "DaemonSet", group: "apps", plural: "daemonsets" },
];

/// A kind that is searched.
struct Kind {
    name: &'static str,
    group: &'static str,
    plural: &'static str,
}

/// An object that is not well, and the cause.
#[derive(Debug, PartialEq)]
pub(super) struct Problem {
    pub(super) kind: &'static str,
    pub(super) path: String,
    pub(super) name: String,
    pub(super) cause: String,
}

/// The problems of objects of one kind.
#[derive(Debug, Default)]
pub(super) struct SearchResult {
    /// The first problems, at most [`PAGE`].
    pub(super) problems: Vec<Problem>,
    /// Sentences about objects that were not searched or are not shown.
    pub(super) notes: Vec<String>,
}

/// The fields that a search reads of an object.
trait Searched: DeserializeOwned {
    fn key(&self) -> &ObjectKey;

    fn is_well(&self) -> bool;

    /// Returns why the object is not well.
    fn cause(&self) -> String;
}

#[derive(Deserialize)]
struct Node {
    metadata: ObjectKey,
    #[serde(default)]
    status: NodeStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NodeStatus {
    /// The encoded conditions. Their texts are only decoded for nodes that are not ready.
    conditions: Option<Box<RawValue>>,
}

impl Node {
    fn conditions<T: Default + DeserializeOwned>(&self) -> T {
        let conditions = self.status.conditions.as_ref();
        conditions.and_then(|text| serde_json::from_str(text.get()).ok()).unwrap_or_default()
    }
}

impl Searched for Node {
    fn key(&self) -> &ObjectKey {
        &self.metadata
    }

    fn is_well(&self) -> bool {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Condition {
            r#type: String,
            status: String,
        }
        let conditions: Vec<Condition> = self.conditions();
        conditions.iter().any(|found| found.r#type == "Ready" && found.status == "True")
    }

    fn cause(&self) -> String {
        let conditions: Value = self.conditions();
        let node = json!({"status": {"conditions": conditions}});
        local::unmet_cause(&node, "Ready").unwrap_or_default()
    }
}

#[derive(Deserialize)]
struct Workload {
    metadata: ObjectKey,
    #[serde(default)]
    spec: WorkloadSpec,
    #[serde(default)]
    status: WorkloadStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WorkloadSpec {
    replicas: u64,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WorkloadStatus {
    ready_replicas: u64,
    // The numbers of a DaemonSet, whose specification has none.
    desired_number_scheduled: u64,
    number_ready: u64,
}

impl Workload {
    fn ready(&self) -> u64 {
        self.status.ready_replicas + self.status.number_ready
    }

    fn wanted(&self) -> u64 {
        self.spec.replicas + self.status.desired_number_scheduled
    }
}

impl Searched for Workload {
    fn key(&self) -> &ObjectKey {
        &self.metadata
    }

    fn is_well(&self) -> bool {
        self.ready() >= self.wanted()
    }

    fn cause(&self) -> String {
        format!("{} of {} replicas are ready", self.ready(), self.wanted())
    }
}

/// Searches all kinds at the same time.
pub(super) async fn all(client: &Client) -> Vec<Result<SearchResult, PageError>> {
    let mut searches: Vec<BoxFuture<'_, Result<SearchResult, PageError>>> =
        vec![search::<Node>(client, &NODE).boxed(), pods(client).boxed()];
    searches.extend(WORKLOADS.iter().map(|kind| search::<Workload>(client, kind).boxed()));
    future::join_all(searches).await
}

async fn search<T: Searched>(client: &Client, kind: &Kind) -> Result<SearchResult, PageError> {
    let resource = Resource::new(kind.group, "v1", kind.plural);
    let query = Query { limit: SEARCHED, ..Query::default() };
    Ok(found::<T>(&api::objects(client, &resource, &query).await?, kind, &resource))
}

fn found<T: Searched>(list: &List<T>, kind: &Kind, resource: &Resource) -> SearchResult {
    let plural = kind.plural;
    let mut notes = Vec::new();
    if has_more(&list.metadata) {
        notes.push(format!("Only the first {SEARCHED} {plural} were searched."));
    }
    let unwell: Vec<&T> = list.items.iter().filter(|object| !object.is_well()).collect();
    let count = unwell.len();
    if count > PAGE {
        notes.push(format!("{count} {plural} are not ready. The first {PAGE} are shown."));
    }
    let problem = |object: &T| problem(kind, resource, object.key(), object.cause());
    SearchResult { problems: unwell.into_iter().take(PAGE).map(problem).collect(), notes }
}

/// Returns the Pods that do not run. The API server selects them.
async fn pods(client: &Client) -> Result<SearchResult, PageError> {
    let resource = Resource::new(POD.group, "v1", POD.plural);
    let query = Query { fields: NOT_RUNNING, limit: PAGE, ..Query::default() };
    let list: List<Value> = api::objects(client, &resource, &query).await?;
    let mut notes = Vec::new();
    if has_more(&list.metadata) {
        notes.push(format!("More than {PAGE} pods do not run. The first {PAGE} are shown."));
    }
    let problem = |pod: &Value| {
        let key = ObjectKey::deserialize(&pod["metadata"]).unwrap_or_default();
        Some(problem(&POD, &resource, &key, local::unmet_cause(pod, "Ready")?))
    };
    Ok(SearchResult { problems: list.items.iter().filter_map(problem).collect(), notes })
}

fn has_more(list: &ListMeta) -> bool {
    !list.r#continue.is_empty()
}

fn problem(kind: &Kind, resource: &Resource, key: &ObjectKey, cause: String) -> Problem {
    let path = object_path(resource, &key.namespace, &key.name);
    let cause = shortened(cause, CAUSE);
    Problem { kind: kind.name, path, name: key.key(), cause }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(statuses: &[&str], token: &str) -> SearchResult {
        let node = |(number, status): (usize, &&str)| {
            json!({
                "metadata": {"name": format!("n{number}")},
                "status": {"images": [], "conditions": [
                    {"type": "DiskPressure", "status": "False"},
                    {"type": "Ready", "status": status, "reason": "R", "message": "it \"ends\""},
                ]},
            })
        };
        let items: Vec<Value> = statuses.iter().enumerate().map(node).collect();
        let list = json!({"metadata": {"continue": token}, "items": items}).to_string();
        let list: List<Node> = serde_json::from_str(&list).unwrap();
        found(&list, &NODE, &Resource::new("core", "v1", "nodes"))
    }

    fn workloads(kind: &Kind, items: Value) -> Vec<Problem> {
        let list = json!({"metadata": {}, "items": items}).to_string();
        let list: List<Workload> = serde_json::from_str(&list).unwrap();
        found(&list, kind, &Resource::new("apps", "v1", kind.plural)).problems
    }

    #[test]
    fn finds_nodes_that_are_not_ready() {
        let found = nodes(&["True", "False", "Unknown"], "");
        assert_eq!(found.notes, [""; 0]);
        let problem = |name: &str| Problem {
            kind: "Node",
            path: format!("/object/core/v1/nodes/-/{name}"),
            name: name.to_owned(),
            cause: "R it \"ends\"".to_owned(),
        };
        assert_eq!(found.problems, [problem("n1"), problem("n2")]);
        let list: List<Node> =
            serde_json::from_str(r#"{"metadata":{},"items":[{"metadata":{"name":"new"}}]}"#)
                .unwrap();
        assert!(!list.items[0].is_well());
        assert_eq!(list.items[0].cause(), "no status has been reported yet");
    }

    #[test]
    fn names_what_is_not_searched_or_not_shown() {
        let found = nodes(&["False"; 300], "token");
        assert_eq!(found.problems.len(), PAGE);
        assert_eq!(
            found.notes,
            [
                "Only the first 5000 nodes were searched.",
                "300 nodes are not ready. The first 100 are shown.",
            ]
        );
    }

    #[test]
    fn shortens_long_causes() {
        let resource = Resource::new("core", "v1", "nodes");
        let of = |cause: String| problem(&NODE, &resource, &ObjectKey::default(), cause).cause;
        assert_eq!(of("é".repeat(CAUSE)), "é".repeat(CAUSE));
        assert_eq!(of("é".repeat(CAUSE + 1)), format!("{}…", "é".repeat(CAUSE)));
    }

    #[test]
    fn finds_workloads_with_missing_replicas() {
        let [deployments, _, daemon_sets] = &WORKLOADS;
        let deployment = |name: &str, wanted: u64, ready: u64| {
            json!({
                "metadata": {"name": name, "namespace": "a"}, "spec": {"replicas": wanted},
                "status": {"readyReplicas": ready},
            })
        };
        let none = json!({"metadata": {"name": "c"}, "spec": {"replicas": 1}});
        let items =
            json!([deployment("a", 2, 2), deployment("b", 3, 1), deployment("d", 0, 0), none]);
        let found = workloads(deployments, items);
        let shown: Vec<_> = found.iter().map(|p| (p.name.as_str(), p.cause.as_str())).collect();
        let wanted = [("a/b", "1 of 3 replicas are ready"), ("c", "0 of 1 replicas are ready")];
        assert_eq!(shown, wanted);
        let daemon_set = json!({
            "metadata": {"name": "e"}, "spec": {},
            "status": {"desiredNumberScheduled": 3, "numberReady": 2},
        });
        let found = workloads(daemon_sets, json!([daemon_set]));
        assert_eq!(found[0].cause, "2 of 3 replicas are ready");
    }
}
