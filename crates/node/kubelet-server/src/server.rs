//! Starts the server and routes its requests.

use std::{net::SocketAddr, sync::Arc};

use futures_util::future::BoxFuture;
use http::{Method, Request, Response, StatusCode};
use serve::{Body, Handler, Limits};
use tokio::{net::TcpListener, sync::watch};

use crate::{
    auth::Auth,
    backend::Backend,
    error::ServerError,
    info, logs,
    pages::Pages,
    query::Query,
    response::text,
    stats,
    stream::{self, Target},
    tls,
};

/// Binds the server's ports and starts it. An error prevents the kubelet's start.
pub async fn start(backend: Backend) -> Result<(), ServerError> {
    let settings = backend.settings.clone();
    let backend = Arc::new(backend);
    let tasks = &backend.tasks;
    let listener = listen((settings.address, settings.port).into()).await?;
    let issued = backend.issued_certificate.as_deref();
    let tls = tls::identity(&settings, issued, backend.clock.now())?;
    let server =
        Server { auth: Auth::new(&backend)?, backend: backend.clone(), pages: Pages::new() };
    let serving =
        serve::serve(listener, Some(tls), Limits::default(), Arc::new(server), tasks.clone());
    tasks.essential("kubelet server", serving);
    if let Some(address) = settings.healthz {
        let listener = listen(address).await?;
        let probe = Arc::new(Healthz { health: backend.health.clone(), tasks: tasks.clone() });
        let serving = serve::serve(listener, None, Limits::default(), probe, tasks.clone());
        tasks.essential("kubelet healthz", serving);
    }
    Ok(())
}

async fn listen(address: SocketAddr) -> Result<TcpListener, ServerError> {
    let bound = TcpListener::bind(address).await;
    bound.map_err(|source| ServerError::Listen { address, source })
}

struct Server {
    backend: Arc<Backend>,
    auth: Auth,
    pages: Pages,
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
            if let Err(refused) = self.auth.check(&parts).await {
                return *refused;
            }
            if let Some(page) = self.pages.answer(&parts) {
                return page;
            }
            let path = parts.uri.path().to_owned();
            let response = route(&self.backend, Request::from_parts(parts, body)).await;
            self.pages.record(&path, response.status());
            response
        })
    }
}

async fn route(backend: &Arc<Backend>, request: Request<Body>) -> Response<Body> {
    let path = request.uri().path().trim_end_matches('/').to_owned();
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let query = Query::of(request.uri().query().unwrap_or_default());
    let get = request.method() == Method::GET;
    let debugging = backend.settings.server.debugging_handlers;
    let target = |namespace, pod, uid| Target { namespace, pod, uid };
    match parts.as_slice() {
        ["healthz" | "livez" | "readyz", ..] if get => {
            info::healthz(&backend.health, &backend.tasks)
        }
        ["pods"] if get => info::pods(backend),
        ["runningpods"] if get => info::running_pods(backend).await,
        ["configz"] if get => info::configz(backend),
        ["metrics"] if get => stats::metrics(backend).await,
        ["metrics", "cadvisor"] if get => stats::cadvisor(backend).await,
        ["metrics", "resource"] if get => stats::resource(backend).await,
        ["metrics", "probes"] if get => stats::probes(backend),
        ["stats", "summary"] if get => stats::summary(backend, &query).await,
        ["containerLogs", namespace, pod, container] if get && debugging => {
            logs::serve(backend, namespace, pod, container, &query).await
        }
        ["exec" | "attach", namespace, pod, container] if debugging => {
            let target = target(namespace, pod, None);
            stream::of_container(backend, request, target, container, &query).await
        }
        ["exec" | "attach", namespace, pod, uid, container] if debugging => {
            let target = target(namespace, pod, Some(uid));
            stream::of_container(backend, request, target, container, &query).await
        }
        ["portForward", namespace, pod] if debugging => {
            stream::port_forward(backend, request, target(namespace, pod, None)).await
        }
        ["portForward", namespace, pod, uid] if debugging => {
            stream::port_forward(backend, request, target(namespace, pod, Some(uid))).await
        }
        _ => text(StatusCode::NOT_FOUND, "404 page not found\n"),
    }
}
