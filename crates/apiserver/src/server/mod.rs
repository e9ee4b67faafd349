//! The one pipeline: every request of every component and person comes through [`Server::answer`].

pub(crate) mod health;
pub(crate) mod metrics;

use std::{
    sync::{Arc, Mutex, PoisonError, atomic::AtomicBool},
    time::Instant,
};

use api_meta::{Status, StatusReason, UserInfo};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use serve::{Body, Connection};

use self::metrics::Metrics;
use crate::{
    alloc::Allocators,
    answer::{self, Accepted, compress},
    config::Config,
    handlers::{call::Call, write::Part},
    registry::definition::Kinds,
    request::{
        body::{self, BodyError},
        info::{RequestInfo, ResourcePath},
    },
    security::{Security, Selectors},
    watch_cache::follower::Hub,
};

/// Upstream's limit on a request's body.
const BODY_LIMIT: usize = 3 << 20;

pub(crate) struct Server {
    pub(crate) config: Config,
    pub(crate) hub: Arc<Hub>,
    pub(crate) security: Security,
    pub(crate) chain: admission::Chain,
    pub(crate) allocators: Arc<Allocators>,
    pub(crate) gate: Arc<flow::Gate>,
    pub(crate) metrics: Metrics,
    pub(crate) readiness: crate::server::health::Readiness,
    pub(crate) kubelets: crate::handlers::subresource::kubelet::Kubelets,
    pub(crate) openapi: crate::documents::openapi::Documents,
    /// Held by one of those whose charge to a quota came too late.
    pub(crate) quota_turn: tokio::sync::Mutex<()>,
    pub(crate) blocks: Arc<crate::answer::gzip_list::Blocks>,
}

/// Put into a request's extensions by an in-process client: who it is. A socket cannot set extensions.
#[derive(Clone)]
pub(crate) struct InProcess(pub(crate) Arc<UserInfo>);

impl serve::Handler for Server {
    fn handle(&self, request: Request<Body>) -> BoxFuture<'_, Response<Body>> {
        Box::pin(self.answer(request))
    }
}

