//! What the API server asks a kubelet, a Pod or a Service for a client: logs, exec, attach, port-forward, proxy.
//!
//! The answer's body, or after an upgrade the connection, is passed through as it comes.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use api_meta::{GroupResource, Objects, Status, StatusReason};
use client::{ClientTls, HttpTransport, TlsFiles, TlsMaterial, Transport};
use http::{Method, Request, Response, StatusCode, Uri, header, request::Parts};
use http_body_util::BodyExt as _;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use serve::Body;

use super::{Answer, rewrite::Proxied};
use crate::{
    StartError,
    call::Call,
    config::Config,
    messages::{self, Framing},
    server::Server,
};

/// Connections to kubelets, one for each address, kept while they are used.
pub(crate) struct Kubelets {
    /// What kubelets are shown.
    tls: ClientTls,
    /// Pods and Services are shown nothing, and may show what they like.
    anyone: ClientTls,
    known: Mutex<HashMap<String, Arc<HttpTransport>>>,
    pub(crate) tasks: rt::Tasks,
}

const KNOWN_LIMIT: usize = 10_000;

/// Where a request goes on to.
struct Target {
    scheme: &'static str,
    authority: String,
    path: String,
    /// Only kubelets are shown our client certificate.
    kubelet: bool,
}

impl Kubelets {
    pub(crate) fn new(config: &Config, tasks: &rt::Tasks) -> Result<Self, StartError> {
        let files = TlsFiles {
            insecure: config.kubelet_ca.is_none(),
            ca: config.kubelet_ca.clone(),
            certificate: Some(config.kubelet_client_certificate.clone()),
            key: Some(config.kubelet_client_key.clone()),
        };
        let tls = ClientTls::from_files(files).map_err(StartError::KubeletClient)?;
        let anyone = TlsMaterial { insecure: true, ..TlsMaterial::default() };
        let anyone = anyone.client_config().map_err(StartError::KubeletClient)?.into();
        Ok(Self { tls, anyone, known: Mutex::default(), tasks: tasks.clone() })
    }

    fn transport(&self, target: &Target) -> Result<Arc<HttpTransport>, Box<Status>> {
        let server = format!("{}://{}", target.scheme, target.authority);
        let internal = |e| Box::new(Status::internal(e));
        if !target.kubelet {
            let transport = HttpTransport::http1(&server, self.anyone.clone());
            return Ok(Arc::new(transport.map_err(internal)?));
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(transport) = known.get(&server) {
            return Ok(transport.clone());
        }
        let transport = HttpTransport::new(&server, self.tls.clone(), None).map_err(internal)?;
        let transport = Arc::new(transport);
        if known.len() >= KNOWN_LIMIT {
            known.clear();
        }
        known.insert(server, transport.clone());
        Ok(transport)
    }
}

pub(super) async fn proxy(server: &Server, call: &Call, mut parts: Parts) -> Answer {
    let fresh = server.hub.consistent().await;
    fresh.map_err(|e| Box::new(crate::server::store_status(e)))?;
    let mut target = target(server, call)?;
    let (prefix, inner) = inner_path(call, parts.uri.path());
    let proxied = (call.path.subresource == "proxy")
        .then(|| Proxied { prefix: prefix.to_owned(), authority: target.authority.clone() });
    if proxied.is_some() {
        match inner {
            Some(inner) => inner.clone_into(&mut target.path),
            // A page's relative links need the stroke at the end.
            None if matches!(call.method, Method::GET | Method::HEAD)
                && !parts.headers.contains_key(header::UPGRADE) =>
            {
                return Ok(to_the_root(parts.uri.path(), parts.uri.query()));
            }
            None => {}
        }
    }
    let transport = server.kubelets.transport(&target)?;
    let given = parts.uri.query().unwrap_or_default();
    let query = match call.path.subresource.as_str() {
        "attach" | "exec" if target.kubelet => streams(given),
        _ => given.to_owned(),
    };
    let query = if query.is_empty() { query } else { format!("?{query}") };
    let uri: Uri = format!("{}{query}", target.path)
        .parse()
        .map_err(|e| Box::new(Status::bad_request(format!("{}: {e}", target.path))))?;
    let upgraded = parts.extensions.remove::<hyper::upgrade::OnUpgrade>();
    let by_socket =
        call.path.subresource == "log" && serve::websocket::is_asked_for(&parts.headers);
    let socket = by_socket
        .then(|| serve::websocket::accept(&parts.headers, messages::PROTOCOLS))
        .transpose();
    let socket = socket.map_err(|e| Box::new(Status::bad_request(e.to_string())))?;
    let upgrade = parts.headers.contains_key(header::UPGRADE) && socket.is_none();
    let mut onward = Request::builder().method(onward_method(call, upgrade)).uri(uri);
    for (name, value) in &parts.headers {
        // The caller's credentials are for us alone.
        let ours = name == header::AUTHORIZATION
            // Pages are rewritten, so they must come as they are.
            || (name == header::ACCEPT_ENCODING && proxied.is_some())
            || name == header::HOST
            || name.as_str().starts_with("impersonate-")
            || (!upgrade
                && (name == header::CONNECTION
                    || name == header::UPGRADE
                    || name == header::TRANSFER_ENCODING
                    || name.as_str().starts_with("sec-websocket-")));
        if !ours {
            onward = onward.header(name, value);
        }
    }
    let body = call.take_body().unwrap_or_else(|| serve::full(Vec::new()));
    let request = onward.body(body).map_err(|e| Box::new(Status::internal(e)))?;
    let sent = transport.send(request).await;
    let mut response = sent.map_err(|error| Box::new(unreachable(&error, proxied.is_some())))?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return match response.status().as_u16() {
            code @ 400.. if call.path.subresource != "proxy" => Err(refusal(code, response).await),
            _ => Ok(match (proxied, socket, upgraded) {
                (Some(proxied), ..) => proxied.answer(response),
                (None, Some(accepted), Some(upgraded)) => {
                    let tasks = &server.kubelets.tasks;
                    let framing = Framing::of_logs(accepted.0);
                    messages::answer(tasks, upgraded, accepted.1, framing, response.into_body())
                }
                _ => response,
            }),
        };
    }
    let Some(upgraded) = upgraded else {
        return Err(Box::new(Status::bad_request("the connection cannot be upgraded")));
    };
    let mut head = Response::new(serve::full(Vec::new()));
    *head.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *head.headers_mut() = response.headers().clone();
    server.kubelets.tasks.spawn_until_shutdown("streaming", async move {
        let joined = async {
            let backend = hyper::upgrade::on(&mut response).await?;
            let caller = upgraded.await?;
            let (mut caller, mut backend) = (TokioIo::new(caller), TokioIo::new(backend));
            let _ = tokio::io::copy_bidirectional(&mut caller, &mut backend).await;
            Ok::<_, hyper::Error>(())
        };
        if let Err(error) = joined.await {
            tracing::debug!(%error, "joining an upgraded connection");
        }
    });
    Ok(head)
}

