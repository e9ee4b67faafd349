//! The one API client of every component: over a socket, or in the API server's own process.
//!
//! In process, requests skip the socket and TLS, never the pipeline: a [`Transport`] takes an
//! `http::Request` and returns an `http::Response`, whether a connection or the server's handler is behind
//! it, and a watch's frames are the server's shared bytes. Informers hold a projection of the fields that
//! their reader wants, never a whole typed copy.

mod credentials;
mod error;
mod http;
mod informer;
mod kubeconfig;
mod lease;
mod plugin;
mod queue;
mod request;
mod resource;
mod tls;

pub use self::http::{HttpTransport, Stream, connect, encrypt, exchange};
pub use error::{Error, IfThere, Status, StatusCause, StatusDetails};
pub use informer::{Change, Index, Informer, Keyed, ListOptions};
pub use kubeconfig::KubeconfigError;
pub use lease::{LeaderElection, LeaderElectionConfig};
pub use queue::WorkQueue;
pub use request::{
    Body, Client, DeleteOptions, List, PatchKind, Patched, Preconditions, Transport, Watch,
    WatchEvent, empty, escape, full, read,
};
pub use resource::Resource;
pub use tls::{ClientTls, TlsError, TlsFiles, TlsMaterial};
