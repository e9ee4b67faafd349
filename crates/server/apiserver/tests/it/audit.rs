//! The audit log.

use std::{path::PathBuf, time::Duration};

use apiserver::{AuditLogOptions, AuditMode, AuditOptions};
use serde_json::{Value, json};

use crate::harness::{Identity, MAPS, TestServer, start};

/// Starts a server and returns the path of its audit log.
async fn audited(rules: &str, mode: AuditMode) -> (TestServer, PathBuf) {
    let directory = tempfile::tempdir().unwrap().keep();
    let (policy, log) = (directory.join("policy.yaml"), directory.join("audit.log"));
    let text = format!("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: {rules}\n");
    std::fs::write(&policy, text).unwrap();
    let options = AuditLogOptions { mode, ..AuditLogOptions::at(log.clone()) };
    let audit = AuditOptions { policy: Some(policy), log: Some(options), webhook: None };
    (start(|config| config.audit = audit).await, log)
}

fn events(log: &PathBuf) -> Vec<Value> {
    let text = std::fs::read_to_string(log).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Returns the events of a user, without those of the server itself.
fn of<'a>(events: &'a [Value], user: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["user"]["username"] == user).collect()
}

const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);

#[tokio::test(flavor = "multi_thread")]
async fn records_requests_according_to_policy() {
    let rules = "[{level: None, users: [system:apiserver]}, {level: Metadata, resources: [{group: '', resources: [secrets]}]}, {level: RequestResponse, omitManagedFields: true, omitStages: [RequestReceived]}]";
    let (server, log) = audited(rules, AuditMode::Blocking).await;
    let admin = server.admin();
    let map = json!({"metadata": {"name": "one"}, "data": {"a": "b"}});
    let headers = [("content-type", "application/json"), ("audit-id", "my-id")];
    let made = admin.send("POST", MAPS, &headers, map.to_string()).await;
    made.ok();
    assert_eq!(made.header("audit-id"), "my-id");
    let secret = json!({"metadata": {"name": "one"}, "stringData": {"password": "hunter2"}});
    let stored = admin.post("/api/v1/namespaces/default/secrets", &secret).await;
    stored.ok();
    assert!(!stored.header("audit-id").is_empty());
    let all = events(&log);
    let (map, secrets): (Vec<_>, Vec<_>) = of(&all, "admin")
        .into_iter()
        .partition(|event| event["objectRef"]["resource"] == "configmaps");
    let [event] = map[..] else { panic!("{map:?}") };
    assert_eq!((&event["auditID"], &event["stage"]), (&json!("my-id"), &json!("ResponseComplete")));
    assert_eq!((&event["verb"], &event["requestURI"]), (&json!("create"), &json!(MAPS)));
    assert_eq!(event["requestObject"]["data"], json!({"a": "b"}));
    assert_eq!(event["responseObject"]["metadata"]["name"], "one");
    assert!(event["responseObject"]["metadata"]["managedFields"].is_null());
    assert_eq!(event["responseStatus"], json!({"metadata": {}, "code": 201}));
    assert_eq!(event["annotations"]["authorization.k8s.io/decision"], "allow");
    assert_eq!(event["objectRef"]["name"], "one");
    // For Secrets, only the metadata is recorded.
    let stages: Vec<_> = secrets.iter().map(|event| event["stage"].as_str().unwrap()).collect();
    assert_eq!(stages, ["RequestReceived", "ResponseComplete"]);
    assert!(!std::fs::read_to_string(&log).unwrap().contains("hunter2"));
    assert!(of(&all, "system:apiserver").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn records_denials_impersonation_and_watches() {
    let (server, log) = audited("[{level: Metadata}]", AuditMode::Blocking).await;
    let stranger = server.user("stranger", &[]);
    stranger.get(MAPS).await.refused(403, "Forbidden");
    server.tls(Identity::Token("wrong".to_owned())).get(MAPS).await.refused(401, "Unauthorized");
    let admin = server.admin();
    admin.send("GET", MAPS, &[("impersonate-user", "bob")], "").await.refused(403, "Forbidden");
    admin.get(&format!("{MAPS}?watch=true&timeoutSeconds=1")).await;
    let all = events(&log);
    let denied = of(&all, "stranger");
    let last = denied.last().unwrap();
    assert_eq!(last["responseStatus"]["code"], 403);
    assert_eq!(last["responseStatus"]["reason"], "Forbidden");
    assert_eq!(last["annotations"]["authorization.k8s.io/decision"], "forbid");
    let unknown: Vec<_> = all.iter().filter(|e| e["responseStatus"]["code"] == 401).collect();
    let [unknown] = unknown[..] else { panic!("{unknown:?}") };
    assert_eq!(unknown["responseStatus"]["message"], "Authentication failed, attempted: bearer");
    assert_eq!((&unknown["stage"], &unknown["user"]), (&json!("ResponseStarted"), &json!({})));
    assert_eq!(unknown["sourceIPs"], json!(["127.0.0.1"]));
    let acting = all.iter().find(|event| event["impersonatedUser"]["username"] == "bob");
    assert_eq!(acting.unwrap()["user"]["username"], "admin");
    let watch = of(&all, "admin").into_iter().filter(|event| event["verb"] == "watch");
    let stages: Vec<_> = watch.map(|event| event["stage"].as_str().unwrap()).collect();
    assert_eq!(stages, ["RequestReceived", "ResponseStarted", "ResponseComplete"]);
}

/// A request whose client disconnects before the response is recorded.
#[tokio::test(flavor = "multi_thread")]
async fn records_disconnected_client() {
    let rules = "[{level: Metadata, users: [admin], omitStages: [RequestReceived]}]";
    let (server, log) = audited(rules, AuditMode::Blocking).await;
    let admin = server.admin();
    // The client sends an incomplete body and disconnects.
    let request =
        http::Request::builder()
            .method("POST")
            .uri(MAPS)
            .header("content-type", "application/json")
            .body(http_body_util::BodyExt::boxed_unsync(http_body_util::StreamBody::new(
                futures_util::stream::pending::<
                    Result<http_body::Frame<bytes::Bytes>, serve::BoxError>,
                >(),
            )))
            .unwrap();
    let given_up = tokio::time::timeout(Duration::from_millis(200), admin.0.request(request));
    assert!(given_up.await.is_err());
    let all = events(&log);
    let [event] = of(&all, "admin")[..] else { panic!("{all:?}") };
    assert_eq!(event["stage"], "ResponseComplete");
    assert_eq!(event["responseStatus"]["message"], "Connection closed early");
}

/// A full disk fails requests only in strict mode.
#[tokio::test(flavor = "multi_thread")]
async fn fails_requests_only_in_strict_mode() {
    let rules = "[{level: Metadata, users: [admin]}]";
    for (mode, code) in [
        (AuditMode::Blocking, 200),
        (AuditMode::Batch { buffer: 10 }, 200),
        (AuditMode::BlockingStrict, 500),
    ] {
        let directory = tempfile::tempdir().unwrap().keep();
        let policy = directory.join("policy.yaml");
        let text = format!("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: {rules}\n");
        std::fs::write(&policy, text).unwrap();
        let mut options = AuditLogOptions::at("/dev/full".into());
        options.mode = mode;
        options.rotation = Default::default();
        let audit = AuditOptions { policy: Some(policy), log: Some(options), webhook: None };
        let server = start(|config| config.audit = audit).await;
        let answer = server.admin().get(MAPS).await;
        assert_eq!(answer.code, code, "{mode:?}");
        if code == 500 {
            let told = answer.refused(500, "InternalError");
            assert_eq!(told, "Internal error occurred: failed to store audit event");
        }
        // Users that the policy does not name are not affected.
        server.user("other", &["system:masters"]).get(MAPS).await.ok();
        let told = rt::retry(
            PATIENCE,
            PAUSE,
            |()| true,
            || async {
                let page = server.user("other", &["system:masters"]).get("/metrics").await;
                let page = String::from_utf8(page.body.to_vec()).unwrap();
                if page.contains("apiserver_audit_error_total{plugin=\"log\"} 0") {
                    Err(())
                } else {
                    Ok(())
                }
            },
        );
        assert!(told.await.is_ok(), "{mode:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_queued_events_later() {
    let rules = "[{level: Metadata, users: [admin]}]";
    let (server, log) = audited(rules, AuditMode::Batch { buffer: 100 }).await;
    server.admin().get(MAPS).await.ok();
    let written = rt::wait_until(PATIENCE, PAUSE, || events(&log).len() == 2).await;
    assert!(written, "{:?}", events(&log));
}
