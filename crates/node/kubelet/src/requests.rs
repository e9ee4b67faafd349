//! HTTP requests to containers, for probes and lifecycle hooks.

use client::{ClientTls, HttpTransport, Transport as _};
use http::{HeaderName, HeaderValue, header};
use k8s_openapi::{
    api::core::v1::{Container, HTTPGetAction},
    apimachinery::pkg::util::intstr::IntOrString,
};

/// The limit of a response body in bytes. Only the status matters.
const BODY_LIMIT: usize = 10 << 10;

/// The error of a request to a container.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestError {
    #[error("container {container} has no port {port:?}")]
    NoPort { container: String, port: IntOrString },
    #[error("Get \"{url}\": {source}")]
    Invalid { url: String, source: http::Error },
    /// Contains only the innermost cause, as in upstream's messages.
    #[error("Get \"{url}\": {}", source.cause())]
    Failed { url: String, source: client::Error },
}

/// Resolves a port. A name is that of a container port.
pub(crate) fn port_of(port: &IntOrString, container: &Container) -> Result<u16, RequestError> {
    let number = match port {
        IntOrString::Int(number) => Some(*number),
        IntOrString::String(name) => {
            let listed = container.ports.iter().flatten().find(|p| p.name.as_ref() == Some(name));
            listed.map(|p| p.container_port).or_else(|| name.parse().ok())
        }
    };
    number.and_then(|n| u16::try_from(n).ok()).filter(|n| *n > 0).ok_or_else(|| {
        RequestError::NoPort { container: container.name.clone(), port: port.clone() }
    })
}

/// The target of an HTTP probe or hook.
pub(crate) struct HttpTarget {
    host: String,
    port: u16,
    path: String,
    tls: bool,
    headers: Vec<(String, String)>,
}

impl HttpTarget {
    pub(crate) fn new(
        get: &HTTPGetAction,
        container: &Container,
        pod_ip: &str,
    ) -> Result<Self, RequestError> {
        let host = get.host.clone().filter(|h| !h.is_empty()).unwrap_or_else(|| pod_ip.to_owned());
        let path = get.path.clone().unwrap_or_default();
        let headers =
            get.http_headers.iter().flatten().map(|h| (h.name.clone(), h.value.clone())).collect();
        Ok(Self {
            host,
            port: port_of(&get.port, container)?,
            path: if path.starts_with('/') { path } else { format!("/{path}") },
            tls: get.scheme.as_deref() == Some("HTTPS"),
            headers,
        })
    }
}

/// Sends one GET request on a new connection and returns the status.
pub(crate) async fn http_get(target: &HttpTarget, agent: &str) -> Result<u16, RequestError> {
    let HttpTarget { host, port, path, tls, headers } = target;
    let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
    let server = format!("http{}://{host}:{port}", if *tls { "s" } else { "" });
    let url = format!("{server}{path}");
    let failed = |source| RequestError::Failed { url: url.clone(), source };
    // Certificates are not verified, because the request only checks that the server answers.
    let transport = HttpTransport::http1(&server, ClientTls::anyone());
    let mut request = http::Request::get(path)
        .header(header::USER_AGENT, agent)
        .header(header::ACCEPT, "*/*")
        .header(header::CONNECTION, "close")
        .body(client::empty())
        .map_err(|source| RequestError::Invalid { url: url.clone(), source })?;
    for (name, value) in headers {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            request.headers_mut().insert(name, value);
        }
    }
    let response = transport.map_err(failed)?.send(request).await.map_err(failed)?;
    let status = response.status().as_u16();
    match client::read(path, response.into_body(), BODY_LIMIT).await {
        Ok(_) | Err(client::Error::TooLarge { .. }) => Ok(status),
        Err(error) => Err(failed(error)),
    }
}
