//! Keys, certificates and certificate requests of a Kubernetes control plane.
//!
//! Read [`Authority`] and [`Cert`] first. Which certificates a cluster needs, and when they are renewed, is decided by
//! the callers.
//!
//! Invariants:
//! - Time is always an argument; this crate reads no clock.
//! - A subject may have several organizations (a user's groups). They are written in one set, like Go does. An issuer's
//!   name is copied byte by byte from its certificate. General certificate builders keep one value per attribute and
//!   re-encode names, so this crate encodes the few structures itself.
//! - Only `SigningRequest::info` reads the contents of a request, and only `Cert::identity` reads the user of a client
//!   certificate. Both read a subject with `subject.rs`.
//! - Only `ClientCa::verify` verifies the chain of a client certificate, by Go's rules. TLS servers leave it to that
//!   function, and check with [`handshake_key`] that the client has the key.
//! - Files are replaced in one step. Only the owner can ever read a key file.

mod authority;
mod cert;
mod chain;
mod client;
mod csr;
mod der;
mod element;
mod error;
mod fault;
mod files;
#[cfg(test)]
mod fuzzed;
#[cfg(test)]
mod hostile;
mod identity;
mod key;
mod names;
mod pem;
mod self_signed;
mod signature;
mod subject;
mod validity;
mod workload;

pub use authority::{Authority, LeafSpec};
pub use cert::{Cert, CertInfo, format_time};
pub use client::{ClientCa, ClientError, HandshakeKey, VerifiedClient, handshake_key};
pub use csr::{RequestInfo, SigningRequest};
pub use error::Error;
pub use fault::Fault;
pub use files::{
    KEY_MODE, PUBLIC_MODE, read_cert, read_certs, read_key, update_file, write_cert, write_file,
    write_key, write_public_key,
};
pub use identity::Identity;
pub use key::{Key, KeyAlgorithm};
pub use names::{AltName, Subject, Usage};
pub use pem::{decode_all, encode};
pub use self_signed::{keep_self_signed, self_signed};
pub use validity::Validity;
pub use workload::{WorkloadKeyError, WorkloadKeyType, verify_possession};

#[cfg(test)]
mod tests;
