//! Tests of policies, events and the log file.

#![allow(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

use std::{path::Path, time::Duration};

use api_meta::{Attributes, Timestamp, UserInfo};
use audit::{Event, Format, Level, Log, Policy, ResponseStatus, Rotation, Stage};
use serde_json::{Value, json};

const HEAD: &str = "apiVersion: audit.k8s.io/v1\nkind: Policy\n";

fn policy(rules: &str) -> Policy {
    Policy::parse(Path::new("policy"), &format!("{HEAD}rules: {rules}\n")).unwrap()
}

fn told(rest: &str) -> String {
    Policy::parse(Path::new("policy"), &format!("{HEAD}{rest}\n")).unwrap_err().to_string()
}

#[test]
fn applies_first_matching_rule() {
    let user = UserInfo::new("alice", &["devs", "system:authenticated"]);
    let get = |group, resource| Attributes::resource(&user, "get", group, resource);
    let pods = get("", "pods").in_namespace("web").named("one");
    let log = pods.with_subresource("log");
    let health = Attributes::path(&user, "get", "/healthz/etcd");
    for (rule, request, wanted) in [
        ("", pods, true),
        ("users: [alice]", pods, true),
        ("users: [bob]", pods, false),
        ("userGroups: [ops, devs]", pods, true),
        ("userGroups: [ops]", pods, false),
        ("verbs: [list, get]", pods, true),
        ("verbs: [list]", pods, false),
        ("namespaces: [web]", pods, true),
        ("namespaces: [db]", pods, false),
        ("namespaces: ['']", get("", "nodes"), true),
        ("namespaces: [web]", health, false),
        ("resources: [{group: ''}]", pods, true),
        ("resources: [{group: apps}]", pods, false),
        ("resources: [{group: '*', resources: [pods]}]", pods, true),
        ("resources: [{group: '', resources: [pods]}]", log, false),
        ("resources: [{group: '', resources: [pods/log]}]", log, true),
        ("resources: [{group: '', resources: [pods/log]}]", pods, false),
        ("resources: [{group: '', resources: ['pods/*']}]", log, true),
        ("resources: [{group: '', resources: ['*/log']}]", log, true),
        ("resources: [{group: '', resources: ['*/log']}]", pods, false),
        ("resources: [{group: '', resources: ['*']}]", log, true),
        ("resources: [{group: '', resources: [pods], resourceNames: [one]}]", pods, true),
        ("resources: [{group: '', resources: [pods], resourceNames: [two]}]", pods, false),
        ("resources: [{group: ''}]", health, false),
        ("nonResourceURLs: ['/healthz*']", health, true),
        ("nonResourceURLs: ['*']", health, true),
        ("nonResourceURLs: [/healthz]", health, false),
        ("nonResourceURLs: ['*']", pods, false),
    ] {
        let comma = if rule.is_empty() { "" } else { ", " };
        let both = format!("[{{level: Request{comma}{rule}}}, {{level: Metadata}}]");
        let found = policy(&both).evaluate(&request).level;
        assert_eq!(found == Level::Request, wanted, "{rule} for {request}");
    }
    // Without a matching rule, nothing is recorded.
    assert_eq!(policy("[{level: Request, users: [bob]}]").evaluate(&pods).level, Level::None);
}

#[test]
fn joins_stages_of_rule_and_policy() {
    let text = format!(
        "{HEAD}omitStages: [RequestReceived]\nomitManagedFields: true\nrules: [{{level: Metadata, omitStages: [Panic], users: [a]}}, {{level: Metadata, omitManagedFields: false}}]\n"
    );
    let policy = Policy::parse(Path::new("policy"), &text).unwrap();
    let (a, b) = (UserInfo::new("a", &[]), UserInfo::new("b", &[]));
    let one = policy.evaluate(&Attributes::path(&a, "get", "/"));
    assert_eq!(one.omit_stages, [Stage::RequestReceived, Stage::Panic]);
    assert!(one.omit_managed_fields);
    let other = policy.evaluate(&Attributes::path(&b, "get", "/"));
    assert_eq!(other.omit_stages, [Stage::RequestReceived]);
    assert!(!other.omit_managed_fields);
    let object = json!({"metadata": {"name": "a", "managedFields": []}, "items": [{"metadata": {"managedFields": []}}]});
    assert_eq!(one.shown(object), json!({"metadata": {"name": "a"}, "items": [{"metadata": {}}]}));
}

