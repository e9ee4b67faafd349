//! The interface between a server and the component that handles its requests.

use std::{
    any::Any,
    net::SocketAddr,
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderValue, Request, Response, StatusCode, header};
use rustls_pki_types::CertificateDer;

use crate::{
    body::{Body, full},
    slots::{ConnectionActivity, Standing},
};

/// Returns a response with a complete body.
pub fn answer(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(full(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// The connection of a request, available in the request's extensions as `Arc<Connection>`.
#[derive(Debug, Default)]
pub struct Connection {
    /// The address of the peer; `None` for in-memory streams.
    pub peer: Option<SocketAddr>,
    /// The certificate chain that the client presented. Only the possession of the leaf's key was verified.
    pub client_certificates: Vec<CertificateDer<'static>>,
    /// The result of verifying the certificates, cached for the whole connection by authentication.
    pub verification: OnceLock<Arc<dyn Any + Send + Sync>>,
    /// The activity of the connection. The server maintains it.
    pub activity: Arc<ConnectionActivity>,
}

impl Connection {
    /// Records the standing of the peer, which decides what is closed first if there are too many connections.
    pub fn raise_standing(&self, standing: Standing) {
        self.activity.raise_standing(standing);
    }
}

/// Handles requests. It cannot fail: errors are responses.
pub trait Handler: Send + Sync + 'static {
    /// Returns the response to a request.
    fn handle(&self, request: Request<Body>) -> BoxFuture<'_, Response<Body>>;

    /// Returns the response for a request whose handler panicked.
    fn panicked(&self) -> Response<Body> {
        let text = "Internal Server Error\n";
        answer(StatusCode::INTERNAL_SERVER_ERROR, "text/plain; charset=utf-8", text)
    }
}
