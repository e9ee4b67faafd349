//! The request pipeline: [`Server::answer`] handles every request of every client.

use std::{
    sync::{Arc, OnceLock, atomic::AtomicBool},
    time::Duration,
};
use tokio::time::Instant;

use api_config::GoDuration;
use api_meta::{Decision, Status, UserInfo, go_quote};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::Body as _;
use parking_lot::Mutex;
use serve::{Body, Connection};

use super::{
    compute::{self, Compute, refusal},
    edge,
    health::{self, Instruments},
    in_flight::Places,
    metrics::{InFlight, Labels},
    spans,
};
use crate::{
    aggregation::{Aggregation, ApiServices, Remote},
    auditing::{self, RequestAudit},
    documents::{discovery, openapi::Documents},
    handlers::{
        call::{Call, WaitTime},
        state::State,
    },
    outbound::aggregated::ConnectionMode,
    peers::{ForwardedRequest, Peers},
    registry::Definition,
    request::{Encodings, RequestInfo, ResourcePath, ResponseFormat, body::RequestBody},
    response::{self, compress},
    security::{Security, Selectors},
    watch_cache::Kinds,
};

/// The parts of the server that answer requests.
pub(crate) struct Server {
    pub(crate) state: Arc<State>,
    pub(crate) gate: Arc<flow::Gate>,
    pub(crate) instruments: Instruments,
    pub(crate) compute: Compute,
    pub(crate) openapi: Arc<Documents>,
    pub(crate) aggregation: Arc<Aggregation>,
    pub(crate) peers: Arc<Peers>,
    pub(crate) encodings: Encodings,
    /// The places of requests instead of flow control.
    pub(crate) places: Option<Places>,
}

/// The user of an in-process request, stored in the request's extensions. Requests from a socket cannot set extensions.
#[derive(Clone)]
pub(crate) struct InProcess(pub(crate) Arc<UserInfo>);

/// The parts of a request that are known before authentication.
struct RequestContext<'a> {
    info: &'a Arc<RequestInfo>,
    /// The negotiated format of the response.
    format: ResponseFormat,
    /// The aggregated server of the path.
    remote: Option<Remote>,
    in_flight: &'a InFlight<'a>,
}

/// The caller of a request that was authorized.
struct AuthorizedCaller<'a> {
    user: Arc<UserInfo>,
    selectors: Selectors,
    audited: Option<&'a Arc<RequestAudit>>,
    /// The timeout of the request; `None` for watches and connections.
    timeout: Option<Duration>,
}

/// An admitted caller of a request.
struct Caller {
    user: Arc<UserInfo>,
    /// The permit of flow control; `None` for a connection, and without flow control.
    permit: Option<flow::Permit>,
    audit: Option<Arc<RequestAudit>>,
    waited: WaitTime,
}

/// The target of a request for a resource, and the limits of its answer.
struct ResourceTarget {
    info: Arc<RequestInfo>,
    path: ResourcePath,
    format: ResponseFormat,
    /// The timeout; `None` for a connection.
    timeout: Option<Duration>,
}

/// The audit record of a request until it is answered. If the client disconnects or the handler panics, dropping it
/// completes the record, so that every request is audited.
#[derive(Default)]
struct Record(OnceLock<Arc<RequestAudit>>);

impl Drop for Record {
    fn drop(&mut self) {
        if let Some(audited) = self.0.get() {
            audited.complete_unanswered(std::thread::panicking());
        }
    }
}

impl serve::Handler for Server {
    fn handle(&self, request: Request<Body>) -> BoxFuture<'_, Response<Body>> {
        Box::pin(async move {
            let (serving, readiness) = (&self.state.config.serving, &self.instruments.readiness);
            let origin = edge::allowed_origin(serving, request.headers());
            let mut response = match edge::answer(readiness, &request, origin.as_ref()) {
                Some(response) => response,
                None => self.answer(request).await,
            };
            edge::add_headers(serving, origin, response.headers_mut());
            response
        })
    }

    /// Upstream's text. It is plain text because nothing else of the request can be trusted after a panic.
    fn panicked(&self) -> Response<Body> {
        let words = "This request caused apiserver to panic. Look in the logs for details.\n";
        response::bytes(StatusCode::INTERNAL_SERVER_ERROR, "text/plain; charset=utf-8", words)
    }
}

