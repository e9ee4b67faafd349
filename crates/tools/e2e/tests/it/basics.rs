//! A cluster as it is found: its node, its system Pods, its versions, every kind that it serves.

use e2e::shared;

#[test]
fn the_node_is_ready_and_says_what_it_runs() {
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
fn versions_are_those_of_one_release() {
    let s = shared("basics-version");
    let versions = s.json("version -o json");
    assert_eq!(versions["serverVersion"]["gitVersion"], "v1.36.2");
    assert_eq!(versions["serverVersion"]["minor"], "36");
    s.kubectl("cluster-info").ok();
    assert_eq!(s.kubectl("get --raw /readyz").ok(), "ok");
    assert_eq!(s.kubectl("get --raw /livez").ok(), "ok");
}

#[test]
fn every_kind_that_can_be_listed_is_listed_wide() {
    let s = shared("basics-kinds");
    let names = s.kubectl("api-resources --verbs=list -o name").ok();
    assert!(names.lines().count() > 50, "{names}");
    for name in names.lines() {
        s.kubectl(&format!("get {name} --all-namespaces -o wide")).ok();
    }
}

#[test]
fn short_names_and_categories_are_known() {
    let s = shared("basics-short");
    for name in ["po", "svc", "deploy", "rs", "no", "ns", "cm", "sa", "ep", "ev", "all"] {
        s.kubectl(&format!("get {name}")).ok();
    }
    let refused = s.kubectl("get nonsense").refused();
    assert!(refused.contains("the server doesn't have a resource type \"nonsense\""), "{refused}");
}

#[test]
fn fields_are_explained() {
    let s = shared("basics-explain");
    for (what, text) in [
        ("deployments.spec.strategy", "rollingUpdate"),
        ("pod.spec.containers.livenessProbe", "initialDelaySeconds"),
        ("service.spec.type", "ClusterIP"),
    ] {
        let told = s.kubectl(&format!("explain {what}")).ok();
        assert!(told.contains("DESCRIPTION:") && told.contains(text), "{told}");
    }
    s.kubectl("explain pods --recursive").ok();
    s.kubectl("explain pod.spec.nonsense").refused();
}
