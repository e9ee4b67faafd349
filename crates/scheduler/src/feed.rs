use std::sync::Arc;

use client::{Change, Client, Informer, ListOptions, Resource};
use sched_core::{
    BudgetView, Core, Labels, Node, PersistentVolumeView, Pod, SpreaderView, VolumeClaimView,
};
use serde::Deserialize;

use crate::Shared;

/// The informers that keep the core up to date.
pub(crate) struct Feed {
    pods: Informer<Pod>,
    nodes: Informer<Node>,
    namespaces: Informer<NamespaceView>,
    spreaders: Vec<Informer<SpreaderView>>,
    claims: Informer<VolumeClaimView>,
    volumes: Informer<PersistentVolumeView>,
    budgets: Informer<BudgetView>,
}

#[derive(Deserialize)]
struct NamespaceView {
    metadata: NamespaceMeta,
}

#[derive(Deserialize)]
struct NamespaceMeta {
    #[serde(default)]
    labels: std::collections::BTreeMap<String, String>,
}

/// Splits an informer's key.
fn parts(key: &str) -> (&str, &str) {
    key.split_once('/').unwrap_or(("", key))
}

impl Feed {
    pub(crate) fn start(client: &Client, shared: &Arc<Shared>, tasks: &rt::Tasks) -> Self {
        let active = ListOptions::fields("status.phase!=Succeeded,status.phase!=Failed");
        let pods = {
            let shared = shared.clone();
            Informer::start(
                client,
                Resource::PODS,
                active,
                tasks,
                move |change: Change<'_, Pod>| {
                    shared.tell(|core, now| pod_changed(core, change, now));
                },
            )
        };
        let nodes = informer(
            client,
            Resource::NODES,
            shared,
            tasks,
            |core, change: Change<'_, Node>, now| match change.new {
                Some(node) => core.set_node((**node).clone(), now),
                None => core.remove_node(change.key),
            },
        );
        let namespaces =
            informer(client, Resource::NAMESPACES, shared, tasks, |core, change, _| {
                let labels = |view: &Arc<NamespaceView>| {
                    Labels::new(view.metadata.labels.iter().map(|(k, v)| (k.as_str(), v.as_str())))
                };
                core.set_namespace(change.key, change.new.map(labels));
            });
        let claims = informer(
            client,
            Resource::PERSISTENT_VOLUME_CLAIMS,
            shared,
            tasks,
            |core, change, now| {
                let (namespace, name) = parts(change.key);
                core.set_claim(&namespace.into(), name, change.new.map(|v| &**v), now);
            },
        );
        let volumes =
            informer(client, Resource::PERSISTENT_VOLUMES, shared, tasks, |core, change, now| {
                core.set_volume(change.key, change.new.map(|v| &**v), now);
            });
        let budgets =
            informer(client, Resource::POD_DISRUPTION_BUDGETS, shared, tasks, |core, change, _| {
                let (namespace, name) = parts(change.key);
                core.set_budget(namespace, name, change.new.map(|v| &**v));
            });
        let spreaders = vec![
            informer(client, Resource::SERVICES, shared, tasks, |core, change, _| {
                set_spreader(core, "Service", change);
            }),
            informer(client, Resource::REPLICA_SETS, shared, tasks, |core, change, _| {
                set_spreader(core, "ReplicaSet", change);
            }),
            informer(client, Resource::STATEFUL_SETS, shared, tasks, |core, change, _| {
                set_spreader(core, "StatefulSet", change);
            }),
            informer(
                client,
                Resource::REPLICATION_CONTROLLERS,
                shared,
                tasks,
                |core, change, _| {
                    set_spreader(core, "ReplicationController", change);
                },
            ),
        ];
        Self { pods, nodes, namespaces, spreaders, claims, volumes, budgets }
    }

    pub(crate) async fn synced(&self) {
        self.nodes.synced().await;
        self.namespaces.synced().await;
        for informer in &self.spreaders {
            informer.synced().await;
        }
        self.claims.synced().await;
        self.volumes.synced().await;
        self.budgets.synced().await;
        self.pods.synced().await;
    }
}

fn set_spreader(core: &mut Core, kind: &str, change: Change<'_, SpreaderView>) {
    let (namespace, name) = parts(change.key);
    core.set_spreader(kind, namespace, name, change.new.map(|view| &**view));
}

fn pod_changed(core: &mut Core, change: Change<'_, Pod>, now: u64) {
    // A Pod of the same name made anew is another Pod.
    if let Some(old) = change.old
        && change.new.is_none_or(|new| new.id.uid != old.id.uid)
    {
        core.remove_pod(&old.id.uid, now);
    }
    if let Some(new) = change.new {
        core.set_pod(new.clone(), now);
    }
}

/// An informer whose every change the core is told.
fn informer<P: serde::de::DeserializeOwned + Send + Sync + 'static>(
    client: &Client,
    resource: Resource,
    shared: &Arc<Shared>,
    tasks: &rt::Tasks,
    apply: fn(&mut Core, Change<'_, P>, u64),
) -> Informer<P> {
    let shared = shared.clone();
    Informer::start(client, resource, ListOptions::default(), tasks, move |change| {
        shared.tell(|core, now| apply(core, change, now));
    })
}
