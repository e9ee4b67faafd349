//! What the server knows of kinds and of the objects that it stores of them.

mod autoscaler;
pub(crate) mod builtin;
pub(crate) mod conditions;
pub(crate) mod conversion;
pub(crate) mod converter;
pub(crate) mod custom;
pub(crate) mod definition;
pub(crate) mod object;
#[cfg(test)]
pub(crate) mod parses;
pub(crate) mod priority;
pub(crate) mod projection;
pub(crate) mod shown;
pub(crate) mod stored;

pub(crate) use self::{
    conditions::{holds, set_condition},
    definition::{Definition, Served, api_version},
    object::{Object, Selectable},
};
