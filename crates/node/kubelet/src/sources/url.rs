//! Static Pods from a URL (`staticPodURL`), which serves a Pod or a list of Pods.

use std::{sync::Arc, time::Duration};

use client::{ClientTls, HttpTransport, TlsMaterial};
use http::{HeaderName, HeaderValue, Request, StatusCode, Uri};
use k8s_openapi::api::core::v1::Pod;
use kubelet_config::StaticUrl;
use pod_core::Timestamp;
use serde_json::Value;
use tokio::sync::watch;

use super::manifest::{self, ManifestError, StaticPods};
use crate::{context::Context, pods::Pods};

/// The time limit of a request, as upstream.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The largest answer in bytes, as upstream.
const MAX_ANSWER: usize = 10 << 20;

/// The error of a URL that does not serve Pods.
#[derive(Debug, thiserror::Error)]
enum UrlError {
    #[error(transparent)]
    Request(#[from] client::Error),
    #[error("read the system's certificate authorities: {0}")]
    Tls(#[from] client::TlsError),
    #[error("staticPodURLHeader has an invalid name or value: {0}")]
    Header(String),
    #[error("the URL is invalid: {0}")]
    Url(#[from] http::Error),
    #[error("no answer within {}s", TIMEOUT.as_secs())]
    Timeout,
    #[error("the status is {0}")]
    Status(StatusCode),
    #[error("the answer is empty")]
    Empty,
    #[error("the answer is not UTF-8")]
    Text,
    #[error(transparent)]
    Manifest(#[from] ManifestError),
}

/// Follows the URL. Sets `read` to true after the first answer. Pods keep running while the URL does not serve Pods.
pub(crate) async fn run(
    ctx: Arc<Context>,
    url: StaticUrl,
    pods: Pods,
    current: watch::Sender<StaticPods>,
    read: watch::Sender<bool>,
) {
    let mut running: Vec<Arc<Pod>> = Vec::new();
    let mut transport = None;
    loop {
        match fetch(&url, &mut transport, &ctx.settings.node_name, ctx.now()).await {
            Ok(found) => {
                replace(&pods, &mut running, found);
                current.send_modify(|all| drop(all.insert("http", running.clone())));
                read.send_replace(true);
            }
            // The error of a header does not quote its value, which may be a credential.
            Err(error) => {
                tracing::warn!(url = url.url, %error, "read static Pods from a URL; trying again");
            }
        }
        tokio::time::sleep(url.interval).await;
    }
}

/// Starts the Pods that are new, and ends those that are gone. A changed Pod has another UID.
fn replace(pods: &Pods, running: &mut Vec<Arc<Pod>>, found: Vec<Pod>) {
    let has = |all: &[Arc<Pod>], pod: &Pod| all.iter().any(|p| p.metadata.uid == pod.metadata.uid);
    let found: Vec<Arc<Pod>> = found
        .into_iter()
        .map(|pod| {
            let same = running.iter().find(|before| before.metadata.uid == pod.metadata.uid);
            same.cloned().unwrap_or_else(|| Arc::new(pod))
        })
        .collect();
    for gone in running.iter().filter(|pod| !has(&found, pod)) {
        pods.end_removed(gone.metadata.uid.as_deref().unwrap_or_default());
    }
    for new in found.iter().filter(|pod| !has(running, pod)) {
        pods.run_pod(new.clone());
    }
    *running = found;
}

/// Reads the Pods of the URL. `transport` is created by the first call that can, and used by later ones.
async fn fetch(
    url: &StaticUrl,
    transport: &mut Option<HttpTransport>,
    node: &str,
    now: Timestamp,
) -> Result<Vec<Pod>, UrlError> {
    let transport = match transport {
        Some(transport) => transport,
        None => transport.insert(connector(url)?),
    };
    let answer = tokio::time::timeout(TIMEOUT, answer(url, transport));
    let text = answer.await.map_err(|_| UrlError::Timeout)??;
    pods_of(&text, node, now)
}

/// Returns the transport to the URL, which trusts the system's certificate authorities.
fn connector(url: &StaticUrl) -> Result<HttpTransport, UrlError> {
    let tls = if url.url.starts_with("https://") {
        TlsMaterial::default().client_config()?.into()
    } else {
        ClientTls::anyone()
    };
    Ok(HttpTransport::http1(&url.url, tls)?)
}

async fn answer(url: &StaticUrl, transport: &HttpTransport) -> Result<String, UrlError> {
    let uri: Uri = url.url.parse().map_err(http::Error::from)?;
    let target = uri.path_and_query().map_or("/", |target| target.as_str());
    let mut request = Request::get(target).body(client::empty())?;
    for (name, value) in &url.headers {
        let invalid = || UrlError::Header(name.clone());
        let value = HeaderValue::try_from(value).map_err(|_| invalid())?;
        let name = HeaderName::try_from(name).map_err(|_| invalid())?;
        request.headers_mut().append(name, value);
    }
    let response = transport.send_alone(request).await?;
    if response.status() != StatusCode::OK {
        return Err(UrlError::Status(response.status()));
    }
    let body = client::read(&url.url, response.into_body(), MAX_ANSWER).await?;
    String::from_utf8(body.to_vec()).map_err(|_| UrlError::Text)
}

/// Parses a Pod or a list of Pods.
fn pods_of(text: &str, node: &str, now: Timestamp) -> Result<Vec<Pod>, UrlError> {
    if text.trim().is_empty() {
        return Err(UrlError::Empty);
    }
    let value = api_config::yaml::parse(text).map_err(ManifestError::from)?;
    let is_list = matches!(api_config::gvk(&value), ("v1", "PodList" | "List"));
    let listed = value.get("items").and_then(Value::as_array).filter(|_| is_list).cloned();
    let items = listed.unwrap_or_else(|| vec![value]);
    let pod = |mut item: Value| {
        if let Some(item) = item.as_object_mut() {
            // The items of a PodList need not name their kind.
            item.entry("apiVersion").or_insert_with(|| "v1".into());
            item.entry("kind").or_insert_with(|| "Pod".into());
        }
        let text = item.to_string();
        manifest::pod(item, &text, manifest::Origin { node, now, source: "http" })
    };
    Ok(items.into_iter().map(pod).collect::<Result<_, ManifestError>>()?)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;
    const LIST: &str = r#"{"apiVersion": "v1", "kind": "PodList", "items": [
        {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
        {"metadata": {"name": "b"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}]}"#;

    /// Serves one answer, and returns the URL and the request.
    async fn serve(answer: String) -> (String, tokio::sync::oneshot::Receiver<String>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/pods", listener.local_addr().unwrap());
        let (sender, request) = tokio::sync::oneshot::channel();
        let tasks = rt::Tasks::new(rt::Shutdown::new());
        tasks.spawn("server", async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = vec![0; 4096];
            let count = stream.read(&mut head).await.unwrap();
            drop(sender.send(String::from_utf8_lossy(&head[..count]).into_owned()));
            drop(stream.write_all(answer.as_bytes()).await);
        });
        (url, request)
    }

    fn of(url: String) -> StaticUrl {
        let headers = vec![("x-token".to_owned(), "secret".to_owned())];
        StaticUrl { url, headers, interval: Duration::from_secs(1) }
    }

    fn ok(body: &str) -> String {
        format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
    }

    #[tokio::test]
    async fn reads_pods_with_headers() {
        let (url, request) = serve(ok(LIST)).await;
        let pods = fetch(&of(url), &mut None, "n1", NOW).await.unwrap();
        let names: Vec<_> = pods.iter().map(|pod| pod.metadata.name.clone().unwrap()).collect();
        assert_eq!(names, ["a-n1", "b-n1"]);
        assert!(pods.iter().all(pod_core::is_static));
        assert_ne!(pods[0].metadata.uid, pods[1].metadata.uid);
        assert!(request.await.unwrap().contains("x-token: secret"));
        let one =
            "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c}]}\n";
        assert_eq!(pods_of(one, "n1", NOW).unwrap().len(), 1);
    }

    #[tokio::test]
    async fn reports_answers_that_are_no_pods() {
        for (answer, cause) in [
            (ok(""), "the answer is empty"),
            (ok("apiVersion: v1\nkind: Service\n"), "v1 Service, not a v1 Pod"),
            (ok("{"), ""),
            (
                ok(r#"{"apiVersion": "v1", "kind": "PodList", "items": [{"metadata": {}}]}"#),
                "metadata.name",
            ),
            ("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_owned(), "404"),
            ("garbage\r\n\r\n".to_owned(), "sending a request"),
            (
                "HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n".to_owned()
                    + &"x".repeat(MAX_ANSWER + 1),
                "",
            ),
        ] {
            let (url, _request) = serve(answer).await;
            let error = fetch(&of(url), &mut None, "n1", NOW).await.unwrap_err().to_string();
            assert!(error.contains(cause) && !error.contains("secret"), "{error}");
        }
    }
}