impl Server {
    async fn answer(&self, mut request: Request<Body>) -> Response<Body> {
        let name = auditing::name(&mut request);
        let uri = request.uri();
        let query = uri.query().unwrap_or_default();
        let info = Arc::new(RequestInfo::new(request.method(), uri.path(), query));
        let method = request.method().clone();
        let labels = Labels::of(&info, request.headers(), &self.state.cache.kinds());
        let in_flight = self.instruments.requests.begin(labels);
        let remote = self.aggregation.route(&info.path);
        // OpenAPI documents, aggregated discovery and responses of aggregated servers negotiate their content types
        // themselves.
        let own_forms = info.path.starts_with("/openapi/")
            || remote.is_some()
            || ["/statusz", "/flagz"].contains(&&*info.path)
            || discovery::is_aggregated(&info.path, request.headers());
        let negotiated = if own_forms {
            Ok(ResponseFormat::JSON)
        } else {
            ResponseFormat::negotiate(request.headers(), &info.query, self.encodings)
        };
        // An aggregated server compresses its responses itself and completes short ones.
        let zip = remote.is_none()
            && method == Method::GET
            && compress::accepted(request.headers())
            && self.state.config.features.is_enabled("APIResponseCompression");
        let mut response = match negotiated {
            Ok(format) => {
                let mut record = Record::default();
                let context = RequestContext { info: &info, format, remote, in_flight: &in_flight };
                let done = self.proceed(request, context, &record.0).await;
                let response = done.unwrap_or_else(|status| refusal(&info, format, &status));
                match record.0.take() {
                    Some(audited) => audited.answered(response).await,
                    None => response,
                }
            }
            Err(status) => response::status(ResponseFormat::JSON, &status),
        };
        response.headers_mut().entry(auditing::HEADER).or_insert(name);
        if zip {
            compress::large(&mut response);
        }
        if method == Method::HEAD {
            *response.body_mut() = serve::full(Bytes::new());
        }
        let lasts = info.verb == "watch" || info.is_connection();
        if lasts && response.status().is_success() {
            response = in_flight.track_stream(response);
        }
        in_flight.finish(response.status(), response.body().size_hint().exact());
        response
    }

    async fn proceed(
        &self,
        mut request: Request<Body>,
        context: RequestContext<'_>,
        audited: &OnceLock<Arc<RequestAudit>>,
    ) -> Result<Response<Body>, Box<Status>> {
        let (info, received) = (context.info, rt::now());
        let selectors = Selectors::of(info);
        let found = self.authenticate(&request, &info.path).await;
        let audited = self.audit(&selectors, &request, info, &found, audited);
        let user = found?;
        if let Some(audited) = audited {
            audited.received().await?;
        }
        let timeout = self.timeout(info)?;
        auth::authn::web_socket::remove_token(request.headers_mut());
        let attributes = selectors.attributes(&user, info);
        let impersonated = self.state.security.impersonate(&attributes, request.headers())?;
        if let (Some(audited), Some(user)) = (audited, &impersonated) {
            audited.record_impersonation(user);
        }
        let user = impersonated.unwrap_or(user);
        self.state.security.forget_identity(request.headers_mut());
        let attributes = selectors.attributes(&user, info);
        let decision = self.state.security.decide(&attributes).await;
        if let Some(audited) = audited {
            audited.record_decision(&decision);
        }
        if let Decision::Failed { error, .. } = &decision {
            tracing::warn!(path = %info.path, verb = info.verb, %error, "the authorisers do not answer");
            return Ok(authorization_failed(request.uri(), error));
        }
        Security::permit(&attributes, &decision)?;
        let tracer = &self.instruments.tracer;
        let mut span = spans::request_span(tracer, &request, info, &user);
        span.set_start(received);
        let caller = AuthorizedCaller { user, selectors, audited, timeout };
        let done = span.within(self.admit(request, context, caller)).await;
        spans::finish(&mut span, &done);
        done
    }

