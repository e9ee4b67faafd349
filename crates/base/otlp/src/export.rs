//! The exporter: sends recorded spans to a collector, in batches.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rt::{Backoff, Shutdown, Tasks};
use telemetry::metrics::{IntCounter, Metrics};
use tokio::{
    sync::mpsc,
    time::{Instant, timeout, timeout_at},
};
use tonic::{Code, Status, transport::Channel};

use crate::{
    endpoint::{Endpoint, EndpointError},
    proto::v1::{
        self, AnyValue, ExportTraceServiceRequest, KeyValue, Link, ResourceSpans, ScopeSpans,
        any_value::Value, trace_service_client::TraceServiceClient,
    },
    queue::{DroppedSpans, SpanQueue},
    record::{AttributeValue, SpanKind, SpanRecord},
    span::Tracer,
};

/// The limits of a batch, those of OpenTelemetry's batch processor.
const BATCH: usize = 512;
const BATCH_DELAY: Duration = Duration::from_secs(5);
/// The time limit of one attempt, and of all attempts to export a batch.
const ATTEMPT: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(60);
/// The time that is left for the last spans when the process stops.
const LAST: Duration = Duration::from_secs(2);

/// The settings of the export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exporter {
    /// The collector.
    pub endpoint: Endpoint,
    /// The number of traces per million that are sampled if the caller does not decide.
    pub rate_per_million: u32,
    /// The time that a span waits for further spans of a batch.
    pub batch_delay: Duration,
}

/// The error for a `TracingConfiguration`, in upstream's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExporterError {
    #[error("samplingRatePerMillion: Invalid value: {0}: sampling rate must be positive")]
    NegativeRate(i32),
    #[error(
        "samplingRatePerMillion: Invalid value: {0}: sampling rate per million must be less than or equal to one \
         million"
    )]
    HighRate(i32),
    #[error("endpoint: Invalid value: {value:?}: {source}")]
    Endpoint { value: String, source: EndpointError },
}

/// The component whose spans are exported.
#[derive(Clone, Debug)]
pub struct Resource {
    /// `service.name`.
    pub service: &'static str,
    /// Further attributes.
    pub attributes: Vec<(&'static str, String)>,
}

impl Default for Exporter {
    fn default() -> Self {
        Self { endpoint: Endpoint::default(), rate_per_million: 0, batch_delay: BATCH_DELAY }
    }
}

impl Exporter {
    /// Validates the fields of a `TracingConfiguration`. Without an endpoint, spans are sent to OTLP's port on this
    /// machine. Without a rate, only traces are sampled whose trusted caller decides so.
    pub fn new(endpoint: Option<&str>, rate: Option<i32>) -> Result<Self, ExporterError> {
        let rate_per_million = match rate.unwrap_or(0) {
            rate @ ..0 => return Err(ExporterError::NegativeRate(rate)),
            rate @ 1_000_001.. => return Err(ExporterError::HighRate(rate)),
            rate => rate.unsigned_abs(),
        };
        let endpoint = match endpoint {
            Some(value) => value
                .parse()
                .map_err(|source| ExporterError::Endpoint { value: value.to_owned(), source })?,
            None => Endpoint::default(),
        };
        Ok(Self { endpoint, rate_per_million, ..Self::default() })
    }

    /// Starts the exporter, and returns the tracer whose spans it exports. Must be called within a Tokio runtime.
    pub fn start(
        &self,
        resource: Resource,
        metrics: &Metrics,
        tasks: &Tasks,
    ) -> Result<Tracer, EndpointError> {
        let dropped = DroppedSpans::new(metrics);
        let (queue, spans) = SpanQueue::new(dropped.clone());
        let exported = metrics
            .counter("windlass_trace_spans_exported_total", "Spans that a collector accepted.");
        let client = TraceServiceClient::new(self.endpoint.channel()?);
        let (resource, delay) = (encode_resource(resource), self.batch_delay);
        let export = Export { client, resource, dropped, exported, delay };
        let shutdown = tasks.shutdown().clone();
        tasks.spawn("trace exporter", export.run(spans, shutdown));
        Ok(Tracer::new(queue, self.rate_per_million))
    }
}

struct Export {
    client: TraceServiceClient<Channel>,
    resource: v1::Resource,
    dropped: DroppedSpans,
    exported: IntCounter,
    delay: Duration,
}

impl Export {
    async fn run(mut self, mut spans: mpsc::Receiver<SpanRecord>, shutdown: Shutdown) {
        // It outlives the futures that the shutdown drops, so that no span is lost with them.
        let mut batch = Vec::new();
        loop {
            let filled = fill(&mut spans, &mut batch, self.delay);
            if shutdown.unless_stopping(filled).await != Some(true) {
                break;
            }
            let request = self.request(std::mem::take(&mut batch));
            if shutdown.unless_stopping(self.export(&request)).await.is_none() {
                let _ = timeout(LAST, self.export(&request)).await;
                break;
            }
        }
        spans.close();
        while spans.recv_many(&mut batch, BATCH).await > 0 {}
        if !batch.is_empty() {
            let request = self.request(batch);
            let _ = timeout(LAST, self.export(&request)).await;
        }
    }

