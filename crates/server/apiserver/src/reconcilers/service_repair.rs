//! Repairs differences between the addresses and ports of Services and their allocations in the store. They differ
//! after a crash between two writes, after a manual change of one of them, and while a Service is being written. An
//! allocation without a Service is therefore kept for upstream's grace period.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use api_meta::{GroupResource, Objects, Timestamp, Tree as _};
use client::{Error, WorkQueue};
use parking_lot::Mutex;
use serde_json::Value;

use crate::{
    alloc::{
        Pool,
        address::{self, AddressRevision, ServiceName, is_labelled, is_managed},
        bitmap::Bitmap,
        ports::{PortsError, StoredBitmap},
        service::{addresses, ports},
    },
    clock,
    watch_cache::{ObservedChange, Observer, WatchCache},
};

/// The dependencies of the repair.
pub(crate) struct Repair {
    pub(crate) cache: Arc<WatchCache>,
    pub(crate) objects: Arc<dyn Objects>,
    pub(crate) pool: Arc<Pool>,
}

/// The grace period of an address without a Service. No request lives longer.
const GRACE: Duration = Duration::from_secs(60);
/// The delay before an address of a deleted Service is checked. The server that deletes the Service releases its
/// addresses; the others only verify it.
const RELEASED: Duration = Duration::from_secs(5);
/// The interval of the repair of node ports.
const EVERY: Duration = Duration::from_secs(180);
/// The number of further repairs in which a port must be unused before it is released, as upstream.
const SEEN_LEFT_OVER: u8 = 2;

/// A key of the work queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Key {
    Service(ServiceName),
    Address(IpAddr),
}

/// Enqueues changed Services and addresses for [`follow`].
pub(crate) fn observer() -> (Observer, WorkQueue<Key>) {
    let queue = WorkQueue::default();
    let changes = queue.clone();
    let seen = Mutex::<References>::default();
    let observe = move |observed: &ObservedChange<'_>| {
        let (definition, object) = (observed.definition, &observed.event.object);
        let mut seen = seen.lock();
        if definition.is("", "services") {
            let (namespace, name) = (object.namespace().to_owned(), object.name().to_owned());
            let dropped = seen.service(ServiceName { namespace, name }, observed.object, &changes);
            dropped.for_each(|address| changes.add_after(Key::Address(address), RELEASED));
        } else if definition.is("networking.k8s.io", "ipaddresses")
            && let Ok(address) = object.name().parse()
        {
            changes.add(Key::Address(address));
            // A deleted address of a Service is created again.
            let lost = seen.address(address, observed.object);
            lost.into_iter().for_each(|place| changes.add(Key::Service(place)));
        }
    };
    (Box::new(observe), queue)
}

/// The last observed references between Services and addresses.
#[derive(Default)]
struct References {
    addresses: HashMap<ServiceName, Vec<IpAddr>>,
    parents: HashMap<IpAddr, ServiceName>,
}

impl References {
    /// Records a Service and returns the addresses that it no longer has.
    fn service(
        &mut self,
        place: ServiceName,
        service: Option<&Value>,
        changes: &WorkQueue<Key>,
    ) -> impl Iterator<Item = IpAddr> {
        let now = service.map(addresses).unwrap_or_default();
        let before = match service {
            Some(_) => self.addresses.insert(place.clone(), now.clone()),
            None => self.addresses.remove(&place),
        };
        let before = before.unwrap_or_default();
        if service.is_some() && now != before {
            changes.add(Key::Service(place));
        }
        before.into_iter().filter(move |address| !now.contains(address))
    }

    /// Records an IPAddress and returns the Service that has lost it.
    fn address(&mut self, address: IpAddr, object: Option<&Value>) -> Option<ServiceName> {
        match object {
            Some(object) => {
                match ServiceName::parent(object) {
                    Some(parent) => self.parents.insert(address, parent),
                    None => self.parents.remove(&address),
                };
                None
            }
            None => self.parents.remove(&address),
        }
    }
}

/// Repairs every Service once, and the node ports. Until then, addresses of existing Services may seem free. Returns
/// the unused ports.
pub(crate) async fn first(repair: &Repair) -> BTreeMap<u16, u8> {
    let services = repair.objects.list(&GroupResource::new("", "services"), "");
    for place in services.iter().map(|service| ServiceName::of(service)) {
        if let Err(error) = service(repair, &place).await {
            tracing::warn!(?place, %error, "failed to repair the addresses of a Service");
        }
    }
    let mut left_over = BTreeMap::new();
    all_ports(repair, &mut left_over).await;
    left_over
}

