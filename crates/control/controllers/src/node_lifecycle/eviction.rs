//! Evicts Pods from nodes with NoExecute taints that they do not (or no longer) tolerate.

use std::time::Duration;

use api_meta::{ObjectMeta, Timestamp};
use client::{Error, NotFoundExt as _, PatchKind, PatchTarget, Resource, WorkQueue};
use events::ObjectRef;
use serde_json::{Value, json};

use crate::{
    context::{Context, synced},
    indexes::by_node,
    shared::Watched,
    views::{Node, Pod, Taint},
};

/// Returns the time at which the Pod is evicted; `None` if it may stay.
fn plan(pod: &Pod, taints: &[Taint], now: Timestamp) -> Option<Timestamp> {
    let mut end: Option<Timestamp> = None;
    for taint in taints.iter().filter(|taint| taint.effect == "NoExecute") {
        let since = taint.time_added.unwrap_or(now);
        let mut tolerating = pod.spec.tolerations.iter().filter(|t| t.tolerates(taint)).peekable();
        let until = match tolerating.peek() {
            None => Some(since),
            Some(_) => {
                let seconds = tolerating.filter_map(|t| t.toleration_seconds).min();
                seconds.map(|s| since.plus(Duration::from_secs(u64::try_from(s).unwrap_or(0))))
            }
        };
        end = match (end, until) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (one, other) => one.or(other),
        };
    }
    end
}

pub(crate) fn start(context: Context) {
    let queue = WorkQueue::default();
    let pods = context.watch::<Pod>(Resource::PODS);
    let nodes = context.watch::<Node>(Resource::NODES);
    let all_nodes = nodes.clone();
    pods.on_key_if(&queue, move |change| {
        let node = change.new.and_then(|pod| all_nodes.get(pod.node()));
        node.is_some_and(|node| node.spec.taints.iter().any(|t| t.effect == "NoExecute"))
    });
    let (add, on_it) = (queue.clone(), by_node(&pods));
    nodes.on(move |change| {
        let evicting = |node: &Node| -> Vec<Taint> {
            node.spec.taints.iter().filter(|t| t.effect == "NoExecute").cloned().collect()
        };
        let before = change.old.map(|node| evicting(node)).unwrap_or_default();
        let after = change.new.map(|node| evicting(node)).unwrap_or_default();
        if before != after {
            on_it.get(change.key).iter().for_each(|pod| add.add(pod.metadata.key()));
        }
    });
    let waits = vec![synced(&pods), synced(&nodes)];
    let state = (context.clone(), pods, nodes, queue.clone());
    context.run(&queue, 8, waits, state, |(context, pods, nodes, queue), key| async move {
        reconcile(&context, &pods, &nodes, &queue, &key).await
    });
}

async fn reconcile(
    context: &Context,
    pods: &Watched<Pod>,
    nodes: &Watched<Node>,
    queue: &WorkQueue<String>,
    key: &str,
) -> Result<(), Error> {
    let Some(pod) = pods.get(key).filter(|pod| !pod.metadata.terminating()) else { return Ok(()) };
    let Some(node) = nodes.get(pod.node()) else { return Ok(()) };
    let now = context.now();
    let Some(end) = plan(&pod, &node.spec.taints, now) else { return Ok(()) };
    if end > now {
        queue.add_after(key.to_owned(), end.since(now));
        return Ok(());
    }
    evict(context, &pod.metadata, &TEXTS).await
}

/// The texts of an eviction.
pub(crate) struct Eviction {
    /// The Event's reason.
    pub(crate) event: &'static str,
    /// The reason and the message of the condition.
    pub(crate) reason: &'static str,
    pub(crate) message: &'static str,
}

const TEXTS: Eviction = Eviction {
    event: "TaintManagerEviction",
    reason: "DeletionByTaintManager",
    message: "Taint manager: deleting due to NoExecute taint",
};

/// Sets the DisruptionTarget condition of a Pod and deletes the Pod.
pub(crate) async fn evict(
    context: &Context,
    meta: &ObjectMeta,
    texts: &Eviction,
) -> Result<(), Error> {
    let message = format!("Marking for deletion Pod {}", meta.key());
    context.events.normal(object(meta), texts.event, message);
    let patch = json!({"metadata": {"uid": meta.uid}, "status": {"conditions": [{
        "type": "DisruptionTarget", "status": "True", "reason": texts.reason,
        "message": texts.message, "observedGeneration": meta.generation,
        "lastTransitionTime": context.now().to_seconds()}]}});
    let at = PatchTarget { namespace: &meta.namespace, name: &meta.name, subresource: "status" };
    let (client, pods) = (&context.client, &Resource::PODS);
    client.patch::<Value>(pods, at, PatchKind::Strategic, &patch).await.or_none()?;
    let deleted = client.delete(pods, &meta.namespace, &meta.name, &Default::default()).await;
    deleted.or_none().map(drop)
}

pub(super) fn object(pod: &ObjectMeta) -> ObjectRef {
    ObjectRef {
        api_version: "v1".into(),
        kind: "Pod".into(),
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        uid: pod.uid.clone(),
        ..ObjectRef::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evicts_when_toleration_ends() {
        let at = |second: i64| Timestamp::from_unix(1_000_000 + second, 0);
        let taint = |key: &str, effect: &str, second| Taint {
            key: key.into(),
            effect: effect.into(),
            time_added: Some(at(second)),
            ..Taint::default()
        };
        let pod = |tolerations: Value| -> Pod {
            serde_json::from_value(json!({"spec": {"tolerations": tolerations}})).unwrap()
        };
        let sick = [taint("sick", "NoExecute", 10), taint("other", "NoSchedule", 0)];
        assert_eq!(plan(&pod(json!([])), &sick, at(20)), Some(at(10)));
        let seconds = json!([{"key": "sick", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}]);
        assert_eq!(plan(&pod(seconds.clone()), &sick, at(20)), Some(at(310)));
        assert_eq!(plan(&pod(json!([{"operator": "Exists"}])), &sick, at(20)), None);
        let both = [taint("sick", "NoExecute", 10), taint("worse", "NoExecute", 15)];
        assert_eq!(plan(&pod(seconds), &both, at(20)), Some(at(15)));
        assert_eq!(plan(&pod(json!([])), &sick[1..], at(20)), None);
    }
}
