//! Measures the effect of a hostile tenant: it has `edit` in one namespace and sends requests that are as expensive as
//! possible. Measured are health checks, leases, other tenants and the memory of the control plane.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    process::Command,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{
    api::Bench,
    h2load::{Load, records},
    table::{Better, Column},
    tenants::{self, TENANT},
    usage,
};
use crate::{
    error::{Error, Result, fail},
    file::write,
    run::{join, output, program},
};

/// The default duration of the measurement, in seconds.
pub(super) const SECONDS: u32 = 600;
/// The number of concurrent requests of the tenant.
const ATTACKERS: usize = 12;
/// The timeout of the tenant's requests, in seconds.
const PATIENCE: &str = "70";
const HEALTH_RATE: u32 = 20;

/// The limits that the measurement must not exceed.
const HEALTH_MS: f64 = 100.0;
const OTHERS_MS: f64 = 250.0;
const MEMORY_MB: f64 = 1500.0;

/// A hostile request.
struct HostileRequest {
    what: &'static str,
    method: &'static str,
    path: String,
    content_type: &'static str,
    body: Option<PathBuf>,
    /// The additional arguments of curl.
    how: &'static [&'static str],
}

/// The responses to one kind of request: their number by status code, and the longest duration in seconds.
#[derive(Default)]
struct ResponseStats {
    codes: BTreeMap<String, u32>,
    longest: f64,
}

pub(super) fn measure(mut bench: Bench, seconds: u32) -> Result<Column> {
    bench.prepare_namespace()?;
    let (tenant, node) = tenants::prepare(&bench)?;
    // Start the controllers only now, because they would create some of these objects too.
    bench.control_plane.start_controllers()?;
    prepare(&bench)?;
    let catalogue = catalogue(&bench)?;
    let before = leaders(&bench)?;
    let ended = AtomicBool::new(false);
    let attack = Attack {
        bench: &bench,
        token: tenant,
        catalogue,
        next: AtomicUsize::new(0),
        over: AtomicBool::new(false),
        responses: Mutex::default(),
    };
    let (health, others) = thread::scope(|scope| {
        let attackers: Vec<_> = (0..ATTACKERS).map(|_| scope.spawn(|| attack.run())).collect();
        let beating = scope.spawn(|| heartbeats(&bench, &ended));
        let health = scope.spawn(|| health(&bench, seconds));
        let others = tenants::others(&bench, &node, "hostile", seconds);
        let health = join(health);
        attack.over.store(true, Ordering::Relaxed);
        // The node must stay alive until the tenant's last request has ended.
        let attacked = attackers.into_iter().try_for_each(join);
        ended.store(true, Ordering::Relaxed);
        join(beating)??;
        attacked?;
        Ok::<_, Error>((health??, others?))
    })?;
    for (what, stats) in attack.responses.into_inner() {
        let codes: Vec<_> = stats.codes.iter().map(|(c, n)| format!("{n} × {c}")).collect();
        eprintln!("    {what}: {}, at most {:.1} s", codes.join(", "), stats.longest);
    }
    for (name, value) in [("p50", health.0), ("p99", health.1), ("max", health.2)] {
        bench.note(&format!("/livez, {name}"), "ms", Better::Less, None, value);
    }
    for (what, half, most) in others {
        bench.note(&format!("{what}, p50"), "ms", Better::Less, None, half);
        bench.note(&format!("{what}, p99"), "ms", Better::Less, None, most);
    }
    let pids = bench.control_plane.pids();
    bench.note("memory", "MB", Better::Less, None, usage::memory(&pids));
    bench.note("peak memory", "MB", Better::Less, None, usage::peak_memory(&pids));
    let lost = f64::from(u32::from(leaders(&bench)? != before)) + unready(&bench)?;
    bench.note("leaders changed and nodes lost", "", Better::Less, None, lost);
    bench.control_plane.check()?;
    Ok(bench.measured())
}

/// Returns an error if a measured value exceeds its limit.
pub(super) fn judge(column: &Column) -> Result<()> {
    let limit = |what: &str| match what {
        "/livez, p99" => Some(HEALTH_MS),
        "peak memory" => Some(MEMORY_MB),
        "leaders changed and nodes lost" => Some(0.0),
        what => what.ends_with(", p99").then_some(OTHERS_MS),
    };
    let over = column.iter().filter_map(|(row, value)| {
        let limit = limit(&row.what)?;
        (*value > limit).then(|| format!("{}: {value:.0} {}, limit {limit:.0}", row.what, row.unit))
    });
    let over: Vec<String> = over.collect();
    if over.is_empty() { Ok(()) } else { fail(format!("over the limits:\n{}", over.join("\n"))) }
}

