//! Helps for tests of several crates: an API server in memory.
//!
//! [`FakeApi`] is good enough to run controllers and the scheduler against: resource versions, conflicts,
//! generations, finalizers, selectors, lists, watches and the discovery documents. It knows no defaults,
//! validation or admission; tests that need those use the real one.

mod fake_api;
mod objects;

pub use fake_api::FakeApi;
pub use objects::{Objects, Served};
