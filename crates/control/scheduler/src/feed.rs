//! The informers that keep the core up to date.

use std::{pin::Pin, sync::Arc};

use api_config::FeatureGates;
use api_meta::PartialObject;
use client::{Change, Client, Informer, ListOptions, Resource};
use sched_core::{Core, Labels, Node, Pod, SpreaderKey, SpreaderView};
use serde::de::DeserializeOwned;

use crate::state::{Shared, StateSource};

/// The informers that keep the core up to date, in the order in which their objects are added to a new core.
pub(crate) struct Feed(Vec<Box<dyn Source>>);

/// An informer that feeds the core.
trait Source: StateSource {
    /// Waits until the informer has its first list.
    fn synced(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}

/// The informer of one resource, and the function that applies its changes to the core.
struct ResourceSource<P> {
    informer: Informer<P>,
    apply: Apply<P>,
}

type Apply<P> = fn(&mut Core, Change<'_, P>, u64);

impl<P: DeserializeOwned + Send + Sync + 'static> StateSource for ResourceSource<P> {
    /// Adds all objects to a new core. A panic on one object does not prevent the others from being added.
    fn add_all(&self, core: &mut Core, now: u64) {
        for key in self.informer.keys() {
            let object = self.informer.get(&key);
            let change = Change { key: &key, old: None, new: object.as_ref() };
            let _ = rt::catch_sync("scheduler", &key, || (self.apply)(core, change, now));
        }
    }
}

impl<P: DeserializeOwned + Send + Sync + 'static> Source for ResourceSource<P> {
    fn synced(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.informer.synced())
    }
}

/// Splits an informer's key into namespace and name.
fn parts(key: &str) -> (&str, &str) {
    key.split_once('/').unwrap_or(("", key))
}

impl StateSource for Feed {
    fn add_all(&self, core: &mut Core, now: u64) {
        self.0.iter().for_each(|source| source.add_all(core, now));
    }
}

impl Feed {
    pub(crate) fn start(
        client: &Client,
        shared: &Arc<Shared>,
        features: &FeatureGates,
        tasks: &rt::Tasks,
    ) -> Arc<Self> {
        let starter = Starter { client, shared, tasks };
        let mut sources = starter.cluster_sources();
        sources.extend(starter.spreader_sources());
        sources.extend(starter.volume_sources());
        sources.extend(starter.device_sources());
        if features.is_enabled("DRADeviceTaintRules") {
            sources.push(starter.taint_rules());
        }
        if has_gangs(features) {
            sources.push(starter.pod_groups());
        }
        sources.extend(starter.pod_sources());
        let feed = Arc::new(Self(sources));
        let source = Arc::downgrade(&feed);
        shared.set_source(source);
        feed
    }

    pub(crate) async fn synced(&self) {
        for source in &self.0 {
            source.synced().await;
        }
    }
}

/// Starts the informers.
struct Starter<'a> {
    client: &'a Client,
    shared: &'a Arc<Shared>,
    tasks: &'a rt::Tasks,
}

