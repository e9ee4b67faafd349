//! The state of the stores in memory ([`WatchCache`]) with one [`Cache`] per resource, and the delivery of events to
//! watchers. Each store has a [`Feed`] and a follower. Only the follower's task writes to the caches of the store's
//! resources, in revision order. Not responsible for the encoding of responses ([`crate::response`]).

pub(crate) mod cache;
pub(crate) mod errors;
pub(crate) mod event;
pub(crate) mod feed;
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
    feed::Feed,
    filter::Filter,
    follower::{ObservedChange, Observer, WatchCache},
    kinds::{Kinds, Resource},
    snapshot::{Snapshot, following},
    watchers::{Interest, namespace_of},
};
