//! Builds the records of a cluster's zone (Kubernetes' DNS specification 1.1.0) for each query.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hickory_proto::rr::{
    Name, RData, Record, RecordType,
    rdata::{CNAME, NS, PTR, SOA, SRV, TXT},
};
use net_core::api::{EndpointSlice, Protocol, Service, ServiceType, SliceEndpoint};

use crate::{
    directive::parse_name,
    index::{Index, cluster_ips, ready_addresses},
    options::{KubernetesOptions, PodMode},
    records::{address_data, reversed},
};

/// The longest label; longer names of Pods are not names of endpoints.
const MAX_LABEL: usize = 63;

/// The answer for a name.
#[derive(Debug, PartialEq)]
pub enum Answer {
    /// The zone does not have the name (NXDOMAIN), unless another plugin knows it.
    NoSuchName,
    /// The name exists. Without answers it has no records of the type.
    Records { answers: Vec<Record>, additionals: Vec<Record> },
    /// The name is an alias, whose target must be resolved.
    Alias(Box<Alias>),
}

/// A CNAME record and its target, which the server resolves with its other plugins.
#[derive(Debug, PartialEq)]
pub struct Alias {
    /// The CNAME record.
    pub record: Record,
    /// The target of the alias.
    pub target: Name,
}

impl Answer {
    fn nothing() -> Self {
        Answer::Records { answers: Vec::new(), additionals: Vec::new() }
    }
}

/// A zone of the cluster, for answering queries.
pub struct Zone<'a> {
    /// The options of the plugin `kubernetes`.
    pub options: &'a KubernetesOptions,
    /// The zone's name in lower case.
    pub origin: &'a Name,
    /// The objects of the cluster.
    pub index: &'a Index,
}

/// An address that a Service's name stands for.
struct Target<'a> {
    ip: IpAddr,
    /// The first label of an endpoint's own name; `None` for a ClusterIP, which has the Service's name.
    host: Option<String>,
    ports: Vec<Port<'a>>,
}

struct Port<'a> {
    name: &'a str,
    protocol: Protocol,
    number: u16,
}

/// A name of a Service, of one of its endpoints or of one of its ports.
struct ServiceQuery<'q> {
    namespace: &'q str,
    name: &'q str,
    endpoint: Option<&'q str>,
    port: Option<PortQuery<'q>>,
}

impl<'q> ServiceQuery<'q> {
    fn whole(namespace: &'q str, name: &'q str) -> Self {
        Self { namespace, name, endpoint: None, port: None }
    }
}

/// The query for a port: `_name._protocol` before a Service's name.
struct PortQuery<'q> {
    name: &'q str,
    protocol: &'q str,
}

impl PortQuery<'_> {
    fn matches(&self, port: &Port<'_>) -> bool {
        port.name.eq_ignore_ascii_case(self.name) && port.protocol.lower() == self.protocol
    }
}

impl<'a> Zone<'a> {
    /// Answers a query. `owner` is the name with the letter case of the query, which the answers repeat.
    pub fn answer(&self, owner: &Name, kind: RecordType) -> Answer {
        let lower = owner.to_lowercase();
        if is_reverse(self.origin) {
            return self.reverse(owner, &lower, kind);
        }
        let above = usize::from(self.origin.num_labels());
        let below = usize::from(lower.num_labels()).saturating_sub(above);
        let labels: Option<Vec<&str>> =
            lower.iter().take(below).map(|label| std::str::from_utf8(label).ok()).collect();
        let Some(labels) = labels else { return Answer::NoSuchName };
        match labels.as_slice() {
            [] => self.apex(owner, kind),
            ["dns-version"] if kind == RecordType::TXT => self
                .records(vec![self.record(owner, RData::TXT(TXT::new(vec!["1.1.0".to_owned()])))]),
            ["dns-version"] | ["svc"] | ["dns"] => Answer::nothing(),
            ["ns", "dns"] => self.server(owner, kind),
            ["pod"] if self.options.pods != PodMode::Disabled => Answer::nothing(),
            [namespace, "svc"] => self.namespace(namespace),
            [namespace, "pod"] if self.options.pods != PodMode::Disabled => {
                self.namespace(namespace)
            }
            [ip, namespace, "pod"] => self.pod(owner, ip, namespace, kind),
            [name, namespace, "svc"] => {
                self.service(owner, ServiceQuery::whole(namespace, name), kind)
            }
            [endpoint, name, namespace, "svc"] => {
                let whole = ServiceQuery::whole(namespace, name);
                self.service(owner, ServiceQuery { endpoint: Some(endpoint), ..whole }, kind)
            }
            [port, protocol, service, namespace, "svc"] => {
                let (Some(name), Some(protocol)) =
                    (port.strip_prefix('_'), protocol.strip_prefix('_'))
                else {
                    return Answer::NoSuchName;
                };
                let port = Some(PortQuery { name, protocol });
                let whole = ServiceQuery::whole(namespace, service);
                self.service(owner, ServiceQuery { port, ..whole }, kind)
            }
            _ => Answer::NoSuchName,
        }
    }