    /// Handles an authorized request: admits it by flow control, and passes it to its handler.
    async fn admit(
        &self,
        request: Request<Body>,
        context: RequestContext<'_>,
        caller: AuthorizedCaller<'_>,
    ) -> Result<Response<Body>, Box<Status>> {
        let RequestContext { info, format, remote, in_flight } = context;
        let AuthorizedCaller { user, selectors, audited, timeout } = caller;
        let waited = &in_flight.waited;
        let attributes = selectors.attributes(&user, info);
        let place = self.places.as_ref().map(|places| places.take(info, &user));
        let _place = place.transpose().inspect_err(|_| {
            in_flight.terminated(StatusCode::TOO_MANY_REQUESTS);
        })?;
        // Connections (exec, logs) hold no seat. A watch holds its seat until it has sent its initial events.
        let entered = if info.is_connection() || self.places.is_some() {
            None
        } else {
            let came = Instant::now();
            let seats = self.seats(info, request.body());
            let entered = self.gate.enter(&attributes, seats).await;
            waited.add(came.elapsed());
            let flow = &self.instruments.flow;
            let mut entered = entered.map_err(|rejected| {
                flow.rejected(&rejected, came.elapsed());
                in_flight.terminated(StatusCode::TOO_MANY_REQUESTS);
                Box::new(rejected.status())
            })?;
            flow.admitted(&mut entered, came.elapsed());
            Some(entered)
        };
        let (arrival, permit) = entered.map(|entered| (entered.arrival, entered.permit)).unzip();
        let done = match (remote, info.resource.clone()) {
            (Some(remote), _) => {
                let tasks = &self.state.cache.tasks;
                Ok(self.aggregation.proxy(tasks, &remote, &user, request, timeout).await)
            }
            (None, Some(path)) if !path.is_canonical => Err(Box::new(Status::no_such_resource())),
            (None, Some(path)) => {
                let (audit, waited) = (audited.cloned(), waited.clone());
                let caller = Caller { user: user.clone(), permit, audit, waited };
                // A watch limits its own duration.
                let longest = self.state.config.request_timeout;
                let timeout = (!info.is_connection()).then_some(timeout.unwrap_or(longest));
                let target = ResourceTarget { info: info.clone(), path, format, timeout };
                self.resource_request(request, target, caller).await
            }
            (None, None) => {
                health::check_plugins(&self.state, &self.instruments.readiness, &info.path).await;
                self.plain_request(request, info, format, timeout).await
            }
        };
        let mut response = done.unwrap_or_else(|status| refusal(info, format, &status));
        if let Some(arrival) = arrival {
            add_flow(&arrival, &mut response);
        }
        Ok(response)
    }