#[test]
fn rejects_invalid_policy_in_upstreams_words() {
    for (rest, wanted) in [
        ("rules: []", "loaded illegal policy with 0 rules"),
        ("rules: [{}]", "rules[0].level: Required value"),
        (
            "rules: [{level: All}]",
            "rules[0].level: Unsupported value: \"All\": supported values: \"None\", \"Metadata\", \"Request\", \"RequestResponse\"",
        ),
        (
            "rules: [{level: None, nonResourceURLs: [healthz]}]",
            "rules[0].nonResourceURLs[0]: Invalid value: \"healthz\": non-resource URL rules must begin with a '/' character",
        ),
        (
            "rules: [{level: None, nonResourceURLs: ['/a*b']}]",
            "non-resource URL wildcards '*' must be the final character of the rule",
        ),
        (
            "rules: [{level: None, resources: [{group: rbac.authorization.k8s.io/v1}]}]",
            "rules[0].resources.group: Invalid value: \"rbac.authorization.k8s.io/v1\"",
        ),
        (
            "rules: [{level: None, resources: [{resourceNames: [a]}]}]",
            "rules[0].resources.resourceNames: Invalid value: [\"a\"]: using resourceNames requires at least one resource",
        ),
        (
            "rules: [{level: None, omitStages: [Sent]}]",
            "rules[0].omitStages[0]: Invalid value: \"Sent\": allowed stages are RequestReceived,ResponseStarted,ResponseComplete,Panic",
        ),
        (
            "rules: [{level: None, namespaces: [a], nonResourceURLs: ['/a']}]",
            "rules cannot apply to both regular resources and non-resource URLs",
        ),
        ("rules: 3", "failed decoding"),
    ] {
        assert!(told(rest).contains(wanted), "{}", told(rest));
    }
    let other = Policy::parse(Path::new("policy"), "kind: Pod\napiVersion: v1\n").unwrap_err();
    assert!(other.to_string().contains("unknown group version field v1, Kind=Pod in policy"));
    // An unknown field causes a warning only.
    policy("[{level: Metadata, color: blue}]");
}

fn event(level: Level) -> Event {
    let user = UserInfo::new("alice", &["devs"]);
    let of = Attributes::resource(&user, "create", "apps", "deployments").in_namespace("web");
    let of = Attributes { version: "v1", ..of };
    let now = Timestamp::from_unix(1_700_000_000, 123_456_789);
    let mut event = Event::new(level, "id-1", "/apis/apps/v1/namespaces/web/deployments", &of, now);
    event.source_ips = vec!["10.0.0.1".to_owned()];
    event.user_agent = "kubectl/v1".to_owned();
    event
}

#[test]
fn formats_events_like_upstream() {
    let mut made = event(Level::Request);
    made.requested(&json!({"metadata": {"name": "one", "namespace": "other"}}));
    made.stage = Stage::ResponseComplete;
    made.response_status = Some(ResponseStatus::of_code(201));
    made.annotate("authorization.k8s.io/decision", "allow");
    made.annotate("authorization.k8s.io/decision", "forbid");
    let wanted = json!({
        "kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "Request", "auditID": "id-1",
        "stage": "ResponseComplete", "requestURI": "/apis/apps/v1/namespaces/web/deployments", "verb": "create",
        "user": {"username": "alice", "groups": ["devs"]}, "sourceIPs": ["10.0.0.1"], "userAgent": "kubectl/v1",
        "objectRef": {"resource": "deployments", "namespace": "web", "name": "one", "apiGroup": "apps", "apiVersion": "v1"},
        "responseStatus": {"metadata": {}, "code": 201},
        "requestObject": {"metadata": {"name": "one", "namespace": "other"}},
        "requestReceivedTimestamp": "2023-11-14T22:13:20.123456Z", "stageTimestamp": "2023-11-14T22:13:20.123456Z",
        "annotations": {"authorization.k8s.io/decision": "allow"},
    });
    assert_eq!(serde_json::to_value(&made).unwrap(), wanted);
    let line = Format::Legacy.line(&made).unwrap();
    assert_eq!(
        line,
        "2023-11-14T22:13:20.123456Z AUDIT: id=\"id-1\" stage=\"ResponseComplete\" ip=\"10.0.0.1\" method=\"create\" user=\"alice\" groups=\"\\\"devs\\\"\" as=\"<self>\" asgroups=\"<lookup>\" user-agent=\"kubectl/v1\" namespace=\"web\" uri=\"/apis/apps/v1/namespaces/web/deployments\" response=\"201\"\n"
    );
    // The level Metadata includes no objects.
    let mut little = event(Level::Metadata);
    little.requested(&json!({"metadata": {"name": "one"}, "data": {"password": "x"}}));
    assert!(little.request_object.is_none() && little.object_ref.unwrap().name == "one");
    // A line feed in the client's data does not start a new line.
    let mut hostile = event(Level::Metadata);
    hostile.user_agent = "a\nb\" stage=\"x".to_owned();
    for format in [Format::Json, Format::Legacy] {
        let line = format.line(&hostile).unwrap();
        assert_eq!(line.matches('\n').count(), 1, "{line}");
    }
}

