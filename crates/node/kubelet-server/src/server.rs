//! Starts the server and routes its requests.

use std::{net::SocketAddr, sync::Arc};

use api_meta::UserInfo;
use futures_util::future::BoxFuture;
use http::{Method, Request, Response, StatusCode, request::Parts};
use kubelet_config::ServerSettings;
use otlp::{Span, Tracer};
use serve::{Body, Handler, Limits};
use tokio::{net::TcpListener, sync::watch};

use crate::{
    auth::Auth,
    backend::Backend,
    checkpoint,
    error::ServerError,
    info, logs,
    pages::Pages,
    query::Query,
    response::text,
    stats,
    stream::{self, Target},
    system_logs, tls,
};

/// Binds the server's ports and starts it. An error prevents the kubelet's start.
pub async fn start(backend: Backend) -> Result<(), ServerError> {
    let settings = backend.settings.clone();
    let backend = Arc::new(backend);
    let tasks = &backend.tasks;
    let listener = listen((settings.address, settings.port).into()).await?;
    let issued = backend.issued_certificate.as_deref();
    let tls = tls::identity(&settings, issued, backend.clock.now())?;
    let features = settings.features.clone();
    let server = Server {
        auth: Auth::new(&backend)?,
        backend: backend.clone(),
        pages: Pages::new(features),
    };
    let serving =
        serve::serve(listener, Some(tls), Limits::default(), Arc::new(server), tasks.clone());
    tasks.essential("kubelet server", serving);
    if let Some(port) = settings.server.read_only_port {
        let listener = listen((settings.address, port).into()).await?;
        let open = Arc::new(ReadOnly { backend: backend.clone() });
        let serving = serve::serve(listener, None, Limits::default(), open, tasks.clone());
        tasks.essential("kubelet read-only server", serving);
    }
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

/// The handler of the port without authentication. It serves only what is for monitoring.
struct ReadOnly {
    backend: Arc<Backend>,
}

impl Handler for ReadOnly {
    fn handle(&self, request: Request<Body>) -> BoxFuture<'_, Response<Body>> {
        Box::pin(async move {
            if request.method() != Method::GET {
                return not_found();
            }
            let (path, query) = path_and_query(&request);
            monitor(&self.backend, &path, &query).await.unwrap_or_else(not_found)
        })
    }
}

impl Handler for Server {
    fn handle(&self, request: Request<Body>) -> BoxFuture<'_, Response<Body>> {
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let user = match self.auth.check(&parts).await {
                Ok(user) => user,
                Err(refused) => return *refused,
            };
            if let Some(page) = self.pages.answer(&parts) {
                return page;
            }
            let (method, path) = (parts.method.clone(), parts.uri.path().to_owned());
            let mut span = request_span(&self.backend.tracer, &parts, &user);
            let request = Request::from_parts(parts, body);
            let response = span.within(route(&self.backend, request)).await;
            span.set("http.response.status_code", response.status().as_u16());
            self.pages.record(&method, &path, response.status());
            response
        })
    }
}

/// Starts the span of an authorized request, named by its route as upstream's.
fn request_span(tracer: &Tracer, request: &Parts, user: &UserInfo) -> Span {
    let path = request.uri.path();
    let name = || span_name(path).to_owned();
    let mut span = tracer.server_span(name, &request.headers, user.may_decide_tracing());
    span.set("http.request.method", request.method.as_str());
    span.set("url.path", path);
    span
}

fn span_name(path: &str) -> &'static str {
    match path.trim_start_matches('/').split('/').next().unwrap_or_default() {
        "pods" => "/pods",
        "runningpods" => "/runningpods/",
        "healthz" => "/healthz",
        "metrics" => "/metrics",
        "stats" => "/stats/summary",
        "configz" => "/configz",
        "logs" => "/logs/{logpath:*}",
        "containerLogs" => "/containerLogs/{podNamespace}/{podID}/{containerName}",
        "exec" => "/exec/{podNamespace}/{podID}/{containerName}",
        "attach" => "/attach/{podNamespace}/{podID}/{containerName}",
        "portForward" => "/portForward/{podNamespace}/{podID}",
        "checkpoint" => "/checkpoint/{podNamespace}/{podID}/{containerName}",
        _ => "/",
    }
}

fn not_found() -> Response<Body> {
    text(StatusCode::NOT_FOUND, "404 page not found\n")
}

/// Returns the path without slashes at its ends, and the values of the query.
fn path_and_query(request: &Request<Body>) -> (String, Query) {
    let path = request.uri().path().trim_matches('/').to_owned();
    (path, Query::of(request.uri().query().unwrap_or_default()))
}

