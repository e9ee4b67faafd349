//! Answers `/livez`, `/readyz`, `/healthz`, `/version`, `/metrics`, and the index of paths.

use std::{
    fmt::Write as _,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use api_meta::Timestamp;
use bytes::Bytes;
use diagnostics::Slis;
use http::{HeaderValue, Response, StatusCode, header};
use serde_json::json;
use serve::Body;
use telemetry::metrics::{self, Metrics};

use super::{
    checks::{self, Check, PAGES, Readiness},
    flow_metrics::FlowMetrics,
    metrics::{RequestMetrics, ServerMetrics},
};
use crate::{
    auditing::Auditor,
    documents::version,
    handlers::state::State,
    request::{Query, ResponseFormat},
    response,
};

/// Audit, metrics and health state of the server.
pub(crate) struct Instruments {
    /// `None` if auditing is off.
    pub(crate) auditor: Option<Arc<Auditor>>,
    pub(crate) tracer: otlp::Tracer,
    /// The registry of all metrics of the server.
    pub(crate) metrics: Metrics,
    pub(crate) requests: RequestMetrics,
    pub(crate) observed: ServerMetrics,
    pub(crate) flow: FlowMetrics,
    pub(crate) readiness: Readiness,
    pub(crate) started: Timestamp,
    pub(crate) slis: Slis,
}

impl Instruments {
    /// Returns the time since the server's start.
    fn age(&self) -> Duration {
        Timestamp::from(rt::now()).since(self.started)
    }
}

/// Answers a non-resource path. Returns `None` if the path is not one of this module's.
pub(crate) fn document(
    state: &State,
    instruments: &Instruments,
    path: &str,
    query: &Query,
    accepted: ResponseFormat,
) -> Option<Response<Body>> {
    let mut parts = path.trim_matches('/').split('/');
    match parts.next()? {
        "" => Some(response::value(
            accepted,
            StatusCode::OK,
            &json!({"paths": paths(state, instruments)}),
        )),
        "version" => Some(response::value(accepted, StatusCode::OK, &version::version())),
        "metrics" => match parts.next() {
            None => Some(metrics_page(state, instruments)),
            Some("slis") => Some(response::bytes(
                StatusCode::OK,
                metrics::CONTENT_TYPE,
                instruments.slis.text(),
            )),
            Some(_) => None,
        },
        page if PAGES.contains(&page) => {
            let one = path.trim_matches('/').split_once('/').map(|(_, one)| one);
            let checks = checks::of(page, state, &instruments.readiness, instruments.age());
            health(&checks, instruments, page, one, query)
        }
        ".well-known" if parts.next() == Some("openid-configuration") => {
            Some(key_document(state, "application/json", state.security.openid_configuration()))
        }
        "openid" => Some(key_document(state, "application/jwk-set+json", state.security.jwks())),
        _ => None,
    }
}

/// Answers with a document of the keys of service account tokens, which caches may keep until the keys are read again.
fn key_document(state: &State, content_type: &'static str, text: String) -> Response<Body> {
    let mut response = response::bytes(StatusCode::OK, content_type, text);
    let seconds = state.security.keys_max_age().as_secs();
    if seconds > 0
        && let Ok(value) = HeaderValue::from_str(&format!("public, max-age={seconds}"))
    {
        response.headers_mut().insert(header::CACHE_CONTROL, value);
    }
    response
}

fn paths(state: &State, instruments: &Instruments) -> Vec<String> {
    let kinds = state.cache.kinds();
    let mut paths: Vec<String> = [
        "/.well-known/openid-configuration",
        "/api",
        "/api/v1",
        "/apis",
        "/metrics",
        "/metrics/slis",
        "/openapi/v2",
        "/openapi/v3",
        "/openid/v1/jwks",
        "/version",
    ]
    .map(str::to_owned)
    .to_vec();
    for (gate, page) in [("ComponentStatusz", "/statusz"), ("ComponentFlagz", "/flagz")] {
        if state.config.features.is_enabled(gate) {
            paths.push(page.to_owned());
        }
    }
    for page in PAGES {
        paths.push(format!("/{page}"));
        let checks = checks::of(page, state, &instruments.readiness, instruments.age());
        paths.extend(checks.iter().map(|check| format!("/{page}/{}", check.name)));
    }
    for resource in kinds.all.iter() {
        for served in resource.definition.served.iter().filter(|s| !s.group.is_empty()) {
            paths.push(format!("/apis/{}", served.group));
            paths.push(format!("/apis/{}", served.api_version));
        }
    }
    paths.sort();
    paths.dedup();
    paths
}

fn metrics_page(state: &State, instruments: &Instruments) -> Response<Body> {
    instruments.observed.refresh(state);
    response::bytes(StatusCode::OK, metrics::CONTENT_TYPE, instruments.metrics.text())
}

/// Checks the KMS plugins if the request is for a health endpoint that reports them. Each plugin caches its result for
/// some seconds. Only the first of several failures is logged, because clients poll.
pub(super) async fn check_plugins(state: &State, readiness: &Readiness, path: &str) {
    let first = path.trim_matches('/').split('/').next();
    let about = first.is_some_and(checks::checks_plugins);
    let Some(encryption) = state.config.encryption.as_ref().filter(|_| about) else { return };
    let health = encryption.health().await;
    let were_ill = readiness.plugins_ill.swap(health.is_err(), Ordering::Relaxed);
    if let Err(error) = health
        && !were_ill
    {
        tracing::warn!(%error, "kms-providers check failed");
    }
}

/// Answers a health endpoint, or a single check below it.
fn health(
    checks: &[Check],
    instruments: &Instruments,
    page: &str,
    one: Option<&str>,
    query: &Query,
) -> Option<Response<Body>> {
    if let Some(one) = one.filter(|one| !one.is_empty()) {
        let check = checks.iter().find(|check| *check.name == *one)?;
        instruments.slis.record(page, one, check.passed);
        if check.passed {
            return Some(ok_text("ok"));
        }
        return Some(failed(format!("internal server error: {one} check failed\n")));
    }
    let excluded: Vec<&str> = query.all("exclude").collect();
    let mut text = String::new();
    let mut passed = true;
    for Check { name, passed: ok, group } in checks {
        if let Some(group) = group.filter(|group| excluded.contains(group)) {
            let _ = writeln!(text, "[+]{name} excluded with {group}: ok");
            continue;
        }
        if excluded.contains(&&**name) {
            let _ = writeln!(text, "[+]{name} excluded: ok");
            continue;
        }
        instruments.slis.record(page, name, *ok);
        if *ok {
            let _ = writeln!(text, "[+]{name} ok");
        } else {
            passed = false;
            let _ = writeln!(text, "[-]{name} failed: reason withheld");
        }
    }
    Some(match (passed, query.get("verbose").is_some()) {
        (true, false) => ok_text("ok"),
        (true, true) => ok_text(format!("{text}{page} check passed\n")),
        (false, _) => failed(format!("{text}{page} check failed\n")),
    })
}

fn ok_text(text: impl Into<Bytes>) -> Response<Body> {
    response::bytes(StatusCode::OK, "text/plain; charset=utf-8", text)
}

fn failed(text: String) -> Response<Body> {
    response::bytes(StatusCode::INTERNAL_SERVER_ERROR, "text/plain; charset=utf-8", text)
}
