//! A new cluster: its node, system Pods, versions and kinds.

use e2e::shared;

#[test]
fn node_is_ready_and_reports_its_versions() {
    let s = shared("basics-node");
    let table = s.kubectl("get nodes -o wide").ok();
    let row = table.lines().nth(1).unwrap_or_else(|| panic!("no node in {table}"));
    for part in [" Ready ", "control-plane", "v1.36.2", "192.0.2.10", "containerd://"] {
        assert!(row.contains(part), "{part:?} is not in: {row}");
    }
    let capacity = s.field("nodes", "{.items[0].status.capacity.pods}");
    assert_eq!(capacity, "110");
}

#[test]
fn cluster_dns_runs() {
    let s = shared("basics-dns");
    let pods = s.kubectl("get pods -A -l k8s-app=kube-dns").ok();
    assert!(pods.contains("1/1") && pods.contains("Running"), "{pods}");
}

#[test]
fn api_server_reports_the_release_and_its_health() {
    let s = shared("basics-version");
    let versions = s.json("version -o json");
    assert_eq!(versions["serverVersion"]["gitVersion"], version::BUILD_VERSION);
    assert_eq!(versions["serverVersion"]["minor"], "36");
    s.kubectl("cluster-info").ok();
    assert_eq!(s.kubectl("get --raw /readyz").ok(), "ok");
    assert_eq!(s.kubectl("get --raw /livez").ok(), "ok");
}

#[test]
fn lists_every_listable_kind_in_wide_format() {
    let s = shared("basics-kinds");
    let names = s.kubectl("api-resources --verbs=list -o name").ok();
    assert!(names.lines().count() > 50, "{names}");
    for name in names.lines() {
        s.kubectl(&format!("get {name} --all-namespaces -o wide")).ok();
    }
}

#[test]
fn resolves_short_names_and_categories() {
    let s = shared("basics-short");
    for name in ["po", "svc", "deploy", "rs", "no", "ns", "cm", "sa", "ep", "ev", "all"] {
        s.kubectl(&format!("get {name}")).ok();
    }
    let refused = s.kubectl("get nonsense").refused();
    assert!(refused.contains("the server doesn't have a resource type \"nonsense\""), "{refused}");
}

#[test]
fn explains_fields() {
    let s = shared("basics-explain");
    for (what, text) in [
        ("deployments.spec.strategy", "rollingUpdate"),
        ("pod.spec.containers.livenessProbe", "initialDelaySeconds"),
        ("service.spec.type", "ClusterIP"),
    ] {
        let output = s.kubectl(&format!("explain {what}")).ok();
        assert!(output.contains("DESCRIPTION:") && output.contains(text), "{output}");
    }
    s.kubectl("explain pods --recursive").ok();
    s.kubectl("explain pod.spec.nonsense").refused();
}
