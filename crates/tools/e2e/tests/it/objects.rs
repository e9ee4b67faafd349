//! kubectl's commands for objects: apply, diff, patch, label, wait, delete.

use e2e::shared;

const CONFIG: &str =
    r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"},"data":{"a":"1","b":"2"}}"#;
const CHANGED: &str =
    r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"},"data":{"a":"1","c":"3"}}"#;

#[test]
fn client_side_apply_merges_three_ways() {
    let s = shared("objects-apply");
    assert_eq!(s.apply(CONFIG), "configmap/c created\n");
    assert_eq!(s.apply(CONFIG), "configmap/c unchanged\n");
    s.kubectl_with(&["patch", "configmap", "c", "-p", r#"{"data":{"other":"kept"}}"#], "").ok();
    let diff = s.kubectl_with(&["diff", "-f", "-"], CHANGED);
    assert_eq!(diff.code, Some(1), "{diff}");
    assert!(diff.stdout.contains("-  b: \"2\"") && diff.stdout.contains("+  c: \"3\""), "{diff}");
    assert_eq!(s.apply(CHANGED), "configmap/c configured\n");
    assert_eq!(
        s.get("configmap c")["data"],
        serde_json::json!({"a": "1", "c": "3", "other": "kept"})
    );
    assert_eq!(s.kubectl_with(&["diff", "-f", "-"], CHANGED).code, Some(0));
}

#[test]
fn server_side_apply_tracks_field_owners() {
    let s = shared("objects-server-side");
    let apply = |manager: &str, more: &[&str], object: &str| {
        let manager = format!("--field-manager={manager}");
        s.kubectl_with(&[&["apply", "--server-side", &manager, "-f", "-"], more].concat(), object)
    };
    assert_eq!(apply("one", &[], CONFIG).ok(), "configmap/c serverside-applied\n");
    let other = CONFIG.replace("\"a\":\"1\"", "\"a\":\"9\"");
    let refused = apply("two", &[], &other).refused();
    assert!(refused.contains("conflict with \"one\": .data.a"), "{refused}");
    apply("two", &["--force-conflicts"], &other).ok();
    // A field that its manager no longer applies is removed.
    apply(
        "one",
        &[],
        r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"},"data":{}}"#,
    )
    .ok();
    assert_eq!(s.get("configmap c")["data"], serde_json::json!({"a": "9", "b": "2"}));
    let shown = s.kubectl("get configmap c -o yaml --show-managed-fields").ok();
    assert!(shown.contains("manager: two"), "{shown}");
}

#[test]
fn applies_merge_json_and_strategic_patches() {
    let s = shared("objects-patch");
    s.apply(CONFIG);
    s.kubectl_with(
        &["patch", "configmap", "c", "--type=merge", "-p", r#"{"data":{"a":null}}"#],
        "",
    )
    .ok();
    s.kubectl_with(
        &[
            "patch",
            "configmap",
            "c",
            "--type=json",
            "-p",
            r#"[{"op":"add","path":"/data/d","value":"4"}]"#,
        ],
        "",
    )
    .ok();
    assert_eq!(s.get("configmap c")["data"], serde_json::json!({"b": "2", "d": "4"}));
    s.kubectl("create deployment web --image=app:1 --replicas=0").ok();
    let sidecar =
        r#"{"spec":{"template":{"spec":{"containers":[{"name":"side","image":"box:1"}]}}}}"#;
    s.kubectl_with(&["patch", "deployment", "web", "-p", sidecar], "").ok();
    let names = s.field("deployment web", "{.spec.template.spec.containers[*].name}");
    assert_eq!(
        names.split_whitespace().collect::<std::collections::BTreeSet<_>>(),
        ["app", "side"].into()
    );
}

#[test]
fn selects_by_labels_and_fields() {
    let s = shared("objects-labels");
    s.apply(CONFIG);
    s.kubectl("label configmap c tier=front").ok();
    s.kubectl("annotate configmap c note=hello").ok();
    assert_eq!(s.kubectl("get configmaps -l tier=front -o name").ok(), "configmap/c\n");
    assert_eq!(s.kubectl("get configmaps -l tier!=front,tier -o name").ok(), "");
    assert_eq!(
        s.kubectl("get configmaps --field-selector metadata.name=c -o name").ok(),
        "configmap/c\n"
    );
    let refused = s.kubectl("label configmap c tier=back").refused();
    assert!(refused.contains("already has a value"), "{refused}");
    s.kubectl("label configmap c tier-").ok();
    assert_eq!(s.kubectl("get configmaps -l tier -o name").ok(), "");
}

#[test]
fn rejects_invalid_objects_with_upstreams_messages() {
    let s = shared("objects-mistakes");
    let unknown = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"},"dta":{}}"#;
    let refused = s.kubectl_with(&["apply", "-f", "-"], unknown).refused();
    assert!(refused.contains("unknown field \"dta\""), "{refused}");
    let wrong = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"Upper"},"spec":{"containers":[{"name":"c","image":"app:1"}]}}"#;
    let refused = s.kubectl_with(&["create", "-f", "-"], wrong).refused();
    assert!(refused.contains("a lowercase RFC 1123 subdomain"), "{refused}");
    s.apply(CONFIG);
    let refused = s.kubectl_with(&["create", "-f", "-"], CONFIG).refused();
    assert!(refused.contains("configmaps \"c\" already exists"), "{refused}");
    let refused = s.kubectl("get configmap missing").refused();
    assert!(refused.contains("configmaps \"missing\" not found"), "{refused}");
}

#[test]
fn dry_runs_change_nothing() {
    let s = shared("objects-dry-run");
    assert_eq!(
        s.kubectl("create configmap c --from-literal=a=1 --dry-run=server").ok(),
        "configmap/c created (server dry run)\n"
    );
    s.kubectl("get configmap c").refused();
}

#[test]
fn deletion_waits_for_finalizers_and_cascades() {
    let s = shared("objects-delete");
    let held =
        CONFIG.replace("\"name\":\"c\"", "\"name\":\"c\",\"finalizers\":[\"example.com/hold\"]");
    s.apply(&held);
    s.kubectl("delete configmap c --wait=false").ok();
    assert!(s.get("configmap c")["metadata"]["deletionTimestamp"].is_string());
    s.kubectl_with(
        &["patch", "configmap", "c", "--type=merge", "-p", r#"{"metadata":{"finalizers":null}}"#],
        "",
    )
    .ok();
    s.kubectl("wait configmap/c --for=delete --timeout=60s").ok();

    s.deploy("web", "app:1", 1);
    s.kubectl("delete deployment web --cascade=foreground --wait=true").ok();
    assert_eq!(s.kubectl("get replicasets,pods -o name").ok(), "");
    s.deploy("web", "app:1", 1);
    s.kubectl("delete deployment web --cascade=orphan").ok();
    let set = s.kubectl("get replicasets -o name").ok();
    assert_eq!(set.lines().count(), 1, "{set}");
}

#[test]
fn deleting_a_namespace_deletes_its_objects() {
    let s = shared("objects-namespace");
    s.kubectl("create namespace objects-gone").ok();
    s.kubectl("create configmap c --from-literal=a=1 -n objects-gone").ok();
    s.kubectl("delete namespace objects-gone --wait=true").ok();
    s.kubectl("get namespace objects-gone").refused();
}

#[test]
fn describe_shows_events() {
    let s = shared("objects-describe");
    s.deploy("web", "app:1", 1);
    let pod = s.kubectl("describe pods -l app=web").ok();
    for part in ["Scheduled", "Pulled", "Started", "QoS Class:", "BestEffort"] {
        assert!(pod.contains(part), "{part} is not in {pod}");
    }
    let deployment = s.kubectl("describe deployment web").ok();
    assert!(deployment.contains("ScalingReplicaSet"), "{deployment}");
    s.kubectl("describe nodes").ok();
    s.kubectl("describe namespace default").ok();
    s.until("events", |text| text.contains("Scheduled"));
}
