//! The store behind the API server: a key-value trait with etcd's semantics, and the engines that implement it.
//!
//! Keys are upstream's (`/registry/pods/default/web`). Values are opaque bytes: encoding is the API server's task,
//! encryption that of `encryption`. Only `apiserver`, offline commands (`store copy`, snapshots) and tests open a
//! store. Read [`Store`] first, then [`embedded::Embedded`].
//!
//! Invariants: every committed write gets one revision, counted for the whole store. An empty store is at revision 1. A
//! revision never decreases.

mod compactor;
mod copy;
pub mod disk;
pub mod embedded;
mod engine;
mod error;
mod key_value;
mod schedule;
mod snapshot;
pub mod tests;
mod unreadable;
mod watch;
mod write;

pub use compactor::{COMPACTION_KEY, Compactor};
pub use copy::{CopyReport, Keyspace, copy};
pub use engine::{ObjectEncoder, Reply, Store};
pub use error::{Error, Result};
pub use key_value::{KeyRange, KeyValue, RangeResult, Revision};
pub use schedule::Schedule;
pub use snapshot::Snapshot;
pub use unreadable::{unreadable, why_unreadable};
pub use watch::{Change, ChangeKind, WatchMessage, WatchStream};
pub use write::{Expected, Op, Outcome, Write};
