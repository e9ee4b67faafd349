//! Static Pods of the components: a container with host paths, which writes its log to a file.

use api_meta::Tree as _;
use kops_api::yaml;
use serde_json::{Value, json};

use super::{
    context::{Context, Distribution, MANIFESTS},
    task::Tasks,
};
use crate::{error::Error, pods::critical};

/// The priority of Pods that every cluster needs.
pub(super) const CLUSTER_CRITICAL: &str = "system-cluster-critical";
/// The priority of Pods that every machine needs.
pub(super) const NODE_CRITICAL: &str = "system-node-critical";

/// A component's static Pod.
pub(super) struct Pod {
    pub(super) container: Value,
    pub(super) volumes: Vec<Value>,
}

impl Pod {
    /// Returns a Pod that runs a component and copies its log to a file.
    pub(super) fn new(
        context: &Context<'_>,
        name: &str,
        config: &Value,
        flags: Vec<String>,
    ) -> Self {
        let fixed = [
            format!("--log-file=/var/log/{name}.log"),
            "--also-stdout".to_owned(),
            format!("/usr/local/bin/{name}"),
        ];
        let args: Vec<String> = fixed.into_iter().chain(flags).collect();
        let container = json!({
            "name": name, "image": context.image(config.text("image")),
            "command": ["/go-runner"], "args": args, "resources": {},
        });
        Self { container, volumes: Vec::new() }
    }

    /// Sets the requests and limits of a component. `cpu` is the request of a spec without one.
    pub(super) fn with_resources(mut self, config: &Value, cpu: &str) -> Self {
        let request = config.opt_at("cpuRequest").cloned().unwrap_or_else(|| cpu.into());
        self.container.put("resources.requests.cpu", request);
        for (field, path) in [
            ("cpuLimit", "resources.limits.cpu"),
            ("memoryRequest", "resources.requests.memory"),
            ("memoryLimit", "resources.limits.memory"),
        ] {
            self.container.put_some(path, config.opt_at(field));
        }
        self
    }

    /// Mounts a path of the host that the container only reads.
    pub(super) fn read(self, name: &str, path: &str) -> Self {
        self.mount(name, path, path, true)
    }

    /// Mounts a path of the host that the container writes.
    pub(super) fn write(self, name: &str, path: &str) -> Self {
        self.mount(name, path, path, false)
    }

    pub(super) fn mount(mut self, name: &str, path: &str, inside: &str, read_only: bool) -> Self {
        let mut mount = json!({"name": name, "mountPath": inside});
        if read_only {
            mount.put("readOnly", true);
        }
        self.container.push("volumeMounts", mount);
        self.volumes.push(json!({"name": name, "hostPath": {"path": path}}));
        self
    }

    /// Mounts the directories with the host's authorities.
    pub(super) fn read_authorities(self, distribution: Distribution) -> Self {
        let own: &[&str] = match distribution {
            Distribution::Flatcar => &["/usr/share/ca-certificates"],
            _ => &[
                "/usr/share/ssl",
                "/usr/ssl",
                "/usr/lib/ssl",
                "/usr/local/openssl",
                "/var/ssl",
                "/etc/openssl",
            ],
        };
        let common = ["/etc/ssl", "/etc/pki/tls", "/etc/pki/ca-trust"];
        let all = common.iter().chain(own);
        all.fold(self, |pod, path| pod.read(&path.replace('/', ""), path))
    }

    /// Sets environment variables, unless there are none.
    pub(super) fn with_environment(mut self, environment: Vec<Value>) -> Self {
        if !environment.is_empty() {
            self.container.put("env", environment);
        }
        self
    }

    /// Returns the Pod's tree.
    pub(super) fn build(self, context: &Context<'_>, priority: &str) -> Value {
        let name = self.container.text("name").to_owned();
        let mut pod = critical(&name, priority, self.container, self.volumes);
        relax_selinux(context, &mut pod);
        pod
    }
}

/// Lets a Pod use host paths on machines with SELinux.
pub(super) fn relax_selinux(context: &Context<'_>, pod: &mut Value) {
    if context.config.flag("containerdConfig.selinuxEnabled") {
        pod.put("spec.securityContext.seLinuxOptions", json!({"type": "spc_t", "level": "s0"}));
    }
}

/// Adds the manifest of a static Pod.
pub(super) fn add_manifest(tasks: &mut Tasks, name: &str, pod: &Value) -> Result<(), Error> {
    tasks.text(&format!("{MANIFESTS}/{name}.manifest"), &yaml::to_string(pod), None)
}

/// Returns a probe of a port of this machine.
pub(super) fn probe(path: &str, port: i64, is_tls: bool) -> Value {
    let mut get = json!({"host": "127.0.0.1", "path": path, "port": port});
    if is_tls {
        get.put("scheme", "HTTPS");
    }
    json!({"httpGet": get})
}
