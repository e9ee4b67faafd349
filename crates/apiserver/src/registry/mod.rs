//! What the server knows of kinds and of the objects that it stores of them.

pub(crate) mod builtin;
pub(crate) mod conditions;
pub(crate) mod conversion;
pub(crate) mod converter;
pub(crate) mod custom;
pub(crate) mod definition;
pub(crate) mod object;
pub(crate) mod priority;
pub(crate) mod projection;
pub(crate) mod shown;
pub(crate) mod stored;

pub(crate) use self::{
    conditions::{holds, set_condition},
    definition::{Definition, Served, api_version},
    object::{Object, Selectable},
};

/// How often this thread has parsed stored objects.
#[cfg(test)]
pub(crate) mod parses {
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
}
