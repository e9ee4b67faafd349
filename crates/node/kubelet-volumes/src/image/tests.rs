//! Images with the kernel's loop devices and the host's programs, as root, in a mount namespace of the test's own.

use std::{os::unix::fs::FileTypeExt as _, sync::Arc, time::Duration};

use client::Resource;
use nix::{mount::MsFlags, sched::CloneFlags};
use pod_core::fields::NodeFacts;
use serde_json::{Value, json};
use sys::mount::HostMounts;
use testkit::FakeApi;

use super::*;
use crate::{MountedVolumes, Operations, Tokens, Volumes, tests};

const MIB: u64 = 1 << 20;

/// Runs a test in a mount namespace that ends with it, on a machine with loop devices.
fn with_loop_devices<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send) {
    if !nix::unistd::geteuid().is_root() || !Path::new("/dev/loop-control").exists() {
        eprintln!("skipped: images want root and loop devices");
        return;
    }
    let run = || {
        nix::sched::unshare(CloneFlags::CLONE_NEWNS).unwrap();
        let private = MsFlags::MS_PRIVATE | MsFlags::MS_REC;
        nix::mount::mount(None::<&str>, "/", None::<&str>, private, None::<&str>).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(test());
    };
    std::thread::scope(|scope| scope.spawn(run).join().unwrap());
}

/// A kubelet with a volume of its own, bound to the claim `data`.
struct Node {
    dir: tempfile::TempDir,
    api: FakeApi,
    volumes: Volumes,
}

impl Node {
    async fn new(spec: Value, size: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let api = FakeApi::default();
        let claim = json!({"metadata": {"name": "data", "namespace": "default"},
            "spec": {"volumeName": "pvc-1"},
            "status": {"phase": "Bound", "capacity": {"storage": size}}});
        let claim = api.create(&Resource::PERSISTENT_VOLUME_CLAIMS, claim).await;
        let mut volume = json!({"metadata": {"name": "pvc-1",
                "annotations": {"pv.kubernetes.io/provisioned-by": "windlass.local/volumes"}},
            "spec": {"capacity": {"storage": size},
                "local": {"path": dir.path().join("local-volumes/pvc-1"), "fsType": "ext4"},
                "claimRef": {"namespace": "default", "name": "data",
                    "uid": claim["metadata"]["uid"]}}});
        volume["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        api.create(&Resource::PERSISTENT_VOLUMES, volume).await;
        let client = Some(api.client("kubelet"));
        let mut volumes = tests::volumes(dir.path(), Arc::new(HostMounts), client);
        volumes.operations = Operations::new(Duration::from_secs(60));
        Self { dir, api, volumes }
    }

    async fn mount(&self, uid: &str) -> Result<MountedVolumes, String> {
        let volume = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]);
        let pod = tests::pod(uid, volume);
        let mounted = self.volumes.mount(&pod, &NodeFacts::default, &Tokens::default()).await;
        mounted.map_err(|error| error.to_string())
    }

    async fn path(&self, uid: &str) -> PathBuf {
        self.mount(uid).await.unwrap().path("v").unwrap().path.clone()
    }

    async fn grow(&self, size: &str) {
        let at = client::PatchTarget { namespace: "", name: "pvc-1", subresource: "" };
        let change = json!({"spec": {"capacity": {"storage": size}}});
        self.api.merge(&Resource::PERSISTENT_VOLUMES, at, change).await;
    }

    fn capacity(&self) -> Value {
        let claim = self.api.get(&Resource::PERSISTENT_VOLUME_CLAIMS, "default", "data").unwrap();
        claim["status"]["capacity"]["storage"].clone()
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("local-volumes")
    }

    async fn devices(&self) -> Vec<String> {
        let (root, programs) = (self.root(), VolumePrograms::default());
        let image = Image { root: &root, name: "pvc-1", programs: &programs, mounts: &HostMounts };
        image.devices().await.unwrap()
    }
}

/// Reports whether the process may expand a mounted file system (CAP_SYS_RESOURCE).
fn may_resize_mounted() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() & (1 << 24) != 0
}

fn fill(file: &Path) -> io::Error {
    let mut file = fs::OpenOptions::new().create(true).append(true).open(file).unwrap();
    let piece = vec![1; 1 << 16];
    loop {
        if let Err(error) = io::Write::write_all(&mut file, &piece) {
            return error;
        }
    }
}

