//! Traces of requests: who may have one recorded, and the context that webhooks receive.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use data_encoding::HEXLOWER;
use futures_util::future::BoxFuture;
use http::{HeaderMap, Request, Response};
use http_body_util::BodyExt as _;
use otlp::{Exporter, v1};
use parking_lot::Mutex;
use pki::AltName;
use serde_json::{Value, json};
use serve::{Body, Handler};
use testkit::Collector;

use crate::harness::{TestServer, listen, start};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

struct Bench {
    server: TestServer,
    collector: std::sync::Arc<Collector>,
}

async fn bench(rate: i32) -> Bench {
    let directory = tempfile::tempdir().unwrap().keep();
    let collector = Collector::serve(&directory, &rt::Tasks::new(rt::Shutdown::new())).unwrap();
    let exporter = Exporter::new(Some(&collector.endpoint()), Some(rate)).unwrap();
    let exporter = Exporter { batch_delay: Duration::from_millis(10), ..exporter };
    let server = start(|config| config.tracing = Some(exporter)).await;
    Bench { server, collector }
}

fn text(span: &v1::Span, key: &str) -> String {
    let found = span.attributes.iter().find(|attribute| attribute.key == key);
    match found.and_then(|attribute| attribute.value.clone()).and_then(|value| value.value) {
        Some(v1::any_value::Value::StringValue(text)) => text,
        Some(v1::any_value::Value::IntValue(number)) => number.to_string(),
        other => panic!("{key}: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn records_request_of_administrator_who_asks_for_it() {
    let bench = bench(0).await;
    let headers = [("traceparent", PARENT), ("audit-id", "the-audit")];
    let path = "/api/v1/namespaces/default/configmaps/none?pretty=1";
    let missing = bench.server.admin().send("GET", path, &headers, "").await;
    assert_eq!(missing.code, 404);
    let name = "GET /api/v1/namespaces/{:namespace}/configmaps/{:name}";
    let span = bench.collector.span(name).await;
    assert_eq!(HEXLOWER.encode(&span.span.trace_id), TRACE);
    assert_eq!(HEXLOWER.encode(&span.span.parent_span_id), "00f067aa0ba902b7");
    assert_eq!(span.span.kind(), v1::SpanKind::Server);
    for (key, wanted) in [
        ("http.request.method", "GET"),
        ("url.path", "/api/v1/namespaces/default/configmaps/none"),
        ("http.target", path),
        ("audit-id", "the-audit"),
        ("http.response.status_code", "404"),
    ] {
        assert_eq!(text(&span.span, key), wanted, "{key}");
    }
    let get = bench.collector.span("Get").await;
    assert_eq!(get.span.parent_span_id, span.span.span_id);
    assert_eq!(text(&get.span, "resource"), "configmaps");
}

#[tokio::test(flavor = "multi_thread")]
async fn records_no_request_of_others_who_ask_for_it() {
    let bench = bench(0).await;
    let headers = [("traceparent", PARENT)];
    let others = [
        bench.server.user("eve", &[]),
        bench.server.user("system:serviceaccount:a:b", &["system:serviceaccounts"]),
        bench.server.user("system:anonymous", &["system:unauthenticated"]),
    ];
    for other in &others {
        // Permitted, and forbidden.
        assert_eq!(other.send("GET", "/version", &headers, "").await.code, 200);
        assert_eq!(other.send("GET", "/api/v1/secrets", &headers, "").await.code, 403);
    }
    let monitor = bench.server.user("prometheus", &["system:monitoring"]);
    assert_eq!(monitor.send("GET", "/version", &headers, "").await.code, 200);
    let span = bench.collector.span("GET").await;
    assert_eq!(text(&span.span, "url.path"), "/version");
    assert_eq!(bench.collector.names(), ["GET"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn links_trace_of_untrusted_caller_at_full_rate() {
    let bench = bench(1_000_000).await;
    let eve = bench.server.user("eve", &[]);
    eve.send("GET", "/version", &[("traceparent", PARENT)], "").await.ok();
    let of_eve = |span: &v1::Span| span.name == "GET" && !span.links.is_empty();
    let span = bench.collector.wait_for(of_eve).await.span;
    assert_ne!(HEXLOWER.encode(&span.trace_id), TRACE);
    assert_eq!(HEXLOWER.encode(&span.links[0].trace_id), TRACE);
    assert!(span.parent_span_id.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn ignores_broken_contexts() {
    let bench = bench(0).await;
    let admin = bench.server.admin();
    let long = format!("00-{}", "a".repeat(8000));
    for broken in ["", "00-zz-zz-01", "\u{7f}", &long, &PARENT.replace('4', "0x")] {
        let broken = broken.replace('\u{7f}', "~");
        admin.send("GET", "/version", &[("traceparent", &broken)], "").await.ok();
    }
    admin.send("GET", "/livez", &[("traceparent", PARENT)], "").await;
    bench.collector.span("GET").await;
    assert_eq!(bench.collector.names(), ["GET"]);
}

/// A webhook that keeps the headers of reviews.
#[derive(Default)]
struct Hook(Mutex<Vec<HeaderMap>>);

impl Handler for Hook {
    fn handle(&self, request: Request<Body>) -> BoxFuture<'_, Response<Body>> {
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            self.0.lock().push(parts.headers);
            let review: Value = serde_json::from_slice(&body).unwrap();
            let response = json!({"uid": review["request"]["uid"], "allowed": true});
            let answer = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
            Response::new(client::full(answer.to_string()))
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn passes_context_to_webhook() {
    let bench = bench(0).await;
    let (admin, authority) = (bench.server.admin(), &bench.server.authority);
    let mut at = None;
    let names = vec![AltName::Ip([127, 0, 0, 1].into())];
    let hook = listen(authority, names, |address, _| {
        at = Some(address);
        Hook::default()
    })
    .await;
    let configuration = json!({"metadata": {"name": "traced"}, "webhooks": [{
        "name": "traced.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "clientConfig": {"url": format!("https://{}/", at.unwrap()), "caBundle": STANDARD.encode(authority.cert().to_pem())},
        "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}],
    }]});
    let configurations = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    admin.post(configurations, &configuration).await.ok();
    let namespace = admin.namespace().await;
    let maps = &format!("/api/v1/namespaces/{namespace}/configmaps");
    let map = json!({"metadata": {"generateName": "m-"}}).to_string();
    let content = ("content-type", "application/json");
    admin.send("POST", maps, &[content, ("traceparent", PARENT)], map.clone()).await.ok();
    let call = bench.collector.span("Call validating webhook").await.span;
    assert_eq!(HEXLOWER.encode(&call.trace_id), TRACE);
    assert_eq!(text(&call, "webhook"), "traced.example.com");
    let sent = bench.collector.span("HTTP POST").await.span;
    assert_eq!(sent.parent_span_id, call.span_id);
    assert_eq!(text(&sent, "http.response.status_code"), "200");
    let received = hook.0.lock()[0]["traceparent"].to_str().unwrap().to_owned();
    assert_eq!(received, format!("00-{TRACE}-{}-01", HEXLOWER.encode(&sent.span_id)));
    // The flag of a caller who is not trusted does not reach the webhook.
    let tenant = bench.server.powerful_token(&namespace).await;
    let tenant = bench.server.tls(crate::harness::Identity::Token(tenant));
    tenant.send("POST", maps, &[content, ("traceparent", PARENT)], map).await.ok();
    let received = hook.0.lock()[1]["traceparent"].to_str().unwrap().to_owned();
    assert!(received.ends_with("-00") && !received.contains(TRACE), "{received}");
}
