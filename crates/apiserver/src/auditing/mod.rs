//! Audit: what each request leaves behind. A server without a policy has no [`Auditor`], and nothing of this is paid.

mod audited;
mod error;
mod sink;
mod webhook;

use std::sync::Arc;

use api_meta::{Attributes, Timestamp};
use audit::{Level, Policy};
use http::{HeaderMap, Request};
use serve::{Body, Connection};
use telemetry::metrics::Metrics;

pub(crate) use self::audited::Audited;
pub use self::error::AuditError;
use self::sink::Sinks;
use crate::config::AuditOptions;

/// How clients name a request, and learn what it was named.
pub(crate) const HEADER: &str = "audit-id";

pub(crate) struct Auditor {
    policy: Policy,
    sinks: Arc<Sinks>,
}

impl Auditor {
    /// None without a policy, or with nowhere to write to.
    pub(crate) fn new(
        options: &AuditOptions,
        metrics: &Metrics,
        tasks: &rt::Tasks,
    ) -> Result<Option<Arc<Self>>, AuditError> {
        let Some(path) = &options.policy else { return Ok(None) };
        let policy = Policy::load(path)?;
        if options.log.is_none() && options.webhook.is_none() {
            return Ok(None);
        }
        let sinks = Arc::new(Sinks::new(options, metrics, tasks)?);
        Ok(Some(Arc::new(Self { policy, sinks })))
    }

    /// A request that has come, or none if the policy does not ask for it.
    pub(crate) fn begin<B>(
        &self,
        of: &Attributes<'_>,
        request: &Request<B>,
        long: bool,
    ) -> Option<Arc<Audited>> {
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
        Some(Arc::new(Audited::new(self.sinks.clone(), config, event, long)))
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Sees that a request has a name, which its answer repeats.
pub(crate) fn name(request: &mut Request<Body>) -> http::HeaderValue {
    let given = request.headers().get(HEADER).filter(|id| !id.is_empty()).cloned();
    given.unwrap_or_else(|| {
        let made = rt::id();
        // Letters, digits and hyphens are what headers are made of.
        let mut id = http::HeaderValue::try_from(made)
            .unwrap_or_else(|_| http::HeaderValue::from_static("none"));
        // No other answer has it: HTTP/2 is told not to remember it in the place of what comes again.
        id.set_sensitive(true);
        request.headers_mut().insert(HEADER, id.clone());
        id
    })
}
