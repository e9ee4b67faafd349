//! The client: requests for objects, their responses, and watches.

use std::{fmt::Write as _, sync::Arc};

use api_meta::{ListMeta, null_default};
use bytes::{Buf, Bytes, BytesMut};
use futures_util::future::BoxFuture;
use http::{Method, Request, Response, header};
use http_body::Body as _;
use http_body_util::{BodyExt, Full};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    error::{Error, Status},
    metrics::ClientMetrics,
    options::{DeleteOptions, ListOptions, PatchKind, PatchTarget, escape},
    resource::Resource,
};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The body of a request or a response. The `serve` crate uses the same type, so that in-process calls convert nothing.
pub type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, BoxError>;

const JSON: &str = "application/json";
/// The largest response that is read into memory at once, in bytes. Lists of all objects are the largest responses.
const ANSWER_LIMIT: usize = 512 << 20;

/// Returns a body with these bytes.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// Returns an empty body.
pub fn empty() -> Body {
    full(Bytes::new())
}

/// The carrier of a request: a connection, or the server's own handler.
pub trait Transport: Send + Sync + 'static {
    /// Sends a request and returns the response, whatever its status code.
    fn send(&self, request: Request<Body>) -> BoxFuture<'_, Result<Response<Body>, Error>>;

    /// Returns the server's host for metrics. A server in the same process has no socket.
    fn host(&self) -> &str {
        "localhost"
    }
}

/// A Kubernetes API client. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    transport: Arc<dyn Transport>,
    user_agent: Arc<str>,
    metrics: Option<Arc<ClientMetrics>>,
}

/// A list of objects or of projections, as the API server sends it.
#[derive(Clone, Debug, Deserialize)]
#[serde(bound(deserialize = "T: Deserialize<'de>"))]
pub struct List<T> {
    /// The metadata of the list.
    pub metadata: ListMeta,
    /// The objects or projections.
    #[serde(default = "Vec::new", deserialize_with = "null_default")]
    pub items: Vec<T>,
}

/// An event of a watch. The object's bytes are a slice of the received frame.
#[derive(Clone, Debug)]
pub enum WatchEvent {
    Added(Bytes),
    Modified(Bytes),
    Deleted(Bytes),
    /// A bookmark: the watch has reached this object's resourceVersion.
    Bookmark(Bytes),
}

/// A running watch.
pub struct Watch {
    path: String,
    body: Body,
    buffer: BytesMut,
}

impl Client {
    /// Creates a client over a transport. `user_agent` names it in audit logs.
    pub fn new(transport: Arc<dyn Transport>, user_agent: &str) -> Self {
        Self { transport, user_agent: user_agent.into(), metrics: None }
    }

    /// Counts the client's requests in a component's metrics.
    #[must_use]
    pub fn measured(self, metrics: &ClientMetrics) -> Self {
        Self { metrics: Some(Arc::new(metrics.clone())), ..self }
    }

    /// Returns the server's host for metrics.
    pub fn host(&self) -> &str {
        self.transport.host()
    }

    /// Sends a request and adds only the user agent. A status code of 400 or more is not an error.
    pub async fn request(&self, mut request: Request<Body>) -> Result<Response<Body>, Error> {
        if let Ok(agent) = self.user_agent.parse() {
            request.headers_mut().entry(header::USER_AGENT).or_insert(agent);
        }
        let Some(metrics) = &self.metrics else { return self.transport.send(request).await };
        let (method, host) = (request.method().clone(), self.transport.host());
        if let Some(bytes) = request.body().size_hint().exact() {
            metrics.observe_request_bytes(&method, host, bytes);
        }
        let started = Instant::now();
        let response = self.transport.send(request).await;
        let code = response.as_ref().ok().map(Response::status);
        metrics.count_request(&method, host, code, started.elapsed());
        response
    }

    /// Sends a request and reads the whole response; a status of 400 or more becomes [`Error::Api`].
    pub async fn call(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        body: Bytes,
    ) -> Result<Bytes, Error> {
        let response = self.open(method.clone(), path, JSON, content_type, body).await?;
        let bytes = read(path, response.into_body(), ANSWER_LIMIT).await?;
        if let Some(metrics) = &self.metrics {
            metrics.observe_response_bytes(&method, self.transport.host(), bytes.len() as u64);
        }
        Ok(bytes)
    }

    async fn open(
        &self,
        method: Method,
        path: &str,
        accept: &str,
        content_type: &str,
        body: Bytes,
    ) -> Result<Response<Body>, Error> {
        let mut builder =
            Request::builder().method(method.clone()).uri(path).header(header::ACCEPT, accept);
        if !content_type.is_empty() {
            builder = builder.header(header::CONTENT_TYPE, content_type);
        }
        let request = builder.body(full(body)).map_err(|source| Error::Transport {
            operation: "building a request for",
            target: path.to_owned(),
            source: source.into(),
        })?;
        let response = self.request(request).await?;
        if response.status().as_u16() < 400 {
            return Ok(response);
        }
        let code = response.status().as_u16();
        let bytes = read(path, response.into_body(), ANSWER_LIMIT).await?;
        let mut status: Status = serde_json::from_slice(&bytes).unwrap_or_else(|_| Status {
            message: String::from_utf8_lossy(&bytes).into_owned(),
            ..Default::default()
        });
        status.code = code;
        Err(Error::Api { method, path: path.to_owned(), status: Box::new(status) })
    }