    /// Creates the audit record of a request, if the policy records it. The record of an unauthenticated request is
    /// complete with this call.
    fn audit<'a>(
        &self,
        selectors: &Selectors,
        request: &Request<Body>,
        info: &RequestInfo,
        found: &Result<Arc<UserInfo>, Box<Status>>,
        place: &'a OnceLock<Arc<RequestAudit>>,
    ) -> Option<&'a Arc<RequestAudit>> {
        let auditor = self.instruments.auditor.as_ref()?;
        let long = info.verb == "watch" || info.is_connection();
        let Ok(user) = found else {
            let nobody = UserInfo::default();
            let attributes = selectors.attributes(&nobody, info);
            let audited = auditor.begin(&attributes, request, long)?;
            let connection = request.extensions().get::<Arc<Connection>>();
            let certificate = connection.is_some_and(|c| !c.client_certificates.is_empty());
            audited.unauthenticated(request.headers(), certificate);
            return None;
        };
        let audited = auditor.begin(&selectors.attributes(user, info), request, long)?;
        Some(place.get_or_init(|| audited))
    }

    /// Returns the number of seats of a request. Lists, and watches that start with a list, cost by the size of the
    /// collection. Bodies cost by their length, so that the seats bound the memory of all bodies.
    fn seats(&self, info: &RequestInfo, body: &Body) -> u32 {
        let length = body.size_hint().exact().unwrap_or(u64::MAX);
        if length > 0 {
            return flow::Gate::seats_of_body(length);
        }
        let lists = match info.verb {
            "list" => true,
            "watch" => info.query.flag("sendInitialEvents"),
            _ => false,
        };
        let Some(path) = info.resource.as_ref().filter(|_| lists) else { return 1 };
        let kinds = self.state.cache.kinds();
        let found = kinds.find(&path.group, &path.version, &path.resource);
        let objects = found.and_then(|(resource, _)| Some(resource.cache.as_ref()?.len()));
        flow::Gate::seats_of_list(objects.unwrap_or(0) as u64)
    }

    fn authenticate(
        &self,
        request: &Request<Body>,
        path: &str,
    ) -> impl Future<Output = Result<Arc<UserInfo>, Box<Status>>> {
        // Copy the needed parts: a request's body is not `Sync`, so the future must not borrow it.
        let known = request.extensions().get().map(|InProcess(user)| user.clone());
        let connection = request.extensions().get::<Arc<Connection>>().cloned();
        let headers = request.headers();
        async move {
            match known {
                Some(user) => Ok(user),
                None => self.state.security.authenticate(connection.as_ref(), headers, path).await,
            }
        }
    }

    async fn resource_request(
        &self,
        request: Request<Body>,
        target: ResourceTarget,
        caller: Caller,
    ) -> Result<Response<Body>, Box<Status>> {
        let (kinds, path) = (self.state.cache.kinds(), &target.path);
        let Some((resource, version)) = kinds.find(&path.group, &path.version, &path.resource)
        else {
            return self.forward(request, &target, &caller.user).await;
        };
        let ResourceTarget { info, mut path, format, timeout } = target;
        let definition = &resource.definition;
        validate_scope(definition, &info, &path)?;
        if !definition.namespaced {
            path.namespace.clear();
        }
        let accepted = match definition.custom {
            Some(_) => {
                ResponseFormat::negotiate_custom(request.headers(), &info.query, self.encodings)?
            }
            None => format,
        };
        let resource = resource.clone();
        let user_agent = request
            .headers()
            .get(header::USER_AGENT)
            .and_then(|v| v.to_str().ok())
            .unwrap_or_default()
            .to_owned();
        let (parts, body) = request.into_parts();
        let call = Arc::new(Call {
            deadline: timeout.map(|time| Instant::now() + time),
            info,
            path,
            method: parts.method.clone(),
            headers: parts.headers.clone(),
            user: caller.user,
            user_agent,
            resource,
            version,
            accepted,
            encodings: self.encodings,
            body: Mutex::new(RequestBody::Coming(body)),
            parts: Mutex::new(Some(parts)),
            warnings: Mutex::default(),
            dry_run_in_body: AtomicBool::new(false),
            seat: Mutex::new(caller.permit),
            audited: caller.audit,
            waited: caller.waited,
        });
        let mut response = match self.compute.answer(&self.state, &call).await {
            Ok(response) => response,
            // Send the collected warnings with the failure, too.
            Err(status) if call.has_warnings() => refusal(&call.info, call.accepted, &status),
            Err(status) => return Err(status),
        };
        add_warnings(&call, &mut response);
        Ok(response)
    }

    /// Forwards a request for a resource that this server does not serve to a peer that serves it.
    async fn forward(
        &self,
        request: Request<Body>,
        target: &ResourceTarget,
        user: &UserInfo,
    ) -> Result<Response<Body>, Box<Status>> {
        let ResourceTarget { info, path, timeout, .. } = target;
        let route = self.peers.route(path, request.headers());
        let route = route.ok_or_else(|| Box::new(Status::no_such_resource()))?;
        let lasts = info.verb == "watch" || info.is_connection();
        let lane = if lasts { ConnectionMode::Own } else { ConnectionMode::Shared };
        // A watch holds a seat until its response begins, so a peer that hangs must not delay it forever.
        let forwarded = ForwardedRequest { path, user, lane, timeout: *timeout };
        self.peers.proxy(&self.state.cache.tasks, route, forwarded, request).await
    }

    /// Returns the timeout of a request: its `timeout` parameter, at most the server's request timeout. `None` for
    /// watches and connections.
    fn timeout(&self, info: &RequestInfo) -> Result<Option<Duration>, Box<Status>> {
        if info.verb == "watch" || info.is_connection() {
            return Ok(None);
        }
        let longest = self.state.config.request_timeout;
        let requested = match info.query.get("timeout").unwrap_or_default() {
            "" => return Ok(Some(longest)),
            text => text.parse::<GoDuration>().map_err(|error| {
                let text = format!("invalid timeout specified in the request URL - {error}");
                Box::new(Status::bad_request(text))
            })?,
        };
        let requested = Some(requested.to_std()).filter(|time| !time.is_zero());
        Ok(Some(requested.map_or(longest, |requested| requested.min(longest))))
    }

    async fn plain_request(
        &self,
        request: Request<Body>,
        info: &RequestInfo,
        accepted: ResponseFormat,
        timeout: Option<Duration>,
    ) -> Result<Response<Body>, Box<Status>> {
        let kinds: Arc<Kinds> = self.state.cache.kinds();
        let path = info.path.as_str();
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return Err(Box::new(Status::no_such_resource()));
        }
        // An aggregated server's OpenAPI v3 document is its own. Clients that may read ours may read it.
        if let Some(remote) =
            path.strip_prefix("/openapi/v3").and_then(|p| self.aggregation.route(p))
        {
            let tasks = &self.state.cache.tasks;
            return Ok(self.aggregation.document(tasks, &remote, request, timeout).await);
        }
        let (known, headers) = (self.aggregation.snapshot(), request.headers());
        let is_enabled = |gate| self.state.config.features.is_enabled(gate);
        let page = match path {
            "/statusz" if is_enabled("ComponentStatusz") => {
                Some(self.info().statusz(headers, rt::now().into()))
            }
            "/flagz" if is_enabled("ComponentFlagz") => {
                Some(self.info().flagz(headers, diagnostics::flags()))
            }
            _ => None,
        };
        if let Some(page) = page {
            return page.map_err(|error| Box::new(Status::not_acceptable(error.accepted())));
        }
        if path.starts_with("/openapi/") {
            return self.document(kinds, known, info, headers).await;
        }
        let sources = discovery::Sources { kinds: &kinds, known: &known, peers: &self.peers };
        discovery::answer(sources, path, headers, accepted)
            .or_else(|| {
                health::document(&self.state, &self.instruments, path, &info.query, accepted)
            })
            .ok_or_else(|| Box::new(Status::no_such_resource()))
    }
}

