//! Indexes the cluster's objects for DNS queries.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    net::IpAddr,
    sync::Arc,
};

use net_core::{
    api::{EndpointSlice, Service, SliceEndpoint},
    policy::api::PodStatus,
};
use serde::Deserialize;

/// The fields of a Pod, which are needed only for verified Pod records.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct Pod {
    /// The namespace.
    pub metadata: PodMeta,
    /// The phase and the addresses.
    pub status: PodStatus,
}

/// The metadata of a Pod. Only the namespace is kept, because there are many Pods.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct PodMeta {
    /// The namespace.
    pub namespace: Box<str>,
}

impl Pod {
    /// Returns the addresses of a running Pod; an ended Pod has released them.
    fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        let ended = matches!(&*self.status.phase, "Succeeded" | "Failed");
        self.status.pod_ips.iter().filter(move |_| !ended).filter_map(|ip| ip.ip.parse().ok())
    }
}

/// The indexed objects, by `namespace/name`. Changes come with the former state, which keeps the reverse maps exact.
#[derive(Default)]
pub struct Index {
    services: HashMap<Box<str>, Arc<Service>>,
    /// Slices by Service, then by name.
    slices: HashMap<Box<str>, BTreeMap<Box<str>, Arc<EndpointSlice>>>,
    /// The labels of the namespaces.
    namespaces: HashMap<Box<str>, BTreeMap<String, String>>,
    cluster_ips: HashMap<IpAddr, Box<str>>,
    /// The number of slices with an address, by address and Service.
    endpoint_ips: HashMap<IpAddr, BTreeMap<Box<str>, u32>>,
    /// The number of Pods with an address, by address and namespace. Pods on the host network share addresses.
    pod_ips: HashMap<IpAddr, BTreeMap<Box<str>, u32>>,
    /// The serial number of the zone, incremented by every change.
    pub serial: u32,
}

impl Index {
    /// Adds, updates or removes a Service, by `NAMESPACE/NAME`.
    pub(crate) fn set_service(&mut self, key: &str, new: Option<Arc<Service>>) {
        self.serial = self.serial.wrapping_add(1);
        let old = match &new {
            Some(service) => self.services.insert(key.into(), service.clone()),
            None => self.services.remove(key),
        };
        for ip in old.iter().flat_map(|service| cluster_ips(service)) {
            if self.cluster_ips.get(&ip).is_some_and(|owner| **owner == *key) {
                self.cluster_ips.remove(&ip);
            }
        }
        for ip in new.iter().flat_map(|service| cluster_ips(service)) {
            self.cluster_ips.insert(ip, key.into());
        }
    }

    /// Adds, updates or removes a slice, by `NAMESPACE/NAME`. `old` is the former slice of the key.
    pub(crate) fn set_slice(
        &mut self,
        key: &str,
        old: Option<&Arc<EndpointSlice>>,
        new: Option<Arc<EndpointSlice>>,
    ) {
        self.serial = self.serial.wrapping_add(1);
        if let Some((service, slice)) = old.and_then(|slice| Some((owner(slice)?, slice))) {
            if let Some(slices) = self.slices.get_mut(&*service) {
                slices.remove(key);
                if slices.is_empty() {
                    self.slices.remove(&*service);
                }
            }
            for ip in addresses(slice) {
                discount(&mut self.endpoint_ips, ip, &service);
            }
        }
        if let Some((service, slice)) = new.and_then(|slice| Some((owner(&slice)?, slice))) {
            for ip in addresses(&slice) {
                count(&mut self.endpoint_ips, ip, &service);
            }
            self.slices.entry(service).or_default().insert(key.into(), slice);
        }
    }

    /// Adds, updates or removes a namespace with its labels. Names below a missing namespace do not exist.
    pub fn set_namespace(&mut self, name: &str, labels: Option<BTreeMap<String, String>>) {
        // The labels can decide which names exist.
        self.serial = self.serial.wrapping_add(1);
        match labels {
            Some(labels) => self.namespaces.insert(name.into(), labels),
            None => self.namespaces.remove(name),
        };
    }

