//! Read-only web pages of a cluster: nodes, workloads, Events, logs, problems with their causes, the bootstrap timeline
//! and measurements of the last hour. `windlass dashboard` serves them.
//!
//! Pages have no scripts. The API server renders all lists as tables, as for `kubectl get`, so that a list of any kind
//! needs no code here. Only the page of an object distinguishes some kinds. Read [`run`] first, then `handler`.
//!
//! Invariants:
//! - All requests to the API server are reads and access reviews, with the credentials of one user: the kubeconfig's,
//!   or the one who has logged in. Where that user lacks a right, the page shows the API server's error.
//! - Without TLS, the pages are for one user of this machine: they are served on a loopback address and need a key that
//!   only the command's output contains. Requests for other names than `localhost` are rejected, so that a web site
//!   whose name resolves to a loopback address cannot read them.
//! - With TLS, users log in by a bearer token, which is stored only in their cookie. Measurements and the caches of
//!   `pages::overview::Watches` are read with the rights of the kubeconfig's user. A viewer sees the content of a cache
//!   only after the API server has confirmed that the viewer may list all of it.
//! - Every page reads and shows a limited number of objects, and tells the user if it omits some.
//! - Viewers with the same credentials share the first page for a few seconds. The API server still checks the
//!   credentials of each viewer.
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
