//! Static Pods that another kubelet started keep the identity that it gave them: upstream's hashes its own form of a
//! Pod, so that the same file has another uid there than here, and would restart when a node changes hands.

use std::{collections::BTreeMap, path::Path};

use k8s_openapi::api::core::v1::Pod;
use pod_core::{Timestamp, namespaced_name};

use crate::{context::Context, runtime::label};

pub(crate) const HASH: &str = "kubernetes.io/config.hash";
pub(crate) const SOURCE: &str = "kubernetes.io/config.source";
/// When a kubelet read the file.
pub(crate) const SEEN: &str = "kubernetes.io/config.seen";

/// What the runtime has of a static Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Begun {
    uid: String,
    seen: Timestamp,
    created: i64,
}

/// The static Pods that the runtime has, by namespace and name; of several with one name, the youngest.
pub(crate) async fn begun(ctx: &Context) -> BTreeMap<String, Begun> {
    let listed = ctx.cri.list_pod_sandboxes(None).await.unwrap_or_else(|error| {
        tracing::warn!(%error, "look for static Pods that run already");
        Vec::new()
    });
    let mut all: BTreeMap<String, Begun> = BTreeMap::new();
    for sandbox in listed {
        let (labels, annotations) = (&sandbox.labels, &sandbox.annotations);
        let text = |key: &str| labels.get(key).cloned().unwrap_or_default();
        let seen = annotations.get(SEEN).and_then(|seen| seen.parse().ok());
        let (Some(seen), Some("file")) = (seen, annotations.get(SOURCE).map(String::as_str)) else {
            continue;
        };
        let name = format!("{}/{}", text(label::POD_NAMESPACE), text(label::POD_NAME));
        let found = Begun { uid: text(label::POD_UID), seen, created: sandbox.created_at };
        if all.get(&name).is_none_or(|known| known.created < found.created) {
            all.insert(name, found);
        }
    }
    all
}

/// Gives the Pod the identity that it has in the runtime, if its file has not changed since that was made.
pub(crate) fn adopt(pod: &mut Pod, changed: Timestamp, begun: &BTreeMap<String, Begun>) {
    let Some(known) = begun.get(&namespaced_name(pod)) else { return };
    if known.uid.is_empty() || changed >= known.seen {
        return;
    }
    pod.metadata.uid = Some(known.uid.clone());
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(HASH.to_owned(), known.uid.clone());
    annotations.insert(SEEN.to_owned(), known.seen.to_string());
}

/// When anything of the file changed, its name included.
pub(crate) fn changed(path: &Path) -> std::io::Result<Timestamp> {
    use std::os::unix::fs::MetadataExt;
    let meta = std::fs::metadata(path)?;
    let nanos = i128::from(meta.ctime()) * 1_000_000_000 + i128::from(meta.ctime_nsec());
    Ok(Timestamp::from_nanosecond(nanos).unwrap_or(Timestamp::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_keeps_the_identity_that_it_has_unless_its_file_is_younger() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut pod = Pod::default();
        pod.metadata.name = Some("etcd-alpha".into());
        pod.metadata.namespace = Some("kube-system".into());
        pod.metadata.uid = Some("ours".into());
        let found = Begun { uid: "theirs".into(), seen: at(100), created: 0 };
        let begun = BTreeMap::from([("kube-system/etcd-alpha".to_owned(), found)]);
        for changed in [100, 101] {
            let mut pod = pod.clone();
            adopt(&mut pod, at(changed), &begun);
            assert_eq!(pod.metadata.uid.as_deref(), Some("ours"), "the file changed after it");
        }
        let mut other = pod.clone();
        other.metadata.name = Some("etcd-beta".into());
        adopt(&mut other, at(99), &begun);
        assert_eq!(other.metadata.uid.as_deref(), Some("ours"), "it is another Pod");
        adopt(&mut pod, at(99), &begun);
        assert_eq!(pod.metadata.uid.as_deref(), Some("theirs"));
        let annotations = pod.metadata.annotations.unwrap();
        assert_eq!((&*annotations[HASH], &*annotations[SEEN]), ("theirs", "1970-01-01T00:01:40Z"));
    }

    #[test]
    fn a_renamed_file_has_changed() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        std::fs::write(&one, "").unwrap();
        let before = changed(&one).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        std::fs::rename(&one, &two).unwrap();
        assert!(changed(&two).unwrap() > before);
    }
}
