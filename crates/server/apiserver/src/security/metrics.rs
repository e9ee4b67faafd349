//! Metrics of authentication and authorization, with upstream's names.

use std::time::Duration;

use auth::authz::webhook::ConditionError;
use sha2::{Digest as _, Sha256};
use telemetry::metrics::{
    GaugeVec, Histogram, HistogramVec, IntCounterVec, Metrics, USUAL_BOUNDS, unix_seconds,
};

const CONDITIONS: &[f64] = &[0.001, 0.005, 0.01, 0.025, 0.1, 0.2, 0.25];

/// The metrics of authentication and authorization.
pub(crate) struct SecurityMetrics {
    authentication: Reloads,
    authorization: Reloads,
    decisions: IntCounterVec,
    evaluations: IntCounterVec,
    durations: HistogramVec,
    failed_open: IntCounterVec,
    excluded: IntCounterVec,
    condition_errors: IntCounterVec,
    conditions: HistogramVec,
    tokens: HistogramVec,
    keys_fetched: GaugeVec,
    /// The remaining validity of the client certificates of requests.
    expirations: Histogram,
}

/// The bounds of `apiserver_client_certificate_expiration_seconds`: half an hour to a year.
const EXPIRATIONS: [f64; 14] = [
    0.0,
    1_800.0,
    3_600.0,
    7_200.0,
    21_600.0,
    43_200.0,
    86_400.0,
    172_800.0,
    345_600.0,
    604_800.0,
    2_592_000.0,
    7_776_000.0,
    15_552_000.0,
    31_104_000.0,
];

/// Metrics of the reloads of a configuration file.
struct Reloads {
    count: IntCounterVec,
    last: GaugeVec,
    info: GaugeVec,
}

impl Reloads {
    fn new(metrics: &Metrics, purpose: &str) -> Self {
        let name = |figure: &str| format!("apiserver_{purpose}_config_controller_{figure}");
        let of = &["apiserver_id_hash", "status"];
        Self {
            count: metrics.counters(
                &name("automatic_reloads_total"),
                "How often the configuration was read again, by what came of it.",
                of,
            ),
            last: metrics.gauges(
                &name("automatic_reload_last_timestamp_seconds"),
                "When the configuration was read again last, by what came of it.",
                of,
            ),
            info: metrics.gauges(
                &name("last_config_info"),
                "The configuration in use, by its hash.",
                &["apiserver_id_hash", "hash"],
            ),
        }
    }
}

/// Sets a gauge to the current time in seconds since 1970.
fn now(gauges: &GaugeVec, labels: &[&str]) {
    gauges.with_label_values(labels).set(unix_seconds(rt::now()));
}

impl SecurityMetrics {
    pub(super) fn new(metrics: &Metrics) -> Self {
        let name = |figure: &str| format!("apiserver_{figure}");
        let counters = |figure, help, labels| metrics.counters(&name(figure), help, labels);
        let histograms =
            |figure, help, bounds, labels| metrics.histograms(&name(figure), help, bounds, labels);
        let (by_result, matched) = (&["name", "result"], &["name", "type"]);
        Self {
            authentication: Reloads::new(metrics, "authentication"),
            authorization: Reloads::new(metrics, "authorization"),
            decisions: counters(
                "authorization_decisions_total",
                "Requests that an authorizer has settled.",
                &["type", "name", "decision"],
            ),
            evaluations: counters(
                "authorization_webhook_evaluations_total",
                "Questions to webhooks of authorization.",
                by_result,
            ),
            durations: histograms(
                "authorization_webhook_duration_seconds",
                "How long webhooks of authorization took.",
                USUAL_BOUNDS,
                by_result,
            ),
            failed_open: counters(
                "authorization_webhook_evaluations_fail_open_total",
                "Failures of webhooks of authorization that were passed over.",
                by_result,
            ),
            excluded: counters(
                "authorization_match_condition_exclusions_total",
                "Requests that an authorizer was not asked about for its conditions.",
                matched,
            ),
            condition_errors: counters(
                "authorization_match_condition_evaluation_errors_total",
                "Conditions of authorizers that have failed.",
                matched,
            ),
            conditions: histograms(
                "authorization_match_condition_evaluation_seconds",
                "How long conditions of authorizers took.",
                CONDITIONS,
                matched,
            ),
            tokens: histograms(
                "authentication_jwt_authenticator_latency_seconds",
                "How long tokens of issuers took to judge.",
                USUAL_BOUNDS,
                &["jwt_issuer_hash", "result"],
            ),
            keys_fetched: metrics.gauges(
                &name("authentication_jwt_authenticator_jwks_fetch_last_timestamp_seconds"),
                "When the keys of an issuer were fetched last, by what came of it.",
                &["apiserver_id_hash", "jwt_issuer_hash", "result"],
            ),
            expirations: metrics.histogram(
                &name("client_certificate_expiration_seconds"),
                "Distribution of the remaining lifetime on the certificate used to authenticate a request.",
                &EXPIRATIONS,
            ),
        }
    }

