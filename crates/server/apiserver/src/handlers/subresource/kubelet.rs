//! Proxies logs, exec, attach, port-forward and proxy requests to kubelets, Pods, Services and nodes.
//!
//! The response body, or the connection after an upgrade, is passed through unchanged, except for links in proxied
//! pages.

use api_meta::{
    ErrorList, FieldError, GroupKind, GroupResource, Objects as _, Path, Status, StatusReason,
    Timestamp, Tree as _, go_quote, query_decode,
};
use auth::secondary::Moment;
use client::Transport as _;
use http::{Method, Request, Response, StatusCode, Uri, header};
use http_body_util::BodyExt as _;
use serde_json::Value;
use serve::Body;

use super::rewrite::LinkRewriter;
use crate::{
    handlers::{
        authorization::check_further_permissions,
        call::{Answer, Call},
        state::State,
        websocket::{self, Framing},
    },
    outbound::{
        forwarding,
        target::{self, Target},
    },
    request::{Query, body::RequestBody},
    watch_cache::store_status,
};

/// The streams of a log that a client may request.
const LOG_STREAMS: [&str; 3] = ["All", "Stderr", "Stdout"];

pub(super) async fn proxy(state: &State, call: &Call) -> Answer {
    let mut parts = call.take_parts();
    check_further_permissions(&state.security, call, Moment::Connect, &Value::Null, None)?;
    let fresh = state.cache.consistent_with(&call.resource.feed).await;
    fresh.map_err(store_status)?;
    let (target, mut path) = target(state, call).await?;
    let (prefix, inner) = inner_path(call, parts.uri.path());
    let proxied = (call.path.subresource == "proxy")
        .then(|| LinkRewriter { prefix: prefix.to_owned(), authority: target.address.to_string() });
    if proxied.is_some() {
        match inner {
            Some(inner) => inner.clone_into(&mut path),
            // Relative links of a page require a trailing slash.
            None if matches!(call.method, Method::GET | Method::HEAD)
                && !parts.headers.contains_key(header::UPGRADE) =>
            {
                return Ok(redirect_to_root(parts.uri.path(), parts.uri.query()));
            }
            None => {}
        }
    }
    let transport = state.kubelets.transport(&target);
    let given = parts.uri.query().unwrap_or_default();
    let query = match call.path.subresource.as_str() {
        "attach" | "exec" if target.is_kubelet() => streams(given),
        _ => given.to_owned(),
    };
    let query = if query.is_empty() { query } else { format!("?{query}") };
    let uri: Uri = format!("{path}{query}")
        .parse()
        .map_err(|e| Box::new(Status::bad_request(format!("{path}: {e}"))))?;
    let upgraded = parts.extensions.remove::<hyper::upgrade::OnUpgrade>();
    let by_socket =
        call.path.subresource == "log" && serve::websocket::is_asked_for(&parts.headers);
    let socket = by_socket
        .then(|| serve::websocket::accept(&parts.headers, websocket::PROTOCOLS))
        .transpose();
    let socket = socket.map_err(|e| Box::new(Status::bad_request(e.to_string())))?;
    let upgrade = parts.headers.contains_key(header::UPGRADE) && socket.is_none();
    let body = match call.take_body() {
        RequestBody::Coming(body) => body,
        RequestBody::Nothing | RequestBody::Whole(_) => serve::full(Vec::new()),
    };
    let mut request = Request::new(body);
    *request.method_mut() = onward_method(call, upgrade);
    *request.uri_mut() = uri;
    *request.headers_mut() = forwarding::headers(&parts.headers, upgrade);
    if proxied.is_some() {
        // Pages are rewritten, so they must not be compressed.
        request.headers_mut().remove(header::ACCEPT_ENCODING);
    }
    let sent = transport.send(request).await;
    let response = sent.map_err(|error| Box::new(unreachable(&error, proxied.is_some())))?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return match response.status().as_u16() {
            code @ 300.. if call.path.subresource != "proxy" => Err(refusal(code, response).await),
            _ => Ok(match (proxied, socket, upgraded) {
                (Some(proxied), ..) => proxied.answer(response),
                (None, Some(accepted), Some(upgraded)) => {
                    let tasks = &state.cache.tasks;
                    let framing = Framing::of_logs(accepted.0);
                    websocket::answer(tasks, upgraded, accepted.1, framing, response.into_body())
                }
                _ => response,
            }),
        };
    }
    let Some(upgraded) = upgraded else {
        return Err(Box::new(Status::bad_request("the connection cannot be upgraded")));
    };
    Ok(forwarding::joined(&state.cache.tasks, response, upgraded))
}

