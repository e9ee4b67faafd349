//! Exports spans to a collector on a socket.

#![allow(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

use std::time::Duration;

use otlp::{Endpoint, EndpointError, Exporter, ExporterError, Resource, SpanKind, v1};
use telemetry::metrics::Metrics;
use testkit::{Code, Collector, Fault};

fn exporter(endpoint: &str) -> Exporter {
    let delay = Duration::from_millis(10);
    Exporter { batch_delay: delay, ..Exporter::new(Some(endpoint), Some(1_000_000)).unwrap() }
}

fn resource() -> Resource {
    Resource { service: "kubelet", attributes: vec![("host.name", "n1".to_owned())] }
}

fn text(attributes: &[v1::KeyValue], key: &str) -> String {
    let found = attributes.iter().find(|attribute| attribute.key == key);
    match found.and_then(|attribute| attribute.value.clone()).and_then(|value| value.value) {
        Some(v1::any_value::Value::StringValue(text)) => text,
        other => panic!("{key}: {other:?}"),
    }
}

#[test]
fn validates_configuration_in_upstreams_words() {
    assert_eq!(Exporter::new(None, None).unwrap(), Exporter::default());
    assert_eq!(Exporter::default().endpoint, Endpoint::Tcp("localhost:4317".to_owned()));
    assert_eq!(Exporter::new(None, Some(-1)), Err(ExporterError::NegativeRate(-1)));
    let high = Exporter::new(None, Some(1_000_001)).unwrap_err();
    assert_eq!(
        high.to_string(),
        "samplingRatePerMillion: Invalid value: 1000001: sampling rate per million must be less than or equal to one million"
    );
    let source = EndpointError::Scheme("https".to_owned());
    let value = "https://collector:4317".to_owned();
    let error = ExporterError::Endpoint { value: value.clone(), source };
    assert_eq!(Exporter::new(Some(&value), None), Err(error));
}

#[tokio::test]
async fn exports_spans_with_resource_and_parents() {
    let (directory, metrics) = (tempfile::tempdir().unwrap(), Metrics::default());
    let tasks = rt::Tasks::new(rt::Shutdown::new());
    let collector = Collector::serve(directory.path(), &tasks).unwrap();
    let tracer = exporter(&collector.endpoint()).start(resource(), &metrics, &tasks).unwrap();
    let mut root = tracer.root_span("syncPod");
    root.set("k8s.pod", "default/a");
    root.within(async {
        let mut call = otlp::span(|| "runtime.v1.RuntimeService/Version", SpanKind::Client);
        call.fail("no such socket");
    })
    .await;
    drop(root);
    let root = collector.span("syncPod").await;
    let call = collector.span("runtime.v1.RuntimeService/Version").await;
    assert_eq!(call.span.parent_span_id, root.span.span_id);
    assert_eq!(call.span.trace_id, root.span.trace_id);
    assert_eq!(call.span.kind(), v1::SpanKind::Client);
    let status = call.span.status.unwrap();
    assert_eq!((status.code(), status.message.as_str()), (v1::StatusCode::Error, "no such socket"));
    assert_eq!(root.span.kind(), v1::SpanKind::Internal);
    assert!(root.span.end_time_unix_nano >= root.span.start_time_unix_nano);
    assert!(root.span.start_time_unix_nano > 1_700_000_000_000_000_000);
    assert_eq!(text(&root.span.attributes, "k8s.pod"), "default/a");
    assert_eq!(text(&root.resource, "service.name"), "kubelet");
    assert_eq!(text(&root.resource, "host.name"), "n1");
    let exported = "windlass_trace_spans_exported_total 2\n";
    let counted = || metrics.text().contains(exported);
    let wait = Duration::from_secs(10);
    assert!(rt::wait_until(wait, Duration::from_millis(10), counted).await, "{}", metrics.text());
}

#[tokio::test]
async fn counts_spans_that_collector_refuses_and_goes_on() {
    let (directory, metrics) = (tempfile::tempdir().unwrap(), Metrics::default());
    let tasks = rt::Tasks::new(rt::Shutdown::new());
    let collector = Collector::serve(directory.path(), &tasks).unwrap();
    collector.set_fault(Some(Fault::Refuse(Code::PermissionDenied, "no".to_owned())));
    let tracer = exporter(&collector.endpoint()).start(resource(), &metrics, &tasks).unwrap();
    drop(tracer.root_span("refused"));
    let line = "windlass_trace_spans_dropped_total{reason=\"export_failed\"} 1\n";
    let counted = || metrics.text().contains(line);
    let wait = Duration::from_secs(10);
    assert!(rt::wait_until(wait, Duration::from_millis(10), counted).await, "{}", metrics.text());
    collector.set_fault(None);
    drop(tracer.root_span("accepted"));
    collector.span("accepted").await;
    assert_eq!(collector.names(), ["accepted"]);
}

#[tokio::test(start_paused = true)]
async fn never_delays_work_without_collector() {
    let (directory, metrics) = (tempfile::tempdir().unwrap(), Metrics::default());
    let tasks = rt::Tasks::new(rt::Shutdown::new());
    let absent = format!("unix://{}", directory.path().join("absent").display());
    let tracer = exporter(&absent).start(resource(), &metrics, &tasks).unwrap();
    for _ in 0..10_000 {
        drop(tracer.root_span("syncPod"));
    }
    let full = "windlass_trace_spans_dropped_total{reason=\"queue_full\"} 7952\n";
    assert!(metrics.text().contains(full), "{}", metrics.text());
    let failed = "windlass_trace_spans_dropped_total{reason=\"export_failed\"} 2048\n";
    let counted = || metrics.text().contains(failed);
    let wait = Duration::from_secs(3600);
    assert!(rt::wait_until(wait, Duration::from_secs(1), counted).await, "{}", metrics.text());
}

#[tokio::test]
async fn exports_last_spans_when_process_stops() {
    let (directory, metrics) = (tempfile::tempdir().unwrap(), Metrics::default());
    let (tasks, collecting) =
        (rt::Tasks::new(rt::Shutdown::new()), rt::Tasks::new(rt::Shutdown::new()));
    let collector = Collector::serve(directory.path(), &collecting).unwrap();
    let slow = Exporter { batch_delay: Duration::from_secs(60), ..exporter(&collector.endpoint()) };
    let tracer = slow.start(resource(), &metrics, &tasks).unwrap();
    tokio::task::yield_now().await;
    drop(tracer.root_span("last"));
    let drained = tasks.drain(Duration::from_secs(10)).await;
    assert!(drained.unfinished.is_empty());
    assert_eq!(collector.names(), ["last"]);
}
