//! Brings together what Services have and what is taken in the store. Both agree but where a server has died between two
//! writes, where somebody has changed one of them by hand, or where a Service is being written just now: what looks left
//! over is therefore given the time that upstream gives it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use api_meta::{GroupResource, Objects, Timestamp};
use client::{Error, WorkQueue};
use serde_json::Value;

use crate::{
    alloc::{
        Pool,
        address::{self, Known, Place, is_labelled, is_managed},
        bitmap::Bitmap,
        ports::{PortsError, Stored},
        service::{addresses, ports},
    },
    clock,
    watch_cache::{Observed, Observer, WatchCache},
};

/// What the repair looks at, and works with.
pub(crate) struct Repair {
    pub(crate) cache: Arc<WatchCache>,
    pub(crate) objects: Arc<dyn Objects>,
    pub(crate) pool: Arc<Pool>,
}

/// A request lives no longer: an address whose Service is not there then is nobody's.
const GRACE: Duration = Duration::from_secs(60);
/// The server that deletes a Service releases its addresses itself; the others look whether it has.
const RELEASED: Duration = Duration::from_secs(5);
/// How often ports are looked at.
const EVERY: Duration = Duration::from_secs(180);
/// So many more times a port must be found with nobody before it is free, as upstream has it.
const SEEN_LEFT_OVER: u8 = 2;

/// What is to be looked at.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Key {
    Service(Place),
    Address(IpAddr),
}

/// Puts Services and addresses into the queue that [`follow`] works off, when they change.
pub(crate) fn observer() -> (Observer, WorkQueue<Key>) {
    let queue = WorkQueue::default();
    let changes = queue.clone();
    let seen = Mutex::<Seen>::default();
    let observe = move |observed: &Observed<'_>| {
        let (definition, object) = (observed.definition, &observed.event.object);
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        if definition.is("", "services") {
            let (namespace, name) = (object.namespace().to_owned(), object.name().to_owned());
            let dropped = seen.service(Place { namespace, name }, observed.object, &changes);
            dropped.for_each(|address| changes.add_after(Key::Address(address), RELEASED));
        } else if definition.is("networking.k8s.io", "ipaddresses")
            && let Ok(address) = object.name().parse()
        {
            changes.add(Key::Address(address));
            // What somebody takes away from a Service is made again.
            let lost = seen.address(address, observed.object);
            lost.into_iter().for_each(|place| changes.add(Key::Service(place)));
        }
    };
    (Box::new(observe), queue)
}

/// What Services and addresses said of each other when they were seen last.
#[derive(Default)]
struct Seen {
    addresses: HashMap<Place, Vec<IpAddr>>,
    parents: HashMap<IpAddr, Place>,
}