/// Returns the Status for a failed connection. For a proxy it is a 503, because the backend may still be starting and
/// clients retry.
fn unreachable(error: &client::Error, proxied: bool) -> Status {
    if proxied {
        return Status::service_unavailable(format!("error trying to reach service: {error}"));
    }
    let message = format!("error dialing backend: {error}");
    Status::failure(500, StatusReason::InternalError, message)
}

/// Splits the path of a proxy request into the proxy's path and the backend's path, both undecoded.
fn inner_path<'a>(call: &Call, path: &'a str) -> (&'a str, Option<&'a str>) {
    // /api/v1/nodes/NAME/proxy has 5 parts; /namespaces/NAMESPACE adds two.
    let parts = if call.path.namespace.is_empty() { 5 } else { 7 };
    match path.match_indices('/').nth(parts) {
        Some((at, _)) => (&path[..at], Some(&path[at..])),
        None => (path, None),
    }
}

fn redirect_to_root(path: &str, query: Option<&str>) -> Response<Body> {
    let query = query.map(|q| format!("?{q}")).unwrap_or_default();
    let mut response = Response::new(serve::full(Vec::new()));
    *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
    if let Ok(location) = format!("{path}/{query}").parse() {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

/// Converts a plain-text failure of the kubelet to a Status.
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
        // A client that follows the redirect would connect to a host that the node chose.
        300..=399 => Status::internal("redirects forbidden"),
        400 => Status::bad_request(text),
        // The Pod exists; the missing object is one of its containers.
        404 => Status::failure(404, StatusReason::NotFound, text),
        _ => Status::internal(text),
    })
}

/// Returns the method of the proxied request. Logs use GET; others keep their method.
fn onward_method(call: &Call, upgrade: bool) -> Method {
    match (call.path.subresource.as_str(), upgrade) {
        ("log", _) => Method::GET,
        _ => call.method.clone(),
    }
}

/// Returns the target of a call and the path there.
async fn target(state: &State, call: &Call) -> Result<(Target, String), Box<Status>> {
    let objects = &*state.security.objects;
    let path = &call.path;
    let rest = format!("/{}", path.rest);
    match &*call.resource.definition.plural {
        "nodes" => Ok((target::node(objects, &state.kubelets.address_types, path).await?, rest)),
        "services" => Ok((target::service(objects, path)?, rest)),
        _ if path.subresource == "proxy" => Ok((target::pod(objects, path)?, rest)),
        _ => {
            let pod = objects.get(&GroupResource::PODS, &path.namespace, &path.name);
            let missing = || Box::new(Status::not_found(&GroupResource::PODS, &path.name));
            stream(state, call, &*pod.ok_or_else(missing)?).await
        }
    }
}

/// Translates the query of exec and attach to the kubelet's names. The kubelet accepts only `1` for true, and has the
/// container in the path. The query is parsed like for admission, so that both see the same values.
fn streams(query: &str) -> String {
    let commands = query.split('&').filter_map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (query_decode(name).as_deref() == Some("command")).then(|| format!("command={value}"))
    });
    let given = Query::parse(query);
    let flags = [("stdin", "input"), ("stdout", "output"), ("stderr", "error"), ("tty", "tty")];
    let flags = flags.into_iter().filter(|(name, _)| given.flag(name));
    let onward = commands.chain(flags.map(|(_, onward)| format!("{onward}=1")));
    onward.collect::<Vec<_>>().join("&")
}

