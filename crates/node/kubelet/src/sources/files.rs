//! Static Pods from manifest files. They need no API server.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use data_encoding::HEXLOWER;
use k8s_openapi::api::core::v1::{Pod, Toleration};
use pod_core::Timestamp;
use sha2::{Digest, Sha256};
use tokio::sync::watch;

use super::adopt::{self, RunningPod};
use crate::{annotations, context::Context, pods::Pods};

/// The interval between two scans of the directory. A scan of a small directory takes microseconds.
const SCAN_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
enum FileError {
    #[error("read: {0}")]
    Read(#[from] std::io::Error),
    #[error(transparent)]
    Yaml(#[from] api_config::Error),
    #[error("it is not a valid Pod: {0}")]
    NoPod(#[from] serde_json::Error),
    #[error("it is a {0}, not a v1 Pod")]
    WrongKind(String),
    #[error("the Pod has no metadata.name")]
    NoName,
    #[error("the Pod has no containers")]
    NoContainers,
}

/// A manifest file as it was last read.
struct ManifestFile {
    stamp: (SystemTime, u64),
    /// The hash of the content.
    content: String,
    pod: Option<Arc<Pod>>,
}

/// Follows the directory. Sets `read` to true after the first scan.
pub(crate) async fn run(
    ctx: Arc<Context>,
    dir: PathBuf,
    pods: Pods,
    current: watch::Sender<Vec<Arc<Pod>>>,
    read: watch::Sender<bool>,
) {
    let mut manifests: BTreeMap<PathBuf, ManifestFile> = BTreeMap::new();
    let running = adopt::running_static_pods(&ctx).await;
    loop {
        // The map outlives a panic, so that files removed meanwhile are still noticed.
        let changed = rt::catch_sync("static pods", dir.display(), || {
            read_changed(&ctx, &dir, &mut manifests, &pods, &running)
        });
        if changed != Ok(false) {
            current.send_replace(manifests.values().filter_map(|s| s.pod.clone()).collect());
        }
        read.send_replace(true);
        tokio::time::sleep(SCAN_INTERVAL).await;
    }
}

/// Reads changed files. Returns `true` if any Pod has changed.
fn read_changed(
    ctx: &Context,
    dir: &Path,
    manifests: &mut BTreeMap<PathBuf, ManifestFile>,
    pods: &Pods,
    running: &BTreeMap<String, RunningPod>,
) -> bool {
    let Some(files) = list(dir) else { return false };
    let mut changed = false;
    let gone: Vec<PathBuf> =
        manifests.keys().filter(|path| !files.contains_key(*path)).cloned().collect();
    for path in gone {
        let old = manifests.remove(&path).and_then(|s| s.pod);
        if let Some(old) = old {
            tracing::info!(path = %path.display(), "the manifest of a static Pod was removed");
            pods.end_removed(old.metadata.uid.as_deref().unwrap_or_default());
            changed = true;
        }
    }
    for (path, stamp) in files {
        if manifests.get(&path).is_some_and(|s| s.stamp == stamp) {
            continue;
        }
        let before = manifests.get(&path);
        let (content, pod) = match read(&path, ctx, running) {
            // Only the modification time has changed.
            Ok((content, _)) if before.is_some_and(|b| b.content == content) => {
                (content, before.and_then(|b| b.pod.clone()))
            }
            Ok((content, pod)) => (content, Some(Arc::new(pod))),
            Err(error) => {
                // The file may be half-written. The Pod keeps running as before until the file can be read.
                tracing::warn!(path = %path.display(), %error, "read the manifest of a static Pod; trying again");
                before.map(|b| (b.content.clone(), b.pod.clone())).unwrap_or_default()
            }
        };
        let uid = |pod: Option<&Arc<Pod>>| pod.and_then(|p| p.metadata.uid.clone());
        let old = uid(before.and_then(|b| b.pod.as_ref()));
        if uid(pod.as_ref()) != old {
            if let Some(old) = old {
                pods.end_removed(&old);
            }
            if let Some(pod) = &pod {
                pods.run_pod(pod.clone());
            }
            changed = true;
        }
        manifests.insert(path, ManifestFile { stamp, content, pod });
    }
    changed
}

/// Reads a file. Returns the hash of its content and its Pod.
fn read(
    path: &Path,
    ctx: &Context,
    running: &BTreeMap<String, RunningPod>,
) -> Result<(String, Pod), FileError> {
    // Read the ctime first, so that a change during the read counts as later.
    let (changed, now) = (adopt::change_time(path)?, ctx.now());
    let text = std::fs::read_to_string(path)?;
    let mut pod = parse(&text, &ctx.settings.node_name, now)?;
    let content = pod.metadata.uid.clone().unwrap_or_default();
    adopt::adopt(&mut pod, changed, running);
    Ok((content, pod))
}

/// Returns the files in the directory, or `None` if it cannot be read. An unreadable directory must not end Pods.
fn list(dir: &Path) -> Option<BTreeMap<PathBuf, (SystemTime, u64)>> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Some(BTreeMap::new()),
        Err(error) => {
            tracing::warn!(path = %dir.display(), %error, "read the directory of static Pods");
            return None;
        }
    };
    let mut files = BTreeMap::new();
    for entry in entries.flatten() {
        // Skip hidden files, which editors create.
        if entry.file_name().to_string_lossy().starts_with('.') {
            continue;
        }
        if let Ok(meta) = std::fs::metadata(entry.path())
            && meta.is_file()
        {
            files.insert(
                entry.path(),
                (meta.modified().unwrap_or(SystemTime::UNIX_EPOCH), meta.len()),
            );
        }
    }
    Some(files)
}

/// Parses a manifest into a Pod of this node. The Pod's UID is a hash of the content.
fn parse(text: &str, node: &str, now: Timestamp) -> Result<Pod, FileError> {
    let value = api_config::yaml::parse(text)?;
    let (version, kind) = api_config::gvk(&value);
    if (version, kind) != ("v1", "Pod") {
        return Err(FileError::WrongKind(format!("{version} {kind}")));
    }
    let mut pod: Pod = serde_json::from_value(value)?;
    let name = pod.metadata.name.clone().filter(|n| !n.is_empty()).ok_or(FileError::NoName)?;
    let spec =
        pod.spec.as_mut().filter(|s| !s.containers.is_empty()).ok_or(FileError::NoContainers)?;
    let mut hash = Sha256::new();
    hash.update(node);
    hash.update(text);
    let hash = HEXLOWER.encode(&hash.finalize()[..16]);
    spec.node_name = Some(node.to_owned());
    // Taints do not evict a static Pod.
    let forever = Toleration {
        operator: Some("Exists".to_owned()),
        effect: Some("NoExecute".to_owned()),
        ..Toleration::default()
    };
    let tolerations = spec.tolerations.get_or_insert_default();
    if !tolerations.contains(&forever) {
        tolerations.push(forever);
    }
    pod.metadata.name = Some(format!("{name}-{node}"));
    pod.metadata.namespace.get_or_insert_with(|| "default".to_owned());
    pod.metadata.uid = Some(hash.clone());
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(annotations::HASH.to_owned(), hash);
    annotations.insert(annotations::SEEN.to_owned(), now.to_string());
    annotations.insert(annotations::SOURCE.to_owned(), "file".to_owned());
    pod.status = None;
    Ok(pod)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;
    const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers: [{name: c, image: i}]\n";

    #[test]
    fn turns_manifest_into_pod_of_this_node() {
        let pod = parse(POD, "n1", NOW).unwrap();
        assert_eq!(pod.metadata.name.as_deref(), Some("web-n1"));
        assert_eq!(pod.metadata.uid, parse(POD, "n1", NOW).unwrap().metadata.uid);
        assert_ne!(pod.metadata.uid, parse(POD, "n2", NOW).unwrap().metadata.uid);
        assert!(pod_core::is_static(&pod));
    }

    #[test]
    fn rejects_invalid_manifests_with_the_cause() {
        for (text, cause) in [
            ("", "not a v1 Pod"),
            ("apiVersion: v1\nkind: Service\n", "Service"),
            ("apiVersion: v1\nkind: Pod\nmetadata: {name: x}\n", "containers"),
            ("apiVersion: v1\nkind: Pod\nspec: {containers: [{name: c}]}\n", "name"),
            ("apiVersion: v1\nkind: Pod\nspec: {containers: 3}\n", "not a valid Pod"),
            ("{\"apiVersion\": \"v1\", \"kind", ""),
        ] {
            let error = parse(text, "n", NOW).unwrap_err().to_string();
            assert!(error.contains(cause), "{text:?}: {error}");
        }
    }
}