#[test]
fn limits_volume_to_its_size_and_keeps_data_for_next_pod() {
    with_loop_devices(|| async {
        let node = Node::new(json!({}), "16Mi").await;
        let (one, two) = (node.path("one").await, node.path("two").await);
        assert_eq!(fs::read_dir(&one).unwrap().count(), 0, "it looks like an empty directory");
        assert_eq!(fs::metadata(&one).unwrap().permissions().mode() & 0o7777, 0o777);
        assert!(sys::disk_use(&one).unwrap().capacity <= 16 * MIB);
        fs::write(one.join("row"), "1").unwrap();
        assert_eq!(fill(&one.join("large")).kind(), io::ErrorKind::StorageFull);
        assert!(fs::metadata(two.join("large")).unwrap().len() < 16 * MIB, "two Pods share it");
        assert_eq!(node.devices().await.len(), 1);
        // Another kubelet that takes over mounts nothing again.
        node.mount("one").await.unwrap();
        node.volumes.unmount("one").await.unwrap();
        node.volumes.release_local().await.unwrap();
        assert_eq!(fs::read_to_string(two.join("row")).unwrap(), "1", "the other Pod has it");
        node.volumes.unmount("two").await.unwrap();
        node.volumes.release_local().await.unwrap();
        assert!(node.devices().await.is_empty(), "the device is released after the last Pod");
        assert_eq!(fs::read_to_string(node.path("three").await.join("row")).unwrap(), "1");
        node.volumes.unmount("three").await.unwrap();
        node.volumes.release_local().await.unwrap();
    });
}

#[test]
fn expands_mounted_volume_and_updates_claim() {
    with_loop_devices(|| async {
        let node = Node::new(json!({}), "16Mi").await;
        let at = node.path("one").await;
        fill(&at.join("large"));
        node.grow("48Mi").await;
        let mut at = at;
        node.mount("one").await.unwrap();
        if !may_resize_mounted() {
            // The next Pod finishes the expansion.
            assert_eq!(node.capacity(), "16Mi");
            node.volumes.unmount("one").await.unwrap();
            node.volumes.release_local().await.unwrap();
            at = node.path("one").await;
        }
        assert_eq!(node.capacity(), "48Mi");
        assert!(sys::disk_use(&at).unwrap().capacity > 32 * MIB);
        fs::write(at.join("more"), vec![1; 8 << 20]).unwrap();
        node.grow("8Ei").await;
        // No file can be so large. The Pod keeps its volume.
        node.mount("one").await.unwrap();
        assert_eq!(node.capacity(), "48Mi");
        assert_eq!(fs::metadata(at.join("more")).unwrap().len(), 8 << 20);
        node.volumes.unmount("one").await.unwrap();
        node.volumes.release_local().await.unwrap();
    });
}

#[test]
fn maps_block_volume_and_detaches_device_after_last_pod() {
    with_loop_devices(|| async {
        let node = Node::new(json!({"volumeMode": "Block"}), "5000Ki").await;
        let device = node.path("one").await;
        assert!(fs::metadata(&device).unwrap().file_type().is_block_device());
        assert_eq!(node.path("two").await, device, "both Pods have the same device");
        let size = |device: &Path| {
            io::Seek::seek(&mut fs::File::open(device).unwrap(), io::SeekFrom::End(0)).unwrap()
        };
        assert_eq!(size(&device), 5000 << 10);
        let link = node.dir.path().join("pods/one/volumeDevices/kubernetes.io~local-volume/pvc-1");
        assert_eq!(fs::read_link(&link).unwrap(), device);
        node.grow("8Mi").await;
        node.mount("one").await.unwrap();
        assert_eq!((size(&device), node.capacity()), (8 * MIB, json!("8Mi")));
        node.volumes.unmount("one").await.unwrap();
        node.volumes.release_local().await.unwrap();
        assert_eq!(node.devices().await.len(), 1, "the other Pod has it");
        node.volumes.unmount("two").await.unwrap();
        node.volumes.release_local().await.unwrap();
        assert!(node.devices().await.is_empty());
        let again = node.path("three").await;
        assert_eq!(size(&again), 8 * MIB);
        // As `windlass down` does, after the kubelet and its Pods have ended.
        assert!(detach_block_volumes(node.dir.path()).await.is_empty());
        assert!(node.devices().await.is_empty());
    });
}

