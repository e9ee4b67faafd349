//! The common parts of the static Pods.

use serde_json::{Map, Value, json};

use super::{component::Component, machine::Machine, volumes::Volumes};

/// The probes of a component. An empty host is the Pod's own address.
pub(super) struct Probe<'a> {
    pub(super) host: &'a str,
    pub(super) scheme: &'static str,
    pub(super) live: &'static str,
    pub(super) ready: Option<&'static str>,
    pub(super) startup: &'static str,
}

/// The parts in which the Pods differ.
pub(super) struct PodParts<'a> {
    pub(super) component: Component,
    pub(super) command: Vec<String>,
    pub(super) image: String,
    pub(super) port: u16,
    pub(super) probe: Probe<'a>,
    pub(super) requests: Value,
    pub(super) volumes: Volumes,
    pub(super) annotations: Vec<(&'static str, String)>,
    pub(super) extra_envs: &'a [Value],
}

pub(super) fn pod(machine: &Machine<'_>, parts: PodParts<'_>) -> Value {
    let name = parts.component.name();
    let mut metadata = json!({
        "name": name, "namespace": "kube-system",
        "labels": {"component": name, "tier": "control-plane"},
    });
    if !parts.annotations.is_empty() {
        metadata["annotations"] = parts
            .annotations
            .iter()
            .map(|(k, v)| ((*k).to_owned(), v.as_str().into()))
            .collect::<Map<_, _>>()
            .into();
    }
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": metadata,
        "spec": {
            "containers": [container(machine, &parts)],
            "hostNetwork": true,
            "priority": 2_000_001_000,
            "priorityClassName": "system-node-critical",
            "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
            "volumes": parts.volumes.volumes(),
        },
        "status": {},
    })
}

fn container(machine: &Machine<'_>, parts: &PodParts<'_>) -> Value {
    let mut container = json!({
        "name": parts.component.name(),
        "image": parts.image,
        "imagePullPolicy": "IfNotPresent",
        "command": parts.command,
        "ports": [{"containerPort": parts.port, "name": "probe-port", "protocol": "TCP"}],
        "livenessProbe": timed(&parts.probe, parts.probe.live, 8, 10, 10),
        "startupProbe": timed(&parts.probe, parts.probe.startup, 24, 10, 10),
        "resources": {"requests": parts.requests},
        "volumeMounts": parts.volumes.mounts(),
    });
    if let Some(path) = parts.probe.ready {
        container["readinessProbe"] = timed(&parts.probe, path, 3, 1, 0);
    }
    let env = environment(machine, parts);
    if !env.is_empty() {
        container["env"] = env.into();
    }
    container
}

fn timed(probe: &Probe<'_>, path: &str, failures: u32, period: u32, delay: u32) -> Value {
    let mut get = json!({"path": path, "port": "probe-port", "scheme": probe.scheme});
    if !probe.host.is_empty() {
        get["host"] = probe.host.into();
    }
    let mut value = json!({
        "failureThreshold": failures, "httpGet": get, "periodSeconds": period, "timeoutSeconds": 15,
    });
    if delay > 0 {
        value["initialDelaySeconds"] = delay.into();
    }
    value
}

/// Returns the machine's proxy settings (except for etcd, which only contacts its peers) and the user's variables,
/// which take precedence.
fn environment(machine: &Machine<'_>, parts: &PodParts<'_>) -> Vec<Value> {
    let is_set = |name: &str| parts.extra_envs.iter().any(|env| env["name"] == name);
    let proxies = machine.proxy_env.iter().filter(|_| parts.component != Component::Etcd);
    let mut env: Vec<Value> = proxies
        .filter(|(name, _)| !is_set(name))
        .map(|(name, value)| json!({"name": name, "value": value}))
        .collect();
    env.extend(parts.extra_envs.iter().cloned());
    env
}

/// Returns the host to probe. Components that listen on all addresses are probed at the Pod's own.
pub(super) fn probe_host(address: &str) -> &str {
    if matches!(address, "0.0.0.0" | "::") { "" } else { address }
}