/// Grants the tenant `edit`, and creates a custom kind with rules and objects to patch.
fn prepare(bench: &Bench) -> Result<()> {
    let kubectl = |args: &[&str]| output(bench.control_plane.kubectl().args(args));
    let account = format!("--serviceaccount={TENANT}:default");
    let edit = ["create", "rolebinding", "edit", "--clusterrole=edit", &account, "-n", TENANT];
    kubectl(&edit)?;
    kubectl(&["-n", TENANT, "create", "rolebinding", "rules", "--role=rules", &account])?;
    let rule = "self.list.all(a, self.list.filter(b, a == b).size() < 3)";
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "ruled.bench.example.com"},
        "spec": {
            "group": "bench.example.com", "scope": "Namespaced",
            "names": {"plural": "ruled", "singular": "ruled", "kind": "Ruled"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object",
                "properties": {"spec": {
                    "type": "object",
                    "properties": {"list": {
                        "type": "array", "maxItems": 300, "items": {"type": "string", "maxLength": 20},
                    }},
                    "x-kubernetes-validations": [{"rule": rule}],
                }},
            }}}],
        },
    });
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": "rules", "namespace": TENANT},
        "rules": [{"apiGroups": ["bench.example.com"], "resources": ["ruled"], "verbs": ["*"]}],
    });
    let items = json!({"apiVersion": "v1", "kind": "List", "items": [
        definition, role, map("patched", &json!({"k": "v".repeat(1000)})), deployment("patched", &json!([])),
    ]});
    let path = bench.body("tenant-objects", &items.to_string())?.display().to_string();
    kubectl(&["-n", TENANT, "apply", "-f", &path])?;
    kubectl(&["wait", "--for=condition=Established", "crd/ruled.bench.example.com"]).map(drop)
}

fn map(name: &str, data: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": TENANT}, "data": data})
}

fn pod(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": TENANT}, "spec": spec})
}

fn deployment(name: &str, env: &Value) -> Value {
    let containers = json!([{"name": "c", "image": "i", "env": env}]);
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": name, "namespace": TENANT},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": containers}},
        },
    })
}

/// Returns an array of `count` values.
fn many(count: usize, value: impl FnMut(usize) -> Value) -> Value {
    Value::Array((0..count).map(value).collect())
}

const JSON: &str = "application/json";

/// The requests, with their bodies in files.
struct Catalogue<'b> {
    bench: &'b Bench,
    all: Vec<HostileRequest>,
}

fn catalogue(bench: &Bench) -> Result<Vec<HostileRequest>> {
    let mut catalogue = Catalogue { bench, all: Vec::new() };
    for count in [500, 5_000, 50_000] {
        catalogue.pods(count)?;
        catalogue.others(count)?;
    }
    for count in [500, 5_000, 30_000] {
        catalogue.patches(count)?;
    }
    catalogue.encodings()?;
    catalogue.reads();
    Ok(catalogue.all)
}

fn core(plural: &str) -> String {
    format!("/api/v1/namespaces/{TENANT}/{plural}")
}

