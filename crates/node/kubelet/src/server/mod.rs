//! The kubelet's HTTPS server: logs, exec, attach, port-forward, metrics and statistics. The API server authenticates
//! and authorizes its clients. Read [`start`] first.

mod auth;
#[cfg(test)]
mod fuzzed;
mod idle;
mod info;
mod logs;
mod spdy;
mod stats;
mod stream;
mod tls;
mod websocket;

use std::{collections::BTreeMap, sync::Arc};

use api_meta::query_decode;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Method, Request, Response, StatusCode};
use serve::{Body, Handler, answer};
use tokio::{net::TcpListener, sync::watch};

use crate::{context::Context, pods::Pods};

/// The error of starting the kubelet's server.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("listen on {address}: {source}; is another kubelet running?")]
    Listen { address: std::net::SocketAddr, source: std::io::Error },
    #[error("read {}: {source}", path.display())]
    Read { path: std::path::PathBuf, source: std::io::Error },
    #[error("create the kubelet's serving certificate: {0}")]
    Certificate(#[from] pki::Error),
    #[error(transparent)]
    Tls(#[from] serve::TlsError),
    #[error("the client CA {}: {message}", path.display())]
    ClientCa { path: std::path::PathBuf, message: String },
}

struct Server {
    ctx: Arc<Context>,
    pods: Pods,
    auth: auth::Auth,
    health: watch::Receiver<Option<String>>,
}

/// Binds the server's ports and starts it. An error prevents the kubelet's start.
pub(crate) async fn start(
    ctx: &Arc<Context>,
    pods: &Pods,
    health: watch::Receiver<Option<String>>,
) -> Result<(), ServerError> {
    let settings = &ctx.settings;
    let address = (settings.address, settings.port).into();
    let listener = TcpListener::bind(address)
        .await
        .map_err(|source| ServerError::Listen { address, source })?;
    let tls = tls::identity(settings, ctx.clock.now())?;
    if let (true, Some(client)) = (settings.server.bootstrap, ctx.client.clone()) {
        let own = ctx.clone();
        ctx.tasks.keep("kubelet serving certificate", move || {
            let (dir, clock) = (own.settings.cert_dir.clone(), own.clock.clone());
            tls::serving(&own.settings).keep_current(dir, client.clone(), clock)
        });
    }
    let auth = auth::Auth::new(ctx)?;
    let server =
        Arc::new(Server { ctx: ctx.clone(), pods: pods.clone(), auth, health: health.clone() });
    let serving =
        serve::serve(listener, Some(tls), serve::Limits::default(), server, ctx.tasks.clone());
    ctx.tasks.essential("kubelet server", serving);
    if let Some(address) = settings.healthz {
        let listener = TcpListener::bind(address)
            .await
            .map_err(|source| ServerError::Listen { address, source })?;
        let probe = Arc::new(Healthz { health, tasks: ctx.tasks.clone() });
        let serving =
            serve::serve(listener, None, serve::Limits::default(), probe, ctx.tasks.clone());
        ctx.tasks.essential("kubelet healthz", serving);
    }
    Ok(())
}

/// The handler of the local health port, without authentication.
struct Healthz {
    health: watch::Receiver<Option<String>>,
    tasks: rt::Tasks,
}

impl Handler for Healthz {
    fn handle(&self, request: Request<Body>) -> BoxFuture<'_, Response<Body>> {
        Box::pin(async move {
            match request.uri().path() {
                "/healthz" | "/healthz/ping" | "/healthz/syncloop" => {
                    info::healthz(&self.health, &self.tasks)
                }
                _ => text(StatusCode::NOT_FOUND, "404 page not found\n"),
            }
        })
    }
}

impl Handler for Server {
    fn handle(&self, request: Request<Body>) -> BoxFuture<'_, Response<Body>> {
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            match self.auth.check(&parts).await {
                Ok(()) => self.route(Request::from_parts(parts, body)).await,
                Err(refused) => *refused,
            }
        })
    }
}

impl Server {
    async fn route(&self, request: Request<Body>) -> Response<Body> {
        let path = request.uri().path().trim_end_matches('/').to_owned();
        let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        let query = Query::of(request.uri().query().unwrap_or_default());
        let get = request.method() == Method::GET;
        let debugging = self.ctx.settings.server.debugging_handlers;
        match parts.as_slice() {
            ["healthz" | "livez" | "readyz", ..] if get => {
                info::healthz(&self.health, &self.ctx.tasks)
            }
            ["pods"] if get => info::pods(&self.pods),
            ["runningpods"] if get => info::running_pods(self).await,
            ["configz"] if get => info::configz(&self.ctx),
            ["metrics"] if get => stats::metrics(&self.ctx, &self.pods).await,
            ["metrics", "cadvisor"] if get => stats::cadvisor(&self.ctx).await,
            ["metrics", "resource"] if get => stats::resource(&self.ctx).await,
            ["metrics", "probes"] if get => stats::probes(&self.ctx),
            ["stats", "summary"] if get => stats::summary(&self.ctx, &self.pods, &query).await,
            ["containerLogs", namespace, pod, container] if get && debugging => {
                logs::serve(self, namespace, pod, container, &query).await
            }
            ["exec" | "attach", namespace, pod, container] if debugging => {
                stream::of_container(self, request, (namespace, pod, None, container), &query).await
            }
            ["exec" | "attach", namespace, pod, uid, container] if debugging => {
                stream::of_container(self, request, (namespace, pod, Some(uid), container), &query)
                    .await
            }
            ["portForward", namespace, pod] if debugging => {
                stream::port_forward(self, request, namespace, pod, None).await
            }
            ["portForward", namespace, pod, uid] if debugging => {
                stream::port_forward(self, request, namespace, pod, Some(uid)).await
            }
            _ => text(StatusCode::NOT_FOUND, "404 page not found\n"),
        }
    }
}

/// The values of a query string by name.
pub(super) struct Query(BTreeMap<String, Vec<String>>);

impl Query {
    fn of(text: &str) -> Self {
        let mut values: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for pair in text.split('&').filter(|p| !p.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            // A pair with a broken escape is ignored, as in Go.
            if let (Some(name), Some(value)) = (query_decode(name), query_decode(value)) {
                values.entry(name).or_default().push(value);
            }
        }
        Self(values)
    }

    fn all(&self, name: &str) -> Vec<String> {
        self.0.get(name).cloned().unwrap_or_default()
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.first().map(String::as_str).filter(|v| !v.is_empty())
    }

    /// Returns `true` if Go would parse the value as true.
    fn is(&self, name: &str) -> bool {
        matches!(self.get(name), Some("1" | "t" | "T" | "true" | "TRUE" | "True"))
    }
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Body> {
    answer(status, "text/plain; charset=utf-8", body)
}

fn json(value: &impl serde::Serialize) -> Response<Body> {
    match serde_json::to_vec(value) {
        Ok(body) => answer(StatusCode::OK, "application/json", body),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes_query_values() {
        let query = Query::of("command=sh&command=-c&command=echo%20a+b%3D&tty=1&x");
        assert_eq!(query.all("command"), ["sh", "-c", "echo a b="]);
        assert!(query.is("tty") && !query.is("x") && !query.is("none"));
    }
}