#[test]
fn removes_objects_from_large_events() {
    let mut large = event(Level::RequestResponse);
    large.requested(&json!({"data": "x".repeat(2000)}));
    let cut = large.clone().truncated(1000).unwrap();
    assert!(cut.request_object.is_none());
    assert_eq!(cut.annotations["audit.k8s.io/truncated"], "true");
    assert!(large.clone().truncated(10_000).unwrap().request_object.is_some());
    assert!(large.truncated(10).is_none());
}

#[test]
fn copies_reason_from_status() {
    let status = json!({"kind": "Status", "metadata": {}, "status": "Failure", "message": "no", "reason": "Forbidden", "details": {"kind": "pods"}, "code": 403});
    let told = serde_json::to_value(ResponseStatus::of_status(403, &status)).unwrap();
    assert_eq!(
        told,
        json!({"metadata": {}, "status": "Failure", "message": "no", "reason": "Forbidden", "details": {"kind": "pods"}, "code": 403})
    );
    assert_eq!(ResponseStatus::of_status(200, &Value::Null), ResponseStatus::of_code(200));
}

#[test]
fn records_addresses_and_agents_like_upstream() {
    let peer = Some("10.0.0.9".parse().unwrap());
    let ips = |forwarded, real| audit::source_ips(forwarded, real, peer);
    assert_eq!(ips(None, None), ["10.0.0.9"]);
    assert_eq!(
        ips(Some("1.1.1.1, x, 2.2.2.2"), Some("1.1.1.1")),
        ["1.1.1.1", "2.2.2.2", "10.0.0.9"]
    );
    assert_eq!(ips(Some("10.0.0.9"), None), ["10.0.0.9"]);
    assert_eq!(ips(None, Some("::1")), ["::1", "10.0.0.9"]);
    assert_eq!(audit::user_agent("curl"), "curl");
    assert_eq!(audit::user_agent(&"x".repeat(1025)), format!("{}...TRUNCATED", "x".repeat(1024)));
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_unix(1_700_000_000 + seconds, 5_000_000)
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn rotates_full_file_and_deletes_old_ones() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("logs/audit.log");
    let rotation = Rotation { max_bytes: 10, max_backups: 2, ..Rotation::default() };
    let mut log = Log::open(&path, rotation).unwrap();
    for second in 0..5 {
        log.write(&format!("line {second}\n"), at(second)).unwrap();
    }
    let logs = path.parent().unwrap();
    let wanted =
        ["audit-2023-11-14T22-13-23.005.log", "audit-2023-11-14T22-13-24.005.log", "audit.log"];
    assert_eq!(names(logs), wanted);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "line 4\n");
    log.write(&"x".repeat(11), at(9)).unwrap_err();
    // The existing content counts towards the limit.
    drop(log);
    let rotation = Rotation { max_age: Duration::from_secs(86_400), compress: true, ..rotation };
    let mut log = Log::open(&path, rotation).unwrap();
    log.write("line 5\n", at(2 * 86_400)).unwrap();
    assert_eq!(names(logs), ["audit-2023-11-16T22-13-20.005.log.gz", "audit.log"]);
}

#[test]
fn recovers_after_failed_write() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit.log");
    let rotation = Rotation { max_bytes: 10, ..Rotation::default() };
    let mut log = Log::open(&path, rotation).unwrap();
    log.write("line 1\n", at(1)).unwrap();
    // A file cannot be renamed to a directory that is not empty.
    let taken = directory.path().join("audit-2023-11-14T22-13-22.005.log");
    std::fs::create_dir(&taken).unwrap();
    std::fs::write(taken.join("x"), "").unwrap();
    log.write("line 2\n", at(2)).unwrap_err();
    log.write("line 3\n", at(3)).unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "line 3\n");
    assert!(Log::open(Path::new("/proc/none/audit.log"), rotation).is_err());
}
