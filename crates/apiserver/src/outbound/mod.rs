//! Connections that the API server makes by itself: to webhooks, to issuers of tokens, and to what stands behind Nodes, Pods and Services.

pub(crate) mod aggregated;
pub(crate) mod backends;
pub(crate) mod issuer;
pub(crate) mod kubelets;
pub(crate) mod onward;
pub(crate) mod reviewer;
pub(crate) mod target;
pub(crate) mod users;
pub(crate) mod webhook;
