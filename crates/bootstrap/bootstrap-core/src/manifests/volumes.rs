//! The volumes of the static Pods.

use std::collections::BTreeMap;

use api_config::kubeadm::HostPathMount;
use serde_json::{Value, json};

use super::machine::Machine;

/// Host path volumes of a Pod by name. Manifests list them in the order of their names.
#[derive(Default)]
pub(super) struct Volumes {
    by_name: BTreeMap<String, (Value, Value)>,
    extra: Vec<(Value, Value)>,
}

impl Volumes {
    pub(super) fn add(&mut self, name: &str, path: &str, kind: &str, read_only: bool) -> &mut Self {
        let pair = pair(name, path, path, kind, read_only);
        self.by_name.insert(name.to_owned(), pair);
        self
    }

    /// Adds the machine's directories of trusted certificates.
    pub(super) fn add_ca_directories(&mut self, machine: &Machine<'_>) -> &mut Self {
        self.add("ca-certs", "/etc/ssl/certs", "DirectoryOrCreate", true);
        for path in machine.ca_directories {
            let name = path.trim_matches('/').replace('/', "-");
            self.add(&name, path, "DirectoryOrCreate", true);
        }
        self
    }

    pub(super) fn add_extra(&mut self, mounts: &[HostPathMount]) -> &mut Self {
        for mount in mounts {
            self.extra.push(pair(
                &mount.name,
                &mount.host_path,
                &mount.mount_path,
                &mount.path_type,
                mount.read_only,
            ));
        }
        self
    }

    pub(super) fn volumes(&self) -> Vec<Value> {
        self.by_name.values().chain(&self.extra).map(|(volume, _)| volume.clone()).collect()
    }

    pub(super) fn mounts(&self) -> Vec<Value> {
        self.by_name.values().chain(&self.extra).map(|(_, mount)| mount.clone()).collect()
    }
}

fn pair(name: &str, host: &str, inside: &str, kind: &str, read_only: bool) -> (Value, Value) {
    let mut volume = json!({"name": name, "hostPath": {"path": host, "type": kind}});
    if kind.is_empty()
        && let Some(host_path) = volume["hostPath"].as_object_mut()
    {
        host_path.remove("type");
    }
    let mut mount = json!({"name": name, "mountPath": inside});
    if read_only {
        mount["readOnly"] = true.into();
    }
    (volume, mount)
}
