//! The state of the store in memory ([`WatchCache`]) with one [`Cache`] per resource, and the delivery of events to
//! watchers. Only the follower's task writes to the caches, in revision order. Not responsible for the encoding of
//! responses ([`crate::answer`]).

pub(crate) mod cache;
pub(crate) mod errors;
pub(crate) mod event;
pub(crate) mod filter;
pub(crate) mod follower;
pub(crate) mod kinds;
pub(crate) mod queue;
pub(crate) mod snapshot;
pub(crate) mod watchers;

pub(crate) use self::{
    cache::{Cache, Page, Watcher},
    errors::store_status,
    event::{Delivery, Event, EventKind, FrameKey},
    filter::Filter,
    follower::{ObservedChange, Observer, WatchCache},
    kinds::{Kinds, Resource},
    snapshot::{Snapshot, following},
    watchers::Interest,
};