/// Returns the kubelet of a Pod and the kubelet's path for a subresource.
async fn stream(state: &State, call: &Call, pod: &Value) -> Result<(Target, String), Box<Status>> {
    let path = &call.path;
    if path.subresource == "log" {
        check_log_options(&call.info.query, &path.name)?;
    }
    let container = match path.subresource.as_str() {
        "portforward" => String::new(),
        _ => container(call, pod)?,
    };
    let node = pod.text("spec.nodeName");
    if node.is_empty() {
        return Err(Box::new(Status::bad_request(format!(
            "pod {} does not have a host assigned",
            path.name
        ))));
    }
    let kubelet_path = match path.subresource.as_str() {
        "log" => format!("/containerLogs/{}/{}/{container}", path.namespace, path.name),
        "portforward" => format!("/portForward/{}/{}", path.namespace, path.name),
        verb => format!("/{verb}/{}/{}/{container}", path.namespace, path.name),
    };
    let types = &state.kubelets.address_types;
    let target = target::kubelet(&*state.security.objects, types, node).await?;
    Ok((target, kubelet_path))
}

/// Validates the options of a request for a Pod's log, with upstream's messages.
fn check_log_options(query: &Query, pod: &str) -> Result<(), Box<Status>> {
    let mut errors = ErrorList::new();
    for (name, least, detail) in [
        ("tailLines", 0, "must be greater than or equal to 0"),
        ("limitBytes", 1, "must be greater than 0"),
        ("sinceSeconds", 1, "must be greater than 0"),
    ] {
        if let Some(value) = query.integer(name)?.filter(|value| *value < least) {
            errors.push(FieldError::invalid(&Path::new(name), value, detail));
        }
    }
    let given = |name| query.get(name).filter(|value| !value.is_empty());
    if let Some(time) = given("sinceTime") {
        time.parse::<Timestamp>().map_err(|_| {
            let message = format!("sinceTime: {} cannot be parsed", go_quote(time));
            Box::new(Status::bad_request(message))
        })?;
        if given("sinceSeconds").is_some() {
            let detail = "at most one of `sinceTime` or `sinceSeconds` may be specified";
            errors.push(FieldError::forbidden(&Path::new("[]"), detail));
        }
    }
    if let Some(stream) = given("stream").filter(|stream| !LOG_STREAMS.contains(stream)) {
        errors.push(FieldError::not_supported(&Path::new("stream"), stream, &LOG_STREAMS));
    }
    if errors.is_empty() {
        return Ok(());
    }
    Err(Box::new(Status::invalid(&GroupKind::new("", "PodLogOptions"), pod, &errors)))
}

/// Returns the container that the query names, the one of the Pod's default annotation, or the only one.
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
        return if known {
            Ok(wanted.to_owned())
        } else {
            Err(Box::new(Status::bad_request(format!(
                "container {wanted} is not valid for pod {pod_name}"
            ))))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn translates_stream_flags_for_kubelet() {
        let query = "command=sh&command=-c&container=app&stdin=true&stdout=1&stderr=false&tty=true";
        assert_eq!(streams(query), "command=sh&command=-c&input=1&output=1&tty=1");
        assert_eq!(streams("stdout"), "output=1");
        let twice = "stdin=false&stdin=true&comm%61nd=a%26b&tty=0";
        assert_eq!(streams(twice), "command=a%26b", "the first counts, and names are decoded");
        assert_eq!(streams(""), "");
    }

    #[test]
    fn rejects_wrong_log_options() {
        let status = |query: &str| check_log_options(&Query::parse(query), "p").err();
        let right = "tailLines=0&limitBytes=1&sinceSeconds=9223372036854775807&stream=Stdout";
        assert_eq!(status(right).map(|status| status.message), None);
        for (query, code, part) in [
            (
                "tailLines=-1",
                422,
                "tailLines: Invalid value: -1: must be greater than or equal to 0",
            ),
            ("limitBytes=0", 422, "limitBytes: Invalid value: 0: must be greater than 0"),
            ("sinceSeconds=0", 422, "sinceSeconds: Invalid value: 0: must be greater than 0"),
            ("sinceSeconds=1&sinceTime=2026-01-01T00:00:00Z", 422, "at most one of `sinceTime`"),
            ("stream=stdout", 422, "stream: Unsupported value: \"stdout\""),
            (
                "tailLines=9223372036854775808",
                400,
                "strconv.ParseInt: parsing \"9223372036854775808\"",
            ),
            ("sinceTime=9999-99-99", 400, "sinceTime: \"9999-99-99\" cannot be parsed"),
        ] {
            let status = status(query).unwrap();
            assert!(status.code == code && status.message.contains(part), "{query}: {status:?}");
        }
    }
}
