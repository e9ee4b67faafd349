//! The sources of Pods: static manifests on this node or at a URL, and the API server.

mod adopt;
pub(crate) mod api;
pub(crate) mod files;
pub(crate) mod manifest;
pub(crate) mod mirror;
mod references;
pub(crate) mod url;
