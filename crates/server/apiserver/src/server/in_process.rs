//! Transports for clients in the server's own process.

use std::sync::{Arc, Weak};

use api_meta::UserInfo;
use client::{Client, Transport};
use futures_util::future::BoxFuture;
use http::{Request, Response};
use rt::HomeRuntime;
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
            let server = server.ok_or_else(stopped)?;
            Ok(call(&server, user, request).await)
        })
    }
}

/// Handles a request of the process itself. A nested request has its own meter.
async fn call(server: &Server, user: Arc<UserInfo>, mut request: Request<Body>) -> Response<Body> {
    request.extensions_mut().insert(InProcess(user));
    unmetered(serve::handle_guarded(server, request)).await
}

/// A transport that calls the pipeline directly.
pub(crate) struct InProcessTransport {
    pub(crate) server: Arc<Server>,
    pub(crate) user: Arc<UserInfo>,
    /// The server's runtime. The caller may be a task of another one.
    pub(crate) runtime: HomeRuntime,
}

impl Transport for InProcessTransport {
    fn send(&self, request: Request<Body>) -> BoxFuture<'_, Result<Response<Body>, client::Error>> {
        let work = async move { Ok(call(&self.server, self.user.clone(), request).await) };
        Box::pin(self.runtime.enter(work))
    }
}
