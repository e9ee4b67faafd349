//! Transports for clients in the server's own process.

use std::sync::{Arc, Weak};

use api_meta::UserInfo;
use client::{Client, Transport};
use futures_util::future::BoxFuture;
use http::{Request, Response};
use serve::Body;

use super::{
    meter::unmetered,
    pipeline::{InProcess, Server},
};

/// The identity of the server's own requests.
pub(crate) fn system() -> UserInfo {
    UserInfo::new("system:apiserver", &["system:masters", "system:authenticated"])
}

/// Returns a client for calls that the server makes while it handles a request. The client does not keep the server
/// alive.
pub(crate) fn own_client(server: Weak<Server>) -> Client {
    Client::new(Arc::new(WeakTransport { server, user: Arc::new(system()) }), "kube-apiserver")
}

struct WeakTransport {
    server: Weak<Server>,
    user: Arc<UserInfo>,
}

impl Transport for WeakTransport {
    fn send(&self, request: Request<Body>) -> BoxFuture<'_, Result<Response<Body>, client::Error>> {
        let (server, user) = (self.server.upgrade(), self.user.clone());
        Box::pin(async move {
            let stopped = || client::Error::Transport {
                operation: "asking",
                target: "this server".to_owned(),
                source: "it has stopped".into(),
            };
            InProcessTransport { server: server.ok_or_else(stopped)?, user }.send(request).await
        })
    }
}

/// A transport that calls the pipeline directly.
pub(crate) struct InProcessTransport {
    pub(crate) server: Arc<Server>,
    pub(crate) user: Arc<UserInfo>,
}

impl Transport for InProcessTransport {
    fn send(
        &self,
        mut request: Request<Body>,
    ) -> BoxFuture<'_, Result<Response<Body>, client::Error>> {
        request.extensions_mut().insert(InProcess(self.user.clone()));
        // The nested request has its own meter.
        Box::pin(unmetered(async move { Ok(serve::handle_guarded(&*self.server, request).await) }))
    }
}