impl Seen {
    /// A Service as it is now; returns the addresses that it has no longer.
    fn service(
        &mut self,
        place: Place,
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

    /// An IPAddress as it is now; returns the Service that has lost it.
    fn address(&mut self, address: IpAddr, object: Option<&Value>) -> Option<Place> {
        match object {
            Some(object) => {
                match Place::parent(object) {
                    Some(parent) => self.parents.insert(address, parent),
                    None => self.parents.remove(&address),
                };
                None
            }
            None => self.parents.remove(&address),
        }
    }
}

/// Looks at every Service once. Before that, addresses that Services have from of old may look free.
pub(crate) async fn first(repair: &Repair) -> BTreeMap<u16, u8> {
    let services = repair.objects.list(&GroupResource::new("", "services"), "");
    for place in services.iter().map(|service| Place::of(service)) {
        if let Err(error) = service(repair, &place).await {
            tracing::warn!(?place, %error, "the addresses of a Service");
        }
    }
    let mut left_over = BTreeMap::new();
    all_ports(repair, &mut left_over).await;
    left_over
}

/// Repairs what changes, and all ports again and again, until the server stops. `left_over`: what [`first`] has found.
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
                    tracing::warn!(?key, %error, "the addresses of Services");
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

/// Whether the Service is there, and has the address.
fn has(repair: &Repair, place: &Place, address: IpAddr) -> bool {
    let services = GroupResource::new("", "services");
    let found = repair.objects.get(&services, &place.namespace, &place.name);
    found.is_some_and(|service| addresses(&service).contains(&address))
}

/// Lets the caches come up with everything that has been written: what one is to judge may be news to them.
async fn up_to_date(repair: &Repair) -> Result<(), Error> {
    repair.cache.consistent().await.map(drop).map_err(|source| Error::Transport {
        operation: "reading",
        target: "the store's revision".to_owned(),
        source: Box::new(source),
    })
}

/// Makes the objects of a Service's addresses what they should be. Returns when to look again.
async fn service(repair: &Repair, place: &Place) -> Result<Option<Duration>, Error> {
    let services = GroupResource::new("", "services");
    let found = repair.objects.get(&services, &place.namespace, &place.name);
    let mut again = None;
    for address in found.map(|service| addresses(&service)).unwrap_or_default() {
        if recorded(repair, place, address) == Recorded::Well {
            continue;
        }
        up_to_date(repair).await?;
        if !has(repair, place, address) {
            continue;
        }
        match recorded(repair, place, address) {
            Recorded::Well => {}
            Recorded::ForOneToCome(wait) => again = Some(wait),
            Recorded::Wrongly(object) => {
                tracing::warn!(?place, %address, "the IPAddress of a Service has a wrong reference; repairing");
                address::delete(&repair.pool.client, &Known::of(address, &object)).await?;
                record(repair, place, address).await?;
            }
            Recorded::Nowhere => {
                tracing::warn!(?place, %address, "the address of a Service is not allocated; repairing");
                record(repair, place, address).await?;
            }
        }
    }
    Ok(again)
}

async fn record(repair: &Repair, place: &Place, address: IpAddr) -> Result<(), Error> {
    if address::create(&repair.pool.client, address, place).await?.is_none() {
        tracing::warn!(?place, %address, "somebody else was given the address of a Service; recreate it");
    }
    Ok(())
}

/// How an address that a Service has stands in the store.
#[derive(Debug, PartialEq)]
enum Recorded {
    /// As this Service's, or rightly as another's.
    Well,
    /// As one's that may be on its way, for so long.
    ForOneToCome(Duration),
    Wrongly(Arc<Value>),
    Nowhere,
}

fn recorded(repair: &Repair, place: &Place, address: IpAddr) -> Recorded {
    let Some(object) = find(repair, address) else { return Recorded::Nowhere };
    match Place::parent(&object) {
        Some(parent) if parent == *place && is_labelled(address, &object) => Recorded::Well,
        Some(parent) if parent != *place && has(repair, &parent, address) => {
            tracing::warn!(?place, ?parent, %address, "an address was assigned to two Services; recreate one");
            Recorded::Well
        }
        Some(parent) if parent != *place => match grace(&object) {
            Some(wait) => Recorded::ForOneToCome(wait),
            None => Recorded::Wrongly(object),
        },
        _ => Recorded::Wrongly(object),
    }
}

/// How long the object may still be without its Service.
fn grace(object: &Value) -> Option<Duration> {
    let born = object["metadata"]["creationTimestamp"].as_str()?.parse::<Timestamp>().ok()?;
    GRACE.checked_sub(clock::now().since(born)).filter(|rest| !rest.is_zero())
}

/// Takes away what was made for a Service that has not come, or is no more. Returns when to look again.
async fn one_address(repair: &Repair, address: IpAddr) -> Result<Option<Duration>, Error> {
    let is_used = |object: &Value| match Place::parent(object) {
        Some(parent) => has(repair, &parent, address),
        None => false,
    };
    let leaked = || find(repair, address).filter(|it| is_managed(it) && !is_used(it));
    let Some(object) = leaked() else { return Ok(None) };
    if let Some(rest) = grace(&object).filter(|_| Place::parent(&object).is_some()) {
        return Ok(Some(rest));
    }
    up_to_date(repair).await?;
    let Some(object) = leaked() else { return Ok(None) };
    tracing::warn!(%address, "an IPAddress appears to have leaked: cleaning up");
    address::delete(&repair.pool.client, &Known::of(address, &object)).await?;
    Ok(None)
}

async fn all_ports(repair: &Repair, left_over: &mut BTreeMap<u16, u8>) {
    if let Err(error) = ports_once(repair, left_over).await {
        tracing::warn!(%error, "repairing which node ports are taken; trying again");
    }
}

/// Stores which ports Services have. What is stored is read first, so that a Service that is there without its port being
/// stored can only be one of old.
async fn ports_once(repair: &Repair, left_over: &mut BTreeMap<u16, u8>) -> Result<(), PortsError> {
    let stores = &repair.pool.ports;
    loop {
        let stored = stores.stored().await?;
        repair.cache.consistent().await?;
        let services = repair.objects.list(&GroupResource::new("", "services"), "");
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

/// The ports that Services have, and those that nobody has while a Service may yet come for them. Returns with it how many
/// times more each of the latter may be found so.
fn repaired(
    stored: Option<&Stored>,
    range: (u16, u16),
    used: &BTreeSet<u16>,
    left_over: &BTreeMap<u16, u8>,
) -> (Bitmap, BTreeMap<u16, u8>) {
    let (mut map, mut seen) = (Bitmap::new(range), BTreeMap::new());
    for port in used {
        if let Err(error) = map.take(*port) {
            tracing::warn!(port, %error, "the node port of a Service; please recreate the Service");
        }
    }
    for port in stored.into_iter().flat_map(|stored| stored.map.taken()) {
        let left = match left_over.get(&port) {
            _ if used.contains(&port) => continue,
            None => SEEN_LEFT_OVER,
            Some(0) => {
                tracing::warn!(port, "a node port appears to have leaked: cleaning up");
                continue;
            }
            Some(left) => *left,
        };
        // One of another range is given up with it.
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
    fn a_port_that_nobody_has_is_free_after_three_looks() {
        let range = (30_000, 30_009);
        let mut stored = Stored { map: Bitmap::new(range), revision: 7 };
        [30_001, 30_002].iter().for_each(|port| stored.map.take(*port).unwrap());
        let used = BTreeSet::from([30_002, 30_003, 80]);
        let mut left_over = BTreeMap::new();
        for taken in
            [vec![30_001, 30_002, 30_003], vec![30_001, 30_002, 30_003], vec![30_002, 30_003]]
        {
            let (map, seen) = repaired(Some(&stored), range, &used, &left_over);
            assert_eq!(map.taken().collect::<Vec<_>>(), taken);
            (stored.map, left_over) = (map, seen);
        }
        assert!(left_over.is_empty());
        // A Service that comes for its port in time keeps it.
        stored.map.take(30_001).unwrap();
        let (map, seen) = repaired(Some(&stored), range, &used, &left_over);
        let (_, seen) = repaired(Some(&stored), range, &BTreeSet::from([30_001]), &seen);
        assert!(map.has(30_001) && seen.keys().all(|port| *port != 30_001));
    }

    #[test]
    fn a_new_cluster_and_another_range_begin_with_what_services_have() {
        let used = BTreeSet::from([31_000]);
        let (map, _) = repaired(None, (31_000, 31_009), &used, &BTreeMap::new());
        assert_eq!(map.taken().collect::<Vec<_>>(), [31_000]);
        let mut old = Bitmap::new((30_000, 30_009));
        old.take(30_000).unwrap();
        let stored = Stored { map: old, revision: 7 };
        let (map, seen) = repaired(Some(&stored), (31_000, 31_009), &used, &BTreeMap::new());
        assert_eq!((map.taken().collect::<Vec<_>>(), seen.len()), (vec![31_000], 0));
    }
}