impl Server {
    fn info(&self) -> diagnostics::ComponentInfo {
        diagnostics::ComponentInfo {
            name: "apiserver",
            started: self.instruments.started,
            paths: &["/flagz", "/healthz", "/livez", "/metrics", "/readyz", "/statusz", "/version"],
        }
    }

    /// Answers with an OpenAPI document. Building it for many kinds takes long, so it runs on a pool.
    async fn document(
        &self,
        kinds: Arc<Kinds>,
        known: Arc<ApiServices>,
        info: &RequestInfo,
        headers: &HeaderMap,
    ) -> Result<Response<Body>, Box<Status>> {
        let (documents, headers) = (self.openapi.clone(), headers.clone());
        let (path, query) = (info.path.clone(), info.query.clone());
        let make = async move { documents.answer((&kinds, &known), &path, &query, &headers).await };
        let made = self.compute.documents.run(make).await;
        made.map_err(compute::stopped)?.ok_or_else(|| Box::new(Status::no_such_resource()))
    }
}

/// Rejects a path that does not fit the scope of its kind. A collection of a namespaced kind may span all namespaces
/// for list and watch only. The URL of a Namespace names it twice, as namespace and as name.
fn validate_scope(
    definition: &Definition,
    info: &RequestInfo,
    path: &ResourcePath,
) -> Result<(), Box<Status>> {
    let fits = path.namespace.is_empty() != definition.namespaced;
    let spans = definition.namespaced && matches!(info.verb, "list" | "watch");
    if fits || spans || definition.strategy.scope {
        return Ok(());
    }
    let is_read = definition.namespaced && path.name.is_empty();
    Err(Box::new(if is_read && definition.custom.is_none() {
        Status::method_not_allowed()
    } else {
        Status::no_such_resource()
    }))
}

/// Returns the response for a failed authorization. As upstream, it is text with HTML characters escaped.
fn authorization_failed(uri: &http::Uri, error: &str) -> Response<Body> {
    let uri = uri.path_and_query().map_or("/", |p| p.as_str());
    let words = format!("Internal Server Error: {}: {error}\n", go_quote(uri));
    let words = words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    response::bytes(StatusCode::INTERNAL_SERVER_ERROR, "text/plain; charset=utf-8", words)
}

/// Adds the UIDs of the flow schema and priority level to the response, as upstream does.
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

/// Applies upstream's limits: if all warnings together exceed 4,096 characters, each one is cut to 256 characters, and
/// the list ends when it reaches 4,096 again.
fn within_limits(warnings: Vec<String>) -> Vec<String> {
    const ALL: usize = 4 << 10;
    const ONE: usize = 256;
    let length = |text: &String| text.chars().count();
    if warnings.iter().map(length).sum::<usize>() <= ALL {
        return warnings;
    }
    let mut written = 0;
    let short = warnings.into_iter().map(|text| text.chars().take(ONE).collect::<String>());
    short
        .take_while(|text| {
            let fits = written < ALL;
            written += length(text);
            fits
        })
        .collect()
}

fn add_warnings(call: &Call, response: &mut Response<Body>) {
    let warnings = std::mem::take(&mut *call.warnings.lock());
    for warning in within_limits(warnings.into_vec()) {
        let text: String = warning.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let text = text.replace('\\', "\\\\").replace('"', "\\\"");
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{text}\"")) {
            response.headers_mut().append(header::WARNING, value);
        }
    }
}
