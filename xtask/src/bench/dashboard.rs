//! Measures the pages of `windlass dashboard` for a large cluster, as a browser with a login reads them.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
};

use serde_json::{Value, json};

use super::{
    api::{Bench, NAMESPACE},
    h2load::{Load, percentiles, records},
    table::{Better, Column},
    usage,
};
use crate::{
    error::{During, Result, fail},
    file::write,
    run::{output, program},
};

const NODES: u32 = 5_000;
const PODS: u32 = 50_000;
const EVENTS: u32 = 20_000;
const DEPLOYMENTS: u32 = 2_000;
/// The objects of each kind that are not well.
const BROKEN: u32 = 20;
/// The requests of each page.
const REQUESTS: u32 = 200;
/// The pages that several browsers read at the same time.
const BROWSERS: u32 = 8;
/// The users who read the first page once.
const USERS: u32 = 20;
/// The wanted duration of a page in milliseconds.
const WANTED: f64 = 100.0;
const APPS: &str = "/apis/apps/v1";

pub(super) fn measure(mut bench: Bench) -> Result<Column> {
    bench.prepare_namespace()?;
    fill(&bench)?;
    bench.memory("5,000 nodes and 50,000 Pods", None);
    let dashboard = Dashboard::start(&bench)?;
    let cookie = dashboard.log_in(&bench.token)?;
    for (what, path) in pages(&bench)? {
        dashboard.measure(&mut bench, &what, &path, &cookie, 1)?;
    }
    let next = next_page(&bench)?;
    dashboard.measure(&mut bench, "the next Pods, after a change", &next, &cookie, 1)?;
    dashboard.measure(&mut bench, "the overview, 8 browsers at once", "/", &cookie, BROWSERS)?;
    dashboard.measure_first_views(&mut bench)?;
    let memory = usage::peak_memory(&[dashboard.process.id()]);
    bench.note("peak memory of the dashboard", "MB", Better::Less, None, memory);
    Ok(bench.measured())
}

/// Returns the title and the path of each page that reads from the API server.
fn pages(bench: &Bench) -> Result<Vec<(String, String)>> {
    let name = |path: &str| first(bench, path);
    let pod = name(&format!("/api/v1/namespaces/{NAMESPACE}/pods"))?;
    let node = name("/api/v1/nodes")?;
    let deployment = name(&format!("{APPS}/namespaces/{NAMESPACE}/deployments"))?;
    let own = |what: &str, path: &str| (what.to_owned(), path.to_owned());
    Ok(vec![
        own("the overview", "/"),
        own("the list of nodes", "/list/core/v1/nodes"),
        own("the list of Pods", "/list/core/v1/pods"),
        own("the Pods of a namespace", &format!("/list/core/v1/pods?namespace={NAMESPACE}")),
        own("the list of Deployments", "/list/apps/v1/deployments"),
        own("the list of Services", "/list/core/v1/services"),
        own("the list of Events", "/list/core/v1/events"),
        own("all kinds", "/kinds"),
        own("a Pod", &format!("/object/core/v1/pods/{NAMESPACE}/{pod}")),
        own("a node", &format!("/object/core/v1/nodes/-/{node}")),
        own("a Deployment", &format!("/object/apps/v1/deployments/{NAMESPACE}/{deployment}")),
        own("the measurements", "/measurements"),
        own("the timeline", "/timeline"),
    ])
}

fn first(bench: &Bench, path: &str) -> Result<String> {
    let mut list = bench.control_plane.kubectl();
    let list = output(list.args(["get", "--raw", &format!("{path}?limit=1")]))?;
    let list: Value = serde_json::from_str(&list).during("parsing", path)?;
    Ok(list["items"][0]["metadata"]["name"].as_str().unwrap_or_default().to_owned())
}

