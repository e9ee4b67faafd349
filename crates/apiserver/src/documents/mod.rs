//! What the server tells of itself: discovery and OpenAPI.

pub(crate) mod discovery;
pub(crate) mod openapi;
