//! How often this thread has parsed stored objects, for tests.

use std::cell::Cell;

thread_local! {
    static PARSES: Cell<u32> = const { Cell::new(0) };
}

pub(crate) fn count() {
    PARSES.set(PARSES.get() + 1);
}

/// Since it was asked last.
pub(crate) fn taken() -> u32 {
    PARSES.take()
}
