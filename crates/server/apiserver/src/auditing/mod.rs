//! Auditing of requests: [`Auditor`] evaluates the policy and creates a [`RequestAudit`] record per request, which
//! submits events to the log and the webhook. The formats of policy and events are in the crate `audit`. Without a
//! policy there is no [`Auditor`], and auditing costs nothing.

mod error;
mod request_audit;
mod sink;
mod webhook;

use std::sync::Arc;

use api_meta::{Attributes, Timestamp};
use audit::{Level, Policy};
use client::Proxy;
use http::{HeaderMap, Request};
use serve::{Body, Connection};
use telemetry::metrics::Metrics;

pub use self::error::AuditError;
pub(crate) use self::request_audit::RequestAudit;
use self::sink::Sinks;
use crate::config::AuditOptions;

/// The header with the audit ID of a request. Clients may set it; responses repeat it.
pub(crate) const HEADER: &str = "audit-id";

/// The audit policy and its sinks.
pub(crate) struct Auditor {
    policy: Policy,
    sinks: Arc<Sinks>,
}

impl Auditor {
    /// Returns `None` without a policy or without a destination.
    pub(crate) fn new(
        options: &AuditOptions,
        proxy: Option<Proxy>,
        metrics: &Metrics,
        tasks: &rt::Tasks,
    ) -> Result<Option<Arc<Self>>, AuditError> {
        let Some(path) = &options.policy else { return Ok(None) };
        let policy = Policy::load(path)?;
        if options.log.is_none() && options.webhook.is_none() {
            return Ok(None);
        }
        let sinks = Arc::new(Sinks::new(options, proxy, metrics, tasks)?);
        Ok(Some(Arc::new(Self { policy, sinks })))
    }

    /// Creates the record of a request, or `None` if the policy does not audit it.
    pub(crate) fn begin<B>(
        &self,
        of: &Attributes<'_>,
        request: &Request<B>,
        long: bool,
    ) -> Option<Arc<RequestAudit>> {
        let config = self.policy.evaluate(of);
        self.sinks.levels.count(config.level);
        if config.level == Level::None {
            return None;
        }
        let headers = request.headers();
        let uri = request.uri().path_and_query().map_or("", |uri| uri.as_str());
        let id = text(headers, HEADER).unwrap_or_default();
        let mut event = audit::Event::new(config.level, id, uri, of, Timestamp::from(rt::now()));
        event.user_agent = audit::user_agent(text(headers, "user-agent").unwrap_or_default());
        let connection = request.extensions().get::<Arc<Connection>>();
        let peer = connection.and_then(|connection| connection.peer).map(|peer| peer.ip());
        let (forwarded, real) = (text(headers, "x-forwarded-for"), text(headers, "x-real-ip"));
        event.source_ips = audit::source_ips(forwarded, real, peer);
        Some(Arc::new(RequestAudit::new(self.sinks.clone(), config, event, long)))
    }
}

/// Returns a header's value.
pub(crate) fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Ensures that a request has an audit ID, and returns it for the response.
pub(crate) fn name(request: &mut Request<Body>) -> http::HeaderValue {
    let given = request.headers().get(HEADER).filter(|id| !id.is_empty()).cloned();
    given.unwrap_or_else(|| {
        let made = rt::id();
        // An ID has only characters that are valid in headers.
        let mut id = http::HeaderValue::try_from(made)
            .unwrap_or_else(|_| http::HeaderValue::from_static("none"));
        // The value is unique, so exclude it from HTTP/2's compression table.
        id.set_sensitive(true);
        request.headers_mut().insert(HEADER, id.clone());
        id
    })
}