impl Server {
    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let started = Instant::now();
        let uri = request.uri();
        let query = uri.query().unwrap_or_default();
        let info = Arc::new(RequestInfo::new(request.method(), uri.path(), query));
        let method = request.method().clone();
        let in_flight = self.metrics.begin();
        // OpenAPI documents and aggregated discovery have forms of their own.
        let own_forms = info.path.starts_with("/openapi/")
            || crate::documents::discovery::is_aggregated(&info.path, request.headers());
        let negotiated = match own_forms {
            true => Ok(Accepted::JSON),
            false => Accepted::negotiate(request.headers(), &info.query),
        };
        let zip = method == Method::GET && compress::accepted(request.headers());
        let mut response = match negotiated {
            Ok(accepted) => {
                let work = self.proceed(request, &info, accepted);
                match rt::catch("request", &info.path, work).await {
                    Ok(done) => done.unwrap_or_else(|status| refusal(&info, accepted, &status)),
                    Err(rt::Panicked { .. }) => panicked(),
                }
            }
            Err(status) => answer::status(Accepted::JSON, &status),
        };
        drop(in_flight);
        if zip {
            compress::large(&mut response);
        }
        if method == Method::HEAD {
            *response.body_mut() = serve::full(Bytes::new());
        }
        self.metrics.record(&info, response.status(), started.elapsed());
        response
    }

    async fn proceed(
        &self,
        mut request: Request<Body>,
        info: &Arc<RequestInfo>,
        accepted: Accepted,
    ) -> Result<Response<Body>, Box<Status>> {
        let user = self.authenticate(&request, &info.path)?;
        auth::authn::web_socket::remove_token(request.headers_mut());
        let selectors = Selectors::of(info);
        let asked = selectors.attributes(&user, info);
        let impersonated = self.security.impersonate(&asked, request.headers())?;
        let user = impersonated.unwrap_or(user);
        self.security.forget_identity(request.headers_mut());
        let attributes = selectors.attributes(&user, info);
        self.security.authorize(&attributes)?;
        // What stays open for long (exec, logs) holds no seat; a watch holds its seat until it has sent what it begins
        // with.
        let entered = match info.is_connection() {
            true => None,
            false => {
                let entered = self.gate.enter(&attributes, self.seats(info)).await;
                Some(entered.map_err(|rejected| Box::new(rejected.status()))?)
            }
        };
        let (arrival, seat) = entered.map(|entered| (entered.arrival, entered.permit)).unzip();
        let done = match info.resource.clone() {
            Some(path) => {
                let caller = (user.clone(), seat);
                self.resource_request(request, info.clone(), path, caller, accepted).await
            }
            None => self.plain_request(&request, info, accepted),
        };
        let mut response = done.unwrap_or_else(|status| refusal(info, accepted, &status));
        if let Some(arrival) = arrival {
            add_flow(&arrival, &mut response);
        }
        Ok(response)
    }

    /// How much work a request is, as far as can be told: lists look at whole collections, and so do watches that
    /// begin with one.
    fn seats(&self, info: &RequestInfo) -> u32 {
        let lists = match info.verb {
            "list" => true,
            "watch" => info.query.flag("sendInitialEvents"),
            _ => false,
        };
        let Some(path) = info.resource.as_ref().filter(|_| lists) else { return 1 };
        let kinds = self.hub.kinds();
        let found = kinds.find(&path.group, &path.version, &path.resource);
        let objects = found.and_then(|(resource, _)| Some(resource.cache.as_ref()?.len()));
        flow::Gate::seats_of_list(objects.unwrap_or(0) as u64)
    }

    fn authenticate(
        &self,
        request: &Request<Body>,
        path: &str,
    ) -> Result<Arc<UserInfo>, Box<Status>> {
        if let Some(InProcess(user)) = request.extensions().get() {
            return Ok(user.clone());
        }
        self.security.authenticate(
            request.extensions().get::<Arc<Connection>>(),
            request.headers(),
            path,
        )
    }

    async fn resource_request(
        &self,
        request: Request<Body>,
        info: Arc<RequestInfo>,
        path: ResourcePath,
        (user, seat): (Arc<UserInfo>, Option<flow::Permit>),
        accepted: Accepted,
    ) -> Result<Response<Body>, Box<Status>> {
        let kinds = self.hub.kinds();
        let Some((resource, version)) = kinds.find(&path.group, &path.version, &path.resource)
        else {
            return Err(Box::new(Status::no_such_resource()));
        };
        let definition = &resource.definition;
        let scope_is_wrong = path.namespace.is_empty() == definition.namespaced;
        // A collection of a namespaced kind may span all namespaces; a namespace's own URL names it twice.
        let spans =
            definition.namespaced && matches!(info.verb, "list" | "watch" | "deletecollection");
        if scope_is_wrong && !spans && !definition.is("", "namespaces") {
            return Err(Box::new(Status::no_such_resource()));
        }
        let mut path = path;
        if !definition.namespaced {
            path.namespace.clear();
        }
        let accepted = match definition.custom {
            Some(_) => Accepted::negotiate_custom(request.headers(), &info.query)?,
            None => accepted,
        };
        let resource = resource.clone();
        let user_agent = request
            .headers()
            .get(header::USER_AGENT)
            .and_then(|v| v.to_str().ok())
            .unwrap_or_default()
            .to_owned();
        let (parts, body) = request.into_parts();
        let call = Call {
            info,
            path,
            method: parts.method.clone(),
            headers: parts.headers.clone(),
            user,
            user_agent,
            resource,
            version,
            accepted,
            body: Mutex::new(Some(body)),
            warnings: Mutex::default(),
            dry_run_in_body: AtomicBool::new(false),
            seat: Mutex::new(seat),
        };
        let mut response = match self.dispatch(&call, parts).await {
            Ok(response) => response,
            // Who is refused is warned all the same.
            Err(status) if call.has_warnings() => refusal(&call.info, call.accepted, &status),
            Err(status) => return Err(status),
        };
        add_warnings(&call, &mut response);
        Ok(response)
    }

    async fn dispatch(
        &self,
        call: &Call,
        parts: http::request::Parts,
    ) -> Result<Response<Body>, Box<Status>> {
        if !call.path.subresource.is_empty() {
            return crate::handlers::subresource::dispatch(self, call, parts).await;
        }
        let served = call.served();
        let definition = &call.resource.definition;
        // A collection cannot be updated as one, and who creates does not name the object in the URL.
        let misplaced = match call.info.verb {
            "create" => !call.path.name.is_empty(),
            "update" | "patch" => call.path.name.is_empty(),
            _ => false,
        };
        if misplaced || !served.has_verb(call.info.verb) {
            return Err(Box::new(Status::method_not_allowed()));
        }
        if let Some(warning) = deprecation(definition) {
            call.warn(warning);
        }
        if let Some(answer) = crate::handlers::subresource::virtual_resource(self, call).await {
            return answer;
        }
        if let Some(warning) = &served.warning
            && !matches!(call.info.verb, "get" | "list" | "watch")
        {
            call.warn(warning.to_string());
        }
        match call.info.verb {
            "get" => self.get(call).await,
            "list" => self.list(call).await,
            "watch" => crate::handlers::websocket::watch(self, call, parts).await,
            "create" => self.create(call).await,
            "update" => self.update(call, Part::Main).await,
            "patch" => self.patch(call, Part::Main).await,
            "delete" => self.delete(call).await,
            "deletecollection" => self.delete_collection(call).await,
            _ => Err(Box::new(Status::method_not_allowed())),
        }
    }

    fn plain_request(
        &self,
        request: &Request<Body>,
        info: &RequestInfo,
        accepted: Accepted,
    ) -> Result<Response<Body>, Box<Status>> {
        let kinds: Arc<Kinds> = self.hub.kinds();
        let (path, headers) = (info.path.as_str(), request.headers());
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return Err(Box::new(Status::no_such_resource()));
        }
        crate::documents::discovery::answer(&kinds, path, headers, accepted)
            .or_else(|| self.openapi.answer(&kinds, path, &info.query, headers))
            .or_else(|| self.plain_document(path, &info.query, accepted))
            .ok_or_else(|| Box::new(Status::no_such_resource()))
    }

    /// The whole body, within the limits of length and time.
    pub(crate) async fn read_body(&self, call: &Call) -> Result<Bytes, Box<Status>> {
        let Some(body) = call.take_body() else { return Ok(Bytes::new()) };
        let too_large = || Box::new(Status::request_too_large(format!("limit is {BODY_LIMIT}")));
        let declared = call
            .headers
            .get(header::CONTENT_LENGTH)
            .and_then(|v| v.to_str().ok())
            .and_then(|v| v.parse().ok());
        if declared.is_some_and(|length: usize| length > BODY_LIMIT) {
            return Err(too_large());
        }
        let whole = body::whole(body, BODY_LIMIT);
        // A sender that never comes to an end must not keep its seat for ever.
        match tokio::time::timeout(self.config.request_timeout, whole).await {
            Ok(Ok(whole)) => Ok(whole),
            Ok(Err(BodyError::TooLong)) => Err(too_large()),
            Ok(Err(BodyError::Broken(error))) => {
                Err(Box::new(Status::bad_request(format!("reading the request's body: {error}"))))
            }
            Err(_) => {
                let message = "request did not complete within the allotted timeout";
                Err(Box::new(Status::timeout(message, 0)))
            }
        }
    }
}

