//! The Kubernetes API client of every component. It reaches the server over a socket or calls it in the same process.
//!
//! Read [`Client`] first, then [`Informer`] and [`WorkQueue`]. A [`Transport`] is a connection or the server's handler
//! in the same process. This crate defines no API types and no reconcilers.
//!
//! Invariants:
//! - In process, requests skip the socket and TLS, but run through the server's whole pipeline. The frames of such a
//!   watch are the server's shared bytes.
//! - Informers hold a projection of the fields that their reader needs, never a full typed copy.
//! - A key is in a work queue at most once, and at most one worker processes it.

mod credentials;
mod discovery;
mod error;
mod http;
mod informer;
mod kubeconfig;
mod lease;
mod metrics;
mod options;
mod plugin;
mod pod;
mod queue;
mod request;
mod resource;
mod server_verifier;
mod tls;

pub use self::http::{
    Dialer, HttpTransport, Proxy, ProxyUrlError, Stream, connect, encrypt, exchange,
};
pub use discovery::ApiResource;
pub use error::{Error, NotFoundExt, Status, StatusCause, StatusDetails};
pub use informer::{Change, Index, Informer, ObjectId};
pub use kubeconfig::KubeconfigError;
pub use lease::{CandidateVersions, LeaderElection, LeaderElectionConfig};
pub use metrics::ClientMetrics;
pub use options::{DeleteOptions, ListOptions, PatchKind, PatchTarget, Preconditions, escape};
pub use pod::ServiceAccountError;
pub use queue::WorkQueue;
pub use request::{Body, Client, List, Transport, Watch, WatchEvent, empty, full, read};
pub use resource::Resource;
pub use server_verifier::server_verifier;
pub use tls::{ClientTls, TlsError, TlsFiles, TlsMaterial};
