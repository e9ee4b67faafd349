//! What the server tells of itself: discovery, OpenAPI, its version.

pub(crate) mod discovery;
pub(crate) mod openapi;
pub(crate) mod statusz;
pub(crate) mod version;
