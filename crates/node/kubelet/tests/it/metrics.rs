//! Metrics of the node, its Pods and their containers. Debian's Prometheus scrapes them if it is installed.

use std::{
    collections::BTreeSet,
    fs,
    net::SocketAddr,
    process::{Child, Command, Stdio},
};

use client::Transport as _;
use http_body_util::BodyExt as _;
use serde_json::Value;

use crate::{
    node::{APP, Node, eventually},
    server::get,
};

const ENDPOINTS: [&str; 5] =
    ["/metrics", "/metrics/cadvisor", "/metrics/resource", "/metrics/probes", "/stats/summary"];

/// A node with a Pod that is busy, limited and probed.
async fn busy(name: &str) -> Node {
    let mut node = Node::start(name).await;
    node.start_kubelet(None);
    let manifest = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: busy, namespace: default}}\nspec:\n  \
         terminationGracePeriodSeconds: 0\n  volumes: [{{name: scratch, emptyDir: {{}}}}]\n  containers:\n  - name: app\n    \
         image: '{APP}'\n    resources: {{limits: {{cpu: 200m, memory: 64Mi}}}}\n    \
         volumeMounts: [{{name: scratch, mountPath: /scratch}}]\n    \
         readinessProbe: {{exec: {{command: [sh, -c, '[ -e /scratch/done ]']}}, periodSeconds: 1}}\n    \
         command: [sh, -c, 'cat /bin/busybox > /scratch/file; echo > /scratch/done; while true; do true; done']\n"
    );
    node.manifest("busy", &manifest);
    eventually("the container is ready and was probed", async || {
        let (status, text) = get(&node, Some("client"), "/metrics/probes").await;
        status == 200 && text.contains("result=\"successful\"")
    })
    .await;
    node
}

