//! Cluster IPs and node ports. The Services themselves say what is taken: the allocator follows their changes
//! and holds what a request has taken until its Service is stored or has failed.

mod held;
mod range;

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use api_meta::{Cidr, ErrorType, FieldError, Path, Status};
use serde_json::{Value, json};

pub(crate) use held::Held;

use crate::{
    cache::{Event, EventKind},
    call::Call,
    config::Config,
    definition::Definition,
    object::Object,
    server::Server,
};

pub(crate) struct Allocators(Arc<Mutex<State>>);

struct State {
    cidrs: Vec<Cidr>,
    /// What the ServiceCIDRs add, by their names.
    more: BTreeMap<String, Vec<Cidr>>,
    /// Which Service has which address, as `NAMESPACE/NAME`.
    owners: HashMap<IpAddr, Arc<str>>,
    ports: (u16, u16),
    /// How many Services or requests hold each address and port.
    addresses: HashMap<IpAddr, u32>,
    used_ports: HashMap<u16, u32>,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Allocators {
    pub(crate) fn new(config: &Config) -> Self {
        let state = State {
            cidrs: config.service_cidrs.iter().map(|range| range.network()).collect(),
            more: BTreeMap::new(),
            owners: HashMap::new(),
            ports: config.node_ports,
            addresses: HashMap::new(),
            used_ports: HashMap::new(),
        };
        Self(Arc::new(Mutex::new(state)))
    }

    /// Called with every change of what says which addresses there are and which are taken, in order.
    pub(crate) fn observer(&self) -> crate::hub::Observer {
        let state = self.0.clone();
        Box::new(move |definition: &Definition, event, _| {
            match (&*definition.group, &*definition.plural) {
                ("", "services") => lock(&state).service_changed(definition, event),
                ("networking.k8s.io", "ipaddresses") => lock(&state).address_changed(event),
                ("networking.k8s.io", "servicecidrs") => lock(&state).range_changed(event),
                _ => {}
            }
        })
    }

    /// The Service that has an address.
    pub(crate) fn owner(&self, address: IpAddr) -> Option<Arc<str>> {
        lock(&self.0).owners.get(&address).cloned()
    }
}

pub(crate) fn addresses(service: &Value) -> Vec<IpAddr> {
    let listed = service["spec"]["clusterIPs"].as_array().into_iter().flatten();
    let mut all: Vec<IpAddr> = listed.filter_map(|a| a.as_str()?.parse().ok()).collect();
    if all.is_empty() {
        all.extend(service["spec"]["clusterIP"].as_str().and_then(|a| a.parse::<IpAddr>().ok()));
    }
    all
}

fn ports(service: &Value) -> Vec<u16> {
    let listed = service["spec"]["ports"].as_array().into_iter().flatten().map(|p| &p["nodePort"]);
    let mut all: Vec<u16> = listed
        .chain([&service["spec"]["healthCheckNodePort"]])
        .filter_map(|p| u16::try_from(p.as_u64()?).ok())
        .filter(|p| *p != 0)
        .collect();
    // One port may serve both TCP and UDP.
    all.sort_unstable();
    all.dedup();
    all
}

impl State {
    fn less<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, u32>, key: &K) {
        if let Some(count) = counts.get_mut(key) {
            *count -= 1;
            if *count == 0 {
                counts.remove(key);
            }
        }
    }

    fn service_changed(&mut self, definition: &Definition, event: &Event) {
        let place = event.object.key.strip_prefix(&*definition.prefix).unwrap_or_default();
        if let Some(previous) = &event.previous {
            let tree = previous.tree().unwrap_or_default();
            for address in addresses(&tree) {
                Self::less(&mut self.addresses, &address);
                if self.owners.get(&address).is_some_and(|owner| **owner == *place) {
                    self.owners.remove(&address);
                }
            }
            ports(&tree).iter().for_each(|p| Self::less(&mut self.used_ports, p));
        }
        if event.kind != EventKind::Deleted {
            let tree = event.object.tree().unwrap_or_default();
            for address in addresses(&tree) {
                *self.addresses.entry(address).or_default() += 1;
                self.owners.insert(address, place.into());
            }
            ports(&tree).iter().for_each(|p| *self.used_ports.entry(*p).or_default() += 1);
        }
    }

