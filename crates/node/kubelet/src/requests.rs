//! HTTP requests to containers, for probes and lifecycle hooks.

use client::{ClientTls, HttpTransport, Transport as _};
use http::{HeaderName, HeaderValue, header};
use k8s_openapi::{
    api::core::v1::{Container, HTTPGetAction},
    apimachinery::pkg::util::intstr::IntOrString,
};
use url::{Position, Url};

/// The limit of a response body in bytes.
const BODY_LIMIT: usize = 10 << 10;

/// The largest number of requests with which redirects are followed.
const MAX_REQUESTS: usize = 10;

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
    #[error("Get \"{url}\": stopped after {MAX_REQUESTS} redirects")]
    Redirects { url: String },
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
#[derive(Clone, Debug, PartialEq)]
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

    /// Returns the target of a redirect; `None` if that is another host or no HTTP URL.
    fn redirected(&self, location: &str) -> Option<Self> {
        let here = Url::parse(&format!("{}{}", self.server(), self.path)).ok()?;
        let next = here.join(location).ok()?;
        let tls = match next.scheme() {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        let port = next.port_or_known_default()?;
        let path = next[Position::BeforePath..Position::AfterQuery].to_owned();
        (next.host() == here.host()).then(|| Self { port, path, tls, ..self.clone() })
    }

    fn server(&self) -> String {
        let Self { host, port, tls, .. } = self;
        let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        format!("http{}://{host}:{port}", if *tls { "s" } else { "" })
    }
}

/// The response of a container.
pub(crate) struct HttpResponse {
    pub(crate) status: u16,
    /// The body; empty if it is too long.
    pub(crate) body: String,
    location: Option<String>,
}

/// Sends a GET request, follows redirects to the same host and returns the last response.
pub(crate) async fn http_get(
    target: &HttpTarget,
    agent: &str,
) -> Result<HttpResponse, RequestError> {
    let mut target = target.clone();
    for _ in 0..MAX_REQUESTS {
        let response = request(&target, agent).await?;
        let is_redirect = matches!(response.status, 301 | 302 | 303 | 307 | 308);
        let location = response.location.as_deref().filter(|_| is_redirect);
        match location.and_then(|location| target.redirected(location)) {
            Some(next) => target = next,
            None => return Ok(response),
        }
    }
    Err(RequestError::Redirects { url: format!("{}{}", target.server(), target.path) })
}

/// Sends one GET request on a new connection.
async fn request(target: &HttpTarget, agent: &str) -> Result<HttpResponse, RequestError> {
    let HttpTarget { path, headers, .. } = target;
    let server = target.server();
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
    let location = response.headers().get(header::LOCATION);
    let location = location.and_then(|value| value.to_str().ok()).map(str::to_owned);
    let body = match client::read(path, response.into_body(), BODY_LIMIT).await {
        Ok(body) => String::from_utf8_lossy(&body).into_owned(),
        Err(client::Error::TooLarge { .. }) => String::new(),
        Err(error) => return Err(failed(error)),
    };
    Ok(HttpResponse { status, body, location })
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;

    fn target(path: &str) -> HttpTarget {
        let (host, path) = ("10.0.0.1".to_owned(), path.to_owned());
        HttpTarget { host, port: 8080, path, tls: false, headers: Vec::new() }
    }

    #[test]
    fn resolves_redirects_to_the_same_host_only() {
        let to = |location: &str| {
            let next = target("/a/b?c=d").redirected(location)?;
            Some(format!("{}{}", next.server(), next.path))
        };
        for (location, expected) in [
            ("/x?y", Some("http://10.0.0.1:8080/x?y")),
            ("x", Some("http://10.0.0.1:8080/a/x")),
            ("?y#z", Some("http://10.0.0.1:8080/a/b?y")),
            ("", Some("http://10.0.0.1:8080/a/b?c=d")),
            ("../x", Some("http://10.0.0.1:8080/x")),
            ("//10.0.0.1/x", Some("http://10.0.0.1:80/x")),
            ("https://10.0.0.1/x", Some("https://10.0.0.1:443/x")),
            ("http://10.0.0.1:8081", Some("http://10.0.0.1:8081/")),
            ("http://0.0.0.0/", None),
            ("//example.com/x", None),
            ("file://10.0.0.1/x", None),
            ("http://[::1", None),
        ] {
            assert_eq!(to(location).as_deref(), expected, "{location}");
        }
    }

    /// Serves `/healthz` with 500, `/loop` with a redirect to itself, and others with a redirect to `/healthz`.
    async fn serve(listener: TcpListener) {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = vec![0; 1024];
            let size = stream.read(&mut head).await.unwrap_or_default();
            let head = String::from_utf8_lossy(&head[..size]).into_owned();
            let answer = match head.split(' ').nth(1) {
                Some("/healthz") => "500 No\r\n",
                Some("/loop") => "302 Found\r\nLocation: /loop\r\n",
                Some("/away") => "302 Found\r\nLocation: http://0.0.0.0/\r\n",
                _ => "302 Found\r\nLocation: /healthz\r\n",
            };
            let answer =
                format!("HTTP/1.1 {answer}Connection: close\r\nContent-Length: 2\r\n\r\nhi");
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    }

    #[tokio::test]
    async fn follows_local_redirects_and_stops_at_others() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let get = async |path: &str| {
            let target = HttpTarget { host: "127.0.0.1".to_owned(), port, ..target(path) };
            http_get(&target, "test").await.map(|response| (response.status, response.body))
        };
        let checks = async {
            assert_eq!(get("/start").await.unwrap(), (500, "hi".to_owned()));
            assert_eq!(get("/away").await.unwrap(), (302, "hi".to_owned()));
            let error = get("/loop").await.unwrap_err().to_string();
            assert!(error.ends_with("/loop\": stopped after 10 redirects"), "{error}");
        };
        tokio::select! {
            () = serve(listener) => panic!("the server ended"),
            () = checks => {}
        }
    }
}
