//! Collects the facts for checking claims of Services ([`net_core::claims`]), and reports refused claims.

use std::{
    collections::{BTreeSet, HashMap},
    net::{IpAddr, SocketAddr},
    path::Path,
    sync::Arc,
    time::Duration,
};

use api_config::Kubeconfig;
use client::{Client, ListOptions, Resource};
use events::{EventRecorder, ObjectRef};
use net_core::{
    api::{Node, Protocol, Service},
    claims::{self, Host, Refusal},
};
use netlink::Net;
use tokio::time::Instant;

/// The time for which a socket stays reserved after its program was last seen, so that the program can restart.
const GRACE: Duration = Duration::from_secs(600);
/// The longest time between two listings of the listening sockets while no Service claims any.
const OBSERVE_INTERVAL: Duration = Duration::from_secs(30);
/// The longest time that resolving the API server's name may delay rules.
const RESOLVE: Duration = Duration::from_secs(2);
/// The number of refusals that are reported after a synchronization.
const REPORTS: usize = 16;

/// The sockets on which programs of this host listen, or listened recently.
#[derive(Debug, Default)]
pub(crate) struct Sockets {
    last_seen: HashMap<(Protocol, SocketAddr), Instant>,
    looked: Option<Instant>,
}

impl Sockets {
    /// Returns the facts for checking claims of `services`.
    pub(crate) fn observe(
        &mut self,
        net: &dyn Net,
        services: &[Arc<Service>],
        node: Option<&Node>,
        now: Instant,
    ) -> Result<Host, netlink::Error> {
        let claimed = services.iter().any(|service| claims::has_claims(service));
        if claimed
            || self.looked.is_none_or(|looked| now.duration_since(looked) >= OBSERVE_INTERVAL)
        {
            self.last_seen.extend(net.listeners()?.into_iter().map(|socket| (socket, now)));
            self.last_seen.retain(|_, time| now.duration_since(*time) < GRACE);
            self.looked = Some(now);
        }
        if !claimed {
            return Ok(Host::default());
        }
        let addresses = net.addresses()?.into_iter().map(|address| address.cidr.address);
        let mut host = Host {
            node: node.map(Node::addresses).unwrap_or_default().into_iter().collect(),
            interfaces: addresses.collect(),
            ..Host::default()
        };
        host.listeners.extend(self.last_seen.keys().copied());
        host.listeners.add_kubelet(node);
        Ok(host)
    }
}

/// The API servers in this node's kubeconfig.
pub(crate) struct ApiServers {
    /// Host and port.
    server: Option<(String, u16)>,
    addresses: BTreeSet<SocketAddr>,
    resolved: Option<Instant>,
}

impl ApiServers {
    /// Reads the server from a kubeconfig. Without a file only the endpoints in the API are known.
    pub(crate) fn of(kubeconfig: Option<&Path>) -> Self {
        let server = kubeconfig.and_then(|path| match Kubeconfig::load(path) {
            Ok(config) => host_and_port(&config.current().ok()?.cluster.server),
            Err(error) => {
                tracing::warn!(%error, "cannot read the kubeconfig; Services may take the API server's address in it");
                None
            }
        });
        Self { server, addresses: BTreeSet::new(), resolved: None }
    }

    /// Resolves the name at a limited rate. After a failure the former addresses stay.
    pub(crate) async fn addresses(&mut self) -> BTreeSet<SocketAddr> {
        let Some((host, port)) = &self.server else { return BTreeSet::new() };
        let is_due =
            self.resolved.is_none_or(|resolved| resolved.elapsed() >= OBSERVE_INTERVAL * 2);
        if !is_due || (self.resolved.is_some() && host.parse::<IpAddr>().is_ok()) {
            return self.addresses.clone();
        }
        let lookup = tokio::net::lookup_host((host.as_str(), *port));
        match tokio::time::timeout(RESOLVE, lookup).await {
            Ok(Ok(addresses)) => self.addresses = addresses.collect(),
            Ok(Err(error)) => {
                tracing::warn!(%error, host, "resolving the API server's name; Services may take its address");
            }
            Err(_) => {
                tracing::warn!(
                    host,
                    "resolving the API server's name takes too long; Services may take its address"
                );
            }
        }
        self.resolved = Some(Instant::now());
        self.addresses.clone()
    }
}

fn host_and_port(url: &str) -> Option<(String, u16)> {
    let url: http::Uri = url.parse().ok()?;
    let default = if url.scheme_str() == Some("http") { 80 } else { 443 };
    let host = url.host()?.trim_start_matches('[').trim_end_matches(']');
    Some((host.to_owned(), url.port_u16().unwrap_or(default)))
}

/// Reports claims that are not served, in the node's log and as Events of the Services.
pub(crate) struct Reporter {
    client: Client,
    events: EventRecorder,
    reported: BTreeSet<Refusal>,
}