/// Repairs changed Services and addresses, and periodically all ports, until shutdown. `left_over` is the result of
/// [`first`].
pub(crate) fn follow(
    repair: &Arc<Repair>,
    queue: &WorkQueue<Key>,
    mut left_over: BTreeMap<u16, u8>,
    tasks: &rt::Tasks,
) {
    let (own, again) = (repair.clone(), queue.clone());
    queue.run(tasks, "addresses of services", 1, move |key| {
        let (repair, queue) = (own.clone(), again.clone());
        async move {
            let done = match &key {
                Key::Service(place) => service(&repair, place).await,
                Key::Address(address) => one_address(&repair, *address).await,
            };
            match done {
                Ok(again) => again.into_iter().for_each(|wait| queue.add_after(key.clone(), wait)),
                Err(error) => {
                    tracing::warn!(?key, %error, "failed to repair the addresses of Services; retrying");
                    return false;
                }
            }
            true
        }
    });
    let repair = repair.clone();
    tasks.spawn_until_shutdown("node ports of services", async move {
        loop {
            tokio::time::sleep(EVERY).await;
            all_ports(&repair, &mut left_over).await;
        }
    });
}

fn kind_of_addresses() -> GroupResource {
    GroupResource::new("networking.k8s.io", "ipaddresses")
}

fn find(repair: &Repair, address: IpAddr) -> Option<Arc<Value>> {
    repair.objects.get(&kind_of_addresses(), "", &address.to_string())
}

/// Returns `true` if the Service exists and has the address.
fn has(repair: &Repair, place: &ServiceName, address: IpAddr) -> bool {
    let services = GroupResource::new("", "services");
    let found = repair.objects.get(&services, &place.namespace, &place.name);
    found.is_some_and(|service| addresses(&service).contains(&address))
}

/// Waits until the caches contain all earlier writes, because the object to be judged may be new.
async fn up_to_date(repair: &Repair) -> Result<(), Error> {
    repair.cache.consistent(&[GroupResource::SERVICES, kind_of_addresses()]).await.map_err(
        |source| Error::Transport {
            operation: "reading",
            target: "the store's revision".to_owned(),
            source: Box::new(source),
        },
    )
}

/// Corrects the IPAddresses of a Service. Returns the delay before it must be checked again.
async fn service(repair: &Repair, place: &ServiceName) -> Result<Option<Duration>, Error> {
    let services = GroupResource::new("", "services");
    let found = repair.objects.get(&services, &place.namespace, &place.name);
    let mut again = None;
    for address in found.map(|service| addresses(&service)).unwrap_or_default() {
        if recorded(repair, place, address) == AddressRecord::Correct {
            continue;
        }
        up_to_date(repair).await?;
        if !has(repair, place, address) {
            continue;
        }
        match recorded(repair, place, address) {
            AddressRecord::Correct => {}
            AddressRecord::Pending(wait) => again = Some(wait),
            AddressRecord::Wrong(object) => {
                tracing::warn!(?place, %address, "the IPAddress of a Service has a wrong reference; repairing");
                address::delete(&repair.pool.client, &AddressRevision::of(address, &object))
                    .await?;
                record(repair, place, address).await?;
            }
            AddressRecord::Missing => {
                tracing::warn!(?place, %address, "the address of a Service is not allocated; repairing");
                record(repair, place, address).await?;
            }
        }
    }
    Ok(again)
}

async fn record(repair: &Repair, place: &ServiceName, address: IpAddr) -> Result<(), Error> {
    if address::create(&repair.pool.client, address, place).await?.is_none() {
        tracing::warn!(?place, %address, "the address of a Service is allocated to another one; recreate the Service");
    }
    Ok(())
}

/// The state of the IPAddress object for an address of a Service.
#[derive(Debug, PartialEq)]
enum AddressRecord {
    /// The object refers to this Service, or rightly to another one.
    Correct,
    /// The object refers to a Service that may still be created, for this long.
    Pending(Duration),
    Wrong(Arc<Value>),
    Missing,
}

fn recorded(repair: &Repair, place: &ServiceName, address: IpAddr) -> AddressRecord {
    let Some(object) = find(repair, address) else { return AddressRecord::Missing };
    match ServiceName::parent(&object) {
        Some(parent) if parent == *place && is_labelled(address, &object) => AddressRecord::Correct,
        Some(parent) if parent != *place && has(repair, &parent, address) => {
            tracing::warn!(?place, ?parent, %address, "an address was assigned to two Services; recreate one");
            AddressRecord::Correct
        }
        Some(parent) if parent != *place => match grace(&object) {
            Some(wait) => AddressRecord::Pending(wait),
            None => AddressRecord::Wrong(object),
        },
        _ => AddressRecord::Wrong(object),
    }
}

/// Returns the rest of the grace period of an object without its Service.
fn grace(object: &Value) -> Option<Duration> {
    let born = object.text("metadata.creationTimestamp").parse::<Timestamp>().ok()?;
    GRACE.checked_sub(clock::now().since(born)).filter(|rest| !rest.is_zero())
}