    /// An address may be somebody's who is no Service. Those of Services are counted with the Services.
    fn address_changed(&mut self, event: &Event) {
        let Ok(address) = event.object.name().parse::<IpAddr>() else { return };
        let foreign =
            |object: &Object| object.tree().is_ok_and(|tree| crate::addresses::is_foreign(&tree));
        if event.previous.as_deref().is_some_and(foreign) {
            Self::less(&mut self.addresses, &address);
        }
        if event.kind != EventKind::Deleted && foreign(&event.object) {
            *self.addresses.entry(address).or_default() += 1;
        }
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
    fn ranges(&self, wanted: &str) -> Vec<Cidr> {
        let mut all: Vec<Cidr> = Vec::new();
        for cidr in self.cidrs.iter().chain(self.more.values().flatten()) {
            if family(&cidr.address) == wanted && !all.contains(cidr) {
                all.push(*cidr);
            }
        }
        all
    }

    /// A free address of the range. Random, and from the upper part first: the lower is kept for Services that
    /// ask for an address, as upstream does.
    fn free_address(&self, cidr: &Cidr) -> Option<IpAddr> {
        let usable = range::usable(*cidr);
        let reserved = (usable / 16).clamp(if usable > 16 { 16 } else { 0 }, 256);
        let start = reserved + rand::random_range(0..(usable - reserved).max(1));
        let upper = (start..usable).chain(reserved..start);
        upper
            .chain(0..reserved)
            .filter_map(|n| cidr.nth(n + 1))
            .find(|a| !self.addresses.contains_key(a))
    }

    fn free_port(&self) -> Option<u16> {
        let (low, high) = self.ports;
        let size = u32::from(high - low) + 1;
        let reserved = (size / 32).clamp(if size > 128 { 16 } else { 0 }, 128).min(size);
        let start = reserved + rand::random_range(0..(size - reserved).max(1));
        let all = (start..size).chain(reserved..start).chain(0..reserved);
        all.map(|n| low + n as u16).find(|p| !self.used_ports.contains_key(p))
    }
}

impl Server {
    /// Gives a Service its addresses and ports, or says why it cannot have those that it wants.
    pub(crate) fn allocate(
        &self,
        call: &Call,
        tree: &mut Value,
        old: Option<&Value>,
    ) -> Result<Held, Box<Status>> {
        let definition = &call.resource.definition;
        if !definition.is("", "services") || !matches!(call.path.subresource.as_str(), "") {
            return Ok(Held::nothing());
        }
        let mut request = Request {
            state: lock(&self.allocators.0),
            held: Held { state: None, addresses: Vec::new(), ports: Vec::new() },
        };
        let outcome = request.service(tree, old);
        let Request { state, mut held } = request;
        drop(state);
        held.state = Some(self.allocators.0.clone());
        match outcome {
            Ok(()) => Ok(held),
            // A range that is full is nobody's mistake.
            Err(error) if error.kind == ErrorType::Internal => {
                Err(Box::new(Status::internal(error.detail)))
            }
            Err(error) => {
                let name = tree["metadata"]["name"].as_str().unwrap_or_default();
                Err(Box::new(Status::invalid(&call.served().group_kind(), name, &[error])))
            }
        }
    }
}

struct Request<'a> {
    state: MutexGuard<'a, State>,
    held: Held,
}

