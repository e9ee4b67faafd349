//! Counts the parses of stored objects in this thread, for tests.

use std::cell::Cell;

thread_local! {
    static PARSES: Cell<u32> = const { Cell::new(0) };
}

pub(crate) fn count() {
    PARSES.set(PARSES.get() + 1);
}

/// Returns the number of parses since the last call.
pub(crate) fn taken() -> u32 {
    PARSES.take()
}