impl Reporter {
    pub(crate) fn start(client: &Client, node: &str, tasks: &rt::Tasks) -> Self {
        let events = EventRecorder::start(client.clone(), "kube-proxy", node, tasks);
        Self { client: client.clone(), events, reported: BTreeSet::new() }
    }

    /// Reports new refusals. The rules are not updated meanwhile, so the rest is reported after later synchronizations.
    pub(crate) async fn report(&mut self, refusals: &BTreeSet<Refusal>) {
        for refusal in next_reports(&mut self.reported, refusals) {
            let service = format!("{}/{}", refusal.namespace, refusal.service);
            tracing::warn!(service, "{refusal}");
            let regarding = self.reference(&refusal).await;
            self.events.warning(regarding, "AddressInUse", refusal.to_string());
        }
    }

    /// Returns a reference to the Service with its uid, which `kubectl describe` needs. The proxy caches no uids.
    async fn reference(&self, refusal: &Refusal) -> ObjectRef {
        let named = ListOptions::fields(&format!("metadata.name={}", refusal.service));
        let services = Resource::SERVICES;
        let list =
            self.client.list::<api_meta::PartialObject>(&services, &refusal.namespace, &named);
        let service = tokio::time::timeout(RESOLVE, list).await;
        let service =
            service.ok().and_then(Result::ok).and_then(|list| list.items.into_iter().next());
        ObjectRef {
            api_version: "v1".to_owned(),
            kind: "Service".to_owned(),
            namespace: refusal.namespace.to_string(),
            name: refusal.service.to_string(),
            uid: service.map(|service| service.metadata.uid).unwrap_or_default(),
            ..ObjectRef::default()
        }
    }
}

/// Returns some refusals that are not reported, adds them to `reported`, and removes those that are none any more.
fn next_reports(reported: &mut BTreeSet<Refusal>, refusals: &BTreeSet<Refusal>) -> Vec<Refusal> {
    reported.retain(|refusal| refusals.contains(refusal));
    let next: Vec<_> = refusals.difference(reported).take(REPORTS).cloned().collect();
    reported.extend(next.iter().cloned());
    next
}

#[cfg(test)]
mod tests {
    use netlink::Fake;
    use serde_json::json;

    use super::*;

    fn claiming() -> Vec<Arc<Service>> {
        let service = json!({"metadata": {"name": "s", "namespace": "ns"}, "spec": {"clusterIP": "10.96.0.5",
            "externalIPs": ["192.0.2.1"], "ports": [{"port": 2380}]}});
        vec![Arc::new(serde_json::from_value(service).unwrap())]
    }

    #[test]
    fn keeps_sockets_of_restarting_program() {
        let net = Fake::new();
        let etcd = (Protocol::Tcp, "192.0.2.1:2380".parse().unwrap());
        net.set_listeners(&[etcd]);
        let mut sockets = Sockets::default();
        let began = Instant::now();
        // No Service claims anything yet.
        assert_eq!(sockets.observe(&net, &[], None, began).unwrap(), Host::default());
        net.set_listeners(&[]);
        let with_etcd = |host: &Host| {
            let mut listeners = claims::Listeners::default();
            listeners.add_kubelet(None);
            let without = listeners.clone();
            listeners.add(etcd.0, etcd.1);
            assert!(host.listeners == listeners || host.listeners == without);
            host.listeners == listeners
        };
        let later = began + Duration::from_secs(300);
        assert!(with_etcd(&sockets.observe(&net, &claiming(), None, later).unwrap()));
        let later = began + Duration::from_secs(601);
        assert!(!with_etcd(&sockets.observe(&net, &claiming(), None, later).unwrap()));
    }

    #[test]
    fn reports_few_refusals_at_once() {
        let refusal = |n: usize| Refusal {
            namespace: "tenant".into(),
            service: "s".into(),
            claim: format!("{n:04}"),
            reason: claims::Reason::Host,
        };
        let (mut reported, mut refusals) = (BTreeSet::new(), (0..40).map(refusal).collect());
        let mut next = |refusals: &_| next_reports(&mut reported, refusals);
        assert_eq!([16, 16, 8, 0], [(); 4].map(|()| next(&refusals).len()));
        let first = refusals.pop_first().unwrap();
        assert!(next(&refusals).is_empty());
        refusals.insert(first.clone());
        assert_eq!(next(&refusals), [first]);
    }

    #[test]
    fn reads_host_and_port_of_servers() {
        for (url, expected) in [
            ("https://192.0.2.1:6443", Some(("192.0.2.1", 6443))),
            ("https://[fd00::1]:6443", Some(("fd00::1", 6443))),
            ("https://api.example.com", Some(("api.example.com", 443))),
            ("http://api.example.com/prefix", Some(("api.example.com", 80))),
            ("", None),
        ] {
            let expected = expected.map(|(host, port)| (host.to_owned(), port));
            assert_eq!(host_and_port(url), expected, "{url}");
        }
    }
}
