use http::HeaderValue;
use telemetry::metrics::Metrics;
use tokio::sync::mpsc;

use super::*;
use crate::queue::DroppedSpans;

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

struct Bench {
    tracer: Tracer,
    spans: mpsc::Receiver<SpanRecord>,
    metrics: Metrics,
}

fn bench(rate: u32) -> Bench {
    let metrics = Metrics::default();
    let (queue, spans) = SpanQueue::new(DroppedSpans::new(&metrics));
    Bench { tracer: Tracer::new(queue, rate), spans, metrics }
}

fn headers() -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert("traceparent", HeaderValue::from_static(PARENT));
    headers
}

fn request(tracer: &Tracer, is_trusted: bool) -> Span {
    tracer.server_span(|| "GET".to_owned(), &headers(), is_trusted)
}

#[tokio::test]
async fn continues_trace_of_trusted_caller_down_to_outgoing_request() {
    let mut bench = bench(0);
    let server = request(&bench.tracer, true);
    let mut outgoing = HeaderMap::new();
    server
        .within(async {
            let part = span(|| "Create", SpanKind::Internal);
            part.within(async { inject(&mut outgoing) }).await;
        })
        .await;
    drop(server);
    let part = bench.spans.recv().await.unwrap();
    let server = bench.spans.recv().await.unwrap();
    assert_eq!(part.parent, Some(server.context.span_id));
    assert_eq!(server.parent, Some(0x00f0_67aa_0ba9_02b7_u64.to_be_bytes()));
    assert!(server.start <= part.start && part.end <= server.end);
    let sent = SpanContext::from_headers(&outgoing).unwrap();
    assert_eq!(sent, part.context);
    assert_eq!(sent.trace_id, SpanContext::from_headers(&headers()).unwrap().trace_id);
}

#[tokio::test]
async fn ignores_sampling_decision_of_untrusted_caller() {
    let mut off = bench(0);
    let span = request(&off.tracer, false);
    assert!(!span.is_recording());
    let mut outgoing = headers();
    span.inject(&mut outgoing);
    drop(span);
    let sent = SpanContext::from_headers(&outgoing).unwrap();
    assert!(!sent.sampled, "the caller's flag is not passed on");
    assert_ne!(sent.trace_id, SpanContext::from_headers(&headers()).unwrap().trace_id);
    assert!(off.spans.try_recv().is_err());
    let mut on = bench(1_000_000);
    drop(request(&on.tracer, false));
    let span = on.spans.recv().await.unwrap();
    assert_eq!(span.parent, None);
    assert_eq!(span.link, SpanContext::from_headers(&headers()));
}

#[tokio::test]
async fn passes_on_context_of_trusted_caller_without_tracer() {
    let tracer = Tracer::default();
    let mut outgoing = HeaderMap::new();
    request(&tracer, true).within(async { inject(&mut outgoing) }).await;
    assert_eq!(outgoing["traceparent"], PARENT);
    let mut outgoing = HeaderMap::new();
    request(&tracer, false).within(async { inject(&mut outgoing) }).await;
    assert!(outgoing.is_empty());
}

#[tokio::test]
async fn keeps_current_span_in_other_task() {
    let mut bench = bench(0);
    let server = request(&bench.tracer, true);
    let work = async || drop(span(|| "List", SpanKind::Internal));
    let mut carried = None;
    server.within(async { carried = Some(carry(work())) }).await;
    tokio::spawn(carried.unwrap()).await.unwrap();
    tokio::spawn(work()).await.unwrap();
    drop(server);
    let names: Vec<_> =
        std::iter::from_fn(|| bench.spans.try_recv().ok()).map(|span| span.name).collect();
    assert_eq!(names, ["List", "GET"]);
}

#[test]
fn samples_traces_at_configured_rate() {
    let sampled = |rate| {
        let bench = bench(rate);
        let roots = (0..2000).map(|_| bench.tracer.root_span("syncPod").is_recording());
        roots.filter(|sampled| *sampled).count()
    };
    assert_eq!(sampled(0), 0);
    assert_eq!(sampled(1_000_000), 2000);
    let half = sampled(500_000);
    assert!((800..1200).contains(&half), "{half}");
}

#[test]
fn counts_spans_that_do_not_fit_queue() {
    let bench = bench(1_000_000);
    for _ in 0..3000 {
        let mut span = bench.tracer.root_span("syncPod");
        span.set("url.path", "é".repeat(10_000).as_str());
    }
    let text = bench.metrics.text();
    let line = "windlass_trace_spans_dropped_total{reason=\"queue_full\"} 952\n";
    assert!(text.contains(line), "{text}");
}

#[test]
fn shortens_attributes_and_leaves_out_empty_ones() {
    let mut bench = bench(1_000_000);
    let mut span = bench.tracer.root_span("syncPod");
    span.set("empty", "");
    span.set("long", "é".repeat(10_000).as_str());
    drop(span);
    let record = bench.spans.try_recv().unwrap();
    let [("long", AttributeValue::Text(text))] = record.attributes.as_slice() else {
        panic!("{:?}", record.attributes)
    };
    assert_eq!(text.len(), 512);
}
