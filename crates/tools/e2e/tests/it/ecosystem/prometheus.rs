//! Debian's Prometheus reads the metrics of all components, with the jobs of kube-prometheus.

use std::{collections::BTreeSet, path::Path};

use e2e::{Cluster, HostImage, Session, share_machine, until};
use serde_json::Value;

/// The Pod has the node's network, because scheduler and controller manager listen on the loopback address.
const PROMETHEUS: &str = "
apiVersion: v1
kind: ServiceAccount
metadata: {name: prometheus}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: prometheus}
rules:
- {apiGroups: [''], resources: [nodes/metrics], verbs: [get]}
- {nonResourceURLs: [/metrics, /metrics/slis], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: prometheus}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: prometheus}
subjects: [{kind: ServiceAccount, name: prometheus, namespace: default}]
---
apiVersion: v1
kind: Pod
metadata: {name: prometheus}
spec:
  serviceAccountName: prometheus
  hostNetwork: true
  dnsPolicy: ClusterFirstWithHostNet
  securityContext: {runAsUser: 65534, runAsGroup: 65534, fsGroup: 65534}
  volumes:
  - {name: configuration, configMap: {name: prometheus}}
  - {name: data, emptyDir: {}}
  containers:
  - name: prometheus
    image: prometheus:1
    args: [--config.file=/configuration/prometheus.yml, --storage.tsdb.path=/data, '--web.listen-address=0.0.0.0:9090']
    readinessProbe: {httpGet: {path: /-/ready, port: 9090}, periodSeconds: 1}
    volumeMounts:
    - {name: configuration, mountPath: /configuration}
    - {name: data, mountPath: /data}
";

/// The head of the configuration.
const CONFIGURATION: &str = "
global: {scrape_interval: 2s, evaluation_interval: 2s}
rule_files: [/configuration/rules-*.yml]
scrape_configs:
- {job_name: prometheus, static_configs: [{targets: ['127.0.0.1:9090']}]}";

/// Returns a job with the labels that kube-prometheus' ServiceMonitors add. Debian's Prometheus has no discovery of
/// Kubernetes objects, so the targets are names of Services and the node's ports.
pub(super) fn job(name: &str, path: &str, target: &str, labels: &str) -> String {
    format!(
        "
- job_name: {name}{path}
  metrics_path: {path}
  honor_labels: true
  honor_timestamps: false
  static_configs: [{{targets: ['{target}'], labels: {{metrics_path: {path}, {labels}}}}}]
  relabel_configs: [{{target_label: job, replacement: {name}}}]"
    )
}

/// The settings of a job whose target wants TLS and a token.
const SECURE: &str = "
  scheme: https
  authorization: {credentials_file: /var/run/secrets/kubernetes.io/serviceaccount/token}
  tls_config: {insecure_skip_verify: true}";

pub(super) fn configuration(s: &Session<'_>) -> String {
    let node = s.field("nodes", "{.items[0].metadata.name}");
    let address = s.field("nodes", "{.items[0].status.addresses[0].address}");
    let mut text = CONFIGURATION.to_owned();
    for path in ["/metrics", "/metrics/slis"] {
        for (name, target, labels) in [
            ("apiserver", "kubernetes.default.svc.cluster.local:443", "namespace: default"),
            ("kube-scheduler", "127.0.0.1:10259", "namespace: kube-system"),
            ("kube-controller-manager", "127.0.0.1:10257", "namespace: kube-system"),
        ] {
            text += &job(name, path, target, labels);
            text += SECURE;
        }
    }
    for path in ["/metrics", "/metrics/cadvisor", "/metrics/probes", "/metrics/slis"] {
        let labels = format!("namespace: kube-system, node: {node}");
        text += &job("kubelet", path, &format!("{address}:10250"), &labels);
        text += SECURE;
    }
    let dns = "kube-dns.kube-system.svc.cluster.local:9153";
    text += &job("coredns", "/metrics", dns, "namespace: kube-system");
    text
}

