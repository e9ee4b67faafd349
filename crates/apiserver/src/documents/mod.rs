//! What the server tells of itself: discovery, OpenAPI, its version.

pub(crate) mod discovery;
pub(crate) mod openapi;
mod ordered;
pub(crate) mod statusz;
pub(crate) mod version;
