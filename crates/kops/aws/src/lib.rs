//! A client for AWS' API: credentials, signatures, and the calls that manage clusters. `kops-core` decides which calls
//! are made. Read [`Client`] first.
//!
//! A call consists of a service, an operation and its parameters, under their wire names. `facts/operations.tsv` lists
//! the supported ones. Anything else is rejected, because servers ignore unknown parameters.
//!
//! Invariants:
//! - An answer is bounded, and is used only for the request that it answers.
//! - A call that may already have been executed is not repeated, unless repetition is harmless.
//! - Secret keys are used only for signatures.

mod api_client;
mod credentials;
mod endpoint;
mod environment;
mod error;
#[cfg(test)]
mod fuzzed;
mod operation;
mod request;
mod sign;
pub mod xml;

pub use api_client::Client;
pub use credentials::{Source, StaticKey};
pub use endpoint::is_region;
pub use environment::Environment;
pub use error::Error;
pub use sign::{hash, sign, trust};
