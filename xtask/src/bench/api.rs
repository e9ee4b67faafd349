//! Measures an API server under load: ours with its own store, and upstream's with etcd, both with kubeadm's flags and
//! RBAC.

use std::{
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use super::{
    h2load::{Load, percentiles, records},
    table::{Better, Column, Row},
    usage,
};
use crate::{
    control_plane::{ControlPlane, Side, has_upstream_binaries},
    error::{During, Result, fail},
    file::write,
    run::{join, output, pass, step, target_directory},
};

pub(super) const NAMESPACE: &str = "bench";
/// The time in which an idle control plane settles, and the time for which it is then measured.
const SETTLE: Duration = Duration::from_secs(10);
const IDLE: Duration = Duration::from_secs(20);
const MIXED_SECONDS: u32 = 10;

/// A function that measures one side.
pub(super) type Measure = dyn Fn(Bench) -> Result<Column>;

/// The measurements of one part.
pub(super) struct Comparison {
    pub(super) ours: Column,
    /// Upstream's, if it was measured.
    pub(super) theirs: Option<Column>,
}

/// Measures each side.
pub(super) fn run(windlass: &Path, peer: Option<&Path>, measure: &Measure) -> Result<Comparison> {
    let mut sides = vec![Side::Windlass(windlass.to_owned())];
    if let Some(peer) = peer {
        if !has_upstream_binaries(peer) {
            return fail(format!("{} does not contain all of upstream's binaries", peer.display()));
        }
        sides.push(Side::Upstream(peer.to_owned()));
    }
    let place = target_directory().join("bench");
    let measured: Result<Vec<Column>> = sides
        .into_iter()
        .map(|side| {
            let name = side.name();
            step(name, || measure(Bench::start(side, windlass, &place.join(name))?))
        })
        .collect();
    let measured = measured?;
    let mut measured = measured.into_iter();
    Ok(Comparison { ours: measured.next().unwrap_or_default(), theirs: measured.next() })
}

pub(super) struct Bench {
    pub(super) control_plane: ControlPlane,
    pub(super) token: String,
    /// The binary of Windlass, also where upstream's API server is measured.
    pub(super) windlass: PathBuf,
    column: Column,
}

impl Bench {
    fn start(side: Side, windlass: &Path, directory: &Path) -> Result<Self> {
        let mut control_plane = ControlPlane::prepare(side, windlass, directory)?;
        let ready = control_plane.start_api_server()?;
        let mut bench = Self {
            control_plane,
            token: String::new(),
            windlass: windlass.to_owned(),
            column: Column::new(),
        };
        bench.note("empty store to /readyz", "s", Better::Less, Some(10.0), ready.as_secs_f64());
        Ok(bench)
    }

    pub(super) fn note(
        &mut self,
        what: &str,
        unit: &'static str,
        better: Better,
        target: Option<f64>,
        value: f64,
    ) {
        eprintln!("    {what}: {value:.3} {unit}");
        self.column.push((Row { what: what.to_owned(), unit, better, target }, value));
    }

    pub(super) fn measured(self) -> Column {
        self.column
    }

    /// Measures the requests of a cluster of 10,000 Pods, one kind at a time.
    pub(super) fn requests_alone(mut self) -> Result<Column> {
        self.idle()?;
        self.prepare_namespace()?;
        let config_map = self.body("config-map", &config_map())?;
        let pod = self.body("pod", &pod()?)?;
        for (connections, streams) in [(8, 8), (64, 1)] {
            let how = format!("64 in flight on {connections} connections");
            let load = |path: &Path, kind: &str, requests| {
                (kind.to_owned(), requests, path.to_owned(), connections, streams)
            };
            for (kind, requests, path, connections, streams) in
                [load(&config_map, "configmaps", 10_000), load(&pod, "pods", 5_000)]
            {
                let load = self.load(&kind, requests, connections, streams);
                let load = Load { body: Some(&path), ..load };
                self.requests(&format!("create {kind}, {how}"), Some(20.0), &load)?;
            }
        }
        self.memory("10,000 Pods", Some(12.7));
        self.reads()?;
        self.mixed(&pod)?;
        self.memory("10,000 Pods, after reading them", None);
        Ok(self.column)
    }

    /// Measures the idle store, API server, controllers and scheduler.
    fn idle(&mut self) -> Result<()> {
        self.control_plane.start_controllers()?;
        thread::sleep(SETTLE);
        let pids = self.control_plane.pids();
        let before = usage::processor_seconds(&pids);
        thread::sleep(IDLE);
        let used = (usage::processor_seconds(&pids) - before) / IDLE.as_secs_f64() * 100.0;
        self.note("control plane, idle", "% of a core", Better::Less, Some(11.7), used);
        self.note("control plane, idle", "MB", Better::Less, None, usage::memory(&pids));
        // Controllers and scheduler would change the objects of the load.
        self.control_plane.kill();
        self.control_plane.start_api_server().map(drop)
    }

    pub(super) fn prepare_namespace(&mut self) -> Result<()> {
        let account = format!("--serviceaccount={NAMESPACE}:default");
        for args in [
            ["create", "namespace", NAMESPACE].as_slice(),
            &["--namespace", NAMESPACE, "create", "serviceaccount", "default"],
            &["create", "clusterrolebinding", "bench", "--clusterrole=cluster-admin", &account],
        ] {
            output(self.control_plane.kubectl().args(args))?;
        }
        self.token = self.new_token()?;
        // RBAC observes the binding with a short delay.
        let mut may = self.control_plane.kubectl();
        pass(may.args(["wait", "--for=create", "serviceaccount/default", "-n", NAMESPACE]))
    }

    /// Creates another token of the benchmark's user.
    pub(super) fn new_token(&self) -> Result<String> {
        let mut token = self.control_plane.kubectl();
        token.args(["--namespace", NAMESPACE, "create", "token", "default", "--duration=2h"]);
        Ok(output(&mut token)?.trim().to_owned())
    }

    pub(super) fn body(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.control_plane.directory.join(format!("{name}.json"));
        write(&path, text)?;
        Ok(path)
    }

    /// Returns a load that reads a path below the namespace.
    pub(super) fn load(
        &self,
        path: &str,
        requests: u32,
        connections: u32,
        streams: u32,
    ) -> Load<'static> {
        let url = format!("{}/api/v1/namespaces/{NAMESPACE}/{path}", self.control_plane.url());
        Load {
            url,
            requests,
            connections,
            streams,
            body: None,
            patch: false,
            gzip: false,
            rate: None,
            log: None,
            urls: None,
        }
    }

    pub(super) fn requests(
        &mut self,
        what: &str,
        target: Option<f64>,
        load: &Load<'_>,
    ) -> Result<()> {
        let pids = self.control_plane.pids();
        let before = usage::processor_seconds(&pids);
        let rate = load.run(&self.token)?;
        let used = usage::processor_seconds(&pids) - before;
        self.note(what, "a second", Better::More, target, rate);
        let each = used / f64::from(load.requests) * 1e6;
        self.note(&format!("… {what}"), "µs of processor each", Better::Less, None, each);
        Ok(())
    }

    pub(super) fn memory(&mut self, when: &str, target: Option<f64>) {
        thread::sleep(SETTLE);
        let pids = self.control_plane.pids();
        self.note(&format!("memory, {when}"), "MB", Better::Less, target, usage::memory(&pids));
        let peak = usage::peak_memory(&pids);
        self.note(&format!("peak memory, {when}"), "MB", Better::Less, None, peak);
    }

    /// Measures concurrent reads and writes, at a rate that both sides sustain.
    fn mixed(&mut self, pod: &Path) -> Result<()> {
        let name = self.first_pod()?;
        let directory = self.control_plane.directory.clone();
        let log = |what: &str| directory.join(format!("{what}.tsv"));
        let (creates, gets, lists) = (log("creates"), log("gets"), log("lists"));
        let paced = |path: &str, rate: u32, log| {
            let load = self.load(path, rate * MIXED_SECONDS, 8, 8);
            Load { rate: Some(rate), log: Some(log), ..load }
        };
        let loads = [
            Load { body: Some(pod), ..paced("pods", 200, &creates) },
            paced(&format!("pods/{name}"), 800, &gets),
            paced("pods?limit=500", 16, &lists),
        ];
        thread::scope(|scope| {
            let token = self.token.as_str();
            let running: Vec<_> =
                loads.iter().map(|load| scope.spawn(move || load.run(token))).collect();
            running.into_iter().try_for_each(|running| join(running)?.map(drop))
        })?;
        for (what, log) in [("create a Pod", creates), ("get a Pod", gets), ("list 500", lists)] {
            let took = records(&log)?.into_iter().map(|record| record.micros).collect();
            let (half, most) = percentiles(took);
            self.note(&format!("{what} in mixed load, p50"), "ms", Better::Less, None, half);
            self.note(&format!("{what} in mixed load, p99"), "ms", Better::Less, None, most);
        }
        Ok(())
    }

    fn first_pod(&self) -> Result<String> {
        let mut first = self.control_plane.kubectl();
        first.args(["get", "--raw", &format!("/api/v1/namespaces/{NAMESPACE}/pods?limit=1")]);
        let list: serde_json::Value =
            serde_json::from_str(&output(&mut first)?).during("parsing", "the list of Pods")?;
        Ok(list["items"][0]["metadata"]["name"].as_str().unwrap_or_default().to_owned())
    }

    fn reads(&mut self) -> Result<()> {
        let pod = format!("pods/{}", self.first_pod()?);
        for (how, requests, connections, streams) in [
            ("one at a time", 3_000, 1, 1),
            ("64 in flight on 8 connections", 30_000, 8, 8),
            ("64 in flight on 64 connections", 30_000, 64, 1),
        ] {
            let load = self.load(&pod, requests, connections, streams);
            self.requests(&format!("get a Pod, {how}"), Some(20.0), &load)?;
        }
        let whole = self.load("pods", 20, 1, 1);
        self.requests("list 10,000 Pods", Some(20.0), &whole)?;
        let zipped = Load { gzip: true, ..whole };
        self.requests("list 10,000 Pods, gzipped", Some(20.0), &zipped)?;
        let chunk = self.load("pods?limit=500", 400, 1, 1);
        self.requests("list 500 of 10,000 Pods", Some(20.0), &chunk)
    }
}

pub(super) fn config_map() -> String {
    let object = serde_json::json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"generateName": "load-"},
        "data": {"key": "value"},
    });
    object.to_string()
}

/// Returns a Pod like a Deployment's, of 2.5 KB in the store. It is bound to a node, so that it is not scheduled.
fn pod() -> Result<String> {
    let text = include_str!("../../../crates/server/apiserver/benches/pod.json");
    let pod: serde_json::Value = serde_json::from_str(text).during("parsing", "pod.json")?;
    Ok(pod.to_string())
}
