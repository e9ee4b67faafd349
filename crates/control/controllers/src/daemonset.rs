//! Runs one Pod on every node that the DaemonSet selects.

mod plan;

use std::{sync::Arc, time::Duration};

use client::{Error, Resource, WorkQueue};
use serde_json::Value;

use crate::{
    context::{Context, synced},
    expectations::Expectations,
    history::HASH_LABEL,
    indexes::{OwnerIndex, Selectors},
    pods::{OwnerOf, follow_pods},
    shared::Watched,
    views::{ControllerRevision, Pod, Set, selector},
};

struct Reconciler {
    context: Context,
    sets: Watched<Set>,
    pods: OwnerIndex<Pod>,
    nodes: Watched<sched_core::Node>,
    revisions: OwnerIndex<ControllerRevision>,
    queue: WorkQueue<String>,
    expectations: Arc<Expectations>,
}

pub(crate) fn start(context: Context) {
    let queue = WorkQueue::new(Duration::from_millis(50), Duration::from_secs(600));
    let expectations = Arc::new(Expectations::default());
    let sets = context.watch::<Set>(Resource::DAEMON_SETS);
    let pods = context.watch::<Pod>(Resource::PODS);
    let nodes = context.watch::<sched_core::Node>(Resource::NODES);
    let revisions = context.watch::<ControllerRevision>(Resource::CONTROLLER_REVISIONS);
    sets.on_key(&queue);
    follow_pods(&pods, "DaemonSet", &queue, &expectations, Selectors::of(&sets));
    let (add, all) = (queue.clone(), sets.clone());
    nodes.on(move |change| {
        // Ignore heartbeats, which are most of the Node changes.
        if let (Some(old), Some(new)) = (change.old, change.new)
            && new.describes_same(old)
        {
            return;
        }
        all.keys().into_iter().for_each(|key| add.add(key));
    });
    let waits = vec![synced(&sets), synced(&pods), synced(&nodes), synced(&revisions)];
    let own = Arc::new(Reconciler {
        context: context.clone(),
        sets,
        pods: OwnerIndex::of(&pods),
        nodes,
        revisions: OwnerIndex::of(&revisions),
        queue: queue.clone(),
        expectations,
    });
    context.run(&queue, 2, waits, own, |own, key| async move { own.reconcile(&key).await });
}

impl Reconciler {
    async fn reconcile(&self, key: &str) -> Result<(), Error> {
        let Some(set) = self.sets.get(key) else {
            self.expectations.forget(key);
            return Ok(());
        };
        if set.metadata.terminating() {
            return Ok(());
        }
        let owner = OwnerOf::new(Resource::DAEMON_SETS, &set.metadata);
        let chosen = selector(set.spec.selector.as_ref());
        let all = self.revisions.claimable(&set.metadata);
        let revisions =
            self.context.claim(&owner, &chosen, &Resource::CONTROLLER_REVISIONS, all).await?;
        let current = self.context.current_revision(&owner, &set, &revisions).await?;
        let caught_up = self.expectations.met(key, &self.queue);
        let all = self.pods.claimable(&set.metadata);
        let pods = self.context.claim(&owner, &chosen, &Resource::PODS, all).await?;
        let nodes = self.nodes.list();
        let model = plan::model_pod(&set);
        let by_node = plan::by_node(&pods);
        let now = self.context.now();
        let snapshot =
            plan::Snapshot { set: &set, model: &model, nodes: &nodes, by_node: &by_node, now };
        let mut result = Ok(());
        if caught_up {
            let plan = plan::plan(&snapshot, &current.hash);
            result = self.carry_out(key, &owner, &set, &current.hash, plan).await;
        }
        let (status, next_check) = plan::status(&snapshot, &current);
        self.context
            .merge_status(&Resource::DAEMON_SETS, &set.metadata, &set.status, status)
            .await?;
        if let Some(seconds) = next_check {
            self.queue.add_after(key.to_owned(), Duration::from_secs(seconds));
        }
        let mut live: Vec<String> =
            pods.iter().filter_map(|pod| pod.metadata.labels.get(HASH_LABEL).cloned()).collect();
        live.push(current.hash);
        self.context.trim_history(&set, &revisions, &live).await?;
        result
    }

    async fn carry_out(
        &self,
        key: &str,
        owner: &OwnerOf,
        set: &Set,
        hash: &str,
        plan: plan::Plan,
    ) -> Result<(), Error> {
        if plan.create.is_empty() && plan.delete.is_empty() {
            return Ok(());
        }
        let uids = plan.delete.iter().map(|pod| pod.metadata.uid.as_str());
        self.expectations.expect(key, plan.create.len(), uids);
        for pod in plan.delete.iter().filter(|pod| pod.status.phase == "Failed") {
            let (name, node) = (pod.metadata.key(), pod.node());
            let message =
                format!("Found failed daemon pod {name} on node {node}, will try to kill it");
            self.context.events.warning(owner.object(), "FailedDaemonPod", message);
        }
        let pods_to_create: Vec<Value> =
            plan.create.iter().map(|node| plan::pod_for(owner, set, node, hash)).collect();
        let deleted = self.context.delete_pods(owner, &plan.delete, &self.expectations).await;
        let created = self.context.create_pods(owner, &pods_to_create, &self.expectations).await;
        deleted.and(created)
    }
}
