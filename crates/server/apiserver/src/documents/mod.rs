//! Documents about the server: discovery, OpenAPI and `/version`. Health and metrics are in
//! [`crate::server`]. Start with [`discovery`] and [`openapi`].

pub(crate) mod discovery;
mod member_order;
pub(crate) mod openapi;
pub(crate) mod version;
