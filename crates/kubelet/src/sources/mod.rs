//! Where Pods come from: files on this node, and the API.

mod adopt;
pub(crate) mod api;
pub(crate) mod files;
pub(crate) mod mirror;