    /// Exports a batch. Retries while the collector is absent or busy; the queue bounds what waits meanwhile.
    async fn export(&mut self, request: &ExportTraceServiceRequest) {
        let count = count(request);
        let end = Instant::now() + PATIENCE;
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
        loop {
            let sent = timeout(ATTEMPT, self.client.export(request.clone())).await;
            let late = || Err(Status::deadline_exceeded(format!("no answer within {ATTEMPT:?}")));
            let status = match sent.unwrap_or_else(|_| late()) {
                Ok(response) => {
                    let partial = response.into_inner().partial_success.unwrap_or_default();
                    let rejected = u64::try_from(partial.rejected_spans).unwrap_or(0).min(count);
                    self.dropped.count("rejected", rejected);
                    return self.exported.inc_by(count - rejected);
                }
                Err(status) => status,
            };
            let pause = backoff.next(rt::random());
            if !is_passing(status.code()) || Instant::now() + pause > end {
                let message = status.message();
                tracing::warn!(code = ?status.code(), message, spans = count, "failed to export traces");
                return self.dropped.count("export_failed", count);
            }
            tokio::time::sleep(pause).await;
        }
    }

    fn request(&self, spans: Vec<SpanRecord>) -> ExportTraceServiceRequest {
        let scope =
            v1::InstrumentationScope { name: "windlass".to_owned(), version: String::new() };
        let spans = spans.into_iter().map(encode).collect();
        let scope_spans = vec![ScopeSpans { scope: Some(scope), spans }];
        let resource = Some(self.resource.clone());
        ExportTraceServiceRequest { resource_spans: vec![ResourceSpans { resource, scope_spans }] }
    }
}

/// Adds spans to a batch: as many as there are within a delay after the first. Returns `false` if there will be no
/// more.
async fn fill(
    spans: &mut mpsc::Receiver<SpanRecord>,
    batch: &mut Vec<SpanRecord>,
    delay: Duration,
) -> bool {
    if spans.recv_many(batch, 1).await == 0 {
        return false;
    }
    let end = Instant::now() + delay;
    while batch.len() < BATCH {
        let room = BATCH - batch.len();
        if !timeout_at(end, spans.recv_many(batch, room)).await.is_ok_and(|count| count > 0) {
            break;
        }
    }
    true
}

/// Returns `true` if OTLP permits to send the same spans again.
fn is_passing(code: Code) -> bool {
    matches!(
        code,
        Code::Unavailable
            | Code::DeadlineExceeded
            | Code::Cancelled
            | Code::Aborted
            | Code::OutOfRange
            | Code::DataLoss
            | Code::ResourceExhausted
    )
}

fn count(request: &ExportTraceServiceRequest) -> u64 {
    let scopes = request.resource_spans.iter().flat_map(|resource| &resource.scope_spans);
    scopes.map(|scope| scope.spans.len() as u64).sum()
}

fn encode_resource(resource: Resource) -> v1::Resource {
    let name = ("service.name", resource.service.to_owned());
    let all = std::iter::once(name).chain(resource.attributes);
    let attributes = all.map(|(key, value)| text_attribute(key, value)).collect();
    v1::Resource { attributes }
}

fn text_attribute(key: &str, value: String) -> KeyValue {
    let value = AnyValue { value: Some(Value::StringValue(value)) };
    KeyValue { key: key.to_owned(), value: Some(value) }
}

fn encode(span: SpanRecord) -> v1::Span {
    let attribute = |(key, value): (&str, AttributeValue)| match value {
        AttributeValue::Text(text) => text_attribute(key, text),
        AttributeValue::Number(number) => {
            let value = AnyValue { value: Some(Value::IntValue(number)) };
            KeyValue { key: key.to_owned(), value: Some(value) }
        }
    };
    let state =
        |state: Option<std::sync::Arc<str>>| state.as_deref().unwrap_or_default().to_owned();
    let kind = match span.kind {
        SpanKind::Internal => v1::SpanKind::Internal,
        SpanKind::Server => v1::SpanKind::Server,
        SpanKind::Client => v1::SpanKind::Client,
    };
    let status =
        span.error.map(|message| v1::Status { message, code: v1::StatusCode::Error.into() });
    let link = span.link.map(|link| Link {
        trace_id: link.trace_id.to_vec(),
        span_id: link.span_id.to_vec(),
        trace_state: state(link.state),
    });
    v1::Span {
        trace_id: span.context.trace_id.to_vec(),
        span_id: span.context.span_id.to_vec(),
        trace_state: state(span.context.state),
        parent_span_id: span.parent.map(|parent| parent.to_vec()).unwrap_or_default(),
        name: span.name.into_owned(),
        kind: kind.into(),
        start_time_unix_nano: nanoseconds(span.start),
        end_time_unix_nano: nanoseconds(span.end),
        attributes: span.attributes.into_iter().map(attribute).collect(),
        links: link.into_iter().collect(),
        status,
    }
}

fn nanoseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