/// Deletes an IPAddress whose Service was not created or no longer exists. Returns the delay before it must be checked
/// again.
async fn one_address(repair: &Repair, address: IpAddr) -> Result<Option<Duration>, Error> {
    let is_used = |object: &Value| match ServiceName::parent(object) {
        Some(parent) => has(repair, &parent, address),
        None => false,
    };
    let leaked = || find(repair, address).filter(|it| is_managed(it) && !is_used(it));
    let Some(object) = leaked() else { return Ok(None) };
    if let Some(rest) = grace(&object).filter(|_| ServiceName::parent(&object).is_some()) {
        return Ok(Some(rest));
    }
    up_to_date(repair).await?;
    let Some(object) = leaked() else { return Ok(None) };
    tracing::warn!(%address, "an IPAddress appears to have leaked: cleaning up");
    address::delete(&repair.pool.client, &AddressRevision::of(address, &object)).await?;
    Ok(None)
}

async fn all_ports(repair: &Repair, left_over: &mut BTreeMap<u16, u8>) {
    if let Err(error) = ports_once(repair, left_over).await {
        tracing::warn!(%error, "failed to repair the allocation of node ports; retrying");
    }
}

/// Stores the ports that Services have. The stored map is read before the Services: a Service in the cache whose port
/// is not in that map is then an older one, not one that is being created.
async fn ports_once(repair: &Repair, left_over: &mut BTreeMap<u16, u8>) -> Result<(), PortsError> {
    let stores = &repair.pool.ports;
    loop {
        let stored = stores.stored().await?;
        repair.cache.consistent(&[GroupResource::SERVICES]).await?;
        let services = repair.objects.list(&GroupResource::SERVICES, "");
        let used: BTreeSet<u16> = services.iter().flat_map(|service| ports(service)).collect();
        let (map, seen) = repaired(stored.as_ref(), stores.range, &used, left_over);
        let unchanged = stored.as_ref().is_some_and(|stored| stored.map == map);
        let revision = stored.map_or(0, |stored| stored.revision);
        if unchanged || stores.replace(map, revision).await? {
            *left_over = seen;
            return Ok(());
        }
    }
}

/// Returns the ports of Services plus unused ports within their grace period, and for each of the latter the number of
/// further repairs that it survives.
fn repaired(
    stored: Option<&StoredBitmap>,
    range: (u16, u16),
    used: &BTreeSet<u16>,
    left_over: &BTreeMap<u16, u8>,
) -> (Bitmap, BTreeMap<u16, u8>) {
    let (mut map, mut seen) = (Bitmap::new(range), BTreeMap::new());
    for port in used {
        if let Err(error) = map.take(*port) {
            tracing::warn!(port, %error, "the node port of a Service cannot be allocated; recreate the Service");
        }
    }
    for port in stored.into_iter().flat_map(|stored| stored.map.allocated()) {
        let left = match left_over.get(&port) {
            _ if used.contains(&port) => continue,
            None => SEEN_LEFT_OVER,
            Some(0) => {
                tracing::warn!(port, "a node port appears to have leaked: cleaning up");
                continue;
            }
            Some(left) => *left,
        };
        // Ports outside the current range are dropped.
        if map.take(port).is_ok() {
            seen.insert(port, left - 1);
        }
    }
    (map, seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frees_unused_port_after_three_repairs() {
        let range = (30_000, 30_009);
        let mut stored = StoredBitmap { map: Bitmap::new(range), revision: 7 };
        [30_001, 30_002].iter().for_each(|port| stored.map.take(*port).unwrap());
        let used = BTreeSet::from([30_002, 30_003, 80]);
        let mut left_over = BTreeMap::new();
        for taken in
            [vec![30_001, 30_002, 30_003], vec![30_001, 30_002, 30_003], vec![30_002, 30_003]]
        {
            let (map, seen) = repaired(Some(&stored), range, &used, &left_over);
            assert_eq!(map.allocated().collect::<Vec<_>>(), taken);
            (stored.map, left_over) = (map, seen);
        }
        assert!(left_over.is_empty());
        // A Service that appears within the grace period keeps its port.
        stored.map.take(30_001).unwrap();
        let (map, seen) = repaired(Some(&stored), range, &used, &left_over);
        let (_, seen) = repaired(Some(&stored), range, &BTreeSet::from([30_001]), &seen);
        assert!(map.has(30_001) && seen.keys().all(|port| *port != 30_001));
    }

    #[test]
    fn starts_from_services_for_new_range() {
        let used = BTreeSet::from([31_000]);
        let (map, _) = repaired(None, (31_000, 31_009), &used, &BTreeMap::new());
        assert_eq!(map.allocated().collect::<Vec<_>>(), [31_000]);
        let mut old = Bitmap::new((30_000, 30_009));
        old.take(30_000).unwrap();
        let stored = StoredBitmap { map: old, revision: 7 };
        let (map, seen) = repaired(Some(&stored), (31_000, 31_009), &used, &BTreeMap::new());
        assert_eq!((map.allocated().collect::<Vec<_>>(), seen.len()), (vec![31_000], 0));
    }
}
