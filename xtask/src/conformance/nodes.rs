//! Nodes without kubelets. They are Ready, but Pods that are scheduled to them never run.

use std::{
    io::Write as _,
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use serde_json::{Value, json};

use crate::{
    control_plane::ControlPlane,
    error::{During, Error, Result, fail},
    run::{output, program},
};

/// The names of the nodes. The tests of class `api+node` need two.
const NAMES: &[&str] = &["kubeletless-1", "kubeletless-2"];
/// The interval of lease renewals, which is a kubelet's.
const PERIOD: Duration = Duration::from_secs(10);

/// Keeps the nodes Ready by renewing their leases until it is stopped.
pub(super) struct Nodes {
    stop: mpsc::Sender<()>,
    thread: thread::JoinHandle<Result<()>>,
}

impl Nodes {
    pub(super) fn start(control_plane: &ControlPlane) -> Result<Self> {
        let nodes: Vec<Value> = NAMES.iter().map(|name| node(name)).collect();
        let start = now()?;
        apply(control_plane.kubectl(), &with_time(nodes, &start))?;
        apply(control_plane.kubectl(), &leases(&start))?;
        let (stop, stopped) = mpsc::channel();
        let kubectl = control_plane.kubectl();
        let call = move || {
            let mut command = Command::new(kubectl.get_program());
            command.args(kubectl.get_args());
            command
        };
        let renew = move || {
            while stopped.recv_timeout(PERIOD) == Err(mpsc::RecvTimeoutError::Timeout) {
                apply(call(), &leases(&now()?))?;
            }
            Ok(())
        };
        Ok(Self { stop, thread: thread::spawn(renew) })
    }

    /// Stops the renewals. Returns an error if the nodes were not Ready until now.
    pub(super) fn stop(self) -> Result<()> {
        drop(self.stop);
        self.thread.join().map_err(|_| Error::from("the thread that renews leases panicked"))?
    }
}

fn now() -> Result<String> {
    let time = output(&mut program("date", ["-u", "+%Y-%m-%dT%H:%M:%SZ"]))?;
    Ok(time.trim().to_owned())
}

fn node(name: &str) -> Value {
    let condition = |kind: &str, status: &str| json!({"type": kind, "status": status, "reason": "NoKubelet", "message": "kept by the test"});
    let resources =
        json!({"cpu": "4", "memory": "8Gi", "ephemeral-storage": "100Gi", "pods": "110"});
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {
            "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
        }},
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "addresses": [{"type": "Hostname", "address": name}],
            "nodeInfo": {
                "kubeletVersion": "v1.36.2", "kubeProxyVersion": "", "operatingSystem": "linux",
                "architecture": "amd64", "osImage": "", "kernelVersion": "", "machineID": name,
                "systemUUID": name, "bootID": name, "containerRuntimeVersion": "",
            },
            "conditions": [
                condition("Ready", "True"),
                condition("MemoryPressure", "False"),
                condition("DiskPressure", "False"),
                condition("PIDPressure", "False"),
            ],
        },
    })
}

fn with_time(mut nodes: Vec<Value>, now: &str) -> Vec<Value> {
    for node in &mut nodes {
        let conditions = node["status"]["conditions"].as_array_mut();
        for condition in conditions.into_iter().flatten() {
            condition["lastHeartbeatTime"] = now.into();
            condition["lastTransitionTime"] = now.into();
        }
    }
    nodes
}

fn leases(now: &str) -> Vec<Value> {
    let now = now.replace('Z', ".000000Z");
    let lease = |name: &&str| {
        json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": name, "namespace": "kube-node-lease"},
            "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": now},
        })
    };
    NAMES.iter().map(lease).collect()
}

fn apply(mut kubectl: Command, objects: &[Value]) -> Result<()> {
    // kubectl must not request schemas, which an upstream server built with Go 1.27 cannot serve.
    let apply = ["apply", "--server-side", "--force-conflicts", "--validate=false", "--filename=-"];
    kubectl.args(apply).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let objects: String = objects.iter().map(Value::to_string).collect();
    let mut run = || {
        let mut child = kubectl.spawn()?;
        if let Some(mut input) = child.stdin.take() {
            input.write_all(objects.as_bytes())?;
        }
        child.wait_with_output()
    };
    let done = run().during("running", "kubectl apply")?;
    if done.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&done.stderr);
    fail(format!("kubectl apply of nodes and their leases failed: {}", stderr.trim()))
}
