//! A page to look at a cluster: nodes, workloads, Events, logs, problems with their causes, the bootstrap timeline and
//! an hour of measurements. `windlass dashboard` serves it.
//!
//! The pages are rendered here, without scripts. The API server prints all lists as tables, as for `kubectl get`, so
//! that a list of any kind needs no code here. Only the object's own page knows some kinds. Read [`run`] first, then
//! `handler`.
//!
//! Invariants:
//! - All requests to the API server are reads and reviews, with the credentials of one user: the kubeconfig's, or the
//!   one who has logged in. What that user may not see is missing, with the API server's reason.
//! - Without TLS, the page is for one user of this machine: it listens on a loopback address and wants a key that only
//!   its output shows. Other web sites cannot read it by a name that resolves to a loopback address, because names
//!   other than `localhost` are rejected.
//! - With TLS, users log in by a bearer token, which only a cookie holds. The kubeconfig's user measures and fills the
//!   caches of `pages::overview::Watches`. A viewer sees their content only after the API server has reviewed that the
//!   viewer may list all of it.
//! - No page reads more than a limited number of objects, or shows more, and each says so where something is missing.
//! - The first page is shared by viewers with the same credentials for a few seconds. The API server checks the
//!   credentials for each viewer nonetheless.
//! - The values of Secrets are never shown.

mod access;
mod api;
mod error;
mod handler;
mod layout;
mod login;
mod measurements;
mod pages;
mod plot;
mod run;
mod shared;
#[cfg(test)]
mod tests;

pub use error::DashboardError;
pub use run::{Args, run};