/// Returns the path of the second page of Pods, whose revision is in the past because a Pod has changed.
fn next_page(bench: &Bench) -> Result<String> {
    let mut list = bench.control_plane.kubectl();
    let list = output(list.args(["get", "--raw", "/api/v1/pods?limit=100"]))?;
    let list: Value = serde_json::from_str(&list).during("parsing", "the list of Pods")?;
    let text = |pointer: &str| list.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let pod = format!("pod/{}", text("/items/0/metadata/name"));
    let mut change = bench.control_plane.kubectl();
    output(change.args(["label", &pod, "--namespace", NAMESPACE, "changed=now"]))?;
    Ok(format!("/list/core/v1/pods?continue={}", text("/metadata/continue")))
}

/// Creates the objects of a large cluster: nodes, Pods, Deployments and Events. Few of them are not well.
fn fill(bench: &Bench) -> Result<()> {
    let core = format!("/api/v1/namespaces/{NAMESPACE}");
    let deployments = format!("{APPS}/namespaces/{NAMESPACE}/deployments");
    for (count, ready) in [(NODES - BROKEN, "True"), (BROKEN, "Unknown")] {
        create(bench, "/api/v1/nodes", count, &node(ready))?;
    }
    create(bench, &format!("{core}/events"), EVENTS, &event())?;
    create(bench, &format!("{core}/pods"), PODS, &pod())?;
    create(bench, &deployments, DEPLOYMENTS, &deployment())?;
    patch(bench, "pods", &format!("{core}/pods"), PODS - BROKEN, &running())?;
    patch(bench, "deployments.apps", &deployments, DEPLOYMENTS - BROKEN, &available())
}

fn create(bench: &Bench, path: &str, count: u32, object: &Value) -> Result<()> {
    let body = bench.body("created", &object.to_string())?;
    let url = format!("{}{path}", bench.control_plane.url());
    let load = Load { url, body: Some(&body), ..bench.load("", count, 4, 5) };
    load.run(&bench.token).map(drop)
}

/// Patches the status of the first `count` objects of a collection.
fn patch(bench: &Bench, resource: &str, path: &str, count: u32, status: &Value) -> Result<()> {
    let mut names = bench.control_plane.kubectl();
    names.args(["get", resource, "--namespace", NAMESPACE, "--no-headers"]);
    names.args(["--output=custom-columns=:metadata.name"]);
    let server = bench.control_plane.url();
    let line = |name: &str| format!("{server}{path}/{name}/status\n");
    let urls: String = output(&mut names)?.lines().take(count as usize).map(line).collect();
    let file = bench.control_plane.directory.join("urls");
    write(&file, urls)?;
    let body = bench.body("status", &status.to_string())?;
    // Each connection would begin with the first URL.
    let load = bench.load("", count, 1, 32);
    Load { body: Some(&body), patch: true, urls: Some(&file), ..load }.run(&bench.token).map(drop)
}

/// A running dashboard with TLS.
struct Dashboard {
    process: Child,
    url: String,
}