    fn apex(&self, owner: &Name, kind: RecordType) -> Answer {
        match kind {
            RecordType::SOA => self.records(vec![self.soa(owner)]),
            RecordType::NS => match self.below("ns.dns") {
                Some(server) => self.records(vec![self.record(owner, RData::NS(NS(server)))]),
                None => Answer::nothing(),
            },
            _ => Answer::nothing(),
        }
    }

    /// Returns the SOA record, which negative answers carry so that they can be cached.
    pub(crate) fn soa(&self, owner: &Name) -> Record {
        let contact = |prefix: &str| self.below(prefix).unwrap_or_else(|| self.origin.clone());
        let soa = SOA::new(
            contact("ns.dns"),
            contact("hostmaster"),
            self.index.serial,
            7200,
            1800,
            86_400,
            self.options.ttl,
        );
        self.record(owner, RData::SOA(soa))
    }

    /// The zone's name server is the Service `kube-dns`, which clients use.
    fn server(&self, owner: &Name, kind: RecordType) -> Answer {
        match self.service(owner, ServiceQuery::whole("kube-system", "kube-dns"), kind) {
            Answer::NoSuchName => Answer::nothing(),
            answer => answer,
        }
    }

    fn namespace(&self, namespace: &str) -> Answer {
        if self.exposes(namespace) { Answer::nothing() } else { Answer::NoSuchName }
    }

    /// Reports whether the namespace exists and has records.
    fn exposes(&self, namespace: &str) -> bool {
        let listed = &self.options.namespaces;
        let is_listed = listed.is_empty() || listed.iter().any(|name| **name == *namespace);
        let selector = self.options.namespace_labels.as_ref();
        let labels = self.index.namespace_labels(namespace).filter(|_| is_listed);
        labels.is_some_and(|labels| selector.is_none_or(|selector| selector.matches(labels)))
    }

    /// Reports whether a Service has records. Its namespace may be loaded later than the Service.
    fn is_exposed(&self, namespace: &str, service: &Service) -> bool {
        let by_namespace =
            self.options.namespaces.is_empty() && self.options.namespace_labels.is_none();
        let selector = self.options.labels.as_ref();
        (by_namespace || self.exposes(namespace))
            && selector.is_none_or(|selector| selector.matches(&service.metadata.labels))
    }