/// Starts Prometheus with files of rules, named by their keys in the ConfigMap.
pub(super) fn start(s: &Session<'_>, configuration: &str, rules: &[(String, String)]) {
    let program = Path::new("/usr/bin/prometheus");
    s.cluster
        .import(&HostImage::new("prometheus:1", &["/prometheus"]).program(program, "/prometheus"));
    let mut data = serde_json::json!({"prometheus.yml": configuration});
    for (name, text) in rules {
        data[name] = Value::from(text.clone());
    }
    let map = serde_json::json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "prometheus"}, "data": data});
    s.apply(&map.to_string());
    s.apply(PROMETHEUS);
    let ran = s.kubectl("wait pod/prometheus --for=condition=Ready --timeout=60s");
    assert!(ran.code == Some(0), "{ran}\n{}", s.kubectl("logs prometheus"));
}

/// Returns an answer of Prometheus' API.
pub(super) fn api(s: &Session<'_>, path: &str) -> Value {
    let path = format!("/api/v1/namespaces/default/pods/prometheus:9090/proxy/api/v1/{path}");
    let text = s.kubectl_with(&["get", "--raw", &path], "").ok();
    let answer: Value =
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{path}: {e}: {text}"));
    assert_eq!(answer["status"], "success", "{path}: {answer}");
    answer["data"].clone()
}

/// Returns the series that a query finds.
pub(super) fn query(s: &Session<'_>, query: &str) -> Vec<Value> {
    let encoded: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
    api(s, &format!("query?query={encoded}"))["result"].as_array().cloned().unwrap_or_default()
}

fn jobs(found: &[Value]) -> BTreeSet<String> {
    let job = |series: &Value| series["metric"]["job"].as_str().unwrap_or_default().to_owned();
    found.iter().map(job).collect()
}

/// The jobs whose targets every cluster has.
const JOBS: [&str; 6] =
    ["apiserver", "coredns", "kube-controller-manager", "kube-scheduler", "kubelet", "prometheus"];

#[test]
fn prometheus_reads_all_components() {
    let _turn = share_machine();
    let cluster = Cluster::new("prometheus");
    cluster.up().ok();
    let s = Session::in_default_namespace(&cluster);
    start(&s, &configuration(&s), &[]);
    until("answers of all components", || {
        let found = query(&s, "up");
        let all = jobs(&found).iter().map(String::as_str).eq(JOBS);
        if all && query(&s, "up == 0").is_empty() {
            return Ok(());
        }
        let targets = api(&s, "targets?state=active")["activeTargets"].clone();
        let errors = targets.as_array().into_iter().flatten().map(|target| {
            format!(
                "{} {}: {}\n",
                target["labels"]["job"], target["scrapeUrl"], target["lastError"]
            )
        });
        Err(errors.collect())
    });
    // Samples with one time twice, or older than others, are dropped.
    let dropped = query(
        &s,
        "{__name__=~'prometheus_target_scrapes_(sample_.*|exceeded_.*)_total|prometheus_sd_.*failures_total'} > 0",
    );
    assert!(dropped.is_empty(), "{dropped:#?}");
    let first = |text: &str| {
        query(&s, text).first().and_then(|series| series["value"][1].as_str()?.parse::<f64>().ok())
    };
    for text in [
        "sum(rate(apiserver_request_total[1m]))",
        "sum(scheduler_schedule_attempts_total)",
        "sum(workqueue_adds_total{job='kube-controller-manager'})",
        "sum(kubelet_running_pods)",
        "sum(container_memory_working_set_bytes{container='prometheus'})",
        "sum(prober_probe_total{pod='prometheus', result='successful'})",
        "sum(coredns_dns_requests_total)",
    ] {
        until(text, || {
            first(text).filter(|value| *value > 0.0).ok_or_else(|| format!("{:?}", query(&s, text)))
        });
    }
    cluster.down(&[]).ok();
}