/// A backend behind a proxy may only be starting, which clients are told so that they try again.
fn unreachable(error: &client::Error, proxied: bool) -> Status {
    if proxied {
        return Status::service_unavailable(format!("error trying to reach service: {error}"));
    }
    let message = format!("error dialing backend: {error}");
    Status::failure(500, StatusReason::InternalError, message)
}

/// A proxy's path in two: what leads to the backend, and the backend's own path, as they were sent.
fn inner_path<'a>(call: &Call, path: &'a str) -> (&'a str, Option<&'a str>) {
    // /api/v1/nodes/NAME/proxy, and with /namespaces/NAMESPACE two more.
    let parts = if call.path.namespace.is_empty() { 5 } else { 7 };
    match path.match_indices('/').nth(parts) {
        Some((at, _)) => (&path[..at], Some(&path[at..])),
        None => (path, None),
    }
}

fn to_the_root(path: &str, query: Option<&str>) -> Response<Body> {
    let query = query.map(|q| format!("?{q}")).unwrap_or_default();
    let mut response = Response::new(serve::full(Vec::new()));
    *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
    if let Ok(location) = format!("{path}/{query}").parse() {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

/// The kubelet refuses in plain text; clients of the API expect a Status.
async fn refusal(code: u16, response: Response<Body>) -> Box<Status> {
    const LIMIT: usize = 8 << 10;
    let mut body = response.into_body();
    let mut text = Vec::new();
    while let Some(Ok(frame)) = body.frame().await
        && text.len() < LIMIT
    {
        text.extend_from_slice(&frame.into_data().unwrap_or_default());
    }
    let text = String::from_utf8_lossy(&text).trim().to_owned();
    Box::new(match code {
        400 => Status::bad_request(text),
        // The Pod is there, or it would not have been asked for: a container of it is what is missing.
        404 => Status::failure(404, StatusReason::NotFound, text),
        _ => Status::internal(text),
    })
}

/// The kubelet takes streams by POST or, for WebSockets, GET; everything else keeps its method.
fn onward_method(call: &Call, upgrade: bool) -> Method {
    match (call.path.subresource.as_str(), upgrade) {
        ("log", _) => Method::GET,
        _ => call.method.clone(),
    }
}

fn target(server: &Server, call: &Call) -> Result<Target, Box<Status>> {
    let objects = &server.security.objects;
    let path = &call.path;
    let not_found = |resource: &GroupResource| Box::new(Status::not_found(resource, &path.name));
    match &*call.resource.definition.plural {
        "nodes" => {
            let (_, name, _) = split_name(&path.name);
            kubelet(objects, name, format!("/{}", path.rest))
        }
        "services" => service(objects, path),
        _ if path.subresource == "proxy" => {
            let (scheme, name, port) = split_name(&path.name);
            let pod = objects
                .get(&GroupResource::PODS, &path.namespace, name)
                .ok_or_else(|| not_found(&GroupResource::PODS))?;
            let ip = pod["status"]["podIP"].as_str().filter(|ip| !ip.is_empty());
            let ip = ip.ok_or_else(|| {
                Box::new(Status::bad_request("address not allowed: the Pod has no IP yet"))
            })?;
            let port = pod_port(&pod, port);
            Ok(Target {
                scheme,
                authority: join(ip, &port),
                path: format!("/{}", path.rest),
                kubelet: false,
            })
        }
        _ => {
            let pod = objects
                .get(&GroupResource::PODS, &path.namespace, &path.name)
                .ok_or_else(|| not_found(&GroupResource::PODS))?;
            stream(objects, call, &pod)
        }
    }
}

/// `[scheme:]name[:port]`, as proxy paths name their target.
fn split_name(text: &str) -> (&'static str, &str, &str) {
    let mut parts = text.splitn(3, ':');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(scheme), Some(name), Some(port)) => {
            (if scheme == "https" { "https" } else { "http" }, name, port)
        }
        (Some(name), Some(port), None) => ("http", name, port),
        _ => ("http", text, ""),
    }
}

