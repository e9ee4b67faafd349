//! Spans, the tracer that starts them, and the current span of a task.

use std::{borrow::Cow, sync::Arc, time::SystemTime};

use http::HeaderMap;
use tokio::task_local;

use crate::{
    context::SpanContext,
    queue::SpanQueue,
    record::{AttributeValue, SpanKind, SpanRecord},
};

task_local! {
    /// The span that the task works on.
    static CURRENT: Option<Scope>;
}

/// A span that other spans may be parts of.
#[derive(Clone, Debug)]
struct Scope {
    tracer: Tracer,
    context: SpanContext,
}

/// The tracer of a component, cheap to clone. The default one records nothing, and passes on the context of trusted
/// requests.
#[derive(Clone, Debug, Default)]
pub struct Tracer(Option<Arc<Recorder>>);

#[derive(Debug)]
struct Recorder {
    queue: SpanQueue,
    /// The number of traces per million that are sampled if no trusted context decides.
    rate: u32,
}

impl Tracer {
    pub(crate) fn new(queue: SpanQueue, rate: u32) -> Self {
        Self(Some(Arc::new(Recorder { queue, rate })))
    }

    /// Starts the span of a request. In a task that has a current span, such as for a request of the process itself,
    /// the new span is a part of it. Otherwise the trace context of `headers` counts if it is trusted: it decides
    /// whether the trace is sampled. A context that is not trusted becomes a link of a new trace.
    pub fn server_span(
        &self,
        name: impl FnOnce() -> String,
        headers: &HeaderMap,
        is_trusted: bool,
    ) -> Span {
        if let Some(scope) = current() {
            return Span::start(scope.tracer, Some(scope.context), None, SpanKind::Server, name);
        }
        let remote = SpanContext::from_headers(headers);
        let (parent, link) = if is_trusted { (remote, None) } else { (None, remote) };
        Span::start(self.clone(), parent, link, SpanKind::Server, name)
    }

    /// Starts the first span of a trace, for work that no request caused.
    pub fn root_span(&self, name: &'static str) -> Span {
        Span::start(self.clone(), None, None, SpanKind::Internal, || name)
    }
}

impl Recorder {
    /// Decides about a new trace as OpenTelemetry's ratio sampler: by the last 63 bits of its identifier.
    fn samples(&self, trace_id: [u8; 16]) -> bool {
        let [.., a, b, c, d, e, f, g, h] = trace_id;
        let value = u64::from_be_bytes([a, b, c, d, e, f, g, h]) >> 1;
        u128::from(value) * 1_000_000 < u128::from(self.rate) << 63
    }
}

/// A span, which ends when it is dropped. It records nothing if its trace is not sampled.
#[derive(Debug)]
#[must_use = "a span ends when it is dropped"]
pub struct Span {
    scope: Option<Scope>,
    record: Option<Box<SpanRecord>>,
}

impl Span {
    fn start<N: Into<Cow<'static, str>>>(
        tracer: Tracer,
        parent: Option<SpanContext>,
        link: Option<SpanContext>,
        kind: SpanKind,
        name: impl FnOnce() -> N,
    ) -> Self {
        let Some(recorder) = &tracer.0 else {
            let scope = parent.map(|context| Scope { tracer, context });
            return Self { scope, record: None };
        };
        let trace_id = parent.as_ref().map_or_else(rt::random, |parent| parent.trace_id);
        let sampled =
            parent.as_ref().map_or_else(|| recorder.samples(trace_id), |parent| parent.sampled);
        let state = parent.as_ref().and_then(|parent| parent.state.clone());
        let context = SpanContext { trace_id, span_id: rt::random(), sampled, state };
        let record = sampled.then(|| {
            let start = rt::now();
            Box::new(SpanRecord {
                context: context.clone(),
                parent: parent.map(|parent| parent.span_id),
                link,
                name: name().into(),
                kind,
                start,
                end: start,
                attributes: Vec::new(),
                error: None,
            })
        });
        Self { scope: Some(Scope { tracer, context }), record }
    }

    /// Returns `true` if the span will be exported, so that attributes that cost time are worth computing.
    pub fn is_recording(&self) -> bool {
        self.record.is_some()
    }

    /// Sets the time at which the work began, if that was before the span was created.
    pub fn set_start(&mut self, start: SystemTime) {
        if let Some(record) = &mut self.record {
            record.start = start;
        }
    }

    /// Adds an attribute. An empty text is left out.
    pub fn set(&mut self, key: &'static str, value: impl Into<AttributeValue>) {
        if let Some(record) = &mut self.record {
            let value = value.into();
            if value != AttributeValue::Text(String::new()) {
                record.attributes.push((key, value));
            }
        }
    }

    /// Marks the span as failed.
    pub fn fail(&mut self, cause: &str) {
        if let Some(record) = &mut self.record
            && let AttributeValue::Text(cause) = cause.into()
        {
            record.error = Some(cause);
        }
    }

    /// Runs work with this span as the task's current one.
    pub fn within<F: Future>(&self, work: F) -> impl Future<Output = F::Output> + use<F> {
        CURRENT.scope(self.scope.clone(), work)
    }

    /// Writes the span's context to the headers of a request. Does nothing without a trace.
    pub fn inject(&self, headers: &mut HeaderMap) {
        if let Some(scope) = &self.scope {
            scope.context.write(headers);
        }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        let recorder = self.scope.as_ref().and_then(|scope| scope.tracer.0.as_ref());
        if let (Some(mut record), Some(recorder)) = (self.record.take(), recorder) {
            record.end = rt::now();
            recorder.queue.add(*record);
        }
    }
}

fn current() -> Option<Scope> {
    CURRENT.try_with(Clone::clone).ok().flatten()
}

/// Starts a span that is a part of the task's current one. Without a current span it records nothing.
pub fn span<N: Into<Cow<'static, str>>>(name: impl FnOnce() -> N, kind: SpanKind) -> Span {
    match current() {
        Some(scope) => Span::start(scope.tracer, Some(scope.context), None, kind, name),
        None => Span { scope: None, record: None },
    }
}

/// Writes the context of the task's current span to the headers of a request. Does nothing without one.
pub fn inject(headers: &mut HeaderMap) {
    if let Some(scope) = current() {
        scope.context.write(headers);
    }
}

/// Takes the current span along, for work that runs in another task.
pub fn carry<F: Future>(work: F) -> impl Future<Output = F::Output> + use<F> {
    CURRENT.scope(current(), work)
}

#[cfg(test)]
mod tests;