/// The durations of a first view in microseconds.
struct FirstView {
    counts: u64,
    whole: u64,
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Dashboard {
    fn start(bench: &Bench) -> Result<Self> {
        let pki = bench.control_plane.directory.join("etc/kubernetes/pki");
        let mut command = Command::new(&bench.windlass);
        command.args(["dashboard", "--listen=127.0.0.1:0", "--kubeconfig"]);
        command.arg(bench.control_plane.kubeconfig());
        command.arg("--tls-cert-file").arg(pki.join("apiserver.crt"));
        command.arg("--tls-private-key-file").arg(pki.join("apiserver.key"));
        let mut process =
            command.stdout(Stdio::piped()).spawn().during("starting", "the dashboard")?;
        let mut line = String::new();
        if let Some(report) = process.stdout.take() {
            BufReader::new(report).read_line(&mut line).during("reading from", "the dashboard")?;
        }
        Ok(Self { process, url: line.trim().trim_end_matches('/').to_owned() })
    }

    /// Sends the form of the login, and returns the cookie.
    fn log_in(&self, token: &str) -> Result<String> {
        let mut curl = program("curl", ["--silent", "--insecure", "--include", "--data"]);
        curl.arg(format!("token={token}")).args(["--header", &format!("origin: {}", self.url)]);
        let answer = output(curl.arg(format!("{}/login", self.url)))?;
        let cookie = answer.lines().find_map(|line| line.strip_prefix("set-cookie: "));
        let cookie = cookie.and_then(|cookie| cookie.split(';').next());
        cookie.map(str::to_owned).ok_or_else(|| format!("the login answered:\n{answer}").into())
    }

    /// Measures a page that one user reads again and again.
    fn measure(
        &self,
        bench: &mut Bench,
        what: &str,
        path: &str,
        cookie: &str,
        browsers: u32,
    ) -> Result<()> {
        let before = self.processor_seconds(bench);
        let times = self.read(bench, path, cookie, REQUESTS, browsers)?;
        self.note(bench, what, times, before);
        Ok(())
    }

    /// Measures the overview as users see it first, who share no reading with others: until its counts arrive, and
    /// until it is complete.
    fn measure_first_views(&self, bench: &mut Bench) -> Result<()> {
        let cookies: Result<Vec<String>> =
            (0..USERS).map(|_| self.log_in(&bench.new_token()?)).collect();
        let (mut counts, mut times, cookies) = (Vec::new(), Vec::new(), cookies?);
        let before = self.processor_seconds(bench);
        for cookie in cookies {
            let view = self.first_view(&cookie)?;
            counts.push(view.counts);
            times.push(view.whole);
        }
        let (half, most) = percentiles(counts);
        let what = "the counts for a new user";
        bench.note(&format!("{what}, p50"), "ms", Better::Less, None, half);
        bench.note(&format!("{what}, p99 of {WANTED} wanted"), "ms", Better::Less, None, most);
        self.note(bench, "the overview of a new user", times, before);
        Ok(())
    }

    /// Reads the overview with a connection of its own.
    fn first_view(&self, cookie: &str) -> Result<FirstView> {
        let times = "%{time_pretransfer} %{time_starttransfer} %{time_total} %{http_code}";
        let mut curl = program("curl", ["--silent", "--insecure", "--output", "/dev/null"]);
        curl.args(["--write-out", times, "--cookie", cookie]);
        let answer = output(curl.arg(format!("{}/", self.url)))?;
        let seconds: Vec<f64> = answer.split(' ').filter_map(|word| word.parse().ok()).collect();
        let [sent, first, last, 200.0] = seconds[..] else {
            return fail(format!("the overview answered {answer}"));
        };
        let micros = |seconds: f64| ((seconds - sent) * 1e6) as u64;
        Ok(FirstView { counts: micros(first), whole: micros(last) })
    }

    /// Returns the durations of requests in microseconds.
    fn read(
        &self,
        bench: &Bench,
        path: &str,
        cookie: &str,
        requests: u32,
        browsers: u32,
    ) -> Result<Vec<u64>> {
        let log = bench.control_plane.directory.join("pages.tsv");
        let load = bench.load("", requests, browsers, 1);
        let load = Load { url: format!("{}{path}", self.url), log: Some(&log), ..load };
        load.run_as_browser(cookie)?;
        Ok(records(&log)?.into_iter().map(|record| record.micros).collect())
    }

    fn note(&self, bench: &mut Bench, what: &str, times: Vec<u64>, before: f64) {
        let used = (self.processor_seconds(bench) - before) / times.len() as f64 * 1e3;
        let (half, most) = percentiles(times);
        bench.note(&format!("{what}, p50"), "ms", Better::Less, None, half);
        bench.note(&format!("{what}, p99 of {WANTED} wanted"), "ms", Better::Less, None, most);
        bench.note(&format!("… {what}"), "ms of processor each", Better::Less, None, used);
    }

    /// Returns the processor time of the API server and the dashboard.
    fn processor_seconds(&self, bench: &Bench) -> f64 {
        let mut pids = bench.control_plane.pids();
        pids.push(self.process.id());
        usage::processor_seconds(&pids)
    }
}

/// Returns a node of about 5 KB as a kubelet registers it, with 30 images.
fn node(ready: &str) -> Value {
    let condition = |kind: &str, status: &str| {
        json!({
            "type": kind, "status": status, "reason": "Kubelet", "message": "the kubelet tells this",
            "lastHeartbeatTime": "2026-11-01T08:00:00Z", "lastTransitionTime": "2026-11-01T08:00:00Z",
        })
    };
    let image = |number: u32| {
        let name = format!("registry.example.com/team/image-{number}");
        json!({"names": [format!("{name}@sha256:{}", "7".repeat(64)), format!("{name}:1.0")], "sizeBytes": 31415926})
    };
    let resources =
        json!({"cpu": "16", "memory": "64Gi", "pods": "110", "ephemeral-storage": "200Gi"});
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "generateName": "node-",
            "labels": {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", "topology.kubernetes.io/zone": "a"},
            "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
        },
        "status": {
            "capacity": resources, "allocatable": resources,
            "conditions": [
                condition("MemoryPressure", "False"), condition("DiskPressure", "False"),
                condition("PIDPressure", "False"), condition("Ready", ready),
            ],
            "addresses": [{"type": "InternalIP", "address": "192.0.2.7"}, {"type": "Hostname", "address": "node"}],
            "nodeInfo": {
                "kubeletVersion": "v1.36.2", "kernelVersion": "6.1.0", "osImage": "Debian GNU/Linux 12 (bookworm)",
                "containerRuntimeVersion": "containerd://1.6.20", "architecture": "amd64", "operatingSystem": "linux",
                "machineID": "0123", "systemUUID": "0123", "bootID": "0123", "kubeProxyVersion": "",
            },
            "images": (0..30).map(image).collect::<Vec<_>>(),
        },
    })
}

