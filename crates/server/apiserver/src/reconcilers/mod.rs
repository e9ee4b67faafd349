//! The API server's own control loops. Each one reconciles its objects through an in-process client. Start with
//! [`startup`] for the objects of a new cluster, and [`custom_kinds`] for a queue-driven loop. Controllers of workloads
//! are not in this crate.

pub(crate) mod api_services;
pub(crate) mod availability;
pub(crate) mod cluster_authentication;
pub(crate) mod compaction;
pub(crate) mod custom_kinds;
pub(crate) mod custom_names;
pub(crate) mod elections;
pub(crate) mod endpoints;
mod ensure;
pub(crate) mod flow_schemas;
pub(crate) mod identity_lease;
pub(crate) mod legacy_tokens;
pub(crate) mod peers;
pub(crate) mod progress;
pub(crate) mod service_repair;
pub(crate) mod startup;