/// Answers a request for health, Pods or metrics. Returns `None` for other paths.
async fn monitor(backend: &Arc<Backend>, path: &str, query: &Query) -> Option<Response<Body>> {
    let parts: Vec<&str> = path.split('/').collect();
    Some(match parts.as_slice() {
        ["healthz" | "livez" | "readyz", ..] => info::healthz(&backend.health, &backend.tasks),
        ["pods"] => info::pods(backend),
        ["metrics"] => stats::metrics(backend).await,
        ["metrics", "cadvisor"] => stats::cadvisor(backend).await,
        ["metrics", "resource"] => stats::resource(backend).await,
        ["metrics", "probes"] => stats::probes(backend),
        ["stats", "summary"] => stats::summary(backend, query).await,
        _ => return None,
    })
}

/// Returns the answer to a path that the settings disable, as upstream.
fn disabled(settings: &ServerSettings, path: &str) -> Option<Response<Body>> {
    let first = path.split('/').next().unwrap_or_default();
    let message = match first {
        "run" | "exec" | "attach" | "portForward" | "containerLogs" | "runningpods" | "debug"
        | "logs" | "checkpoint"
            if !settings.debugging_handlers =>
        {
            "Debug endpoints are disabled.\n"
        }
        "logs" if !settings.system_logs => "logs endpoint is disabled.\n",
        _ => return None,
    };
    Some(text(StatusCode::METHOD_NOT_ALLOWED, message))
}

async fn route(backend: &Arc<Backend>, request: Request<Body>) -> Response<Body> {
    let (path, query) = path_and_query(&request);
    let get = request.method() == Method::GET;
    let settings = &backend.settings.server;
    if let Some(response) = disabled(settings, &path) {
        return response;
    }
    if get && let Some(response) = monitor(backend, &path, &query).await {
        return response;
    }
    let parts: Vec<&str> = path.split('/').collect();
    let target = |namespace, pod, uid| Target { namespace, pod, uid };
    match parts.as_slice() {
        ["runningpods"] if get => info::running_pods(backend).await,
        ["configz"] if get => info::configz(backend),
        ["logs", ..] if get => {
            let below = path.strip_prefix("logs").unwrap_or_default();
            system_logs::serve(below, &query, settings.log_query).await
        }
        ["checkpoint", namespace, pod, container]
            if settings.checkpoints && request.method() == Method::POST =>
        {
            checkpoint::serve(backend, namespace, pod, container, &query).await
        }
        ["containerLogs", namespace, pod, container] if get => {
            logs::serve(backend, namespace, pod, container, &query).await
        }
        ["exec" | "attach", namespace, pod, container] => {
            let target = target(namespace, pod, None);
            stream::of_container(backend, request, target, container, &query).await
        }
        ["exec" | "attach", namespace, pod, uid, container] => {
            let target = target(namespace, pod, Some(uid));
            stream::of_container(backend, request, target, container, &query).await
        }
        ["portForward", namespace, pod] => {
            stream::port_forward(backend, request, target(namespace, pod, None), &query).await
        }
        ["portForward", namespace, pod, uid] => {
            stream::port_forward(backend, request, target(namespace, pod, Some(uid)), &query).await
        }
        _ => not_found(),
    }
}

#[cfg(test)]
mod tests {
    use kubelet_config::{HostSettings, Settings};

    use super::*;

    #[test]
    fn disables_endpoints_by_settings() {
        let status = |config: &str, path: &str| {
            let host = HostSettings {
                node_name: "n".into(),
                node_ips: vec![],
                root: "/".into(),
                cert_dir: "/pki".into(),
                labels: Default::default(),
            };
            let settings = Settings::new(&kubelet_config::parse(config).unwrap(), host).unwrap();
            disabled(&settings.server, path).map(|response| response.status().as_u16())
        };
        for path in [
            "exec/ns/pod/c",
            "run/ns/pod/c",
            "attach/ns/pod/c",
            "portForward/ns/pod",
            "logs",
            "runningpods",
            "containerLogs/ns/pod/c",
            "debug/pprof",
            "checkpoint/ns/pod/c",
        ] {
            assert_eq!(status("{}", path), None, "{path}");
            assert_eq!(status("enableDebuggingHandlers: false", path), Some(405), "{path}");
        }
        for path in ["pods", "metrics", "healthz", "stats/summary"] {
            assert_eq!(status("enableDebuggingHandlers: false", path), None, "{path}");
        }
        assert_eq!(status("enableSystemLogHandler: false", "logs/syslog"), Some(405));
        assert_eq!(status("enableSystemLogHandler: false", "exec/ns/pod/c"), None);
    }
}
