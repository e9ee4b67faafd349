//! Links to the logs of containers in `/var/log/containers`, by which log collectors find logs and their Pods.
//!
//! The directory lies beside that of the Pods' logs, so that each kubelet of a machine has its own. Links are relative,
//! so that they also work where both are mounted elsewhere.

use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use k8s_openapi::api::core::v1::Pod;
use pod_core::paths;

/// The longest name of a file on common file systems, in bytes.
const MAX_FILE_NAME: usize = 255;

/// Links the log of a container's current attempt as `POD_NAMESPACE_CONTAINER-ID.log`.
pub(crate) fn link(
    logs: &Path,
    pod: &Pod,
    container: &str,
    attempt: u32,
    id: &str,
) -> io::Result<()> {
    let log = paths::log_dir(logs, pod).join(container).join(format!("{attempt}.log"));
    let Some(target) = logs.parent().and_then(|above| log.strip_prefix(above).ok()) else {
        return Ok(());
    };
    if !log.exists() {
        // The runtime writes logs elsewhere.
        return Ok(());
    }
    let name = |text: &Option<String>| text.clone().unwrap_or_default();
    let (pod, namespace) = (name(&pod.metadata.name), name(&pod.metadata.namespace));
    let mut name = format!("{pod}_{namespace}_{container}-{id}");
    name.truncate(MAX_FILE_NAME - ".log".len());
    let directory = directory(logs);
    fs::create_dir_all(&directory)?;
    match symlink(Path::new("..").join(target), directory.join(name + ".log")) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Removes the links whose logs are gone.
pub(crate) fn remove_dangling(logs: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(directory(logs)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        if path.is_symlink() && !path.exists() {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

fn directory(logs: &Path) -> PathBuf {
    logs.with_file_name("containers")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str) -> Pod {
        let meta = serde_json::json!({"name": name, "namespace": "ns", "uid": "u"});
        serde_json::from_value(serde_json::json!({"metadata": meta})).unwrap()
    }

    fn links(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory.join("containers")).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn links_logs_until_they_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let logs = directory.path().join("pods");
        let log = logs.join("ns_web_u/app/2.log");
        remove_dangling(&logs).unwrap();
        link(&logs, &pod("web"), "app", 2, "0123").unwrap();
        assert!(!directory.path().join("containers").exists(), "there is no log yet");
        fs::create_dir_all(log.parent().unwrap()).unwrap();
        fs::write(&log, "text").unwrap();
        for _ in 0..2 {
            link(&logs, &pod("web"), "app", 2, "0123").unwrap();
        }
        assert_eq!(links(directory.path()), ["web_ns_app-0123.log"]);
        let moved = tempfile::tempdir().unwrap();
        let (here, there) = (directory.path().join("containers"), moved.path().join("log"));
        assert!(fs::read_link(here.join("web_ns_app-0123.log")).unwrap().is_relative());
        fs::rename(directory.path(), &there).unwrap();
        assert!(there.join("containers/web_ns_app-0123.log").exists());
        fs::rename(&there, directory.path()).unwrap();
        remove_dangling(&logs).unwrap();
        let path = directory.path().join("containers/web_ns_app-0123.log");
        assert_eq!(fs::read_to_string(&path).unwrap(), "text");
        fs::remove_file(&log).unwrap();
        remove_dangling(&logs).unwrap();
        assert_eq!(links(directory.path()), [""; 0]);
    }

    #[test]
    fn shortens_names_to_the_limit_of_file_systems() {
        let directory = tempfile::tempdir().unwrap();
        let logs = directory.path().join("pods");
        let name = "n".repeat(200);
        let log = logs.join(format!("ns_{name}_u/app/0.log"));
        fs::create_dir_all(log.parent().unwrap()).unwrap();
        fs::write(&log, "").unwrap();
        link(&logs, &pod(&name), "app", 0, &"a".repeat(64)).unwrap();
        let links = links(directory.path());
        assert_eq!(links.iter().map(String::len).collect::<Vec<_>>(), [255]);
        assert!(links[0].ends_with(".log"), "{links:?}");
    }
}
