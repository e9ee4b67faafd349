//! Finds the objects with a problem, such as Pods that do not run, and the causes.
//!
//! Without a cache (`watches`), a search reads whole lists with the viewer's own rights. It does not read tables: the
//! API server sends stored bytes with little work, but renders a table from decoded objects, which takes several times
//! as long.

use std::{borrow::Borrow, marker::PhantomData};

use api_meta::{ListMeta, ObjectKey};
use client::{Client, List};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json, value::RawValue};

use crate::{
    api::{self, PAGE, Query, Resource},
    error::PageError,
    pages::list::{object_path, shortened},
};

/// The limit of objects of a kind in a search without a cache: the number of nodes that upstream supports.
const SEARCHED: usize = 5000;
/// The maximum length of a cause in characters, because the API server limits only the object as a whole.
const CAUSE: usize = 1000;
/// The field selector of Pods that neither run nor have succeeded.
const NOT_RUNNING: &str = "status.phase!=Running,status.phase!=Succeeded";

pub(super) const NODES: Kind =
    Kind { resource: client::Resource::NODES, fields: "", limit: SEARCHED };
/// The API server selects the Pods that do not run.
pub(super) const PODS: Kind =
    Kind { resource: client::Resource::PODS, fields: NOT_RUNNING, limit: PAGE };
/// The kinds of workloads whose replicas may be missing.
pub(super) const WORKLOADS: [Kind; 3] = [
    Kind { resource: client::Resource::DEPLOYMENTS, fields: "", limit: SEARCHED },
    Kind { resource: client::Resource::STATEFUL_SETS, fields: "", limit: SEARCHED },
    Kind { resource: client::Resource::DAEMON_SETS, fields: "", limit: SEARCHED },
];

/// A kind that is searched.
pub(super) struct Kind {
    pub(super) resource: client::Resource,
    /// The selector of the objects that may be unwell; empty for all objects.
    pub(super) fields: &'static str,
    /// The objects that are read without a watch.
    limit: usize,
}

/// An object that is not well, and the cause.
#[derive(Debug, PartialEq)]
pub(super) struct Problem {
    pub(super) kind: String,
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
pub(super) trait Searched: DeserializeOwned + Send + Sync + 'static {
    fn key(&self) -> ObjectKey;

    /// Returns why the object is not well; `None` if it is.
    fn cause(&self) -> Option<String>;
}

/// The part of an object that the page shows.
#[derive(Deserialize)]
#[serde(from = "T", bound = "T: Searched")]
pub(super) struct Checked<T> {
    key: ObjectKey,
    /// The reason why the object is not well, shortened; `None` if it is well.
    pub(super) cause: Option<String>,
    object: PhantomData<fn() -> T>,
}

impl<T: Searched> From<T> for Checked<T> {
    fn from(object: T) -> Self {
        let cause = object.cause().map(|cause| shortened(cause, CAUSE));
        Self { key: object.key(), cause, object: PhantomData }
    }
}

#[derive(Deserialize)]
pub(super) struct Node {
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

    fn is_ready(&self) -> bool {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Condition {
            r#type: String,
            status: String,
        }
        let conditions: Vec<Condition> = self.conditions();
        conditions.iter().any(|found| found.r#type == "Ready" && found.status == "True")
    }
}

impl Searched for Node {
    fn key(&self) -> ObjectKey {
        self.metadata.clone()
    }

    fn cause(&self) -> Option<String> {
        if self.is_ready() {
            return None;
        }
        let conditions: Value = self.conditions();
        let node = json!({"status": {"conditions": conditions}});
        Some(local::unmet_cause(&node, "Ready").unwrap_or_default())
    }
}

#[derive(Deserialize)]
pub(super) struct Pod(Value);

impl Searched for Pod {
    fn key(&self) -> ObjectKey {
        ObjectKey::deserialize(&self.0["metadata"]).unwrap_or_default()
    }

    fn cause(&self) -> Option<String> {
        local::unmet_cause(&self.0, "Ready")
    }
}

#[derive(Deserialize)]
pub(super) struct Workload {
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

impl Searched for Workload {
    fn key(&self) -> ObjectKey {
        self.metadata.clone()
    }

