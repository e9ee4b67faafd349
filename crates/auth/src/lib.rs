//! Who makes a request, and whether they may: authentication and authorisation as pure decisions.
//!
//! Invariants: nothing here opens a socket or waits. Clocks come in as arguments, objects through `api_meta::Objects`,
//! and indexes (RBAC, the node graph) follow changes through `api_meta::Observer`, so that a decision never walks the
//! cluster. A credential that is wrong is an error of its own (401); a missing one leaves the user anonymous.

pub mod authn;
pub mod authz;
mod forbidden;
#[cfg(test)]
mod fuzzed;
pub mod rbac;
pub mod second;
#[cfg(test)]
mod testing;

pub use api_meta::UserInfo;
pub use forbidden::forbidden;
