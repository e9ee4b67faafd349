//! Clients in the server's own process.

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

/// The identity under which the server itself writes.
pub(crate) fn system() -> UserInfo {
    UserInfo::new("system:apiserver", &["system:masters", "system:authenticated"])
}

/// A client for what the server does in the course of a request. It does not keep the server alive.
pub(crate) fn own_client(server: Weak<Server>) -> Client {
    Client::new(Arc::new(Own { server, user: Arc::new(system()) }), "kube-apiserver")
}

struct Own {
    server: Weak<Server>,
    user: Arc<UserInfo>,
}

impl Transport for Own {
    fn send(&self, request: Request<Body>) -> BoxFuture<'_, Result<Response<Body>, client::Error>> {
        let (server, user) = (self.server.upgrade(), self.user.clone());
        Box::pin(async move {
            let stopped = || client::Error::Transport {
                operation: "asking",
                target: "this server".to_owned(),
                source: "it has stopped".into(),
            };
            Local { server: server.ok_or_else(stopped)?, user }.send(request).await
        })
    }
}

/// The pipeline without a socket.
pub(crate) struct Local {
    pub(crate) server: Arc<Server>,
    pub(crate) user: Arc<UserInfo>,
}

impl Transport for Local {
    fn send(
        &self,
        mut request: Request<Body>,
    ) -> BoxFuture<'_, Result<Response<Body>, client::Error>> {
        request.extensions_mut().insert(InProcess(self.user.clone()));
        // It has a meter of its own.
        Box::pin(unmetered(async move { Ok(serve::contained(&*self.server, request).await) }))
    }
}
