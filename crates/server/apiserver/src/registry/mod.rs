//! The registry of kinds: definitions of built-in and custom kinds ([`Definition`]), stored objects ([`Object`]), and
//! conversion between versions. A kind is data; all kinds share one code path. Not responsible for validation and
//! defaulting rules, which are in the crate `api_rules`.

pub(crate) mod builtin;
pub(crate) mod cel_metrics;
pub(crate) mod conditions;
pub(crate) mod conversion;
pub(crate) mod converter;
pub(crate) mod custom;
pub(crate) mod definition;
pub(crate) mod object;
#[cfg(test)]
pub(crate) mod parse_count;
pub(crate) mod priority;
pub(crate) mod projection;
pub(crate) mod storage_form;
pub(crate) mod versions;

pub(crate) use self::{
    conditions::{holds, set_condition},
    definition::{Definition, ServedVersion, api_version},
    object::{Object, Selectable},
};