    fn find_service(&self, namespace: &str, name: &str) -> Option<&'a Service> {
        let service = self.index.service(namespace, name).map(AsRef::as_ref);
        service.filter(|service| self.is_exposed(namespace, service))
    }

    /// Answers a query for `10-1-0-2.namespace.pod`.
    fn pod(&self, owner: &Name, dashed: &str, namespace: &str, kind: RecordType) -> Answer {
        let Some(ip) = parse_dashed(dashed) else { return Answer::NoSuchName };
        let exists = match self.options.pods {
            PodMode::Disabled => false,
            PodMode::Insecure => self.exposes(namespace),
            PodMode::Verified => self.exposes(namespace) && self.index.has_pod(namespace, ip),
        };
        if !exists {
            return Answer::NoSuchName;
        }
        self.records(self.address(owner, ip, kind).into_iter().collect())
    }

    fn service(&self, owner: &Name, query: ServiceQuery<'_>, kind: RecordType) -> Answer {
        let ServiceQuery { namespace, name, endpoint, port } = query;
        let Some(service) = self.find_service(namespace, name) else { return Answer::NoSuchName };
        if service.spec.kind == ServiceType::ExternalName {
            return self.alias(owner, service, endpoint.is_none() && port.is_none());
        }
        let has_endpoints = || {
            self.index.slices(namespace, name).any(|slice| ready_addresses(slice).next().is_some())
        };
        if self.options.ignores_empty_services && !has_endpoints() {
            return Answer::NoSuchName;
        }
        let mut targets = match endpoint {
            None if service.spec.cluster_ip != "None" => cluster_targets(service),
            _ => self.endpoint_targets(namespace, name),
        };
        if let Some(endpoint) = endpoint {
            targets.retain(|target| target.host.as_deref() == Some(endpoint));
        }
        if let Some(port) = &port {
            targets.iter_mut().for_each(|target| target.ports.retain(|other| port.matches(other)));
            targets.retain(|target| !target.ports.is_empty());
        }
        if targets.is_empty() {
            return Answer::NoSuchName;
        }
        match kind {
            RecordType::SRV => self.srv(owner, namespace, name, &targets),
            _ => self.records(
                targets.iter().filter_map(|target| self.address(owner, target.ip, kind)).collect(),
            ),
        }
    }

    fn alias(&self, owner: &Name, service: &Service, whole: bool) -> Answer {
        let target = parse_name(&service.spec.external_name);
        let Some(target) = target.ok().filter(|_| whole) else { return Answer::NoSuchName };
        let record = self.record(owner, RData::CNAME(CNAME(target.clone())));
        Answer::Alias(Box::new(Alias { record, target }))
    }

    fn endpoint_targets(&self, namespace: &str, service: &str) -> Vec<Target<'a>> {
        if self.options.no_endpoints {
            return Vec::new();
        }
        let slices: Vec<&'a EndpointSlice> =
            self.index.slices(namespace, service).map(AsRef::as_ref).collect();
        let mut targets: Vec<Target<'a>> = Vec::new();
        for slice in slices {
            for (endpoint, ip) in ready_addresses(slice) {
                let host = Some(self.host(endpoint, ip));
                let ports = slice.ports.iter().filter_map(|port| {
                    let name = port.name.as_deref().unwrap_or_default();
                    Some(Port { name, protocol: port.protocol, number: port.port? })
                });
                // An endpoint can be in two slices while it moves between them.
                if !targets.iter().any(|target| target.ip == ip && target.host == host) {
                    targets.push(Target { ip, host, ports: ports.collect() });
                }
            }
        }
        targets
    }

    /// Returns an endpoint's label below its Service.
    fn host(&self, endpoint: &SliceEndpoint, ip: IpAddr) -> String {
        if let Some(hostname) = endpoint.hostname.as_deref().filter(|hostname| !hostname.is_empty())
        {
            return hostname.to_owned();
        }
        let target = endpoint.target_ref.as_deref().filter(|target| &*target.kind == "Pod");
        match target.filter(|_| self.options.endpoint_pod_names) {
            Some(pod) if pod.name.len() <= MAX_LABEL => pod.name.to_string(),
            _ => ip.to_string().replace(['.', ':'], "-"),
        }
    }

    fn srv(&self, owner: &Name, namespace: &str, service: &str, targets: &[Target<'_>]) -> Answer {
        let (mut answers, mut additionals) = (Vec::new(), Vec::new());
        for target in targets {
            let tail = format!("{service}.{namespace}.svc");
            let host = match &target.host {
                None => self.below(&tail),
                Some(host) => self.below(&format!("{host}.{tail}")),
            };
            let Some(host) = host else { continue };
            for port in &target.ports {
                let record =
                    self.record(owner, RData::SRV(SRV::new(0, 100, port.number, host.clone())));
                // A Service with addresses of both families has one name.
                if !answers.contains(&record) {
                    answers.push(record);
                }
            }
            additionals.push(self.record(&host, address_data(target.ip)));
        }
        Answer::Records { answers, additionals }
    }

    /// Answers a query for `2.0.1.10.in-addr.arpa`.
    fn reverse(&self, owner: &Name, lower: &Name, kind: RecordType) -> Answer {
        let Some(ip) = reversed(lower) else { return Answer::NoSuchName };
        let zone = self.options.zones.iter().find(|zone| !is_reverse(zone));
        let Some(zone) = zone else { return Answer::NoSuchName };
        let forward = Zone { options: self.options, origin: zone, index: self.index };
        let names = forward.names_of(ip);
        if names.is_empty() {
            return Answer::NoSuchName;
        }
        if kind != RecordType::PTR {
            return Answer::nothing();
        }
        self.records(
            names.into_iter().map(|name| self.record(owner, RData::PTR(PTR(name)))).collect(),
        )
    }

    fn names_of(&self, ip: IpAddr) -> Vec<Name> {
        let own = self.index.by_cluster_ip(ip);
        if let Some((namespace, service)) =
            own.filter(|(namespace, name)| self.find_service(namespace, name).is_some())
        {
            return self.below(&format!("{service}.{namespace}.svc")).into_iter().collect();
        }
        if self.options.no_endpoints {
            return Vec::new();
        }
        let mut names = Vec::new();
        for (namespace, service) in self.index.by_endpoint_ip(ip) {
            // The Service of a slice may be loaded later.
            if self.index.service(namespace, service).is_some()
                && self.find_service(namespace, service).is_none()
            {
                continue;
            }
            let slices = self.index.slices(namespace, service);
            let endpoints = slices
                .flat_map(|slice| ready_addresses(slice))
                .filter(|(_, address)| *address == ip);
            let hosts = endpoints.map(|(endpoint, ip)| self.host(endpoint, ip));
            names.extend(
                hosts.filter_map(|host| self.below(&format!("{host}.{service}.{namespace}.svc"))),
            );
        }
        names.sort();
        names.dedup();
        names
    }

    /// Returns the records of all Services, between two SOA records.
    pub(crate) fn transfer(&self) -> Vec<Record> {
        let soa = self.soa(self.origin);
        let mut records = vec![soa.clone()];
        if let Answer::Records { answers, .. } = self.apex(self.origin, RecordType::NS) {
            records.extend(answers);
        }
        for (namespace, name, _) in self.index.services() {
            let Some(owner) = self.below(&format!("{name}.{namespace}.svc")) else { continue };
            for kind in [RecordType::A, RecordType::AAAA, RecordType::SRV] {
                match self.service(&owner, ServiceQuery::whole(namespace, name), kind) {
                    Answer::Records { answers, additionals } => {
                        records.extend(answers);
                        // The addresses of a Service's endpoints, which have names of their own.
                        records
                            .extend(additionals.into_iter().filter(|record| record.name != owner));
                    }
                    Answer::Alias(alias) if kind == RecordType::A => records.push(alias.record),
                    Answer::Alias(_) | Answer::NoSuchName => {}
                }
            }
        }
        records.push(soa);
        records
    }

    /// Returns a name in this zone; `None` if it would be too long.
    pub(crate) fn below(&self, prefix: &str) -> Option<Name> {
        let mut name = Name::from_ascii(prefix).ok()?.append_domain(self.origin).ok()?;
        name.set_fqdn(true);
        Some(name)
    }

    fn records(&self, answers: Vec<Record>) -> Answer {
        Answer::Records { answers, additionals: Vec::new() }
    }

    fn record(&self, owner: &Name, data: RData) -> Record {
        Record::from_rdata(owner.clone(), self.options.ttl, data)
    }

    fn address(&self, owner: &Name, ip: IpAddr, kind: RecordType) -> Option<Record> {
        let address_kind = if ip.is_ipv4() { RecordType::A } else { RecordType::AAAA };
        (kind == address_kind).then(|| self.record(owner, address_data(ip)))
    }
}

fn cluster_targets(service: &Service) -> Vec<Target<'_>> {
    let target = |ip| {
        let ports = service.spec.ports.iter().map(|port| Port {
            name: &port.name,
            protocol: port.protocol,
            number: port.port,
        });
        Target { ip, host: None, ports: ports.collect() }
    };
    cluster_ips(service).into_iter().map(target).collect()
}

/// Reports whether a zone holds the names of addresses.
pub(crate) fn is_reverse(zone: &Name) -> bool {
    zone.iter().next_back().is_some_and(|label| label == b"arpa")
}

/// Parses `10-1-0-2`, or an IPv6 address with dashes for colons.
fn parse_dashed(text: &str) -> Option<IpAddr> {
    let v4 = || text.replace('-', ".").parse::<Ipv4Addr>().ok().map(IpAddr::from);
    v4().or_else(|| text.replace('-', ":").parse::<Ipv6Addr>().ok().map(IpAddr::from))
}

#[cfg(test)]
mod tests;