    /// Counts a Pod's addresses, which is needed only for `pods verified`.
    pub fn set_pod(&mut self, old: Option<&Pod>, new: Option<&Pod>) {
        for (pod, ip) in old.into_iter().flat_map(|pod| pod.addresses().map(move |ip| (pod, ip))) {
            discount(&mut self.pod_ips, ip, &pod.metadata.namespace);
        }
        for (pod, ip) in new.into_iter().flat_map(|pod| pod.addresses().map(move |ip| (pod, ip))) {
            count(&mut self.pod_ips, ip, &pod.metadata.namespace);
        }
    }

    /// Returns the Service of this name.
    pub fn service(&self, namespace: &str, name: &str) -> Option<&Arc<Service>> {
        self.services.get(&*format!("{namespace}/{name}"))
    }

    /// Returns the labels of a namespace; `None` if it does not exist.
    pub(crate) fn namespace_labels(&self, namespace: &str) -> Option<&BTreeMap<String, String>> {
        self.namespaces.get(namespace)
    }

    /// Returns all Services with their namespaces and names.
    pub(crate) fn services(&self) -> impl Iterator<Item = (&str, &str, &Arc<Service>)> {
        self.services.iter().filter_map(|(key, service)| {
            let (namespace, name) = key.split_once('/')?;
            Some((namespace, name, service))
        })
    }

    /// Returns the namespace of the Pod with this address, unless several Pods share it on a host.
    pub(crate) fn namespace_of_pod(&self, ip: IpAddr) -> Option<&str> {
        let namespaces = self.pod_ips.get(&ip)?;
        namespaces.keys().next().filter(|_| namespaces.len() == 1).map(AsRef::as_ref)
    }

    /// Reports whether a Pod of the namespace has the address.
    pub(crate) fn has_pod(&self, namespace: &str, ip: IpAddr) -> bool {
        self.pod_ips.get(&ip).is_some_and(|namespaces| namespaces.contains_key(namespace))
    }

    /// Returns the slices of a Service by its name, even if the Service does not exist yet.
    pub fn slices(
        &self,
        namespace: &str,
        service: &str,
    ) -> impl Iterator<Item = &Arc<EndpointSlice>> {
        self.slices.get(&*format!("{namespace}/{service}")).into_iter().flat_map(BTreeMap::values)
    }

    /// Returns the namespace and name of the Service with this ClusterIP.
    pub(crate) fn by_cluster_ip(&self, ip: IpAddr) -> Option<(&str, &str)> {
        self.cluster_ips.get(&ip)?.split_once('/')
    }

    /// Returns the Services that have an endpoint with this address.
    pub(crate) fn by_endpoint_ip(&self, ip: IpAddr) -> impl Iterator<Item = (&str, &str)> {
        self.endpoint_ips
            .get(&ip)
            .into_iter()
            .flat_map(BTreeMap::keys)
            .filter_map(|key| key.split_once('/'))
    }

    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.services.is_empty()
            && self.slices.is_empty()
            && self.cluster_ips.is_empty()
            && self.endpoint_ips.is_empty()
            && self.pod_ips.is_empty()
    }
}

fn owner(slice: &EndpointSlice) -> Option<Box<str>> {
    Some(format!("{}/{}", slice.metadata.namespace, slice.service()?).into())
}

pub(crate) fn cluster_ips(service: &Service) -> Vec<IpAddr> {
    let texts = std::iter::once(&service.spec.cluster_ip).chain(&service.spec.cluster_ips);
    let mut ips: Vec<IpAddr> = texts.filter_map(|ip| ip.parse().ok()).collect();
    ips.sort();
    ips.dedup();
    ips
}

