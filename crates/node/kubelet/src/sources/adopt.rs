//! Adopts static Pods that another kubelet started. Upstream's kubelet computes a Pod's UID from its own form of the
//! Pod, so the same file has another UID there. Without adoption, static Pods would restart when a node changes between
//! kubelets.

use std::{collections::BTreeMap, path::Path};

use cri::labels;
use k8s_openapi::api::core::v1::Pod;
use pod_core::{Timestamp, namespaced_name};

use crate::{
    annotations::{HASH, SEEN, SOURCE},
    context::Context,
};

/// A static Pod in the container runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunningPod {
    uid: String,
    seen_at: Timestamp,
    created: i64,
}

/// Returns the static Pods in the runtime by namespace and name. Of several with one name, the newest counts.
pub(crate) async fn running_static_pods(ctx: &Context) -> BTreeMap<String, RunningPod> {
    let listed = ctx.cri.list_pod_sandboxes(None).await.unwrap_or_else(|error| {
        tracing::warn!(%error, "list sandboxes to adopt running static Pods");
        Vec::new()
    });
    let mut all: BTreeMap<String, RunningPod> = BTreeMap::new();
    for sandbox in listed {
        let (labels, annotations) = (&sandbox.labels, &sandbox.annotations);
        let text = |key: &str| labels.get(key).cloned().unwrap_or_default();
        let time = annotations.get(SEEN).and_then(|text| text.parse().ok());
        let (Some(seen_at), Some("file")) = (time, annotations.get(SOURCE).map(String::as_str))
        else {
            continue;
        };
        let name = format!("{}/{}", text(labels::POD_NAMESPACE), text(labels::POD_NAME));
        let pod = RunningPod { uid: text(labels::POD_UID), seen_at, created: sandbox.created_at };
        if all.get(&name).is_none_or(|other| other.created < pod.created) {
            all.insert(name, pod);
        }
    }
    all
}

/// Gives a Pod the UID that it has in the runtime, unless its file has changed since the runtime's Pod was created.
pub(crate) fn adopt(pod: &mut Pod, changed: Timestamp, running: &BTreeMap<String, RunningPod>) {
    let Some(running_pod) = running.get(&namespaced_name(pod)) else { return };
    if running_pod.uid.is_empty() || changed >= running_pod.seen_at {
        return;
    }
    pod.metadata.uid = Some(running_pod.uid.clone());
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(HASH.to_owned(), running_pod.uid.clone());
    annotations.insert(SEEN.to_owned(), running_pod.seen_at.to_string());
}

/// Returns the ctime of a file, which also changes when the file is renamed.
pub(crate) fn change_time(path: &Path) -> std::io::Result<Timestamp> {
    use std::os::unix::fs::MetadataExt;
    let meta = std::fs::metadata(path)?;
    let nanos = i128::from(meta.ctime()) * 1_000_000_000 + i128::from(meta.ctime_nsec());
    Ok(Timestamp::from_nanosecond(nanos).unwrap_or(Timestamp::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adopts_running_pod_unless_its_file_is_newer() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut pod = Pod::default();
        pod.metadata.name = Some("etcd-alpha".into());
        pod.metadata.namespace = Some("kube-system".into());
        pod.metadata.uid = Some("ours".into());
        let found = RunningPod { uid: "theirs".into(), seen_at: at(100), created: 0 };
        let running = BTreeMap::from([("kube-system/etcd-alpha".to_owned(), found)]);
        for changed in [100, 101] {
            let mut pod = pod.clone();
            adopt(&mut pod, at(changed), &running);
            assert_eq!(pod.metadata.uid.as_deref(), Some("ours"), "the file changed after it");
        }
        let mut other = pod.clone();
        other.metadata.name = Some("etcd-beta".into());
        adopt(&mut other, at(99), &running);
        assert_eq!(other.metadata.uid.as_deref(), Some("ours"), "it is another Pod");
        adopt(&mut pod, at(99), &running);
        assert_eq!(pod.metadata.uid.as_deref(), Some("theirs"));
        let annotations = pod.metadata.annotations.unwrap();
        assert_eq!((&*annotations[HASH], &*annotations[SEEN]), ("theirs", "1970-01-01T00:01:40Z"));
    }

    #[test]
    fn treats_renamed_file_as_changed() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        std::fs::write(&one, "").unwrap();
        let before = change_time(&one).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        std::fs::rename(&one, &two).unwrap();
        assert!(change_time(&two).unwrap() > before);
    }
}
