//! The bounded queue between spans and the exporter.

use std::sync::Arc;

use telemetry::metrics::{IntCounterVec, Metrics};
use tokio::sync::mpsc;

use crate::record::SpanRecord;

/// The number of spans that wait for the exporter, as in OpenTelemetry's batch processor.
const LENGTH: usize = 2048;

/// The sender of ended spans.
#[derive(Clone, Debug)]
pub(crate) struct SpanQueue {
    sender: mpsc::Sender<SpanRecord>,
    dropped: DroppedSpans,
}

/// Counts spans that were recorded and not exported, by reason.
#[derive(Clone, Debug)]
pub(crate) struct DroppedSpans(Arc<IntCounterVec>);

impl DroppedSpans {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        let dropped = metrics.counters(
            "windlass_trace_spans_dropped_total",
            "Spans that were recorded and not exported, by reason.",
            &["reason"],
        );
        for reason in ["queue_full", "export_failed", "rejected"] {
            dropped.with_label_values(&[reason]);
        }
        Self(Arc::new(dropped))
    }

    pub(crate) fn count(&self, reason: &str, spans: u64) {
        self.0.with_label_values(&[reason]).inc_by(spans);
    }
}

impl SpanQueue {
    /// Creates a queue, and returns its receiver.
    pub(crate) fn new(dropped: DroppedSpans) -> (Self, mpsc::Receiver<SpanRecord>) {
        let (sender, receiver) = mpsc::channel(LENGTH);
        (Self { sender, dropped }, receiver)
    }

    /// Adds a span, or drops it if the queue is full.
    pub(crate) fn add(&self, span: SpanRecord) {
        if self.sender.try_send(span).is_err() {
            self.dropped.count("queue_full", 1);
        }
    }
}
