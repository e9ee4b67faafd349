//! Aggregated API servers: which groups and versions they serve ([`Aggregation`]), their discovery and OpenAPI data,
//! and the proxy to them.
//!
//! Invariants:
//! - Groups of built-in kinds are served by this server only. An APIService that names a Service for such a group is
//!   ignored.
//! - If a custom kind and an APIService with a Service share a group and version, the Service wins.
//! - Data from another server is limited in size, depth and time, decoded into known fields, and shown only below its
//!   own group and version.

pub(crate) mod fetch;
pub(crate) mod merge;
pub(crate) mod proxy;
pub(crate) mod services;
pub(crate) mod snapshot;

pub(crate) use self::{
    services::Aggregation,
    snapshot::{ApiServices, Group, Remote, RemoteApi},
};