fn join(host: &str, port: &str) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

fn pod_port(pod: &Value, port: &str) -> String {
    let containers = pod["spec"]["containers"].as_array().into_iter().flatten();
    let mut ports = containers.flat_map(|c| c["ports"].as_array().into_iter().flatten());
    let found = match port {
        "" => ports.next(),
        name => ports.find(|p| p["name"] == name),
    };
    match found.and_then(|p| p["containerPort"].as_u64()) {
        Some(number) => number.to_string(),
        None if port.is_empty() => "80".to_owned(),
        None => port.to_owned(),
    }
}

fn service(objects: &dyn Objects, path: &crate::path::ResourcePath) -> Result<Target, Box<Status>> {
    let (scheme, name, port) = split_name(&path.name);
    let service = objects
        .get(&GroupResource::SERVICES, &path.namespace, name)
        .ok_or_else(|| Box::new(Status::not_found(&GroupResource::SERVICES, name)))?;
    let authority = ready(objects, &service, port).ok_or_else(|| {
        let message = format!("no endpoints available for service \"{}\"", path.name);
        Box::new(Status::service_unavailable(message))
    })?;
    Ok(Target { scheme, authority, path: format!("/{}", path.rest), kubelet: false })
}

/// A ready endpoint of a Service, by the name or number of a port of it; empty is its first.
pub(crate) fn endpoint(
    objects: &dyn Objects,
    namespace: &str,
    name: &str,
    port: &str,
) -> Option<String> {
    ready(objects, &*objects.get(&GroupResource::SERVICES, namespace, name)?, port)
}

fn ready(objects: &dyn Objects, service: &Value, port: &str) -> Option<String> {
    let text = |field: &str| service["metadata"][field].as_str().unwrap_or_default();
    let (namespace, name) = (text("namespace"), text("name"));
    let ports = service["spec"]["ports"].as_array();
    let wanted = ports.into_iter().flatten().find(|p| {
        port.is_empty()
            || p["name"] == port
            || p["port"].as_u64().is_some_and(|n| n.to_string() == port)
    });
    let port_name = wanted?["name"].as_str().unwrap_or_default().to_owned();
    let slices = GroupResource::new("discovery.k8s.io", "endpointslices");
    let mut found = Vec::new();
    for slice in objects.list(&slices, namespace) {
        if slice["metadata"]["labels"]["kubernetes.io/service-name"] != name {
            continue;
        }
        let ports = slice["ports"].as_array().into_iter().flatten();
        let port = ports.into_iter().find(|p| p["name"].as_str().unwrap_or_default() == port_name);
        let Some(port) = port.and_then(|p| p["port"].as_u64()) else { continue };
        for endpoint in slice["endpoints"].as_array().into_iter().flatten() {
            if endpoint["conditions"]["ready"] != Value::Bool(false)
                && let Some(address) = endpoint["addresses"][0].as_str()
            {
                found.push(join(address, &port.to_string()));
            }
        }
    }
    if found.is_empty() {
        return None;
    }
    Some(found.swap_remove(rand::random_range(0..found.len())))
}

