//! A resource request after authentication and authorization.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::time::Instant;

use api_meta::{Status, UserInfo, Warnings};
use http::{HeaderMap, Method, Response, request::Parts};
use parking_lot::{Mutex, MutexGuard};
use serde_json::Value;
use serve::Body;

use crate::{
    auditing::RequestAudit,
    registry::ServedVersion,
    request::{Encodings, RequestInfo, ResourcePath, ResponseFormat, body::RequestBody},
    watch_cache::{Cache, Resource},
};

/// The result of a call.
pub(crate) type Answer = Result<Response<Body>, Box<Status>>;

/// An authorized request for a resource.
pub(crate) struct Call {
    pub(crate) info: Arc<RequestInfo>,
    pub(crate) path: ResourcePath,
    pub(crate) method: Method,
    pub(crate) headers: HeaderMap,
    pub(crate) user: Arc<UserInfo>,
    pub(crate) user_agent: String,
    pub(crate) resource: Resource,
    /// The index of the called version in the definition's served versions.
    pub(crate) version: usize,
    pub(crate) accepted: ResponseFormat,
    /// The encodings in which the body may be.
    pub(crate) encodings: Encodings,
    /// The time at which the request times out; `None` for watches and connections.
    pub(crate) deadline: Option<Instant>,
    pub(crate) body: Mutex<RequestBody>,
    /// The request's head, for handlers that take over the connection.
    pub(crate) parts: Mutex<Option<Parts>>,
    /// Sent as `Warning` headers.
    pub(crate) warnings: Mutex<Warnings>,
    /// Set if the body's delete options request a dry run.
    pub(crate) dry_run_in_body: AtomicBool,
    /// The request's seat in flow control. It is held as long as the call; a watch takes it over.
    pub(crate) seat: Mutex<Option<flow::Permit>>,
    /// The audit record of the request.
    pub(crate) audited: Option<Arc<RequestAudit>>,
    pub(crate) waited: WaitTime,
}

/// The time that a request has waited: in a queue of flow control and for webhooks.
#[derive(Clone, Default)]
pub(crate) struct WaitTime(Arc<AtomicU64>);

impl WaitTime {
    pub(crate) fn add(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.0.fetch_add(nanos, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

impl Call {
    pub(crate) fn served(&self) -> &ServedVersion {
        &self.resource.definition.served[self.version]
    }

    pub(crate) fn cache(&self) -> Result<&Arc<Cache>, Box<Status>> {
        let definition = &self.resource.definition;
        self.resource.cache.as_ref().ok_or_else(|| {
            Box::new(Status::method_not_supported(&definition.group_resource(), self.info.verb))
        })
    }

    pub(crate) fn warn(&self, warning: impl Into<String>) {
        self.warnings.lock().push(warning);
    }

    pub(crate) fn annotate(&self, name: &str, value: &str) {
        if let Some(audited) = &self.audited {
            audited.annotate(name, value);
        }
    }

    /// Returns the error for an object with another name than the URL, or without one.
    pub(crate) fn wrong_name(&self, name: &str) -> Box<Status> {
        let wanted = &self.path.name;
        let message = match name {
            "" => format!(
                "the name of the object ({wanted} based on URL) was undeterminable: name must be provided"
            ),
            name => format!(
                "the name of the object ({name}) does not match the name on the URL ({wanted})"
            ),
        };
        Box::new(Status::bad_request(message))
    }

    /// Adds the request's object to the audit record.
    pub(crate) fn requested(&self, object: &Value) {
        if let Some(audited) = &self.audited {
            audited.requested(object);
        }
    }

    pub(crate) fn has_warnings(&self) -> bool {
        !self.warnings.lock().is_empty()
    }

    pub(crate) fn take_seat(&self) -> Option<flow::Permit> {
        self.seat.lock().take()
    }

    /// Takes the body. Handlers that read it put it back as [`RequestBody::Whole`].
    pub(crate) fn take_body(&self) -> RequestBody {
        std::mem::take(&mut *self.received())
    }

    pub(crate) fn received(&self) -> MutexGuard<'_, RequestBody> {
        self.body.lock()
    }

    /// Takes the request's head and extensions. They are empty on the second call.
    pub(crate) fn take_parts(&self) -> Parts {
        let parts = self.parts.lock().take();
        parts.unwrap_or_else(|| http::Request::new(()).into_parts().0)
    }

    /// Resets the state of an attempt before the request is restarted.
    pub(crate) fn begin_again(&self) {
        *self.warnings.lock() = Warnings::new();
        self.dry_run_in_body.store(false, Ordering::Relaxed);
    }

    /// Creates a call of the server itself.
    pub(crate) fn own(
        resource: Resource,
        version: usize,
        verb: &'static str,
        user: Arc<UserInfo>,
    ) -> Self {
        let definition = &resource.definition;
        let path = ResourcePath {
            group: definition.group.to_string(),
            version: definition.served[version].version.to_string(),
            resource: definition.plural.to_string(),
            ..ResourcePath::default()
        };
        let info = RequestInfo { verb, resource: Some(path.clone()), ..RequestInfo::default() };
        Self {
            info: Arc::new(info),
            path,
            method: Method::DELETE,
            headers: HeaderMap::new(),
            user,
            user_agent: "kube-apiserver".to_owned(),
            resource,
            version,
            deadline: None,
            accepted: ResponseFormat::JSON,
            encodings: Encodings::default(),
            body: Mutex::default(),
            parts: Mutex::default(),
            warnings: Mutex::default(),
            dry_run_in_body: AtomicBool::new(false),
            seat: Mutex::new(None),
            audited: None,
            waited: WaitTime::default(),
        }
    }

    /// Creates a call of the same user on another object, for subresources that affect several objects, such as a Pod's
    /// eviction.
    pub(crate) fn on(&self, resource: Resource, version: usize, path: ResourcePath) -> Self {
        Self {
            info: Arc::new(RequestInfo { resource: Some(path.clone()), ..(*self.info).clone() }),
            path,
            method: self.method.clone(),
            headers: self.headers.clone(),
            user: self.user.clone(),
            user_agent: self.user_agent.clone(),
            resource,
            version,
            accepted: self.accepted,
            encodings: self.encodings,
            deadline: self.deadline,
            body: Mutex::default(),
            parts: Mutex::default(),
            warnings: Mutex::default(),
            dry_run_in_body: AtomicBool::new(self.dry_run()),
            seat: Mutex::new(None),
            audited: self.audited.clone(),
            waited: self.waited.clone(),
        }
    }

    /// Returns the field manager: the query's `fieldManager`, or the user agent up to its first slash.
    pub(crate) fn manager(&self) -> String {
        let named = self.info.query.get("fieldManager").unwrap_or_default();
        if !named.is_empty() {
            return named.to_owned();
        }
        let agent = self.user_agent.split('/').next().unwrap_or_default();
        let printable: String = agent.chars().filter(|c| !c.is_control()).take(128).collect();
        if printable.is_empty() { "unknown".to_owned() } else { printable }
    }

    pub(crate) fn dry_run(&self) -> bool {
        self.info.query.all("dryRun").any(|v| v == "All")
            || self.dry_run_in_body.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Returns the error for a missing object.
    pub(crate) fn not_found(&self) -> Box<Status> {
        let resource = self.resource.definition.group_resource();
        Box::new(Status::not_found(&resource, &self.path.name))
    }
}