/// Returns a Pod of a Deployment, bound to a node, so that it is not scheduled.
fn pod() -> Value {
    let variable = |number: u32| json!({"name": format!("SETTING_{number}"), "value": format!("value {number}")});
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "generateName": "web-5d4f8c7b9-",
            "labels": {"app": "web", "pod-template-hash": "5d4f8c7b9"},
        },
        "spec": {
            "nodeName": "node-1",
            "containers": [{
                "name": "web", "image": "registry.example.com/team/web:1.2.3",
                "ports": [{"containerPort": 8080}],
                "env": (0..8).map(variable).collect::<Vec<_>>(),
                "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}},
                "readinessProbe": {"httpGet": {"path": "/", "port": 8080}},
            }],
        },
    })
}

fn event() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Event",
        "metadata": {"generateName": "web-", "namespace": NAMESPACE},
        "involvedObject": {
            "apiVersion": "v1", "kind": "Pod", "namespace": NAMESPACE, "name": "web", "uid": "01234567-89ab",
        },
        "type": "Warning", "reason": "BackOff", "message": "Back-off restarting failed container web in pod web",
        "source": {"component": "kubelet", "host": "node-1"}, "count": 3,
        "firstTimestamp": "2026-11-01T08:00:00Z", "lastTimestamp": "2026-11-01T08:10:00Z",
    })
}

fn deployment() -> Value {
    let labels = json!({"app": "web"});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"generateName": "web-", "labels": labels},
        "spec": {
            "replicas": 3, "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "web", "image": "registry.example.com/team/web:1.2.3"}]},
            },
        },
    })
}

/// Returns the status of a Pod that is ready.
fn running() -> Value {
    let condition = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": "2026-11-01T08:00:00Z"});
    let kinds =
        ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"];
    json!({"status": {
        "phase": "Running", "conditions": kinds.map(condition),
        "hostIP": "192.0.2.7", "podIP": "10.244.3.9", "startTime": "2026-11-01T08:00:00Z",
        "containerStatuses": [{
            "name": "web", "ready": true, "started": true, "restartCount": 1,
            "image": "registry.example.com/team/web:1.2.3",
            "imageID": format!("registry.example.com/team/web@sha256:{}", "3".repeat(64)),
            "containerID": format!("containerd://{}", "5".repeat(64)),
            "state": {"running": {"startedAt": "2026-11-01T08:00:05Z"}},
        }],
    }})
}

/// Returns the status of a Deployment whose replicas are ready.
fn available() -> Value {
    let condition =
        json!({"type": "Available", "status": "True", "reason": "MinimumReplicasAvailable"});
    json!({"status": {
        "replicas": 3, "readyReplicas": 3, "updatedReplicas": 3, "availableReplicas": 3,
        "conditions": [condition],
    }})
}
