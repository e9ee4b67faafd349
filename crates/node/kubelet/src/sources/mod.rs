//! The sources of Pods: static manifests on this node, and the API server.

mod adopt;
pub(crate) mod api;
pub(crate) mod files;
pub(crate) mod mirror;
