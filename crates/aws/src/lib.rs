//! AWS by its API: credentials, signatures, and the calls that clusters are made with.
//!
//! A call is its service, its operation and its parameters, under the names that go over the wire. `facts/operations.tsv`
//! says which there are; what does not stand there is refused, because servers pass over what they do not know.
//!
//! Invariants:
//! - What a server says is read within bounds, and believed only of what was asked.
//! - What may have been done already is not asked for twice, unless that does no harm.
//! - Secret keys go into signatures, and nowhere else.

mod ask;
mod credentials;
mod error;
mod facts;
mod place;
mod request;
mod sign;
pub mod xml;

pub use ask::Client;
pub use credentials::{Given, Source};
pub use error::Error;
pub use place::is_region;
pub use sign::{hash, sign, trust};

/// An environment variable's value.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;
