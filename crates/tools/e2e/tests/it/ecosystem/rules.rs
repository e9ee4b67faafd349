//! The rules of kube-prometheus on Debian's Prometheus: each metric has a series, and no alert fires.

use std::{collections::BTreeSet, fs};

use e2e::{Cluster, Programs, Session, share_machine, until};

use super::{
    metrics::install_kube_state_metrics,
    prometheus::{api, configuration, job, query, start},
};

/// The job that only a cluster with kube-state-metrics has.
fn kube_state_metrics() -> String {
    let target = "kube-state-metrics.kube-system.svc.cluster.local:8080";
    job("kube-state-metrics", "/metrics", target, "namespace: kube-system")
}

/// Returns the file of rules in a PrometheusRule. Its groups are the specification.
fn rules(programs: &Programs, name: &str) -> (String, String) {
    let path = programs.path(&format!("manifests/kube-prometheus/{name}-prometheusRule.yaml"));
    let text = fs::read_to_string(&path).unwrap();
    let groups = text.lines().skip_while(|line| *line != "spec:").skip(1);
    let file: Vec<&str> = groups.map(|line| line.strip_prefix("  ").unwrap_or(line)).collect();
    (format!("rules-{name}.yml"), file.join("\n"))
}

/// Returns the names of the metrics that an expression selects with labels.
fn metrics(expression: &str) -> BTreeSet<String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let before = expression.match_indices('{').map(|(at, _)| &expression[..at]);
    let names = before.map(|text| text.rsplit(|c| !is_name(c)).next().unwrap_or_default());
    names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// The counters that have series only after something went wrong.
const ABSENT: [&str; 3] = [
    "aggregator_unavailable_apiservice_total",
    "apiserver_request_terminations_total",
    "kubelet_evictions",
];

/// Reports whether a component of the cluster must serve a metric. Others are results of rules, or those of
/// kube-state-metrics and node_exporter, which need objects and hardware of a kind.
fn is_served(name: &str) -> bool {
    let foreign = name.contains(':') || name.starts_with("kube_") || name.starts_with("node_");
    !foreign && !ABSENT.contains(&name)
}

/// A workload with a volume and a limit, whose usage the kubelet measures.
const VOLUME: &str = "
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: box}
spec:
  containers:
  - {name: c, image: 'box:1', resources: {limits: {cpu: 100m}}, volumeMounts: [{name: data, mountPath: /data}]}
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
";

#[test]
fn rules_of_kube_prometheus_have_series_and_fire_no_alert() {
    let Some(programs) = Programs::of("rules") else { return };
    let _turn = share_machine();
    let cluster = Cluster::new("rules");
    cluster.up().ok();
    let s = Session::in_default_namespace(&cluster);
    cluster.build_images();
    install_kube_state_metrics(&s, &programs);
    s.apply(VOLUME);
    let configuration = configuration(&s) + &kube_state_metrics();
    let files = ["kubernetesControlPlane", "kubeStateMetrics"].map(|name| rules(&programs, name));
    start(&s, &configuration, &files);

    let mut wanted = BTreeSet::new();
    for group in api(&s, "rules")["groups"].as_array().unwrap() {
        for rule in group["rules"].as_array().unwrap() {
            wanted.extend(metrics(rule["query"].as_str().unwrap()));
        }
    }
    wanted.retain(|name| is_served(name));
    assert!(wanted.len() > 20, "{wanted:?}");
    until("series of all metrics", || {
        let found = query(&s, "group by (__name__) ({__name__=~'.+'})");
        let found: BTreeSet<&str> =
            found.iter().filter_map(|series| series["metric"]["__name__"].as_str()).collect();
        let missing: Vec<_> = wanted.iter().filter(|name| !found.contains(name.as_str())).collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("{missing:?}")) }
    });
    until("no alert but the one that always fires", || {
        let alerts = query(&s, "ALERTS{alertname!='Watchdog'}");
        if alerts.is_empty() { Ok(()) } else { Err(format!("{alerts:#?}")) }
    });
    cluster.down(&[]).ok();
}

#[test]
fn finds_metrics_of_an_expression() {
    let found = metrics("sum by (a) (rate(a:b_total{x='{'}[5m])) / on (c) max(d{e=\"f\"}) > {g}");
    assert_eq!(found, BTreeSet::from(["a:b_total".to_owned(), "d".to_owned()]));
}
