//! The static Pods of control planes in addition to those of `init`.

use api_meta::Tree as _;
use instances::machine::TRUSTED_FILES;
use kops_store::{BOOTSTRAP_CHANNEL, parse_yaml};
use serde_json::{Value, json};

use super::{
    context::NodeContext,
    control_plane::{backups_url, read_object, store_url},
    manifest::write_pod,
};
use crate::{
    controller::{CONFIG, DIRECTORY},
    error::Error,
    parameters::PROGRAM_ANNOTATION,
    protokube,
};

const KUBECONFIG: &str = "/etc/kubernetes/super-admin.conf";

/// A directory or file of the host in a Pod: the volume and its mount.
struct HostMount {
    volume: Value,
    mount: Value,
}

impl HostMount {
    fn new(name: &str, path: &str, kind: &str, read_only: bool) -> Self {
        Self {
            volume: json!({"name": name, "hostPath": {"path": path, "type": kind}}),
            mount: json!({"name": name, "mountPath": path, "readOnly": read_only}),
        }
    }

    fn read_only(name: &str, path: &str, kind: &str) -> Self {
        Self::new(name, path, kind, true)
    }
}

/// Returns a store's directory on this machine or, for a remote store, the directory with the access to it.
fn directory(base: &str) -> &str {
    base.strip_prefix("file://").unwrap_or(TRUSTED_FILES)
}

/// Writes the static Pods in addition to those of `init`: kops-controller, channels and protokube.
pub(super) fn write_pods(context: &NodeContext, image: &str) -> Result<(), Error> {
    let base = store_url(context);
    let store = directory(base);
    // The stored manifest decides whether our program replaces upstream's.
    let content = read_object(base, "manifests/channels/kops-channels.yaml")?;
    let channels = parse_yaml("kops-channels.yaml", &content)?;
    if !channels.has(&["metadata", "annotations", PROGRAM_ANNOTATION]) {
        return Err(Error::ChannelsImage);
    }
    let controller = static_pod(
        "kops-controller",
        image,
        vec!["kops-controller".to_owned(), "--conf".to_owned(), CONFIG.to_owned()],
        &[
            HostMount::read_only("files", DIRECTORY, "Directory"),
            HostMount::read_only("store", store, "Directory"),
        ],
    );
    let channels = static_pod(
        "kops-channels",
        image,
        vec![
            "channels".to_owned(),
            "apply".to_owned(),
            "channel".to_owned(),
            "--yes".to_owned(),
            "--interval=1m0s".to_owned(),
            format!("--kubeconfig={KUBECONFIG}"),
            format!("{base}/{BOOTSTRAP_CHANNEL}"),
        ],
        &[
            HostMount::read_only("kubeconfig", KUBECONFIG, "File"),
            HostMount::read_only("store", store, "Directory"),
        ],
    );
    let backups = backups_url(base);
    let mut mounts = vec![
        HostMount::read_only("files", protokube::DIRECTORY, "Directory"),
        HostMount::read_only("store", store, "Directory"),
    ];
    if store != TRUSTED_FILES {
        mounts.push(HostMount::new("backups", directory(&backups), "DirectoryOrCreate", false));
    }
    let protokube = static_pod(
        "protokube",
        image,
        vec!["protokube".to_owned(), "--conf".to_owned(), protokube::CONFIG.to_owned()],
        &mounts,
    );
    let all =
        [("kops-controller", controller), ("kops-channels", channels), ("protokube", protokube)];
    all.iter().try_for_each(|(name, pod)| write_pod(name, pod))
}

fn static_pod(name: &str, image: &str, args: Vec<String>, mounts: &[HostMount]) -> Value {
    let volumes: Vec<_> = mounts.iter().map(|mount| &mount.volume).collect();
    let mounts: Vec<_> = mounts.iter().map(|mount| &mount.mount).collect();
    let command: Vec<String> =
        std::iter::once("/usr/local/bin/windlass".to_owned()).chain(args).collect();
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "kube-system", "labels": {"k8s-app": name}},
        "spec": {
            "containers": [{
                "name": name, "image": image, "imagePullPolicy": "IfNotPresent", "command": command,
                "resources": {"requests": {"cpu": "50m", "memory": "50Mi"}}, "volumeMounts": mounts,
            }],
            "volumes": volumes, "hostNetwork": true, "priorityClassName": "system-node-critical",
            "tolerations": [{"operator": "Exists"}],
        },
    })
}