/// Returns the ready endpoints, which DNS publishes, with their addresses.
pub(crate) fn ready_addresses(
    slice: &EndpointSlice,
) -> impl Iterator<Item = (&SliceEndpoint, IpAddr)> {
    let ready = slice.endpoints.iter().filter(|endpoint| endpoint.conditions.ready());
    ready.flat_map(|endpoint| {
        endpoint.addresses.iter().filter_map(move |ip| Some((endpoint, ip.parse().ok()?)))
    })
}

fn addresses(slice: &EndpointSlice) -> HashSet<IpAddr> {
    ready_addresses(slice).map(|(_, ip)| ip).collect()
}

type Counts = HashMap<IpAddr, BTreeMap<Box<str>, u32>>;

fn count(counts: &mut Counts, ip: IpAddr, key: &str) {
    *counts.entry(ip).or_default().entry(key.into()).or_default() += 1;
}

fn discount(counts: &mut Counts, ip: IpAddr, key: &str) {
    let Some(keys) = counts.get_mut(&ip) else { return };
    if let Some(number) = keys.get_mut(key) {
        *number -= 1;
        if *number == 0 {
            keys.remove(key);
        }
    }
    if keys.is_empty() {
        counts.remove(&ip);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn slice(service: u8, ips: &[u8]) -> Arc<EndpointSlice> {
        let endpoints: Vec<_> =
            ips.iter().map(|ip| json!({"addresses": [format!("10.1.0.{ip}")]})).collect();
        let labels = json!({"kubernetes.io/service-name": format!("s{service}")});
        Arc::new(
            serde_json::from_value(
                json!({"metadata": {"namespace": "ns", "labels": labels}, "endpoints": endpoints}),
            )
            .unwrap(),
        )
    }

    fn service(ips: &[u8]) -> Arc<Service> {
        let ips: Vec<_> = ips.iter().map(|ip| format!("10.96.0.{ip}")).collect();
        Arc::new(serde_json::from_value(json!({"spec": {"clusterIPs": ips}})).unwrap())
    }

    proptest! {
        /// The reverse maps match the objects after any sequence of changes, and are empty when all are removed.
        #[test]
        fn reverse_maps_match_objects(
            slices in prop::collection::vec((0usize..4, 0u8..3, prop::option::of(prop::collection::vec(0u8..5, 0..4))), 0..40),
            services in prop::collection::vec((0usize..4, prop::option::of(0u8..8)), 0..40),
        ) {
            let mut index = Index::default();
            let mut known: [Option<Arc<EndpointSlice>>; 4] = Default::default();
            for (key, owner, ips) in slices {
                let new = ips.map(|ips| slice(owner, &ips));
                index.set_slice(&format!("ns/x{key}"), known[key].as_ref(), new.clone());
                known[key] = new;
            }
            for ip in 0..5u8 {
                let ip: IpAddr = [10, 1, 0, ip].into();
                let mut expected: Vec<_> = known.iter().flatten().filter(|slice| addresses(slice).contains(&ip)).filter_map(|slice| slice.service()).collect();
                expected.sort();
                expected.dedup();
                prop_assert_eq!(index.by_endpoint_ip(ip).map(|(_, name)| name).collect::<Vec<_>>(), expected);
            }
            for (key, slice) in known.iter().enumerate() {
                index.set_slice(&format!("ns/x{key}"), slice.as_ref(), None);
            }
            let mut last: [Option<u8>; 4] = [None; 4];
            for (key, ip) in services {
                // An address belongs to one Service at a time.
                let free = ip.filter(|ip| !last.iter().enumerate().any(|(other, taken)| other != key && *taken == Some(*ip)));
                index.set_service(&format!("ns/{key}"), free.map(|ip| service(&[ip])));
                last[key] = free;
            }
            for (key, ip) in last.iter().enumerate() {
                if let Some(ip) = ip {
                    prop_assert_eq!(index.by_cluster_ip([10, 96, 0, *ip].into()), Some(("ns", &*key.to_string())));
                }
                index.set_service(&format!("ns/{key}"), None);
            }
            prop_assert!(index.is_empty());
        }
    }
}
