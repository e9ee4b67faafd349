//! What this server has heard of addresses: where to look first.

use std::{
    collections::{BTreeMap, HashSet},
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use api_meta::Cidr;

use super::service::{family, strings};
use crate::{
    config::Config,
    registry::Definition,
    watch_cache::{Event, EventKind, Observer},
};

/// What this server has heard of addresses, which may be out of date.
#[derive(Clone)]
pub(crate) struct Hints(Arc<Mutex<Heard>>);

pub(super) struct Heard {
    cidrs: Vec<Cidr>,
    /// What the ServiceCIDRs add, by their names.
    more: BTreeMap<String, Vec<Cidr>>,
    pub(super) taken: HashSet<IpAddr>,
}

impl Hints {
    pub(crate) fn new(config: &Config) -> Self {
        let cidrs = config.service_cidrs.iter().map(|range| range.network()).collect();
        let heard = Heard { cidrs, more: BTreeMap::new(), taken: HashSet::new() };
        Self(Arc::new(Mutex::new(heard)))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Heard> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Called with every change of what says which addresses there are and which are taken, in order.
    pub(crate) fn observer(&self) -> Observer {
        let hints = self.clone();
        Box::new(move |definition: &Definition, event, _| {
            match (&*definition.group, &*definition.plural) {
                ("networking.k8s.io", "ipaddresses") => hints.lock().address_changed(event),
                ("networking.k8s.io", "servicecidrs") => hints.lock().range_changed(event),
                _ => {}
            }
        })
    }
}

impl Heard {
    fn address_changed(&mut self, event: &Event) {
        let Ok(address) = event.object.name().parse::<IpAddr>() else { return };
        match event.kind {
            EventKind::Deleted => self.taken.remove(&address),
            EventKind::Added | EventKind::Modified => self.taken.insert(address),
        };
    }

    /// Ranges may be added beside the configured ones; of one that is going away nothing is given any more.
    fn range_changed(&mut self, event: &Event) {
        let tree = event.object.tree().unwrap_or_default();
        let name = event.object.name().to_owned();
        let going =
            event.kind == EventKind::Deleted || !tree["metadata"]["deletionTimestamp"].is_null();
        let cidrs = strings(&tree["spec"]["cidrs"]);
        let cidrs = cidrs.iter().filter_map(|text| text.parse().ok()).map(Cidr::network);
        match going {
            true => self.more.remove(&name),
            false => self.more.insert(name, cidrs.collect()),
        };
    }

    /// The ranges of a family, the configured one first.
    pub(super) fn ranges(&self, wanted: &str) -> Vec<Cidr> {
        let mut all: Vec<Cidr> = Vec::new();
        for cidr in self.cidrs.iter().chain(self.more.values().flatten()) {
            if family(cidr.address) == wanted && !all.contains(cidr) {
                all.push(*cidr);
            }
        }
        all
    }

    pub(super) fn families(&self) -> Vec<&'static str> {
        self.cidrs.iter().map(|cidr| family(cidr.address)).collect()
    }
}
