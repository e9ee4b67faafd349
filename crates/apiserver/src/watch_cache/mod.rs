//! The state of the store in memory, and its changes on their way to those who watch.

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
    follower::{Observed, Observer, WatchCache},
    kinds::{Kinds, Resource},
    snapshot::{Snapshot, following},
    watchers::Interest,
};