/// The kubelet has names of its own for the streams of exec and attach, and takes nothing but 1 for yes. The container
/// is part of its path.
fn streams(query: &str) -> String {
    let onward = query.split('&').filter_map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let name = match name {
            "stdin" => "input",
            "stdout" => "output",
            "stderr" => "error",
            "tty" => "tty",
            "command" => return Some(pair.to_owned()),
            _ => return None,
        };
        let no = matches!(value, "" | "0" | "f" | "F" | "false" | "False" | "FALSE");
        (!no).then(|| format!("{name}=1"))
    });
    onward.collect::<Vec<_>>().join("&")
}

/// The kubelet's own paths for what a Pod's subresources do.
fn stream(objects: &dyn Objects, call: &Call, pod: &Value) -> Result<Target, Box<Status>> {
    let path = &call.path;
    let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
    if node.is_empty() {
        return Err(Box::new(Status::bad_request(format!(
            "pod {} does not have a host assigned",
            path.name
        ))));
    }
    let container = match path.subresource.as_str() {
        "portforward" => String::new(),
        _ => container(call, pod)?,
    };
    let kubelet_path = match path.subresource.as_str() {
        "log" => format!("/containerLogs/{}/{}/{container}", path.namespace, path.name),
        "portforward" => format!("/portForward/{}/{}", path.namespace, path.name),
        verb => format!("/{verb}/{}/{}/{container}", path.namespace, path.name),
    };
    kubelet(objects, node, kubelet_path)
}

/// The container that the query names, or the only one, or the one that the Pod's annotation prefers.
fn container(call: &Call, pod: &Value) -> Result<String, Box<Status>> {
    let names = |list: &str| -> Vec<String> {
        let containers = pod["spec"][list].as_array().into_iter().flatten();
        containers.filter_map(|c| c["name"].as_str()).map(str::to_owned).collect()
    };
    let (main, init, ephemeral) =
        (names("containers"), names("initContainers"), names("ephemeralContainers"));
    let pod_name = &call.path.name;
    let wanted = call.info.query.get("container").unwrap_or_default();
    if !wanted.is_empty() {
        let known = main.iter().chain(&init).chain(&ephemeral).any(|n| n == wanted);
        return match known {
            true => Ok(wanted.to_owned()),
            false => Err(Box::new(Status::bad_request(format!(
                "container {wanted} is not valid for pod {pod_name}"
            )))),
        };
    }
    let preferred =
        pod["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"].as_str();
    if let Some(preferred) = preferred.filter(|p| main.iter().any(|n| n == p)) {
        return Ok(preferred.to_owned());
    }
    match main.as_slice() {
        [one] => Ok(one.clone()),
        many => {
            let mut message = format!(
                "a container name must be specified for pod {pod_name}, choose one of: [{}]",
                many.join(" ")
            );
            if !init.is_empty() {
                message.push_str(&format!(" or one of the init containers: [{}]", init.join(" ")));
            }
            Err(Box::new(Status::bad_request(message)))
        }
    }
}

/// The kubelet of a node, at the address that kubeadm prefers.
fn kubelet(objects: &dyn Objects, name: &str, path: String) -> Result<Target, Box<Status>> {
    let node = objects
        .get(&GroupResource::NODES, "", name)
        .ok_or_else(|| Box::new(Status::not_found(&GroupResource::NODES, name)))?;
    let addresses = node["status"]["addresses"].as_array();
    let of = |kind: &str| {
        addresses
            .into_iter()
            .flatten()
            .find(|a| a["type"] == kind)
            .and_then(|a| a["address"].as_str())
    };
    let host = of("InternalIP").or_else(|| of("ExternalIP")).or_else(|| of("Hostname"));
    let host = host.ok_or_else(|| {
        Box::new(Status::internal(format!("no preferred addresses found for node {name}")))
    })?;
    let port =
        node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"].as_u64().unwrap_or(10250);
    Ok(Target { scheme: "https", authority: join(host, &port.to_string()), path, kubelet: true })
}

#[cfg(test)]
mod tests {
    use super::streams;

    #[test]
    fn streams_have_the_kubelets_names() {
        let query = "command=sh&command=-c&container=app&stdin=true&stdout=1&stderr=false&tty=true";
        assert_eq!(streams(query), "command=sh&command=-c&input=1&output=1&tty=1");
        assert_eq!(streams("stdout"), "");
        assert_eq!(streams(""), "");
    }
}
