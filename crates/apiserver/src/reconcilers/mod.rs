//! Loops of the API server itself. Each sees to it, through a client, that what it stands for is so.

pub(crate) mod api_services;
pub(crate) mod availability;
pub(crate) mod cluster_authentication;
pub(crate) mod compaction;
pub(crate) mod custom_kinds;
pub(crate) mod custom_names;
pub(crate) mod endpoints;
mod ensure;
pub(crate) mod flow_schemas;
pub(crate) mod identity_lease;
pub(crate) mod legacy_tokens;
pub(crate) mod progress;
pub(crate) mod service_repair;
pub(crate) mod startup;
