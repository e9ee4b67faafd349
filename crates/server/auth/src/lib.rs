//! Authentication and authorization as pure decisions. Read [`authn::Authentication`] and [`rbac::Rbac`] first.
//!
//! Invariants: nothing here opens a socket or blocks. Time is an argument, and objects come from `api_meta::Objects`.
//! Indexes (RBAC, the node graph) follow changes through `api_meta::Observer`, so that a decision never scans the
//! cluster. An invalid credential is an error (401); without a credential the user is anonymous.

pub mod authn;
pub mod authz;
mod forbidden;
#[cfg(test)]
mod fuzzed;
pub mod rbac;
pub mod secondary;
#[cfg(test)]
mod testing;

pub use api_meta::UserInfo;
pub use forbidden::forbidden;