impl Catalogue<'_> {
    fn add(
        &mut self,
        what: &'static str,
        method: &'static str,
        path: &str,
        content_type: &'static str,
        body: &[u8],
    ) -> Result<()> {
        let file = self.bench.control_plane.directory.join(format!("hostile-{}", self.all.len()));
        write(&file, body)?;
        let (path, body) = (path.to_owned(), Some(file));
        self.all.push(HostileRequest { what, method, path, content_type, body, how: &[] });
        Ok(())
    }

    fn post(&mut self, what: &'static str, path: &str, body: &Value) -> Result<()> {
        self.add(what, "POST", path, JSON, body.to_string().as_bytes())
    }

    fn pods(&mut self, count: usize) -> Result<()> {
        let pods = core("pods");
        let same = many(count, |_| json!({"containerPort": 80}));
        let spec = json!({"containers": [{"name": "c", "image": "i", "ports": same}]});
        self.post("equal ports", &pods, &pod("ports", spec))?;
        let wrong = many(count, |n| json!({"name": format!("_{n}"), "image": " "}));
        self.post("wrong containers", &pods, &pod("wrong", json!({"containers": wrong})))?;
        let wide = many(count, |n| json!({"key": format!("k{n}"), "operator": "Exists"}));
        let spec = json!({"containers": [{"name": "c", "image": "i"}], "tolerations": wide});
        self.post("wide lists", &pods, &pod("wide", spec))
    }

    fn others(&mut self, count: usize) -> Result<()> {
        let maps = core("configmaps");
        let pairs = |prefix: &str| -> Value {
            let pair = |n| (format!("{prefix}{n}"), json!(""));
            Value::Object((0..count).map(pair).collect())
        };
        self.post("a huge map", &maps, &map("map", &pairs("k")))?;
        let labels = json!({"metadata": {"name": "l", "labels": pairs("example.com/l")}});
        self.post("many labels", &maps, &labels)?;
        let ports = many(count, |_| json!({"port": 80}));
        let service =
            json!({"metadata": {"name": "s"}, "spec": {"clusterIP": "None", "ports": ports}});
        self.post("equal ports of a Service", &core("services"), &service)?;
        let ruled = format!("/apis/bench.example.com/v1/namespaces/{TENANT}/ruled?dryRun=All");
        let list = many(count.min(5_000), |n| json!(n.to_string()));
        let object = json!({"kind": "Ruled", "apiVersion": "bench.example.com/v1",
            "metadata": {"generateName": "r-"}, "spec": {"list": list}});
        self.post("rules of a custom kind", &ruled, &object)
    }

    fn patches(&mut self, count: usize) -> Result<()> {
        const STRATEGIC: &str = "application/strategic-merge-patch+json";
        let path = format!("/apis/apps/v1/namespaces/{TENANT}/deployments/patched");
        let env = many(count, |n| json!({"name": format!("E{n}"), "value": "v"}));
        let patch = deployment("patched", &env).to_string();
        self.add("a strategic patch", "PATCH", &path, STRATEGIC, patch.as_bytes())?;
        let apply = format!("{path}?fieldManager=hostile&force=true");
        let yaml = "application/apply-patch+yaml";
        self.add("an applied object", "PATCH", &apply, yaml, patch.as_bytes())?;
        let delete = many(count, |n| json!({"name": format!("E{n}"), "$patch": "delete"}));
        let patch = deployment("patched", &delete).to_string();
        self.add("a patch that deletes", "PATCH", &path, STRATEGIC, patch.as_bytes())?;
        let copy = |n| json!({"op": "copy", "from": "/data", "path": format!("/metadata/x{n}")});
        let (copies, one) = (many(count, copy).to_string(), core("configmaps/patched"));
        let json = "application/json-patch+json";
        self.add("a JSON patch that copies", "PATCH", &one, json, copies.as_bytes())
    }

    fn encodings(&mut self) -> Result<()> {
        let maps = core("configmaps");
        let deep = format!("{}1{}", "[".repeat(500_000), "]".repeat(500_000));
        self.add("deep nesting", "POST", &maps, JSON, deep.as_bytes())?;
        let anchors: String = (1..9).fold("a0: &a0 [x,x,x,x,x,x,x,x,x]\n".to_owned(), |text, n| {
            let last = format!("*a{}", n - 1);
            format!("{text}a{n}: &a{n} [{}]\n", vec![last; 9].join(","))
        });
        self.add("anchors of YAML", "POST", &maps, "application/yaml", anchors.as_bytes())?;
        let mut garbage = b"k8s\0".to_vec();
        let mut random = 1_u64;
        garbage.extend((0..2_000_000).map(|_| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 56) as u8
        }));
        let protobuf = "application/vnd.kubernetes.protobuf";
        self.add("garbage as protobuf", "POST", &core("pods"), protobuf, &garbage)?;
        let large = map("large", &json!({"k": "v".repeat(2_900_000)})).to_string();
        const UPLOADS: [(&str, &[&str]); 3] = [
            ("a large body", &[]),
            ("a body in chunks", &["--http1.1", "--header", "transfer-encoding: chunked"]),
            ("a slow body", &["--limit-rate", "20k"]),
        ];
        for (what, how) in UPLOADS {
            self.add(what, "POST", &maps, JSON, large.as_bytes())?;
            if let Some(last) = self.all.last_mut() {
                last.how = how;
            }
        }
        Ok(())
    }

    fn reads(&mut self) {
        const TABLE: &[&str] =
            &["--header", "accept: application/json;as=Table;v=v1;g=meta.k8s.io"];
        let terms: Vec<String> = (0..2_000).map(|n| format!("l{n}!=x")).collect();
        let maps = core("configmaps");
        let selected = format!("{maps}?labelSelector={}", terms.join(","));
        let watched = format!("{selected}&watch=1&timeoutSeconds=5");
        let read = |(what, path, how)| HostileRequest {
            what,
            method: "GET",
            path,
            content_type: JSON,
            body: None,
            how,
        };
        let reads = [
            ("a long selector", selected, &[][..]),
            ("a watch with a long selector", watched, &[]),
            ("a list as a table", maps, TABLE),
        ];
        self.all.extend(reads.map(read));
    }
}

/// The tenant's attack, which several threads run.
struct Attack<'b> {
    bench: &'b Bench,
    token: String,
    catalogue: Vec<HostileRequest>,
    /// The number of requests so far.
    next: AtomicUsize,
    over: AtomicBool,
    responses: Mutex<BTreeMap<&'static str, ResponseStats>>,
}

