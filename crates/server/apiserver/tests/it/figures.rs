//! Metrics of admission, requests, seats, flow control and health checks.

use std::time::Duration;

use serde_json::json;
use testkit::metrics::{
    OF_CLIENTS, OF_COMPONENTS, OF_QUEUES, PublishedMetric, assert_published, published,
};

use crate::harness::{MAPS, TestServer, config_map, start};

async fn figure(server: &TestServer, line: &str) -> f64 {
    let page = server.admin().get("/metrics").await;
    let page = String::from_utf8(page.body.to_vec()).unwrap();
    let found = page.lines().find_map(|found| found.strip_prefix(line)?.strip_prefix(' '));
    found.map_or(0.0, |value| value.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn counts_admission_steps_by_result() {
    let server = start(|_| {}).await;
    // Count deletions, because the server itself creates and updates objects.
    let count = |step: &str, rejected: bool| {
        format!(
            "apiserver_admission_step_admission_duration_seconds_count{{operation=\"DELETE\",rejected=\"{rejected}\",type=\"{step}\"}}"
        )
    };
    let admin = server.admin();
    admin.post(MAPS, &config_map("a", json!({}))).await.ok();
    let map = format!("{MAPS}/a");
    // Requests without permission do not reach admission.
    server.user("stranger", &[]).delete(&map, &json!({})).await.refused(403, "Forbidden");
    admin.delete(&map, &json!({})).await.ok();
    admin.delete("/api/v1/namespaces/default", &json!({})).await.refused(403, "Forbidden");
    for (line, times) in [
        (count("admit", false), 1.0),
        (count("validate", false), 1.0),
        (count("admit", true), 1.0),
        (count("validate", true), 0.0),
    ] {
        assert_eq!(figure(&server, &line).await, times, "{line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_nominal_and_current_seats() {
    let server = start(|_| {}).await;
    let of = |what: &str| {
        format!("apiserver_flowcontrol_{what}_limit_seats{{priority_level=\"workload-low\"}}")
    };
    // 100 of the bootstrap configuration's 245 shares of 600 seats; most of them are lent out.
    assert_eq!(figure(&server, &of("nominal")).await, 245.0);
    assert!(figure(&server, &of("current")).await > 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn counts_open_requests_until_client_disconnects() {
    let server = start(|_| {}).await;
    let line = "apiserver_longrunning_requests{component=\"apiserver\",group=\"\",resource=\"configmaps\",scope=\"namespace\",subresource=\"\",verb=\"WATCH\",version=\"v1\"}";
    let admin = server.admin();
    let request = http::Request::get(format!("{MAPS}?watch=true"));
    let watch = admin.0.request(request.body(client::empty()).unwrap()).await.unwrap();
    assert_eq!(figure(&server, line).await, 1.0);
    // A rejected watch does not count as open, and client-chosen names are not labels.
    let odd = "/api/v1/namespaces/default/invented?watch=true";
    server.user("stranger", &[]).get(&format!("{MAPS}?watch=true")).await.refused(403, "Forbidden");
    admin.get(odd).await.refused(404, "NotFound");
    assert_eq!(figure(&server, line).await, 1.0);
    let page = admin.get("/metrics").await;
    assert!(!String::from_utf8_lossy(&page.body).contains("invented"));
    drop(watch);
    let gone = rt::retry(
        Duration::from_secs(10),
        Duration::from_millis(20),
        |()| true,
        || async { if figure(&server, line).await == 0.0 { Ok(()) } else { Err(()) } },
    );
    assert!(gone.await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn counts_health_checks_on_slis_page() {
    let server = start(|_| {}).await;
    let admin = server.admin();
    admin.get("/readyz?exclude=etcd").await;
    admin.get("/readyz/ping").await;
    admin.get("/livez/nosuch").await;
    let page = admin.get("/metrics/slis").await;
    let page = String::from_utf8(page.body.to_vec()).unwrap();
    for line in [
        "kubernetes_healthcheck{name=\"ping\",type=\"readyz\"} 1\n",
        "kubernetes_healthchecks_total{name=\"ping\",status=\"success\",type=\"readyz\"} 2\n",
    ] {
        assert!(page.contains(line), "{line}: {page}");
    }
    assert!(!page.contains("\"etcd\"") && !page.contains("nosuch"), "{page}");
    assert_eq!(admin.get("/metrics/nosuch").await.code, 404);
    server.tasks.shutdown().stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn uses_upstreams_names_of_health_checks() {
    let server = start(|_| {}).await;
    let admin = server.admin();
    let index = admin.get("/").await.json();
    let index = index["paths"].as_array().unwrap();
    for page in ["healthz", "livez", "readyz"] {
        let path = format!("/{page}?verbose");
        let passed = async || {
            let answer = admin.get(&path).await;
            if answer.code == 200 { Ok(answer) } else { Err(answer) }
        };
        let wait = Duration::from_millis(20);
        let answer = rt::retry(Duration::from_secs(10), wait, |_| true, passed).await.unwrap();
        let text = String::from_utf8(answer.body.to_vec()).unwrap();
        for name in [
            "etcd",
            "poststarthook/rbac/bootstrap-roles",
            "poststarthook/crd-informer-synced",
            "poststarthook/apiservice-openapiv3-controller",
            "autoregister-completion",
        ] {
            assert!(text.contains(&format!("[+]{name} ok\n")), "{name}: {text}");
            assert_eq!(admin.get(&format!("/{page}/{name}")).await.body, "ok", "{page} {name}");
            assert!(index.contains(&format!("/{page}/{name}").into()), "{page} {name}");
        }
        assert_eq!(text.contains("[+]shutdown ok\n"), page == "readyz");
        assert_eq!(admin.get(&format!("/{page}/poststarthook")).await.code, 404);
        assert_eq!(admin.get(&format!("/{page}/etcd/")).await.code, 200);
    }
    server.tasks.shutdown().stop();
}

/// Upstream's STABLE and BETA metrics of the API server that every server has after some requests.
const PUBLISHED: &[PublishedMetric] = &[
    published(
        "apiserver_admission_controller_admission_duration_seconds",
        "histogram",
        &["name", "operation", "rejected", "type"],
    ),
    published(
        "apiserver_admission_step_admission_duration_seconds",
        "histogram",
        &["operation", "rejected", "type"],
    ),
    published("apiserver_current_inflight_requests", "gauge", &["request_kind"]),
    published(
        "apiserver_request_duration_seconds",
        "histogram",
        &["component", "dry_run", "group", "resource", "scope", "subresource", "verb", "version"],
    ),
    published(
        "apiserver_request_total",
        "counter",
        &[
            "code",
            "component",
            "dry_run",
            "group",
            "resource",
            "scope",
            "subresource",
            "verb",
            "version",
        ],
    ),
    published(
        "apiserver_requested_deprecated_apis",
        "gauge",
        &["group", "removed_release", "resource", "subresource", "version"],
    ),
    published(
        "apiserver_response_sizes",
        "histogram",
        &["component", "group", "resource", "scope", "subresource", "verb", "version"],
    ),
    published("apiserver_storage_objects", "gauge", &["resource"]),
    published("apiserver_storage_size_bytes", "gauge", &["storage_cluster_id"]),
    published("apiserver_storage_events_received_total", "counter", &["group", "resource"]),
    published(
        "apiserver_watch_list_duration_seconds",
        "histogram",
        &["group", "resource", "scope", "version"],
    ),
    published(
        "apiserver_flowcontrol_current_executing_requests",
        "gauge",
        &["flow_schema", "priority_level"],
    ),
    published("apiserver_flowcontrol_current_executing_seats", "gauge", &["priority_level"]),
    published(
        "apiserver_flowcontrol_dispatched_requests_total",
        "counter",
        &["flow_schema", "priority_level"],
    ),
    published("apiserver_flowcontrol_nominal_limit_seats", "gauge", &["priority_level"]),
    published(
        "apiserver_flowcontrol_request_wait_duration_seconds",
        "histogram",
        &["execute", "flow_schema", "priority_level"],
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn serves_published_metrics_and_no_names_of_clients() {
    let server = start(|_| {}).await;
    let admin = server.admin();
    admin.get("/api/v1/namespaces/default/endpoints").await.ok();
    admin.get(MAPS).await.ok();
    let options = "watch=true&sendInitialEvents=true&allowWatchBookmarks=true&timeoutSeconds=1\
                   &resourceVersionMatch=NotOlderThan";
    admin.get(&format!("{MAPS}?{options}")).await.ok();
    admin.post(MAPS, &config_map("one", json!({}))).await.ok();
    let page = async || {
        let page = admin.get("/metrics").await;
        String::from_utf8(page.body.to_vec()).unwrap()
    };
    let tables = [PUBLISHED, OF_COMPONENTS, OF_CLIENTS, OF_QUEUES];
    assert_published(&page().await, tables.into_iter().flatten());
    let deprecated = "apiserver_requested_deprecated_apis{group=\"\",removed_release=\"\",\
                      resource=\"endpoints\",subresource=\"\",version=\"v1\"}";
    assert_eq!(figure(&server, deprecated).await, 1.0);
    // The page itself is a request that executes.
    let executing = "apiserver_flowcontrol_current_executing_requests{flow_schema=\"exempt\",priority_level=\"exempt\"}";
    assert_eq!(figure(&server, executing).await, 1.0);
    let sizes = "apiserver_response_sizes_count{component=\"apiserver\",group=\"\",resource=\"configmaps\",\
                 scope=\"namespace\",subresource=\"\",verb=\"LIST\",version=\"v1\"}";
    assert_eq!(figure(&server, sizes).await, 1.0);
    let lists = "apiserver_watch_list_duration_seconds_count{group=\"\",resource=\"configmaps\",\
                 scope=\"namespace\",version=\"v1\"}";
    assert_eq!(figure(&server, lists).await, 1.0);
    let received = "apiserver_storage_events_received_total{group=\"\",resource=\"configmaps\"}";
    assert!(figure(&server, received).await >= 1.0);
    let stranger = server.user("hostile-user", &[]);
    for number in 0..50 {
        let name = format!("hostile-{number}");
        for path in [
            format!("/apis/{name}/v1/{name}"),
            format!("/api/v1/namespaces/{name}/{name}/{name}?dryRun={name}"),
            format!("/api/v1/namespaces/default/pods/{name}/{name}"),
            format!("/{name}/{name}"),
        ] {
            stranger.get(&path).await;
            admin.get(&path).await;
            admin.delete(&path, &json!({})).await;
        }
    }
    let text = page().await;
    assert!(!text.contains("hostile"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn measures_each_admission_plugin() {
    let server = start(|_| {}).await;
    let admin = server.admin();
    admin.delete("/api/v1/namespaces/default", &json!({})).await.refused(403, "Forbidden");
    let of = |plugin: &str, rejected: bool| {
        format!(
            "apiserver_admission_controller_admission_duration_seconds_count{{name=\"{plugin}\",\
             operation=\"DELETE\",rejected=\"{rejected}\",type=\"admit\"}}"
        )
    };
    assert_eq!(figure(&server, &of("NamespaceLifecycle", true)).await, 1.0);
    assert_eq!(figure(&server, &of("NamespaceLifecycle", false)).await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn serves_flags_only_to_permitted_clients() {
    let server = start(|_| {}).await;
    server.user("stranger", &[]).get("/flagz").await.refused(403, "Forbidden");
    let page = server.admin().get("/flagz").await;
    let text = String::from_utf8(page.body.to_vec()).unwrap();
    assert!(page.code == 200 && text.starts_with("\napiserver flagz\nWarning: "), "{text}");
}
