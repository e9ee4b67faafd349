//! Cached hints about addresses and ranges. They decide which address is tried first.

use std::{
    collections::{BTreeMap, HashSet},
    net::IpAddr,
    sync::Arc,
};

use api_meta::{Cidr, Tree as _};
use parking_lot::{Mutex, MutexGuard};
use serde_json::Value;

use super::service::{family, strings};
use crate::{
    config::Config,
    watch_cache::{ObservedChange, Observer},
};

/// The observed ranges and allocated addresses. They may be outdated.
#[derive(Clone)]
pub(crate) struct Hints(Arc<Mutex<AddressHints>>);

/// The service ranges and the allocated addresses, as the caches show them.
pub(super) struct AddressHints {
    cidrs: Vec<Cidr>,
    /// The ranges of ServiceCIDR objects, by name.
    more: BTreeMap<String, Vec<Cidr>>,
    pub(super) taken: HashSet<IpAddr>,
}

impl Hints {
    pub(crate) fn new(config: &Config) -> Self {
        let cidrs = config.service_cidrs.iter().map(|range| range.network()).collect();
        let hints = AddressHints { cidrs, more: BTreeMap::new(), taken: HashSet::new() };
        Self(Arc::new(Mutex::new(hints)))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, AddressHints> {
        self.0.lock()
    }

    /// Returns the observer that updates the hints on changes of IPAddresses and ServiceCIDRs.
    pub(crate) fn observer(&self) -> Observer {
        let hints = self.clone();
        Box::new(move |observed: &ObservedChange<'_>| {
            let (definition, name) = (observed.definition, observed.event.object.name());
            match (&*definition.group, &*definition.plural) {
                ("networking.k8s.io", "ipaddresses") => {
                    hints.lock().address_changed(name, observed.object.is_some());
                }
                ("networking.k8s.io", "servicecidrs") => {
                    hints.lock().range_changed(name, observed.object);
                }
                _ => {}
            }
        })
    }
}

impl AddressHints {
    fn address_changed(&mut self, name: &str, taken: bool) {
        let Ok(address) = name.parse::<IpAddr>() else { return };
        if taken {
            self.taken.insert(address);
        } else {
            self.taken.remove(&address);
        }
    }

    /// Adds the ranges of a ServiceCIDR. The ranges of a terminating one are removed, so that no address is allocated
    /// there.
    fn range_changed(&mut self, name: &str, range: Option<&Value>) {
        let stays = |range: &&Value| !range.has("metadata.deletionTimestamp");
        match range.filter(stays).map(|range| strings(range.at("spec.cidrs"))) {
            Some(cidrs) => {
                let cidrs = cidrs.iter().filter_map(|text| text.parse().ok()).map(Cidr::network);
                self.more.insert(name.to_owned(), cidrs.collect())
            }
            None => self.more.remove(name),
        };
    }

    /// Returns the ranges of a family, configured ones first.
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
