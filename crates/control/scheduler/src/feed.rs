use std::sync::Arc;

use api_meta::PartialObject;
use client::{Change, Client, Informer, ListOptions, Resource};
use sched_core::{
    BudgetView, Core, CsiDriverView, CsiNodeView, DeviceClassView, Labels, Node,
    PersistentVolumeView, Pod, ResourceClaimView, ResourceSliceView, SpreaderView,
    StorageCapacityView, StorageClassView, VolumeClaimView,
};

use crate::Shared;

/// The informers that keep the core up to date.
pub(crate) struct Feed {
    pods: Source<Pod>,
    nodes: Source<Node>,
    namespaces: Source<PartialObject>,
    spreaders: Vec<Source<SpreaderView>>,
    claims: Source<VolumeClaimView>,
    volumes: Source<PersistentVolumeView>,
    classes: Source<StorageClassView>,
    csi_nodes: Source<CsiNodeView>,
    csi_drivers: Source<CsiDriverView>,
    capacities: Source<StorageCapacityView>,
    device_claims: Source<ResourceClaimView>,
    device_classes: Source<DeviceClassView>,
    slices: Source<ResourceSliceView>,
    budgets: Source<BudgetView>,
}

/// An informer, and the function that applies its changes to the core.
struct Source<P> {
    informer: Informer<P>,
    apply: Apply<P>,
}

type Apply<P> = fn(&mut Core, Change<'_, P>, u64);

impl<P: serde::de::DeserializeOwned + Send + Sync + 'static> Source<P> {
    async fn synced(&self) {
        self.informer.synced().await;
    }

    /// Adds all objects to a new core. A panic on one object does not prevent the others from being added.
    fn add_all(&self, core: &mut Core, now: u64) {
        for key in self.informer.keys() {
            let object = self.informer.get(&key);
            let change = Change { key: &key, old: None, new: object.as_ref() };
            let _ = rt::catch_sync("scheduler", &key, || (self.apply)(core, change, now));
        }
    }
}

/// Splits an informer's key into namespace and name.
fn parts(key: &str) -> (&str, &str) {
    key.split_once('/').unwrap_or(("", key))
}

impl Feed {
    pub(crate) fn start(client: &Client, shared: &Arc<Shared>, tasks: &rt::Tasks) -> Arc<Self> {
        let active = ListOptions::fields("status.phase!=Succeeded,status.phase!=Failed");
        let pods = selected(client, Resource::PODS, active, shared, tasks, pod_changed);
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
                let labels = |view: &Arc<PartialObject>| {
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
        let classes =
            informer(client, Resource::STORAGE_CLASSES, shared, tasks, |core, change, now| {
                core.set_class(change.key, change.new.map(|v| &**v), now);
            });
        let csi_nodes =
            informer(client, Resource::CSI_NODES, shared, tasks, |core, change, now| {
                core.set_csi_node(change.key, change.new.map(|v| &**v), now);
            });
        let csi_drivers =
            informer(client, Resource::CSI_DRIVERS, shared, tasks, |core, change, now| {
                core.set_csi_driver(change.key, change.new.map(|v| &**v), now);
            });
        let capacities = informer(
            client,
            Resource::CSI_STORAGE_CAPACITIES,
            shared,
            tasks,
            |core, change, now| {
                let (namespace, name) = parts(change.key);
                core.set_capacity(&namespace.into(), name, change.new.map(|v| &**v), now);
            },
        );
        let device_claims =
            informer(client, Resource::RESOURCE_CLAIMS, shared, tasks, |core, change, now| {
                let (namespace, name) = parts(change.key);
                core.set_device_claim(&namespace.into(), name, change.new.map(|v| &**v), now);
            });
        let device_classes =
            informer(client, Resource::DEVICE_CLASSES, shared, tasks, |core, change, now| {
                core.set_device_class(change.key, change.new.map(|v| &**v), now);
            });
        let slices =
            informer(client, Resource::RESOURCE_SLICES, shared, tasks, |core, change, now| {
                core.set_slice(change.key, change.new.map(|v| &**v), now);
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
        let feed = Arc::new(Self {
            pods,
            nodes,
            namespaces,
            spreaders,
            claims,
            volumes,
            classes,
            csi_nodes,
            csi_drivers,
            capacities,
            device_claims,
            device_classes,
            slices,
            budgets,
        });
        let _ = shared.feed.set(Arc::downgrade(&feed));
        feed
    }

    /// Adds all objects of all informers to a new core.
    pub(crate) fn add_all(&self, core: &mut Core, now: u64) {
        self.nodes.add_all(core, now);
        self.namespaces.add_all(core, now);
        self.spreaders.iter().for_each(|spreader| spreader.add_all(core, now));
        self.claims.add_all(core, now);
        self.volumes.add_all(core, now);
        self.classes.add_all(core, now);
        self.csi_nodes.add_all(core, now);
        self.csi_drivers.add_all(core, now);
        self.capacities.add_all(core, now);
        self.device_claims.add_all(core, now);
        self.device_classes.add_all(core, now);
        self.slices.add_all(core, now);
        self.budgets.add_all(core, now);
        self.pods.add_all(core, now);
    }

    pub(crate) async fn synced(&self) {
        self.nodes.synced().await;
        self.namespaces.synced().await;
        for informer in &self.spreaders {
            informer.synced().await;
        }
        self.claims.synced().await;
        self.volumes.synced().await;
        self.classes.synced().await;
        self.csi_nodes.synced().await;
        self.csi_drivers.synced().await;
        self.capacities.synced().await;
        self.device_claims.synced().await;
        self.device_classes.synced().await;
        self.slices.synced().await;
        self.budgets.synced().await;
        self.pods.synced().await;
    }
}

fn set_spreader(core: &mut Core, kind: &str, change: Change<'_, SpreaderView>) {
    let (namespace, name) = parts(change.key);
    core.set_spreader(kind, namespace, name, change.new.map(|view| &**view));
}

fn pod_changed(core: &mut Core, change: Change<'_, Pod>, now: u64) {
    // A Pod recreated with the same name is a different Pod.
    if let Some(old) = change.old
        && change.new.is_none_or(|new| new.id.uid != old.id.uid)
    {
        core.remove_pod(&old.id.uid, now);
    }
    if let Some(new) = change.new {
        core.set_pod(new.clone(), now);
    }
}

/// Starts an informer that applies every change to the core.
fn informer<P: serde::de::DeserializeOwned + Send + Sync + 'static>(
    client: &Client,
    resource: Resource,
    shared: &Arc<Shared>,
    tasks: &rt::Tasks,
    apply: Apply<P>,
) -> Source<P> {
    selected(client, resource, ListOptions::default(), shared, tasks, apply)
}

fn selected<P: serde::de::DeserializeOwned + Send + Sync + 'static>(
    client: &Client,
    resource: Resource,
    options: ListOptions,
    shared: &Arc<Shared>,
    tasks: &rt::Tasks,
    apply: Apply<P>,
) -> Source<P> {
    let shared = shared.clone();
    let informer = Informer::start(client, resource, options, tasks, move |change| {
        shared.update(|core, now| apply(core, change, now));
    });
    Source { informer, apply }
}