impl Starter<'_> {
    /// Starts an informer that applies every change to the core.
    fn source<P: DeserializeOwned + Send + Sync + 'static>(
        &self,
        resource: Resource,
        apply: Apply<P>,
    ) -> Box<dyn Source> {
        self.source_of(resource, ListOptions::default(), apply)
    }

    fn source_of<P: DeserializeOwned + Send + Sync + 'static>(
        &self,
        resource: Resource,
        options: ListOptions,
        apply: Apply<P>,
    ) -> Box<dyn Source> {
        let shared = self.shared.clone();
        let informer = Informer::start(self.client, resource, options, self.tasks, move |change| {
            shared.update(|core, now| apply(core, change, now));
        });
        Box::new(ResourceSource { informer, apply })
    }

    fn cluster_sources(&self) -> Vec<Box<dyn Source>> {
        vec![
            self.source::<Node>(Resource::NODES, |core, change, now| match change.new {
                Some(node) => core.set_node((**node).clone(), now),
                None => core.remove_node(change.key),
            }),
            self.source::<PartialObject>(Resource::NAMESPACES, |core, change, _| {
                let labels = |view: &Arc<PartialObject>| {
                    Labels::new(view.metadata.labels.iter().map(|(k, v)| (k.as_str(), v.as_str())))
                };
                core.set_namespace(change.key, change.new.map(labels));
            }),
        ]
    }

    /// Starts the informers of the kinds that group Pods for default spreading.
    fn spreader_sources(&self) -> Vec<Box<dyn Source>> {
        vec![
            self.source(Resource::SERVICES, |core, change, _| {
                set_spreader(core, "Service", change);
            }),
            self.source(Resource::REPLICA_SETS, |core, change, _| {
                set_spreader(core, "ReplicaSet", change);
            }),
            self.source(Resource::STATEFUL_SETS, |core, change, _| {
                set_spreader(core, "StatefulSet", change);
            }),
            self.source(Resource::REPLICATION_CONTROLLERS, |core, change, _| {
                set_spreader(core, "ReplicationController", change);
            }),
        ]
    }

    fn volume_sources(&self) -> Vec<Box<dyn Source>> {
        vec![
            self.source(Resource::PERSISTENT_VOLUME_CLAIMS, |core, change, now| {
                let (namespace, name) = parts(change.key);
                core.set_claim(&namespace.into(), name, change.new.map(|v| &**v), now);
            }),
            self.source(Resource::PERSISTENT_VOLUMES, |core, change, now| {
                core.set_volume(change.key, change.new.map(|v| &**v), now);
            }),
            self.source(Resource::STORAGE_CLASSES, |core, change, now| {
                core.set_class(change.key, change.new.map(|v| &**v), now);
            }),
            self.source(Resource::CSI_NODES, |core, change, now| {
                core.set_csi_node(change.key, change.new.map(|v| &**v), now);
            }),
            self.source(Resource::CSI_DRIVERS, |core, change, now| {
                core.set_csi_driver(change.key, change.new.map(|v| &**v), now);
            }),
            self.source(Resource::CSI_STORAGE_CAPACITIES, |core, change, now| {
                let (namespace, name) = parts(change.key);
                core.set_capacity(&namespace.into(), name, change.new.map(|v| &**v), now);
            }),
        ]
    }

    fn device_sources(&self) -> Vec<Box<dyn Source>> {
        vec![
            self.source(Resource::RESOURCE_CLAIMS, |core, change, now| {
                let (namespace, name) = parts(change.key);
                core.set_device_claim(&namespace.into(), name, change.new.map(|v| &**v), now);
            }),
            self.source(Resource::DEVICE_CLASSES, |core, change, now| {
                core.set_device_class(change.key, change.new.map(|v| &**v), now);
            }),
            self.source(Resource::RESOURCE_SLICES, |core, change, now| {
                core.set_slice(change.key, change.new.map(|v| &**v), now);
            }),
        ]
    }

    fn taint_rules(&self) -> Box<dyn Source> {
        self.source(Resource::DEVICE_TAINT_RULES, |core, change, now| {
            core.set_taint_rule(change.key, change.new.map(|v| &**v), now);
        })
    }

    fn pod_groups(&self) -> Box<dyn Source> {
        self.source(Resource::POD_GROUPS, |core, change, now| {
            let (namespace, name) = parts(change.key);
            core.set_pod_group(&namespace.into(), &name.into(), change.new.map(|v| &**v), now);
        })
    }

    /// Starts the informers of Pods and of the budgets that limit their evictions.
    fn pod_sources(&self) -> Vec<Box<dyn Source>> {
        let active = ListOptions::fields("status.phase!=Succeeded,status.phase!=Failed");
        vec![
            self.source(Resource::POD_DISRUPTION_BUDGETS, |core, change, _| {
                let (namespace, name) = parts(change.key);
                core.set_budget(namespace, name, change.new.map(|v| &**v));
            }),
            self.source_of(Resource::PODS, active, pod_changed),
        ]
    }
}

/// Reports whether the Pods of a PodGroup are scheduled by its policy.
pub(crate) fn has_gangs(features: &FeatureGates) -> bool {
    ["GenericWorkload", "GangScheduling"].iter().all(|gate| features.is_enabled(gate))
}

fn set_spreader(core: &mut Core, kind: &str, change: Change<'_, SpreaderView>) {
    let (namespace, name) = parts(change.key);
    let key = SpreaderKey { kind, namespace, name };
    core.set_spreader(key, change.new.map(|view| &**view));
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