impl Attack<'_> {
    /// Sends the requests of the catalogue one after another.
    fn run(&self) {
        // The step is coprime to the length, so that all kinds are visited and equal ones are not adjacent.
        while !self.over.load(Ordering::Relaxed) {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let hostile = &self.catalogue[number * 31 % self.catalogue.len()];
            // After a timeout curl fails, but still prints the code and the time.
            let ran = hostile.curl(self.bench, &self.token).output();
            let stdout = ran.map(|ran| String::from_utf8_lossy(&ran.stdout).into_owned());
            let stdout = stdout.unwrap_or_default();
            let (code, took) = stdout.split_once(' ').unwrap_or(("000", "0"));
            let mut responses = self.responses.lock();
            let stats = responses.entry(hostile.what).or_default();
            *stats.codes.entry(code.to_owned()).or_default() += 1;
            stats.longest = stats.longest.max(took.parse().unwrap_or(0.0));
        }
    }
}

impl HostileRequest {
    fn curl(&self, bench: &Bench, token: &str) -> Command {
        // The attacker must not take CPU time from the server: a real attacker uses other machines.
        let mut curl = program("nice", ["-n", "19", "curl", "--silent", "--globoff", "--cacert"]);
        curl.arg(bench.control_plane.directory.join("etc/kubernetes/pki/ca.crt"));
        curl.args(["--max-time", PATIENCE, "--output", "/dev/null", "--write-out"]);
        curl.args(["%{http_code} %{time_total}", "--request", self.method]);
        curl.args(["--header", &format!("authorization: Bearer {token}")]);
        curl.args(["--header", &format!("content-type: {}", self.content_type)]).args(self.how);
        if let Some(body) = &self.body {
            curl.arg("--data-binary").arg(format!("@{}", body.display()));
        }
        curl.arg(format!("{}{}", bench.control_plane.url(), self.path));
        curl
    }
}

/// Reads `/livez` at a constant rate. Returns the median, the 99th percentile and the maximum, in milliseconds.
fn health(bench: &Bench, seconds: u32) -> Result<(f64, f64, f64)> {
    let log = bench.control_plane.directory.join("livez.tsv");
    let url = format!("{}/livez", bench.control_plane.url());
    let load = Load {
        url,
        rate: Some(HEALTH_RATE),
        log: Some(&log),
        ..bench.load("", HEALTH_RATE * seconds, 1, 8)
    };
    load.run(&bench.token)?;
    let took: Vec<u64> = records(&log)?.into_iter().map(|record| record.micros).collect();
    let most = took.iter().max().map_or(0.0, |most| *most as f64 / 1e3);
    let (half, high) = super::h2load::percentiles(took);
    Ok((half, high, most))
}

/// Renews the Lease of the node n1 like its kubelet.
fn heartbeats(bench: &Bench, over: &AtomicBool) -> Result<()> {
    const EVERY: Duration = Duration::from_secs(10);
    const LOOK: Duration = Duration::from_millis(100);
    while !over.load(Ordering::Relaxed) {
        let now = output(&mut program("date", ["-u", "+%FT%T.%6NZ"]))?;
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": "n1", "namespace": "kube-node-lease"},
            "spec": {"holderIdentity": "n1", "leaseDurationSeconds": 40, "renewTime": now.trim()},
        });
        let file = bench.body("node-lease", &lease.to_string())?.display().to_string();
        output(bench.control_plane.kubectl().args(["apply", "--validate=false", "-f", &file]))?;
        for _ in 0..EVERY.as_millis() / LOOK.as_millis() {
            if !over.load(Ordering::Relaxed) {
                thread::sleep(LOOK);
            }
        }
    }
    Ok(())
}

/// Returns the holders of the leader election Leases, with their numbers of transitions.
fn leaders(bench: &Bench) -> Result<Vec<String>> {
    let leases = ["kube-controller-manager", "kube-scheduler"].map(|name| {
        let mut get = bench.control_plane.kubectl();
        get.args(["-n", "kube-system", "wait", "--for=create", "--timeout=60s"]);
        output(get.arg(format!("lease/{name}")))?;
        let mut get = bench.control_plane.kubectl();
        get.args(["-n", "kube-system", "get", "lease", name, "-o"]);
        output(get.arg("jsonpath={.spec.holderIdentity} {.spec.leaseTransitions}"))
    });
    leases.into_iter().collect()
}

/// Returns how often the node was marked as not ready.
fn unready(bench: &Bench) -> Result<f64> {
    let mut events = bench.control_plane.kubectl();
    events.args(["get", "events", "-A", "--field-selector=reason=NodeNotReady", "-o", "name"]);
    Ok(output(&mut events)?.lines().count() as f64)
}
