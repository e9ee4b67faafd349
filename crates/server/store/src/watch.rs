//! Watches and the changes that they deliver.

use futures_util::future::BoxFuture;

use crate::key_value::{KeyValue, Revision};

/// A change, as a watcher receives it. Changes arrive in revision order, each exactly once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The kind of the change.
    pub kind: ChangeKind,
    /// The key after the change. A deletion has an empty value, and `mod_revision` is the deletion's revision.
    pub kv: KeyValue,
}

/// The kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    Put,
    Delete,
}

/// A message of a watch.
#[derive(Clone, Debug)]
pub enum WatchMessage {
    /// All changes of one or more consecutive revisions, never part of a revision.
    Changes(Vec<Change>),
    /// Every change up to and including this revision has been delivered.
    Progress(Revision),
}

/// A running watch. The channel is bounded by bytes. The store closes the watch of a consumer that falls behind; the
/// consumer resumes from the last revision it received.
pub trait WatchStream: Send {
    /// Returns the next message, or `None` when the watch has ended (fallen behind, compacted or shut down). The future
    /// is cancel-safe: dropping it loses no message.
    fn next(&mut self) -> BoxFuture<'_, Option<WatchMessage>>;
}