    fn cause(&self) -> Option<String> {
        let ready = self.status.ready_replicas + self.status.number_ready;
        let wanted = self.spec.replicas + self.status.desired_number_scheduled;
        (ready < wanted).then(|| format!("{ready} of {wanted} replicas are ready"))
    }
}

/// Lists the objects of a kind with the client's rights, and returns those that are not well.
pub(super) async fn read<T: Searched>(
    client: &Client,
    kind: &Kind,
) -> Result<SearchResult, PageError> {
    let query = Query { fields: kind.fields, limit: kind.limit, ..Query::default() };
    let list: List<Checked<T>> = api::objects(client, &kind.resource(), &query).await?;
    Ok(listed(&list, kind))
}

fn listed<T: Searched>(list: &List<Checked<T>>, kind: &Kind) -> SearchResult {
    let unwell: Vec<&Checked<T>> = list.items.iter().filter(|item| item.cause.is_some()).collect();
    let mut found = SearchResult::of(&unwell, kind);
    if has_more(&list.metadata) {
        let (limit, plural) = (kind.limit, &kind.resource.plural);
        let note = if kind.fields.is_empty() {
            format!("Only the first {limit} {plural} were searched.")
        } else {
            format!("More than {limit} {plural} do not run. The first {limit} are shown.")
        };
        found.notes.insert(0, note);
    }
    found
}

fn has_more(list: &ListMeta) -> bool {
    !list.r#continue.is_empty()
}

impl Kind {
    /// Returns the resource in URLs of the page.
    fn resource(&self) -> Resource {
        Resource::from(&self.resource)
    }
}

impl SearchResult {
    /// Returns the first of some objects that are not well.
    pub(super) fn of<T>(unwell: &[impl Borrow<Checked<T>>], kind: &Kind) -> Self {
        let resource = kind.resource();
        let problem = |object: &Checked<T>| Problem {
            kind: kind.resource.kind.to_string(),
            path: object_path(&resource, &object.key.namespace, &object.key.name),
            name: object.key.key(),
            cause: object.cause.clone().unwrap_or_default(),
        };
        let problems = unwell.iter().take(PAGE).map(|object| problem(object.borrow())).collect();
        let count = unwell.len();
        let plural = &kind.resource.plural;
        let notes = (count > PAGE)
            .then(|| format!("{count} {plural} are not ready. The first {PAGE} are shown."));
        Self { problems, notes: notes.into_iter().collect() }
    }
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
        listed::<Node>(&serde_json::from_str(&list).unwrap(), &NODES)
    }

    fn workloads(kind: &Kind, items: Value) -> Vec<Problem> {
        let list = json!({"metadata": {}, "items": items}).to_string();
        listed::<Workload>(&serde_json::from_str(&list).unwrap(), kind).problems
    }

    #[test]
    fn finds_nodes_that_are_not_ready() {
        let found = nodes(&["True", "False", "Unknown"], "");
        assert_eq!(found.notes, [""; 0]);
        let problem = |name: &str| Problem {
            kind: "Node".to_owned(),
            path: format!("/object/core/v1/nodes/-/{name}"),
            name: name.to_owned(),
            cause: "R it \"ends\"".to_owned(),
        };
        assert_eq!(found.problems, [problem("n1"), problem("n2")]);
        let new: Node = serde_json::from_str(r#"{"metadata":{"name":"new"}}"#).unwrap();
        assert_eq!(new.cause().as_deref(), Some("no status has been reported yet"));
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
        let of = |cause: &str| {
            let ready = json!({"type": "Ready", "status": "False", "reason": cause});
            let pod = json!({"metadata": {"name": "a"}, "status": {"conditions": [ready]}});
            Checked::from(Pod(pod)).cause.unwrap()
        };
        assert_eq!(of(&"é".repeat(CAUSE)), "é".repeat(CAUSE));
        assert_eq!(of(&"é".repeat(CAUSE + 1)), format!("{}…", "é".repeat(CAUSE)));
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