    /// Reads the object at a path, as `kubectl get --raw` does.
    pub async fn get_raw<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        self.json(Method::GET, path, "", Bytes::new()).await
    }

    /// Reads the object at a path in the JSON media type `accept`.
    pub async fn get_raw_as<T: DeserializeOwned>(
        &self,
        path: &str,
        accept: &str,
    ) -> Result<T, Error> {
        let response = self.open(Method::GET, path, accept, "", Bytes::new()).await?;
        let bytes = read(path, response.into_body(), ANSWER_LIMIT).await?;
        serde_json::from_slice(&bytes)
            .map_err(|source| Error::Decode { path: path.to_owned(), source })
    }

    async fn json<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        body: Bytes,
    ) -> Result<T, Error> {
        let bytes = self.call(method, path, content_type, body).await?;
        serde_json::from_slice(&bytes)
            .map_err(|source| Error::Decode { path: path.to_owned(), source })
    }

    /// Reads one object or a projection of it. `namespace` is empty for cluster-scoped resources, here and below.
    pub async fn get<T: DeserializeOwned>(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
    ) -> Result<T, Error> {
        self.json(Method::GET, &resource.object(namespace, name, ""), "", Bytes::new()).await
    }

    /// Lists objects: all of them, or one page with `options.limit`.
    pub async fn list<T: DeserializeOwned>(
        &self,
        resource: &Resource,
        namespace: &str,
        options: &ListOptions,
    ) -> Result<List<T>, Error> {
        let path = format!("{}{}", resource.collection(namespace), options.query(&[]));
        self.json(Method::GET, &path, "", Bytes::new()).await
    }

    /// Creates an object and returns it as stored. Its kind and apiVersion come from `resource`.
    pub async fn create<T: Serialize, U: DeserializeOwned>(
        &self,
        resource: &Resource,
        namespace: &str,
        object: &T,
    ) -> Result<U, Error> {
        let path = resource.collection(namespace);
        let body = typed(resource, object, &path)?;
        self.json(Method::POST, &path, "application/json", body).await
    }

    /// Creates a subresource, such as a Pod's `binding` or a ServiceAccount's `token`. The body is sent unchanged.
    pub async fn create_subresource<T: Serialize, U: DeserializeOwned>(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
        subresource: &str,
        object: &T,
    ) -> Result<U, Error> {
        let path = resource.object(namespace, name, subresource);
        let body = encode(object, &path)?;
        self.json(Method::POST, &path, "application/json", body).await
    }

    /// Replaces an object. Without a resourceVersion in the object, concurrent changes are overwritten.
    pub async fn update<T: Serialize, U: DeserializeOwned>(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
        object: &T,
    ) -> Result<U, Error> {
        self.update_subresource(resource, namespace, name, "", object).await
    }

    /// Replaces only an object's status.
    pub async fn update_status<T: Serialize, U: DeserializeOwned>(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
        object: &T,
    ) -> Result<U, Error> {
        self.update_subresource(resource, namespace, name, "status", object).await
    }

    /// Replaces a subresource of an object, such as `scale`.
    pub async fn update_subresource<T: Serialize, U: DeserializeOwned>(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
        subresource: &str,
        object: &T,
    ) -> Result<U, Error> {
        let path = resource.object(namespace, name, subresource);
        let body = typed(resource, object, &path)?;
        self.json(Method::PUT, &path, "application/json", body).await
    }

    /// Patches an object and returns it as stored.
    pub async fn patch<U: DeserializeOwned>(
        &self,
        resource: &Resource,
        at: PatchTarget<'_>,
        kind: PatchKind<'_>,
        patch: &Value,
    ) -> Result<U, Error> {
        let mut path = resource.object(at.namespace, at.name, at.subresource);
        let content_type = match kind {
            PatchKind::Json => "application/json-patch+json",
            PatchKind::Merge => "application/merge-patch+json",
            PatchKind::Strategic => "application/strategic-merge-patch+json",
            PatchKind::Apply { manager, force } => {
                let _ = write!(path, "?fieldManager={}&force={force}", escape(manager));
                "application/apply-patch+yaml"
            }
        };
        let body = encode(patch, &path)?;
        self.json(Method::PATCH, &path, content_type, body).await
    }

    /// Deletes an object, or marks it for deletion if it has finalizers.
    pub async fn delete(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<(), Error> {
        let path = resource.object(namespace, name, "");
        let body = encode(options, &path)?;
        self.call(Method::DELETE, &path, "application/json", body).await.map(drop)
    }

    /// Deletes the objects of a namespace that the list's selectors match.
    pub async fn delete_collection(
        &self,
        resource: &Resource,
        namespace: &str,
        list: &ListOptions,
        options: &DeleteOptions,
    ) -> Result<(), Error> {
        let path = format!("{}{}", resource.collection(namespace), list.query(&[]));
        let body = encode(options, &path)?;
        self.call(Method::DELETE, &path, "application/json", body).await.map(drop)
    }

    /// Watches the changes after `resource_version`, with bookmarks.
    pub async fn watch(
        &self,
        resource: &Resource,
        namespace: &str,
        options: &ListOptions,
        resource_version: &str,
    ) -> Result<Watch, Error> {
        let query = options.query(&[
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", resource_version),
        ]);
        let path = format!("{}{query}", resource.collection(namespace));
        let response = self.open(Method::GET, &path, JSON, "", Bytes::new()).await?;
        Ok(Watch { path, body: response.into_body(), buffer: BytesMut::new() })
    }
}

