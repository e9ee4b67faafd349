//! Static Pods from manifest files. They need no API server.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use k8s_openapi::api::core::v1::Pod;
use tokio::sync::watch;

use super::{
    adopt::{self, RunningPod},
    manifest::{self, ManifestError, Origin, StaticPods},
};
use crate::{context::Context, pods::Pods};

/// The interval between two scans of the directory. A scan of a small directory takes microseconds.
const SCAN_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
enum FileError {
    #[error("read: {0}")]
    Read(#[from] std::io::Error),
    #[error(transparent)]
    Manifest(#[from] ManifestError),
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
    current: watch::Sender<StaticPods>,
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
            let all = manifests.values().filter_map(|s| s.pod.clone()).collect();
            current.send_modify(|sources| drop(sources.insert("file", all)));
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
    let origin = Origin { node: &ctx.settings.node_name, now, source: "file" };
    let mut pod = manifest::parse(&text, origin)?;
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
