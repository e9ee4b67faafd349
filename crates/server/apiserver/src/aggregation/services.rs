//! The current APIServices and the discovery data of their servers.

use std::{collections::BTreeSet, sync::Arc};

use api_meta::{Changed, GroupResource, Observer, Tree as _};
use parking_lot::RwLock;
use serde_json::Value;
use telemetry::metrics::{GaugeVec, IntCounterVec, Metrics};

use super::snapshot::{ApiService, ApiServices, GroupServer, Remote, RemoteApi};
use crate::{
    outbound::{aggregated::Reference, backends::Backends},
    registry::{Definition, holds},
};

pub(crate) const GROUP: &str = "apiregistration.k8s.io";
pub(crate) const PLURAL: &str = "apiservices";

/// Routes requests for the groups and versions of other API servers.
pub(crate) struct Aggregation {
    resources: [GroupResource; 1],
    pub(crate) backends: Arc<Backends>,
    /// The groups of built-in kinds, which only this server serves.
    built_in: BTreeSet<String>,
    known: RwLock<Arc<ApiServices>>,
    unavailable: GaugeVec,
    turned_unavailable: IntCounterVec,
}

impl Aggregation {
    pub(crate) fn new(
        backends: Arc<Backends>,
        built_in: &[Arc<Definition>],
        metrics: &Metrics,
    ) -> Self {
        let served = built_in.iter().flat_map(|definition| definition.served.iter());
        Self {
            resources: [GroupResource::new(GROUP, PLURAL)],
            backends,
            built_in: served.map(|served| served.group.to_string()).collect(),
            known: RwLock::default(),
            unavailable: metrics.gauges(
                "aggregator_unavailable_apiservice",
                "Whether an APIService is not available.",
                &["name"],
            ),
            turned_unavailable: metrics.counters(
                "aggregator_unavailable_apiservice_total",
                "How often APIServices have become unavailable, by the reason.",
                &["name", "reason"],
            ),
        }
    }

    pub(crate) fn snapshot(&self) -> Arc<ApiServices> {
        self.known.read().clone()
    }

    /// Returns the server that serves a path, if it is another one.
    pub(crate) fn route(&self, path: &str) -> Option<Remote> {
        let (group, rest) = path.strip_prefix("/apis/")?.split_once('/')?;
        let version = rest.split('/').next()?;
        self.known.read().remote(group, version).cloned()
    }

    /// Stores what was fetched from a server, unless the APIService names another server by now.
    pub(crate) fn learn(&self, name: &str, of: &Reference, learned: RemoteApi) {
        self.change(|known| {
            let named = known.services.get(name).is_some_and(
                |s| matches!(&s.serves, GroupServer::Remote(remote) if remote.reference == *of),
            );
            let same = known.learned.get(name).is_some_and(|old| **old == learned);
            if named && !same {
                known.learned.insert(name.to_owned(), Arc::new(learned));
                known.generation += 1;
            }
        });
    }

    /// Returns the APIServices whose server is this Service.
    pub(crate) fn behind(&self, namespace: &str, service: &str) -> Vec<String> {
        let known = self.snapshot();
        let found = known.services.iter().filter(|(_, api)| match &api.serves {
            GroupServer::Remote(Remote { reference, .. }) => {
                reference.namespace == namespace && reference.name == service
            }
            GroupServer::Local | GroupServer::BuiltIn => false,
        });
        found.map(|(name, _)| name.clone()).collect()
    }

    pub(crate) fn record_unavailable(&self, name: &str, reason: &str) {
        self.turned_unavailable.with_label_values(&[name, reason]).inc();
    }

    fn count(&self, name: &str, object: Option<&Value>) {
        match object {
            None => drop(self.unavailable.remove_label_values(&[name])),
            Some(object) => {
                let missing = !holds(object.at("status"), "Available");
                self.unavailable.with_label_values(&[name]).set(f64::from(u8::from(missing)));
            }
        }
    }

    fn change(&self, change: impl FnOnce(&mut ApiServices)) {
        let mut known = self.known.write();
        change(Arc::make_mut(&mut known));
    }

    fn read(&self, object: &Value) -> ApiService {
        let spec = object.at("spec");
        let group = spec.text("group").to_owned();
        let serves = match Reference::of(spec) {
            None => GroupServer::Local,
            Some(_) if self.built_in.contains(&group) => GroupServer::BuiltIn,
            Some(reference) => {
                let available = holds(&object["status"], "Available");
                GroupServer::Remote(Remote { reference, available })
            }
        };
        let priority = (spec.int("groupPriorityMinimum"), spec.int("versionPriority"));
        ApiService { group, version: spec.text("version").to_owned(), priority, serves }
    }
}

impl Observer for Aggregation {
    fn resources(&self) -> &[GroupResource] {
        &self.resources
    }

    fn changed(&self, change: Changed<'_>) {
        let name = change.name;
        self.count(name, change.object);
        let new = change.object.map(|object| self.read(object));
        self.change(|known| {
            let old = known.services.get(name);
            let before = old.map(|s| (s.priority, remote_service(s).cloned()));
            let after = new.as_ref().map(|s| (s.priority, remote_service(s).cloned()));
            if before.as_ref().map(|b| &b.1) != after.as_ref().map(|a| &a.1) {
                known.learned.remove(name);
            }
            if before != after {
                known.generation += 1;
            }
            match new {
                Some(service) => drop(known.services.insert(name.to_owned(), Arc::new(service))),
                None => drop(known.services.remove(name)),
            }
        });
    }
}

/// Returns the Service that serves a group and version, if it is another server.
fn remote_service(service: &ApiService) -> Option<&Reference> {
    match &service.serves {
        GroupServer::Remote(remote) => Some(&remote.reference),
        GroupServer::Local | GroupServer::BuiltIn => None,
    }
}
