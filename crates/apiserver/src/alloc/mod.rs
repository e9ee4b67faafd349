//! Cluster IPs and node ports. Who gets one is decided in the store, where several API servers meet: an address by
//! creating its IPAddress, a port by a compared write of upstream's bitmap. It is taken before its Service is written, and
//! what is left over by a crash in between is found by [`repair`]. Memory only says where to look first.

pub(crate) mod address;
pub(crate) mod bitmap;
pub(crate) mod held;
pub(crate) mod ports;
mod range;
pub(crate) mod service;

use std::{
    collections::{BTreeMap, HashSet},
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use api_meta::{Cidr, FieldError, GroupKind, Path, Status, Tree as _};
use client::Client;
use serde_json::{Value, json};
use tokio::sync::oneshot;

pub(crate) use held::Held;

use self::{
    address::Place,
    bitmap::Bitmap,
    ports::Ports,
    service::{Refused, Wanted, choose_ports, family, strings, wanted_addresses},
};
use crate::{
    config::Config,
    handlers::call::Call,
    registry::definition::Definition,
    server::Server,
    watch_cache::{
        event::{Event, EventKind},
        follower::Hub,
    },
};

pub(crate) struct Allocators {
    hub: Arc<Hub>,
    /// Through which IPAddresses are written.
    client: Client,
    hints: Hints,
    pub(crate) ports: Ports,
}

/// What this server has heard of addresses, which may be out of date.
#[derive(Clone)]
pub(crate) struct Hints(Arc<Mutex<Heard>>);

struct Heard {
    cidrs: Vec<Cidr>,
    /// What the ServiceCIDRs add, by their names.
    more: BTreeMap<String, Vec<Cidr>>,
    taken: HashSet<IpAddr>,
}

impl Hints {
    pub(crate) fn new(config: &Config) -> Self {
        let cidrs = config.service_cidrs.iter().map(|range| range.network()).collect();
        let heard = Heard { cidrs, more: BTreeMap::new(), taken: HashSet::new() };
        Self(Arc::new(Mutex::new(heard)))
    }

    fn lock(&self) -> MutexGuard<'_, Heard> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Called with every change of what says which addresses there are and which are taken, in order.
    pub(crate) fn observer(&self) -> crate::watch_cache::follower::Observer {
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
    fn ranges(&self, wanted: &str) -> Vec<Cidr> {
        let mut all: Vec<Cidr> = Vec::new();
        for cidr in self.cidrs.iter().chain(self.more.values().flatten()) {
            if family(cidr.address) == wanted && !all.contains(cidr) {
                all.push(*cidr);
            }
        }
        all
    }

    fn families(&self) -> Vec<&'static str> {
        self.cidrs.iter().map(|cidr| family(cidr.address)).collect()
    }
}

/// A Service that is to be written.
struct Request {
    new: Value,
    old: Option<Value>,
    dry_run: bool,
}

impl Server {
    /// Gives a Service its addresses and ports, or says why it cannot have those that it wants.
    pub(crate) async fn allocate(
        &self,
        call: &Call,
        tree: &mut Value,
        old: Option<&Value>,
    ) -> Result<Held, Box<Status>> {
        let definition = &call.resource.definition;
        if !definition.is("", "services") || !call.path.subresource.is_empty() {
            return Ok(Held::nothing());
        }
        let request =
            Request { new: std::mem::take(tree), old: old.cloned(), dry_run: call.dry_run() };
        let allocators = self.allocators.clone();
        let (done, outcome) = oneshot::channel();
        // A task of its own, because a client that goes away in the middle would leave behind what nobody knows of.
        self.hub.tasks.spawn("addresses and ports of a Service", async move {
            // Who asked may be gone; what was taken is then given back.
            let _ = done.send(allocators.serve(request).await);
        });
        let stopped = || Box::new(Status::internal("allocating: the server stops"));
        let (new, held) = outcome.await.map_err(|_| stopped())??;
        *tree = new;
        Ok(held)
    }

    /// What a write that ends an object gives back: all that the object has, if it is a Service.
    pub(crate) fn ending(&self, definition: &Definition, last: &Value, held: Held) -> Held {
        if !definition.is("", "services") {
            return held;
        }
        let mut held = match held.is_something() {
            true => held,
            false => Held::of(self.allocators.clone(), last),
        };
        held.giving_up_all(last);
        held
    }
}

impl Allocators {
    pub(crate) fn new(config: &Config, hub: Arc<Hub>, client: Client, hints: Hints) -> Self {
        Self { ports: Ports::new(hub.clone(), config.node_ports), hub, client, hints }
    }

    async fn serve(self: Arc<Self>, request: Request) -> Result<(Value, Held), Box<Status>> {
        let Request { mut new, old, dry_run } = request;
        let mut held = Held::of(self.clone(), &new);
        let families = self.hints.lock().families();
        let wanted = wanted_addresses(&mut new, old.as_ref(), &families)
            .map_err(|error| invalid(&new, error))?;
        self.addresses(&mut new, wanted, dry_run, &mut held).await?;
        self.node_ports(&mut new, old.as_ref(), dry_run, &mut held).await?;
        if let Some(old) = &old {
            held.giving_up(old, &new);
        }
        Ok((new, held))
    }

    async fn addresses(
        &self,
        service: &mut Value,
        wanted: Vec<Wanted>,
        dry_run: bool,
        held: &mut Held,
    ) -> Result<(), Box<Status>> {
        if wanted.is_empty() {
            return Ok(());
        }
        let mut given = Vec::new();
        let families = strings(&service["spec"]["ipFamilies"]);
        for (i, (family, wanted)) in families.into_iter().zip(wanted).enumerate() {
            let ranges = self.hints.lock().ranges(&family);
            if ranges.is_empty() {
                let field = Path::new("spec").child("ipFamilies").index(i);
                let detail = "not configured on this cluster";
                return Err(invalid(service, FieldError::invalid(&field, family, detail)));
            }
            let address = match wanted {
                Wanted::Kept(address) => address,
                Wanted::This(address) => {
                    self.this_address(service, address, &ranges, dry_run, held).await?;
                    address
                }
                Wanted::Any => self.any_address(&ranges, dry_run, held).await?,
            };
            given.push(address.to_string());
        }
        service.put(&["spec", "clusterIP"], json!(given.first().cloned().unwrap_or_default()));
        service.put(&["spec", "clusterIPs"], json!(given));
        Ok(())
    }

    async fn this_address(
        &self,
        service: &Value,
        address: IpAddr,
        ranges: &[Cidr],
        dry_run: bool,
        held: &mut Held,
    ) -> Result<(), Box<Status>> {
        let refuse = |cause: &str| {
            let field = Path::new("spec").child("clusterIPs");
            let mut asked = service["spec"]["clusterIPs"].clone();
            if asked.as_array().is_none_or(Vec::is_empty) {
                asked = json!([service["spec"]["clusterIP"]]);
            }
            let detail = format!("failed to allocate IP {address}: {cause}");
            Err(invalid(service, FieldError::invalid(&field, asked, detail)))
        };
        if !ranges.iter().any(|range| range::gives(*range, address)) {
            return refuse("the provided network does not match the current range");
        }
        if self.take(address, dry_run, held).await? {
            return Ok(());
        }
        refuse("provided IP is already allocated")
    }

    async fn any_address(
        &self,
        ranges: &[Cidr],
        dry_run: bool,
        held: &mut Held,
    ) -> Result<IpAddr, Box<Status>> {
        for range in ranges {
            for address in range::addresses(*range) {
                let heard_of = self.hints.lock().taken.contains(&address);
                if !heard_of && self.take(address, dry_run, held).await? {
                    return Ok(address);
                }
            }
        }
        let name = &held.place().name;
        let cause = format!("failed to allocate a serviceIP for Service {name:?}: range is full");
        Err(Box::new(Status::internal(cause)))
    }

    /// Returns whether nobody else has the address.
    async fn take(
        &self,
        address: IpAddr,
        dry_run: bool,
        held: &mut Held,
    ) -> Result<bool, Box<Status>> {
        if dry_run {
            let found = address::get(&self.client, address).await;
            return found.map(|found| found.is_none()).map_err(client_status);
        }
        let made = address::create(&self.client, address, held.place()).await;
        let Some(known) = made.map_err(client_status)? else { return Ok(false) };
        held.took().addresses.push(known);
        Ok(true)
    }

    async fn node_ports(
        &self,
        service: &mut Value,
        old: Option<&Value>,
        dry_run: bool,
        held: &mut Held,
    ) -> Result<(), Box<Status>> {
        if !matches!(service["spec"]["type"].as_str(), Some("NodePort" | "LoadBalancer")) {
            return Ok(());
        }
        // Most updates leave the ports as they are, and need not ask the store.
        if let Ok(chosen) = choose_ports(service, old, &mut Bitmap::new(self.ports.range))
            && chosen.taken.is_empty()
        {
            return Ok(());
        }
        let chosen = match dry_run {
            true => self.ports.try_out(|map| choose_ports(service, old, map)).await,
            false => self.ports.change(|map| choose_ports(service, old, map)).await,
        };
        let chosen = chosen.map_err(|error| error.status())?.map_err(|refused| match refused {
            Refused::Field(error) => invalid(service, error),
            Refused::Internal(cause) => Box::new(Status::internal(cause)),
        })?;
        chosen.apply(service);
        if !dry_run {
            held.took().ports = chosen.taken;
        }
        Ok(())
    }
}

fn invalid(service: &Value, error: FieldError) -> Box<Status> {
    let Place { name, .. } = Place::of(service);
    Box::new(Status::invalid(&GroupKind::new("", "Service"), &name, &[error]))
}

/// A failure of a request that the server has made of itself.
fn client_status(error: client::Error) -> Box<Status> {
    Box::new(Status::internal(format!("failed to allocate IP: {error}")))
}
