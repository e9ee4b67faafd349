//! The audit record of one request, from its arrival to the end of its response.

use std::sync::Arc;

use api_meta::{Decision, Status, Timestamp, Tree as _, UserInfo};
use audit::{Config, Event, Level, ResponseStatus, Stage};
use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode, header};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use parking_lot::{Mutex, MutexGuard};
use serde_json::Value;
use serve::{Body, BodyWithGuard};

use super::sink::{Sinks, Submission};

/// The audit record of one request.
pub(crate) struct RequestAudit {
    sinks: Arc<Sinks>,
    config: Config,
    event: Mutex<Event>,
    /// `true` for watches and connections, whose response headers are an event of their own.
    long: bool,
}

impl RequestAudit {
    pub(super) fn new(sinks: Arc<Sinks>, config: Config, event: Event, long: bool) -> Self {
        Self { sinks, config, event: Mutex::new(event), long }
    }

    fn event(&self) -> MutexGuard<'_, Event> {
        self.event.lock()
    }

    /// Submits the event of a stage, unless the policy omits it.
    fn process(&self, stage: Stage) -> Option<Submission> {
        if self.config.omit_stages.contains(&stage) {
            return None;
        }
        let now = Timestamp::from(rt::now());
        let mut event = self.event();
        event.stage = stage;
        if stage != Stage::RequestReceived {
            event.stage_timestamp = now.micros();
        }
        Some(self.sinks.take(&event, now))
    }

    /// Submits the event of a stage, and waits for it if the mode requires that. Returns `false` if the event is lost
    /// and the request must fail.
    async fn processed(&self, stage: Stage) -> bool {
        match self.process(stage) {
            Some(taken) => self.sinks.settle(taken).await,
            None => true,
        }
    }

    /// Submits the event of a completed request without waiting.
    fn submit(&self, stage: Stage) {
        if let Some(taken) = self.process(stage) {
            self.sinks.leave(taken);
        }
    }

    /// Submits the first event. Fails if the mode requires the event and it is lost.
    pub(crate) async fn received(&self) -> Result<(), Box<Status>> {
        if self.processed(Stage::RequestReceived).await {
            Ok(())
        } else {
            Err(Box::new(Status::internal("failed to store audit event")))
        }
    }

    pub(crate) fn record_impersonation(&self, user: &UserInfo) {
        self.event().impersonated_user = Some(user.clone());
    }

    pub(crate) fn record_decision(&self, decision: &Decision) {
        if matches!(decision, Decision::Failed { .. }) {
            return self.annotate("authorization.k8s.io/reason", "internal error");
        }
        let word = if decision.is_allowed() { "allow" } else { "forbid" };
        self.annotate("authorization.k8s.io/decision", word);
        self.annotate("authorization.k8s.io/reason", decision.reason());
    }

    pub(crate) fn annotate(&self, name: &str, value: &str) {
        self.event().annotate(name, value);
    }

    /// Records the object, options or patch of the request.
    pub(crate) fn requested(&self, object: &Value) {
        let mut event = self.event();
        if self.config.omit_managed_fields && event.level >= Level::Request {
            event.requested(&self.config.shown(object.clone()));
        } else {
            event.requested(object);
        }
    }

    /// Records a failed authentication.
    pub(crate) fn unauthenticated(&self, headers: &HeaderMap, certificate: bool) {
        let mut attempted = Vec::new();
        let scheme = headers.get(header::AUTHORIZATION).and_then(|v| v.to_str().ok());
        let scheme = scheme.and_then(|v| v.trim().split_once(' ')).map(|(scheme, _)| scheme);
        match scheme.map(str::to_ascii_lowercase).as_deref() {
            Some("basic") => attempted.push("basic"),
            Some("bearer") => attempted.push("bearer"),
            _ => {}
        }
        if certificate {
            attempted.push("x509");
        }
        let message = if attempted.is_empty() {
            "Authentication failed, no credentials provided".to_owned()
        } else {
            format!("Authentication failed, attempted: {}", attempted.join(", "))
        };
        let mut status = ResponseStatus::of_code(StatusCode::UNAUTHORIZED.as_u16());
        status.message = message;
        self.event().response_status = Some(status);
        self.submit(Stage::ResponseStarted);
    }

    /// Completes the record of a request that panicked or whose client disconnected, as upstream does.
    pub(crate) fn complete_unanswered(&self, panicked: bool) {
        let (code, status, message) = if panicked {
            (StatusCode::INTERNAL_SERVER_ERROR, "Failure", "APIServer panic'd")
        } else {
            (StatusCode::OK, "Success", "Connection closed early")
        };
        let mut response_status = ResponseStatus::of_code(code.as_u16());
        (response_status.status, response_status.message) = (status.to_owned(), message.to_owned());
        if panicked {
            response_status.reason = "InternalError".to_owned();
        }
        self.event().response_status = Some(response_status);
        self.submit(if panicked { Stage::Panic } else { Stage::ResponseComplete });
    }

    /// Completes the record with the response. For watches and connections this happens at the end of the body.
    pub(crate) async fn answered(self: Arc<Self>, response: Response<Body>) -> Response<Body> {
        let code = response.status();
        if self.long && (code.is_success() || code == StatusCode::SWITCHING_PROTOCOLS) {
            self.event().response_status = Some(ResponseStatus::of_code(code.as_u16()));
            self.processed(Stage::ResponseStarted).await;
            return response
                .map(|body| BodyWithGuard::new(body, CompleteOnDrop(self)).boxed_unsync());
        }
        let is_error = code.is_client_error() || code.is_server_error();
        let (answer, response) = if is_error || self.config.level == Level::RequestResponse {
            read(response).await
        } else {
            (Value::Null, response)
        };
        self.event().response_status = Some(ResponseStatus::of_status(code.as_u16(), &answer));
        if self.long {
            self.processed(Stage::ResponseStarted).await;
        }
        if self.config.level == Level::RequestResponse && !answer.is_null() {
            self.event().response_object = Some(self.config.shown(answer));
        }
        self.processed(Stage::ResponseComplete).await;
        response
    }
}

/// Reads the object of a response. A body that is streamed, or is not an object, is passed on unread.
async fn read(response: Response<Body>) -> (Value, Response<Body>) {
    if response.body().size_hint().exact().is_none() {
        return (Value::Null, response);
    }
    let (parts, body) = response.into_parts();
    let Ok(whole) = body.collect().await else {
        return (Value::Null, Response::from_parts(parts, serve::full(Bytes::new())));
    };
    let bytes = whole.to_bytes();
    let object = if bytes.starts_with(api_codec::protobuf::MAGIC) {
        opened(&bytes)
    } else {
        serde_json::from_slice(&bytes).ok().filter(Value::is_object)
    };
    (object.unwrap_or_default(), Response::from_parts(parts, serve::full(bytes)))
}

fn opened(bytes: &[u8]) -> Option<Value> {
    let found = api_codec::protobuf::open(bytes).ok()?;
    let (kind, version) = (found.kind.to_string(), found.api_version.to_string());
    let mut tree = api_codec::protobuf::from_protobuf(api_schema::Schema::builtin(), bytes).ok()?;
    tree.put(&["kind"], kind);
    tree.put(&["apiVersion"], version);
    Some(tree)
}

/// Completes the record when the response body is dropped.
struct CompleteOnDrop(Arc<RequestAudit>);

impl Drop for CompleteOnDrop {
    fn drop(&mut self) {
        self.0.submit(Stage::ResponseComplete);
    }
}