/// The answer to a request that panicked, in upstream's words: text, as no more of the request can be relied on.
fn panicked() -> Response<Body> {
    let words = "This request caused apiserver to panic. Look in the logs for details.\n";
    answer::bytes(StatusCode::INTERNAL_SERVER_ERROR, "text/plain; charset=utf-8", words)
}

/// A failure as it goes out, which is always a whole Status.
fn refusal(info: &RequestInfo, accepted: Accepted, status: &Status) -> Response<Body> {
    if status.code >= 500 {
        tracing::warn!(path = %info.path, verb = info.verb, message = %status.message, "request failed");
    }
    answer::status(Accepted { shape: answer::Shape::Whole, ..accepted }, status)
}

/// What upstream warns of whenever the kind is asked for.
fn deprecation(definition: &crate::registry::definition::Definition) -> Option<&'static str> {
    match (&*definition.group, &*definition.plural) {
        ("", "componentstatuses") => Some("v1 ComponentStatus is deprecated in v1.19+"),
        ("", "endpoints") => {
            Some("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice")
        }
        _ => None,
    }
}

/// Says which configuration of flow control took the request, as upstream does.
fn add_flow(arrival: &flow::Arrival, response: &mut Response<Body>) {
    for (name, uid) in [
        ("x-kubernetes-pf-flowschema-uid", &arrival.schema_uid),
        ("x-kubernetes-pf-prioritylevel-uid", &arrival.level_uid),
    ] {
        if let Ok(value) = HeaderValue::from_str(uid) {
            response.headers_mut().insert(name, value);
        }
    }
}

fn add_warnings(call: &Call, response: &mut Response<Body>) {
    let warnings =
        std::mem::take(&mut *call.warnings.lock().unwrap_or_else(PoisonError::into_inner));
    for warning in warnings {
        let text: String = warning.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let text = text.replace('\\', "\\\\").replace('"', "\\\"");
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{text}\"")) {
            response.headers_mut().append(header::WARNING, value);
        }
    }
}

/// How the store's failures look from outside.
pub(crate) fn store_status(error: store::Error) -> Status {
    match error {
        store::Error::TooLarge { .. } => Status::request_too_large(&error),
        store::Error::Compacted { requested, oldest } => {
            Status::too_old_resource_version(requested, oldest)
        }
        store::Error::FutureRevision { requested, current } => {
            Status::too_large_resource_version(requested, current)
        }
        // These two are in etcd's and upstream's words, with what we know behind them.
        store::Error::NoSpace { detail } => {
            let message = format!("etcdserver: mvcc: database space exceeded: {detail}");
            Status::failure(500, StatusReason::Unknown, message)
        }
        store::Error::Unavailable { operation, detail } => {
            let message = format!(
                "Timeout: request did not complete within requested timeout - {operation}: {detail}"
            );
            Status::failure(504, StatusReason::Timeout, message)
        }
        other => Status::internal(format!("the store: {other}")),
    }
}

pub(crate) fn ok_text(text: impl Into<Bytes>) -> Response<Body> {
    answer::bytes(StatusCode::OK, "text/plain; charset=utf-8", text)
}
