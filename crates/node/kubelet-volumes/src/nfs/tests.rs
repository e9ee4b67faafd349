//! NFS volumes with stand-ins for `mount`: this tests the arguments and the time limit, and no real server.

use std::{
    fs,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use pod_core::fields::NodeFacts;
use serde_json::{Value, json};
use sys::mount::{Mounts as _, RecordedMounts};

use super::*;
use crate::{MountedVolumes, Tokens, VolumePrograms, Volumes, tests};

/// Writes a program that records its arguments, one a line, and then runs `script`.
fn stand_in(bin: &Path, script: &str) {
    let log = bin.join("log");
    let body = format!("printf '%s\\n' \"$@\" >> {}\n{script}", log.display());
    testkit::write_script(&bin.join("mount"), &body);
}

fn arguments(bin: &Path) -> Vec<String> {
    let log = fs::read_to_string(bin.join("log")).unwrap_or_default();
    log.lines().map(str::to_owned).collect()
}

fn kubelet(root: &Path, bin: &Path, kernel: &Arc<RecordedMounts>, limit: Duration) -> Volumes {
    let path = format!("{}:/usr/bin:/bin", bin.display());
    Volumes {
        programs: VolumePrograms::new(path, limit),
        ..tests::volumes(root, kernel.clone(), None)
    }
}

async fn mounted(volumes: &Volumes, uid: &str, nfs: Value) -> Result<MountedVolumes, String> {
    let pod = tests::pod(uid, json!([{"name": "v", "nfs": nfs}]));
    let done = volumes.mount(&pod, &NodeFacts::default, &Tokens::default()).await;
    done.map_err(|error| error.to_string())
}

fn described(source: Value, volume: Value) -> Result<Nfs, Error> {
    let volume: PersistentVolume = serde_json::from_value(volume).unwrap();
    Nfs::of_volume(&volume, &serde_json::from_value(source).unwrap(), false)
}

#[test]
fn options_come_from_volume_and_read_only() {
    let source = |server: &str| json!({"server": server, "path": "/export", "readOnly": true});
    let volume = json!({"metadata": {"name": "pv"}, "spec": {"mountOptions": ["nfsvers=4.2", "hard", "hard"]}});
    let nfs = described(source("nfs.example.com"), volume.clone()).unwrap();
    assert_eq!((nfs.source.as_str(), nfs.read_only), ("nfs.example.com:/export", true));
    assert_eq!(nfs.options, ["nfsvers=4.2", "hard", "ro"]);
    let mut annotated = volume;
    annotated["metadata"]["annotations"] = json!({MOUNT_OPTIONS: "soft,ro"});
    let nfs = described(source("fd00::1"), annotated).unwrap();
    assert_eq!(
        (nfs.source.as_str(), nfs.options),
        ("[fd00::1]:/export", vec!["soft".to_owned(), "ro".into()])
    );
    let block = json!({"metadata": {"name": "pv"}, "spec": {"volumeMode": "Block"}});
    assert!(described(source("a"), block).unwrap_err().to_string().contains("block volume"));
}

#[test]
fn rejects_servers_and_paths_that_are_options() {
    for (server, path) in [
        ("-oexec", "/x"),
        ("--move", "/x"),
        ("", "/x"),
        ("[]", "/x"),
        ("host name", "/x"),
        ("host,exec", "/x"),
        ("host\n", "/x"),
        ("host/..", "/x"),
        ("host", "x"),
        ("host", ""),
        ("host", "/x\ny"),
    ] {
        let source = json!({"server": server, "path": path});
        let error = described(source, json!({"metadata": {"name": "pv"}})).unwrap_err();
        assert!(error.to_string().starts_with("nfs."), "{server:?} {path:?}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mounts_once_without_a_group_and_reports_what_mount_says() {
    let (root, bin) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let kernel = Arc::new(RecordedMounts::default());
    let volumes = kubelet(root.path(), bin.path(), &kernel, Duration::from_secs(30));
    let export = json!({"server": "192.0.2.1", "path": "/export/a b", "readOnly": true});
    stand_in(bin.path(), "echo 'mount.nfs: access denied by server' >&2; exit 32");
    let error = mounted(&volumes, "u", export.clone()).await.unwrap_err();
    let at = root.path().join("pods/u/volumes/kubernetes.io~nfs/v");
    let words = format!(
        "MountVolume.SetUp failed for volume \"v\" : mount failed: exit status 32\nMounting command: mount\n\
         Mounting arguments: -t nfs -o ro 192.0.2.1:/export/a b {}\nOutput: mount.nfs: access denied by server",
        at.display()
    );
    assert_eq!(error, words);

    fs::remove_file(bin.path().join("log")).unwrap();
    stand_in(bin.path(), "");
    let done = mounted(&volumes, "u", export.clone()).await.unwrap();
    let path = done.path("v").unwrap();
    assert!(path.path == at && path.read_only);
    let expected = ["-t", "nfs", "-o", "ro", "192.0.2.1:/export/a b", at.to_str().unwrap()];
    assert_eq!(arguments(bin.path()), expected);
    // The stand-in mounts nothing, so the test adds the mount to the recorded kernel. From now on, nothing touches
    // the directory: without its parent, any access would fail.
    kernel.tmpfs(&at, None).unwrap();
    fs::remove_dir_all(root.path().join("pods/u/volumes")).unwrap();
    mounted(&volumes, "u", export).await.unwrap();
    assert_eq!(arguments(bin.path()), expected, "a mounted volume is not mounted again");
    volumes.unmount("u").await.unwrap();
    assert!(kernel.below(root.path()).unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_server_delays_no_other_pod_and_its_mount_is_killed() {
    let (root, bin) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let kernel = Arc::new(RecordedMounts::default());
    // A kubelet waits two seconds for an operation in tests.
    let volumes = kubelet(root.path(), bin.path(), &kernel, Duration::from_secs(5));
    stand_in(bin.path(), "case \"$*\" in *silent*) sleep 1000 ;; esac");
    let export = |server: &str| json!({"server": server, "path": "/"});
    let silent = mounted(&volumes, "hung", export("silent.example.com"));
    let others = async {
        let start = Instant::now();
        for number in 0..5 {
            let uid = format!("other{number}");
            mounted(&volumes, &uid, export("nfs.example.com")).await.unwrap();
            volumes.unmount(&uid).await.unwrap();
        }
        start.elapsed()
    };
    let (error, others) = tokio::join!(silent, others);
    let error = error.unwrap_err();
    assert!(error.contains("have not answered"), "{error}");
    assert!(others < Duration::from_secs(4), "{others:?}");
    // After its limit, the program ends, and the Pod can be tried again or removed.
    let mut again = error;
    for _ in 0..20 {
        if again.contains("killed; does the server answer?") {
            break;
        }
        again = mounted(&volumes, "hung", export("silent.example.com")).await.unwrap_err();
    }
    assert!(again.contains("mount -t nfs silent.example.com:/"), "{again}");
    for _ in 0..20 {
        if volumes.unmount("hung").await.is_ok() {
            return assert!(!root.path().join("pods/hung").exists());
        }
    }
    panic!("the Pod's directory is never removed");
}
