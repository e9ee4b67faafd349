//! Calls authentication, authorization and other review webhooks: sends a review to the server of a kubeconfig and
//! returns its response.
//!
//! Responses are limited in size and time. A redirect is treated as a failure.

use std::{path::Path, time::Duration};

use api_config::GoDuration;
use bytes::Bytes;
use client::{HttpTransport, KubeconfigError, Proxy, Transport as _};
use http::{Request, Uri, header};
use serde_json::Value;

use super::{
    backends,
    webhook::{self, CallError},
};

/// The maximum size of a response.
const LONGEST: usize = 3 << 20;
/// The number of attempts after transient failures and the backoff between them, as upstream.
pub(crate) const ATTEMPTS: u32 = 5;
const FIRST_WAIT: Duration = Duration::from_millis(500);
const GROWTH: f64 = 1.5;
const JITTER: f64 = 0.2;

/// Returns the backoff after `before` earlier failures.
pub(crate) fn pause(first: Duration, before: u32) -> Duration {
    let growth = GROWTH.powi(i32::try_from(before).unwrap_or(i32::MAX));
    first.mul_f64(growth * (1.0 + JITTER * f64::from(rt::random::<f32>())))
}

/// The webhook of a kubeconfig.
pub(crate) struct Reviewer {
    transport: HttpTransport,
    url: String,
    uri: Uri,
    first_wait: Duration,
}

/// The failure of a call.
#[derive(Debug, thiserror::Error)]
#[error("{words}")]
pub(crate) struct ReviewError {
    pub(crate) words: String,
    pub(crate) timed_out: bool,
    /// `true` if the failure is transient and the call may be retried.
    transient: bool,
}

impl Reviewer {
    /// Creates the client of the webhook of a kubeconfig. `proxy` is the proxy to its network.
    pub(crate) fn new(kubeconfig: &Path, proxy: Option<Proxy>) -> Result<Self, KubeconfigError> {
        let (transport, url) = HttpTransport::from_kubeconfig_file(kubeconfig)?;
        let transport = transport.by_proxy(proxy);
        // The transport has already validated the URL.
        let uri = url.parse().unwrap_or_default();
        Ok(Self { transport, url, uri, first_wait: FIRST_WAIT })
    }

    /// Sets the initial backoff.
    pub(crate) fn waiting(self, first_wait: Duration) -> Self {
        Self { first_wait, ..self }
    }

    /// Sends a review, with retries after transient failures. Calls `each` after every attempt.
    pub(crate) async fn call(
        &self,
        review: &Value,
        time: Duration,
        each: impl Fn(Option<&ReviewError>, Duration),
    ) -> Result<Bytes, ReviewError> {
        let body = Bytes::from(review.to_string());
        for left in (0..ATTEMPTS).rev() {
            let began = tokio::time::Instant::now();
            let answer = self.call_once(body.clone(), time).await;
            each(answer.as_ref().err(), began.elapsed());
            match answer {
                Err(error) if error.transient && left > 0 => {
                    tokio::time::sleep(pause(self.first_wait, ATTEMPTS - 1 - left)).await;
                }
                answer => return answer,
            }
        }
        Err(self.failed("no attempt was made", ""))
    }

    fn failed(&self, cause: impl std::fmt::Display, query: &str) -> ReviewError {
        let words = format!("Post \"{}{query}\": {cause}", self.url);
        ReviewError { words, timed_out: false, transient: false }
    }

    /// Sends a review once.
    pub(crate) async fn call_once(
        &self,
        body: Bytes,
        time: Duration,
    ) -> Result<Bytes, ReviewError> {
        // Tell the webhook its timeout.
        let joint = if self.uri.query().is_some() { '&' } else { '?' };
        let query = format!("{joint}timeout={}", GoDuration::from_millis(time.as_millis() as i64));
        match tokio::time::timeout(time, self.send(body, &query)).await {
            Ok(answer) => answer,
            Err(_) => {
                let words =
                    "context deadline exceeded (Client.Timeout exceeded while awaiting headers)";
                Err(ReviewError { timed_out: true, ..self.failed(words, &query) })
            }
        }
    }

    async fn send(&self, body: Bytes, query: &str) -> Result<Bytes, ReviewError> {
        let failed = |cause: &dyn std::fmt::Display| self.failed(cause, query);
        let path = self.uri.path_and_query().map_or("/", |p| p.as_str());
        let path = format!("{path}{query}");
        let request = Request::post(&path)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json, */*")
            .header(header::USER_AGENT, "kube-apiserver")
            .header(header::CONTENT_LENGTH, body.len())
            .body(client::full(body))
            .map_err(|e| failed(&e))?;
        let (host, port) =
            (self.uri.host().unwrap_or_default(), self.uri.port_u16().unwrap_or(443));
        let response = self.transport.send(request).await.map_err(|error| {
            let cause = backends::cause(&error, &format!("{host}:{port}"), host);
            let transient = cause.contains("reset by peer");
            ReviewError { transient, ..failed(&cause) }
        })?;
        let code = response.status().as_u16();
        let body = client::read(&path, response.into_body(), LONGEST).await;
        let body = body.map_err(|error| failed(&error.cause()))?;
        webhook::read(code, body).map_err(|CallError { words, .. }| ReviewError {
            words,
            timed_out: code == 504,
            transient: matches!(code, 429 | 500 | 504),
        })
    }
}