impl Request<'_> {
    fn service(&mut self, tree: &mut Value, old: Option<&Value>) -> Result<(), FieldError> {
        let kind = tree["spec"]["type"].as_str().unwrap_or("ClusterIP").to_owned();
        let kept = old.map(addresses).unwrap_or_default();
        let kept_ports = old.map(ports).unwrap_or_default();
        if kind == "ExternalName" {
            return Ok(());
        }
        self.cluster_ips(tree, old, &kept)?;
        if matches!(kind.as_str(), "NodePort" | "LoadBalancer") {
            self.node_ports(tree, old, &kept_ports, &kind)?;
        }
        Ok(())
    }

    fn cluster_ips(
        &mut self,
        tree: &mut Value,
        old: Option<&Value>,
        kept: &[IpAddr],
    ) -> Result<(), FieldError> {
        let spec = Path::new("spec");
        self.families(tree, old)?;
        if tree["spec"]["clusterIP"] == "None" {
            tree["spec"]["clusterIPs"] = json!(["None"]);
            return Ok(());
        }
        let families: Vec<String> = strings(&tree["spec"]["ipFamilies"]);
        let mut wanted = strings(&tree["spec"]["clusterIPs"]);
        if wanted.is_empty()
            && let Some(one) = tree["spec"]["clusterIP"].as_str().filter(|a| !a.is_empty())
        {
            wanted.push(one.to_owned());
        }
        let mut given = Vec::new();
        for (i, family) in families.iter().enumerate() {
            let field = spec.child("clusterIPs");
            let ranges = self.state.ranges(family);
            if ranges.is_empty() {
                let field = spec.child("ipFamilies").index(i);
                let detail = "not configured on this cluster";
                return Err(FieldError::invalid(&field, family.as_str(), detail));
            }
            let address = match wanted.get(i) {
                Some(text) => {
                    let address: IpAddr = text.parse().map_err(|_| {
                        FieldError::invalid(
                            &field.index(i),
                            text.as_str(),
                            "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
                        )
                    })?;
                    if !kept.contains(&address) {
                        let taken = self.take_address(address, &ranges);
                        taken.map_err(|cause| {
                            let detail = format!("failed to allocate IP {text}: {cause}");
                            FieldError::invalid(&field, json!(wanted), detail)
                        })?;
                    }
                    address
                }
                None => {
                    let free = ranges.iter().find_map(|cidr| self.state.free_address(cidr));
                    let free = free.ok_or_else(|| {
                        FieldError::internal(
                            &spec.child("clusterIP"),
                            "failed to allocate a serviceIP: range is full",
                        )
                    })?;
                    self.hold_address(free);
                    free
                }
            };
            given.push(address.to_string());
        }
        tree["spec"]["clusterIP"] = json!(given.first().cloned().unwrap_or_default());
        tree["spec"]["clusterIPs"] = json!(given);
        Ok(())
    }

    /// Decides `ipFamilies` and `ipFamilyPolicy` from what is asked for and what the cluster has.
    fn families(&mut self, tree: &mut Value, old: Option<&Value>) -> Result<(), FieldError> {
        let headless_without_selector = tree["spec"]["clusterIP"] == "None"
            && tree["spec"]["selector"].as_object().is_none_or(|s| s.is_empty());
        let policy = tree["spec"]["ipFamilyPolicy"].as_str().map(str::to_owned);
        let policy = policy.unwrap_or_else(|| {
            if headless_without_selector { "RequireDualStack".into() } else { "SingleStack".into() }
        });
        let mut families = strings(&tree["spec"]["ipFamilies"]);
        if families.is_empty() {
            // An address that is asked for decides the family.
            let asked = tree["spec"]["clusterIP"].as_str().and_then(|a| a.parse::<IpAddr>().ok());
            families = match (asked, old) {
                (Some(address), _) => vec![family(&address).to_owned()],
                (None, Some(old)) => strings(&old["spec"]["ipFamilies"]),
                (None, None) => Vec::new(),
            };
        }
        if families.is_empty() {
            families.extend(self.state.cidrs.first().map(|c| family(&c.address).to_owned()));
        }
        let was = |spec: &Value| (spec["ipFamilyPolicy"] == policy, strings(&spec["ipFamilies"]));
        let (is_kept, before) = old.map(|old| was(&old["spec"])).unwrap_or_default();
        if policy == "SingleStack" && !is_kept && families == before {
            // Who asks for one family after two keeps the first.
            families.truncate(1);
        }
        let available: Vec<&str> = self.state.cidrs.iter().map(|c| family(&c.address)).collect();
        // A cluster may have got its second family since: a Service gets one when its policy changes, and not by an
        // update of something else.
        let is_content = policy == "PreferDualStack" && is_kept && families == before;
        if policy != "SingleStack" && families.len() == 1 && !is_content {
            let other = if families[0] == "IPv4" { "IPv6" } else { "IPv4" };
            if available.contains(&other) || headless_without_selector {
                families.push(other.to_owned());
            } else if policy == "RequireDualStack" {
                let field = Path::new("spec").child("ipFamilyPolicy");
                return Err(FieldError::invalid(
                    &field,
                    policy,
                    "this cluster is not configured for dual-stack services",
                ));
            }
        }
        tree["spec"]["ipFamilyPolicy"] = json!(policy);
        tree["spec"]["ipFamilies"] = json!(families);
        Ok(())
    }

    fn take_address(&mut self, address: IpAddr, ranges: &[Cidr]) -> Result<(), &'static str> {
        if !ranges.iter().any(|range| range::gives(*range, address)) {
            return Err("the provided network does not match the current range");
        }
        if self.state.addresses.contains_key(&address) {
            return Err("provided IP is already allocated");
        }
        self.hold_address(address);
        Ok(())
    }

    fn hold_address(&mut self, address: IpAddr) {
        *self.state.addresses.entry(address).or_default() += 1;
        self.held.addresses.push(address);
    }

    fn node_ports(
        &mut self,
        tree: &mut Value,
        old: Option<&Value>,
        kept: &[u16],
        kind: &str,
    ) -> Result<(), FieldError> {
        let spec = Path::new("spec");
        if kind == "LoadBalancer"
            && tree["spec"]["allocateLoadBalancerNodePorts"] == Value::Bool(false)
        {
            return Ok(());
        }
        let mut own: HashMap<u16, Vec<String>> = HashMap::new();
        let count = tree["spec"]["ports"].as_array().map_or(0, Vec::len);
        for i in 0..count {
            let port = &tree["spec"]["ports"][i];
            let protocol = port["protocol"].as_str().unwrap_or("TCP").to_owned();
            let field = spec.child("ports").index(i).child("nodePort");
            let wanted = port["nodePort"].as_u64().and_then(|p| u16::try_from(p).ok()).unwrap_or(0);
            // An update that leaves the node port out keeps the one that this port had.
            let before = || old.and_then(|o| same_port(&o["spec"]["ports"], port));
            let chosen = match wanted {
                0 => match before() {
                    Some(port) => port,
                    None => {
                        let free = self.state.free_port().ok_or_else(|| {
                            FieldError::internal(
                                &field,
                                "failed to allocate a nodePort: range is full",
                            )
                        })?;
                        self.hold_port(free);
                        free
                    }
                },
                wanted => {
                    let mine = kept.contains(&wanted)
                        || own.get(&wanted).is_some_and(|p| !p.contains(&protocol));
                    if !mine {
                        self.take_port(wanted, &field)?;
                    }
                    wanted
                }
            };
            own.entry(chosen).or_default().push(protocol);
            tree["spec"]["ports"][i]["nodePort"] = json!(chosen);
        }
        let local = kind == "LoadBalancer" && tree["spec"]["externalTrafficPolicy"] == "Local";
        if local && tree["spec"]["healthCheckNodePort"].as_u64().unwrap_or(0) == 0 {
            let field = spec.child("healthCheckNodePort");
            let free = self.state.free_port().ok_or_else(|| {
                FieldError::internal(&field, "failed to allocate a nodePort: range is full")
            })?;
            self.hold_port(free);
            tree["spec"]["healthCheckNodePort"] = json!(free);
        }
        Ok(())
    }

    fn take_port(&mut self, port: u16, field: &Path) -> Result<(), FieldError> {
        let (low, high) = self.state.ports;
        if !(low..=high).contains(&port) {
            let detail = format!(
                "provided port is not in the valid range. The range of valid ports is {low}-{high}"
            );
            return Err(FieldError::invalid(field, u64::from(port), detail));
        }
        if self.state.used_ports.contains_key(&port) {
            return Err(FieldError::invalid(
                field,
                u64::from(port),
                "provided port is already allocated",
            ));
        }
        self.hold_port(port);
        Ok(())
    }

    fn hold_port(&mut self, port: u16) {
        *self.state.used_ports.entry(port).or_default() += 1;
        self.held.ports.push(port);
    }
}

fn same_port(old: &Value, port: &Value) -> Option<u16> {
    let same = |o: &&Value| o["port"] == port["port"] && o["protocol"] == port["protocol"];
    let found = old.as_array()?.iter().find(same)?["nodePort"].as_u64()?;
    u16::try_from(found).ok().filter(|p| *p != 0)
}

fn strings(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn family(address: &IpAddr) -> &'static str {
    if address.is_ipv4() { "IPv4" } else { "IPv6" }
}