/// Returns the value of the first line of a metric that has all these labels.
fn value(text: &str, name: &str, labels: &[&str]) -> Option<f64> {
    let named = |line: &&str| {
        line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']))
            && labels.iter().all(|label| line.contains(label))
    };
    text.lines()
        .find(named)?
        .rsplit_once('}')
        .map_or("", |(_, rest)| rest)
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoints_report_usage_from_one_reading() {
    let node = busy("figures").await;
    for path in ENDPOINTS {
        assert_eq!(get(&node, None, path).await.0, 401, "{path} for nobody");
        assert_eq!(get(&node, Some("stranger"), path).await.0, 401, "{path} for a stranger");
    }
    let who = ["container=\"app\"", "namespace=\"default\"", "pod=\"busy-node\""];
    let (_, cadvisor) = get(&node, Some("client"), "/metrics/cadvisor").await;
    let of = |name: &str| value(&cadvisor, name, &who);
    assert!(of("container_cpu_usage_seconds_total").is_some_and(|s| s > 0.0), "{cadvisor}");
    assert!(of("container_memory_working_set_bytes").is_some_and(|b| b > 0.0));
    assert_eq!(of("container_spec_memory_limit_bytes"), Some(67_108_864.0));
    assert_eq!(of("container_spec_cpu_quota"), Some(20_000.0));
    assert!(of("container_cpu_cfs_periods_total").is_some_and(|n| n > 0.0));
    let image = format!("image=\"{APP}\"");
    assert!(value(&cadvisor, "container_processes", &[&who[..], &[&image]].concat()).is_some());
    // A sandbox has the Pod's name and an image; the Pod's own cgroup only has the name.
    let pod = ["container=\"\"", "namespace=\"default\"", "pod=\"busy-node\""];
    assert!(value(&cadvisor, "container_processes", &[&pod[..], &["pause"]].concat()).is_some());
    assert!(
        value(&cadvisor, "container_processes", &[&pod[..], &["image=\"\""]].concat()).is_some()
    );
    assert!(
        value(&cadvisor, "container_memory_usage_bytes", &["id=\"/\""]).is_some_and(|b| b > 1e6)
    );
    assert_eq!(cadvisor.lines().filter(|l| *l == "container_scrape_error 0").count(), 1);

    let (_, resource) = get(&node, Some("client"), "/metrics/resource").await;
    assert!(value(&resource, "container_start_time_seconds", &who).is_some_and(|at| at > 1.7e9));
    assert!(value(&resource, "pod_cpu_usage_seconds_total", &who[1..]).is_some_and(|s| s > 0.0));
    assert!(resource.lines().any(|line| line == "resource_scrape_error 0"), "{resource}");
    let stamp =
        resource.lines().find_map(|line| line.strip_prefix("node_cpu_usage_seconds_total "));
    assert_eq!(stamp.map(|rest| rest.split(' ').count()), Some(2), "it has no time: {resource}");
    many_share_a_reading(&node).await;

    // A rate needs a second reading, which is made at the earliest a second later.
    let mut summary = Value::Null;
    eventually("it is known how much the Pod uses a second", async || {
        let (_, text) = get(&node, Some("client"), "/stats/summary").await;
        summary = serde_json::from_str(&text).unwrap();
        let used = &summary["pods"][0]["containers"][0]["cpu"]["usageNanoCores"];
        used.as_u64().is_some_and(|nanocores| nanocores > 0)
    })
    .await;
    let pod = &summary["pods"][0];
    assert_eq!(pod["podRef"]["name"], "busy-node");
    let scratch =
        pod["volume"].as_array().unwrap().iter().find(|v| v["name"] == "scratch").unwrap();
    assert!(scratch["usedBytes"].as_u64().is_some_and(|bytes| bytes > 500_000), "{pod}");
    let ephemeral = pod["ephemeral-storage"]["usedBytes"].as_u64().unwrap();
    assert!(ephemeral >= scratch["usedBytes"].as_u64().unwrap());
    assert!(
        summary["node"]["rlimit"]["maxpid"].as_u64().is_some() && summary["node"]["fs"].is_object()
    );
    let brief = get(&node, Some("client"), "/stats/summary?only_cpu_and_memory=true").await.1;
    assert!(brief.contains("busy-node") && !brief.contains("rlimit"), "{brief}");
    node.close().await;
}

/// Checks that concurrent requests do not read the cgroups more often than once a second.
async fn many_share_a_reading(node: &Node) {
    let before = std::time::Instant::now();
    let asked = (0..40).map(|_| get(node, Some("client"), "/metrics/resource"));
    let answers = futures_util::future::join_all(asked).await;
    let most = before.elapsed().as_secs() + 2;
    let times = answers.iter().filter_map(|(_, text)| {
        let line = text.lines().find(|line| line.starts_with("node_memory_working_set_bytes "))?;
        line.rsplit(' ').next()
    });
    let times: BTreeSet<&str> = times.collect();
    assert!(!times.is_empty() && times.len() as u64 <= most, "{times:?}");
}

/// A Prometheus process, which ends with this value.
struct Prometheus {
    child: Child,
    address: SocketAddr,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Prometheus {
    /// Starts Prometheus, or returns `None` if it is not installed.
    fn start(node: &Node) -> Option<Self> {
        let dir = node.dir.display();
        let jobs = ["/metrics", "/metrics/cadvisor", "/metrics/resource", "/metrics/probes"].map(|path| {
            format!(
                "- job_name: kubelet{path}\n  scheme: https\n  metrics_path: {path}\n  \
                 tls_config: {{cert_file: {dir}/client.crt, key_file: {dir}/client.key, insecure_skip_verify: true}}\n  \
                 static_configs: [{{targets: ['127.0.0.1:{}']}}]\n",
                node.port
            )
        });
        let config = format!("global: {{scrape_interval: 1s}}\nscrape_configs:\n{}", jobs.concat());
        fs::write(node.dir.join("prometheus.yml"), config).unwrap();
        let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let log = fs::File::create(node.dir.join("prometheus.log")).unwrap();
        let child = Command::new("prometheus")
            .arg(format!("--config.file={dir}/prometheus.yml"))
            .arg(format!("--storage.tsdb.path={dir}/tsdb"))
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .ok()?;
        Some(Self { child, address })
    }

    /// Returns the results of a query, or none while Prometheus does not answer.
    async fn query(&self, query: &str) -> Vec<Value> {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let path = format!("/api/v1/query?query={encoded}");
        let transport =
            client::HttpTransport::http1_at(self.address, false, client::ClientTls::anyone());
        let request = http::Request::get(path).body(client::empty()).unwrap();
        let Ok(response) = transport.send(request).await else { return Vec::new() };
        let body = response.into_body().collect().await.unwrap().to_bytes();
        // While Prometheus starts, it answers in plain text.
        let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
        answer["data"]["result"].as_array().cloned().unwrap_or_default()
    }
}

/// Queries of common rules and dashboards (kube-prometheus). Each must have a result.
const QUERIES: &[&str] = &[
    "sum by (namespace, pod, container) (rate(container_cpu_usage_seconds_total{job=\"kubelet/metrics/cadvisor\",image!=\"\",container!=\"\"}[1m])) > 0.05",
    "container_memory_working_set_bytes{job=\"kubelet/metrics/cadvisor\",image!=\"\",pod=\"busy-node\"}",
    "container_memory_rss{job=\"kubelet/metrics/cadvisor\",image!=\"\",pod=\"busy-node\"}",
    "container_memory_cache{job=\"kubelet/metrics/cadvisor\",image!=\"\",pod=\"busy-node\"}",
    "container_memory_swap{job=\"kubelet/metrics/cadvisor\",image!=\"\",pod=\"busy-node\"}",
    "sum(increase(container_cpu_cfs_throttled_periods_total{container!=\"\"}[1m])) by (container, pod, namespace) / sum(increase(container_cpu_cfs_periods_total[1m])) by (container, pod, namespace)",
    "sum(container_memory_usage_bytes{id=\"/\"})",
    "machine_cpu_cores > 0 and machine_memory_bytes > 0",
    "rate(node_cpu_usage_seconds_total[1m]) > 0",
    "rate(container_cpu_usage_seconds_total{job=\"kubelet/metrics/resource\",container=\"app\"}[1m])",
    "pod_memory_working_set_bytes{pod=\"busy-node\"}",
    "prober_probe_total{probe_type=\"Readiness\",result=\"successful\",pod=\"busy-node\"}",
    "histogram_quantile(0.99, sum by (le) (rate(prober_probe_duration_seconds_bucket[1m])))",
    "kubelet_node_name",
    "kubelet_running_pods == 1",
    "kubelet_running_containers{container_state=\"running\"} == 1",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prometheus_scrapes_and_answers_usual_queries() {
    let node = busy("prometheus").await;
    let Some(prometheus) = Prometheus::start(&node) else {
        eprintln!("skipped: Prometheus is not installed (apt-get install prometheus)");
        return node.close().await;
    };
    eventually("all four endpoints are scraped without an error", async || {
        prometheus.query("up == 1").await.len() == 4
    })
    .await;
    for query in QUERIES {
        eventually(query, async || !prometheus.query(query).await.is_empty()).await;
    }
    // Prometheus counts samples that it dropped because of their time or because they are duplicates.
    for lost in [
        "prometheus_target_scrapes_sample_duplicate_timestamp_total",
        "scrape_samples_scraped - scrape_samples_post_metric_relabeling != 0",
    ] {
        let told = prometheus.query(&format!("{lost} > 0")).await;
        assert!(told.is_empty(), "{told:?}");
    }
    drop(prometheus);
    node.close().await;
}