fn encode<T: Serialize + ?Sized>(object: &T, path: &str) -> Result<Bytes, Error> {
    serde_json::to_vec(object)
        .map(Bytes::from)
        .map_err(|source| Error::Encode { path: path.to_owned(), source })
}

/// Encodes an object and adds the kind and apiVersion that projections leave out.
fn typed<T: Serialize + ?Sized>(
    resource: &Resource,
    object: &T,
    path: &str,
) -> Result<Bytes, Error> {
    let mut value = serde_json::to_value(object)
        .map_err(|source| Error::Encode { path: path.to_owned(), source })?;
    if let Value::Object(map) = &mut value {
        map.entry("kind").or_insert_with(|| resource.kind.clone().into());
        map.entry("apiVersion").or_insert_with(|| resource.api_version().into());
    }
    encode(&value, path)
}

/// Reads the whole body of a response of at most `limit` bytes. `path` is used in errors.
pub async fn read(path: &str, mut body: Body, limit: usize) -> Result<Bytes, Error> {
    let mut whole = BytesMut::new();
    let mut first: Option<Bytes> = None;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|source| Error::Transport {
            operation: "reading the answer to",
            target: path.to_owned(),
            source,
        })?;
        let Ok(data) = frame.into_data() else { continue };
        let before = first.as_ref().map_or(whole.len(), Bytes::len);
        if before + data.len() > limit {
            return Err(Error::TooLarge { path: path.to_owned(), limit });
        }
        // An in-process response is one frame of shared bytes and need not be copied.
        match first.take() {
            None if whole.is_empty() => first = Some(data),
            Some(only) => {
                whole.extend_from_slice(&only);
                whole.extend_from_slice(&data);
            }
            None => whole.extend_from_slice(&data),
        }
    }
    Ok(first.unwrap_or_else(|| whole.freeze()))
}

impl Watch {
    /// Waits for the next event; returns `None` when the server ended the watch. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<WatchEvent, Error>> {
        loop {
            if let Some(end) = self.buffer.iter().position(|&b| b == b'\n') {
                let line = self.buffer.split_to(end).freeze();
                self.buffer.advance(1);
                if line.is_empty() {
                    continue;
                }
                return Some(self.event(line));
            }
            match self.body.frame().await? {
                Ok(frame) => {
                    if let Ok(data) = frame.into_data() {
                        // An in-process frame holds one event's shared bytes and is not copied.
                        if self.buffer.is_empty()
                            && data.last() == Some(&b'\n')
                            && data[..data.len() - 1].iter().all(|&b| b != b'\n')
                        {
                            return Some(self.event(data.slice(..data.len() - 1)));
                        }
                        self.buffer.extend_from_slice(&data);
                    }
                }
                Err(source) => {
                    return Some(Err(Error::Transport {
                        operation: "watching",
                        target: self.path.clone(),
                        source,
                    }));
                }
            }
        }
    }

    fn event(&self, line: Bytes) -> Result<WatchEvent, Error> {
        #[derive(Deserialize)]
        struct Frame<'a> {
            r#type: &'a str,
            #[serde(borrow)]
            object: &'a serde_json::value::RawValue,
        }
        let frame: Frame<'_> = serde_json::from_slice(&line)
            .map_err(|source| Error::Decode { path: self.path.clone(), source })?;
        let object = line.slice_ref(frame.object.get().as_bytes());
        match frame.r#type {
            "ADDED" => Ok(WatchEvent::Added(object)),
            "MODIFIED" => Ok(WatchEvent::Modified(object)),
            "DELETED" => Ok(WatchEvent::Deleted(object)),
            "BOOKMARK" => Ok(WatchEvent::Bookmark(object)),
            _ => Err(Error::Api {
                method: Method::GET,
                path: self.path.clone(),
                status: Box::new(serde_json::from_slice(&object).unwrap_or_default()),
            }),
        }
    }
}
