//! Other API servers behind this one: which groups and versions they answer for, where they stand, and what they have
//! said that they serve.
//!
//! Groups of built-in kinds are this server's alone: an APIService that names a Service for one of them is not followed.
//! Where a custom kind and an APIService with a Service share a group and version, the Service answers. What another
//! server says of itself is bounded in length, depth and time, is read into known fields, and is shown below its own
//! group and version only.

pub(crate) mod known;
pub(crate) mod learn;
pub(crate) mod proxy;
pub(crate) mod services;

pub(crate) use self::{
    known::{Group, Known, Learned, Remote},
    services::Aggregation,
};