#[test]
fn mounts_file_system_of_local_device_once_for_all_pods() {
    with_loop_devices(|| async {
        let dir = tempfile::tempdir().unwrap();
        let (file, programs) = (dir.path().join("disk"), VolumePrograms::default());
        resize(&file, 16 * MIB).unwrap();
        let device = programs.run("losetup", &["--find", "--show", &text(&file)]).await.unwrap();
        let (device, link) = (device.trim(), dir.path().join("link"));
        std::os::unix::fs::symlink(device, &link).unwrap();
        let node = Node::new(json!({"local": {"path": link}}), "16Mi").await;
        let (one, two) = (node.path("one").await, node.path("two").await);
        fs::write(one.join("row"), "1").unwrap();
        assert_eq!(fs::read_to_string(two.join("row")).unwrap(), "1", "two Pods share it");
        assert!(sys::disk_use(&one).unwrap().capacity <= 16 * MIB);
        node.volumes.unmount("one").await.unwrap();
        node.volumes.release_local().await.unwrap();
        assert_eq!(fs::read_to_string(two.join("row")).unwrap(), "1", "the other Pod has it");
        node.volumes.unmount("two").await.unwrap();
        node.volumes.release_local().await.unwrap();
        assert!(HostMounts.below(&node.root()).unwrap().is_empty());
        assert_eq!(fs::read_to_string(node.path("three").await.join("row")).unwrap(), "1");
        node.volumes.unmount("three").await.unwrap();
        node.volumes.release_local().await.unwrap();
        programs.run("losetup", &["--detach", device]).await.unwrap();
    });
}

#[test]
fn completes_file_system_that_an_earlier_kubelet_began() {
    with_loop_devices(|| async {
        let node = Node::new(json!({}), "16Mi").await;
        let new = node.root().join(".new/pvc-1");
        resize(&new, 16 * MIB).unwrap();
        let at = node.path("one").await;
        fs::write(at.join("row"), "1").unwrap();
        assert!(!new.exists() && node.root().join(".images/pvc-1").exists());
        node.volumes.unmount("one").await.unwrap();
        node.volumes.release_local().await.unwrap();
    });
}

#[tokio::test]
async fn reports_missing_program_and_keeps_directory_of_earlier_version() {
    let mut node = Node::new(json!({}), "16Mi").await;
    node.volumes.mounts = Arc::new(sys::mount::RecordedMounts::default());
    node.volumes.programs = VolumePrograms::new("/nonexistent", Duration::from_secs(30));
    let error = node.mount("one").await.unwrap_err();
    let words = "run mkfs.ext4: it cannot be started: No such file or directory (os error 2); is it installed on \
                 the node?";
    assert!(error.ends_with(words), "{error}");
    fs::remove_dir_all(node.root().join(".new")).unwrap();
    fs::write(node.root().join("pvc-1/row"), "1").unwrap();
    node.mount("one").await.unwrap();
    assert!(!node.root().join(".images").exists(), "its data stays where it is");
}

#[tokio::test]
async fn rejects_other_file_systems_and_paths() {
    let other = json!({"local": {"path": "/x/local-volumes/pvc-1", "fsType": "xfs"}});
    let node = Node::new(other, "16Mi").await;
    let error = node.mount("one").await.unwrap_err();
    assert!(error.contains("check the local volume /x/local-volumes/pvc-1"), "{error}");
    let node = Node::new(json!({}), "16Mi").await;
    let local = json!({"spec": {"local": {"fsType": "xfs"}}});
    let at = client::PatchTarget { namespace: "", name: "pvc-1", subresource: "" };
    node.api.merge(&Resource::PERSISTENT_VOLUMES, at, local).await;
    let error = node.mount("one").await.unwrap_err();
    assert!(error.contains("fsType \"xfs\": the kubelet creates only ext4"), "{error}");
    // A file is not taken for a device.
    let file = node.dir.path().join("file");
    fs::write(&file, "").unwrap();
    let block = json!({"volumeMode": "Block", "local": {"path": file}});
    let error = Node::new(block, "16Mi").await.mount("one").await.unwrap_err();
    assert!(error.contains("it is not a block device"), "{error}");
}