    fn reloads(&self, purpose: &str) -> &Reloads {
        if purpose == "authentication" { &self.authentication } else { &self.authorization }
    }

    /// Records a reload with its result.
    pub(super) fn record_reload(&self, purpose: &str, server: &str, status: &str) {
        let reloads = self.reloads(purpose);
        reloads.count.with_label_values(&[server, status]).inc();
        now(&reloads.last, &[server, status]);
    }

    /// Records a request with a client certificate that is valid for this time.
    pub(super) fn record_certificate(&self, remaining: Duration) {
        self.expirations.observe(remaining.as_secs_f64());
    }

    /// Records the configuration in use.
    pub(super) fn set_config_info(&self, purpose: &str, server: &str, text: &str) {
        let info = &self.reloads(purpose).info;
        info.reset();
        info.with_label_values(&[server, &hash(text)]).set(1.0);
    }

    /// Records the decision of an authorizer.
    pub(super) fn record_decision(&self, kind: &str, name: &str, allowed: bool) {
        let decision = if allowed { "allowed" } else { "denied" };
        self.decisions.with_label_values(&[kind, name, decision]).inc();
    }

    /// Records an attempt to call an authorization webhook. `result` is `success`, `timeout` or `error`.
    pub(super) fn record_webhook_call(&self, name: &str, result: &str, took: Duration) {
        let labels = [name, result];
        self.evaluations.with_label_values(&labels).inc();
        self.durations.with_label_values(&labels).observe(took.as_secs_f64());
    }

    /// Records a failure of an authorization webhook that was ignored.
    pub(super) fn record_fail_open(&self, name: &str, result: &str) {
        self.failed_open.with_label_values(&[name, result]).inc();
    }

    /// Records the evaluation of an authorization webhook's match conditions.
    pub(super) fn record_conditions(
        &self,
        name: &str,
        held: &Result<bool, ConditionError>,
        took: Duration,
    ) {
        let labels = [name, "Webhook"];
        match held {
            Ok(true) => {}
            Ok(false) => self.excluded.with_label_values(&labels).inc(),
            Err(_) => self.condition_errors.with_label_values(&labels).inc(),
        }
        self.conditions.with_label_values(&labels).observe(took.as_secs_f64());
    }

    /// Records the validation of a token. `result` is `success` or `failure`.
    pub(super) fn record_validation(&self, issuer: &str, result: &str, took: Duration) {
        let labels = [hash(issuer), result.to_owned()];
        self.tokens.with_label_values(&labels).observe(took.as_secs_f64());
    }

    /// Records a fetch of an issuer's keys with its result.
    pub(super) fn record_fetch(&self, issuer: &str, server: &str, result: &str) {
        now(&self.keys_fetched, &[server, &hash(issuer), result]);
    }
}

/// Returns a hash in the format of upstream's metrics.
pub(crate) fn hash(text: &str) -> String {
    format!("sha256:{}", data_encoding::HEXLOWER.encode(&Sha256::digest(text)))
}
