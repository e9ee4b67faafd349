//! Keys, certificates and certificate requests, as a Kubernetes control plane uses them.
//!
//! Invariants:
//! - Time is an argument everywhere; nothing here reads the clock.
//! - A subject may carry several organisations (a user's groups), kept in one set as Go writes them, and an
//!   issuer's name is copied byte by byte from its certificate. General certificate builders keep one value
//!   per attribute and write names anew, which is why the few structures needed are written here.
//! - One function reads what a request asks for (`SigningRequest::info`), one whom a client certificate speaks for
//!   (`Cert::identity`), and both read a subject by the same lines (`subject.rs`). Nobody else reads one.
//! - One function verifies the chain of a client certificate (`ClientCa::verify`), by Go's rules; TLS servers leave it to
//!   that function, and check with [`handshake_key`] that the client has the key.
//! - Files are replaced in one step, keys readable by their owner only from the first byte on.

mod authority;
mod cert;
mod chain;
mod client;
mod csr;
mod der;
mod element;
mod error;
mod files;
#[cfg(test)]
mod fuzzed;
#[cfg(test)]
mod hostile;
mod key;
mod names;
mod pem;
mod self_signed;
mod signature;
mod subject;

pub use authority::{Authority, LeafSpec, Validity};
pub use cert::{Cert, CertInfo, written};
pub use client::{ClientCa, ClientError, HandshakeKey, Identity, VerifiedClient, handshake_key};
pub use csr::{RequestInfo, SigningRequest};
pub use error::Error;
pub use files::{
    KEY_MODE, PUBLIC_MODE, read_cert, read_certs, read_key, write_cert, write_file, write_key,
    write_public_key,
};
pub use key::{Key, KeyAlgorithm};
pub use names::{AltName, Subject, Usage};
pub use pem::{decode_all, encode};
pub use self_signed::{keep_self_signed, self_signed};

#[cfg(test)]
mod tests;
