//! Conditional writes and their outcomes.

use std::sync::Arc;

use bytes::Bytes;

use crate::key_value::{KeyValue, Revision};

/// A conditional write of one key. The store applies it only if the key's mod revision is `expected` (0: the key does
/// not exist).
#[derive(Clone, Debug)]
pub struct Write {
    /// The key's full path.
    pub key: Arc<str>,
    /// The precondition.
    pub expected: Expected,
    /// The operation.
    pub op: Op,
}

/// The precondition of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// No precondition.
    Any,
    /// The key's last write has this revision; 0 if it does not exist.
    ModRevision(Revision),
}

/// The operation of a write.
#[derive(Clone, Debug)]
pub enum Op {
    /// Writes a value. With `ttl_seconds`, the store deletes the key that many seconds after this write.
    Put {
        value: Bytes,
        ttl_seconds: Option<u64>,
    },
    Delete,
}

/// The outcome of a write. A conflict is not an error: it carries the current value, and the caller decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done {
        revision: Revision,
    },
    /// The precondition did not hold. `current` is the key's present value, `None` if it does not exist.
    Conflict {
        current: Option<KeyValue>,
    },
}

impl Write {
    /// Returns the bytes that count against the request limit.
    pub fn size(&self) -> usize {
        let value = match &self.op {
            Op::Put { value, .. } => value.len(),
            Op::Delete => 0,
        };
        self.key.len() + value
    }
}
