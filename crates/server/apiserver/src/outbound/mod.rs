//! Outgoing connections of the API server: to webhooks ([`webhook`]), token issuers, aggregated API servers, kubelets,
//! components beside it, and proxied Pods, Services and nodes ([`target`]). [`backends`] caches the transports.
//!
//! Invariants: responses are limited in size and time, redirects are not followed, and addresses come only from the
//! API's objects, the configuration, and the keys of API servers in the store.

pub(crate) mod aggregated;
pub(crate) mod backends;
pub(crate) mod components;
pub(crate) mod error;
pub(crate) mod forwarding;
pub(crate) mod issuer;
pub(crate) mod kubelets;
pub(crate) mod peers;
pub(crate) mod reviewer;
pub(crate) mod target;
pub(crate) mod users;
pub(crate) mod webhook;
