//! The Metrics API: `kubectl top`, authorisation, autoscaling, and replacement by metrics-server.

use e2e::{Cluster, Session, shared};
use serde_json::Value;

fn raw(s: &Session<'_>, path: &str) -> Value {
    let text = s.kubectl_with(&["get", "--raw", path], "").ok();
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{path}: {e}: {text}"))
}

#[test]
fn top_shows_nodes_pods_and_containers() {
    let s = shared("top-shows");
    let services = s.kubectl("get apiservices v1beta1.metrics.k8s.io").ok();
    assert!(
        services.contains("kube-system/windlass-metrics") && services.contains("True"),
        "{services}"
    );
    s.deploy("web", "app:1", 2);
    // A new Pod appears once it has two samples.
    let pods = s.until("top pods --no-headers", |out| out.lines().count() == 2);
    assert!(pods.lines().all(|line| line.contains("m ") && line.contains("Mi")), "{pods}");
    let pod = s.field("pods -l app=web", "{.items[0].metadata.name}");
    let containers = s.kubectl("top pods --containers --no-headers").ok();
    assert!(
        containers.lines().any(|line| line.starts_with(&pod) && line.contains(" app ")),
        "{containers}"
    );
    assert_eq!(s.kubectl("top pods -l app=none --no-headers").ok(), "");
    let named = s.kubectl_with(
        &["top", "pods", "--no-headers", &format!("--field-selector=metadata.name={pod}")],
        "",
    );
    assert_eq!(named.ok().lines().count(), 1);
    let nodes = s.kubectl("top nodes --no-headers").ok();
    assert!(nodes.lines().count() == 1 && nodes.contains('%'), "{nodes}");

    let path = "/apis/metrics.k8s.io/v1beta1";
    let one = raw(&s, &format!("{path}/namespaces/top-shows/pods/{pod}"));
    assert_eq!(
        (one["kind"].as_str(), one["containers"][0]["name"].as_str()),
        (Some("PodMetrics"), Some("app"))
    );
    assert!(one["window"].as_str().is_some_and(|window| window.ends_with('s')), "{one}");
    let missing = s.kubectl_with(&["get", "--raw", &format!("{path}/nodes/none")], "").refused();
    assert!(missing.contains("not found"), "{missing}");
    let table = s.kubectl("get pods.metrics.k8s.io").ok();
    let columns: Vec<&str> = table.lines().next().unwrap_or_default().split_whitespace().collect();
    assert_eq!(columns, ["NAME", "CPU", "MEMORY", "WINDOW"], "{table}");
}

#[test]
fn top_requires_permission_to_list_metrics() {
    let s = shared("top-refused");
    s.kubectl("create serviceaccount reader").ok();
    let line = "top pods --as=system:serviceaccount:top-refused:reader";
    assert!(
        s.kubectl(line)
            .refused()
            .contains("cannot list resource \"pods\" in API group \"metrics.k8s.io\"")
    );
    s.kubectl("create rolebinding reader --clusterrole=view --serviceaccount=top-refused:reader")
        .ok();
    s.until(
        "auth can-i list pods.metrics.k8s.io --as=system:serviceaccount:top-refused:reader",
        |out| out.trim() == "yes",
    );
    s.deploy("web", "app:1", 1);
    s.until(&format!("{line} --no-headers"), |out| out.contains("web"));
}

#[test]
fn autoscaler_reads_the_cpu_usage_of_pods() {
    let s = shared("top-autoscaler");
    s.deploy("busy", "app:1", 1);
    s.kubectl("set resources deployment busy --requests=cpu=10m").ok();
    s.available("busy");
    s.kubectl("autoscale deployment busy --cpu=50% --min=1 --max=3").ok();
    let active = "get hpa busy -o jsonpath={.status.conditions[?(@.type=='ScalingActive')].status}";
    s.until(active, |out| out == "True");
    s.until(
        "get hpa busy -o jsonpath={.status.currentMetrics[0].resource.current.averageUtilization}",
        |out| out.trim().parse::<u32>().is_ok(),
    );
}

/// The APIService of metrics-server's manifest, which selects the server of the Metrics API.
const METRICS_SERVER: &str = "apiVersion: apiregistration.k8s.io/v1\nkind: APIService\nmetadata: {name: v1beta1.metrics.k8s.io, labels: {k8s-app: metrics-server}}\n\
    spec:\n  group: metrics.k8s.io\n  groupPriorityMinimum: 100\n  insecureSkipTLSVerify: true\n  \
    service: {name: metrics-server, namespace: kube-system}\n  version: v1beta1\n  versionPriority: 100\n";

#[test]
fn up_keeps_the_metrics_api_of_metrics_server() {
    let _turn = e2e::share_machine();
    let cluster = Cluster::new("top-taken");
    cluster.up().ok();
    let s = Session::in_default_namespace(&cluster);
    s.apply(METRICS_SERVER);
    let service = "{.spec.service.name}";
    assert_eq!(s.field("apiservice v1beta1.metrics.k8s.io", service), "metrics-server");
    cluster.up().ok();
    assert_eq!(s.field("apiservice v1beta1.metrics.k8s.io", service), "metrics-server");
    s.kubectl("delete apiservice v1beta1.metrics.k8s.io").ok();
    cluster.up().ok();
    assert_eq!(s.field("apiservice v1beta1.metrics.k8s.io", service), "windlass-metrics");
    cluster.down(&[]).ok();
}
