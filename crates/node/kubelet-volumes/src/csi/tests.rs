//! Tests of CSI volumes with a driver on a socket, correct or faulty, and a recorded kernel.

use std::{path::Path, sync::Arc, time::Duration};

use client::{PatchTarget, Resource};
use k8s_openapi::api::core::v1::Pod;
use pod_core::fields::NodeFacts;
use serde_json::{Value, json};
use sys::mount::{Mounts, RecordedMounts};
use testkit::{CsiDriver, FakeApi, Fault};

use super::{
    files::{self, Layout, PERSISTENT, Record},
    mount::{GroupPolicy, access_mode},
    stats,
};
use crate::{MountedVolumes, Operations, Tokens, Volumes, tests};

const DRIVER: &str = "disks.example.com";

/// A kubelet with one driver, the claim `data` and the volume `disk`.
struct Scene {
    dir: tempfile::TempDir,
    api: FakeApi,
    driver: Arc<CsiDriver>,
    served: rt::Tasks,
    kernel: Arc<RecordedMounts>,
    volumes: Volumes,
}

impl Scene {
    async fn new(volume: Value, driver_spec: Option<Value>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let api = FakeApi::default();
        let claim = json!({
            "metadata": {"name": "data", "namespace": "default"},
            "spec": {"volumeName": "disk"},
            "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}});
        let claim = api.create(&Resource::PERSISTENT_VOLUME_CLAIMS, claim).await;
        let mut spec = json!({
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
            "csi": {"driver": DRIVER, "volumeHandle": "vol-1", "volumeAttributes": {"pool": "fast"}},
            "claimRef": {"namespace": "default", "name": "data", "uid": claim["metadata"]["uid"]}});
        spec.as_object_mut().unwrap().extend(volume.as_object().unwrap().clone());
        let disk = json!({"metadata": {"name": "disk"}, "spec": spec});
        api.create(&Resource::PERSISTENT_VOLUMES, disk).await;
        if let Some(spec) = driver_spec {
            let object = json!({"metadata": {"name": DRIVER}, "spec": spec});
            api.create(&Resource::CSI_DRIVERS, object).await;
        }
        let kernel = Arc::new(RecordedMounts::default());
        let driver = Arc::new(CsiDriver::new(DRIVER, dir.path(), kernel.clone()));
        let served = rt::Tasks::new(rt::Shutdown::new());
        driver.serve(&served).unwrap();
        let volumes = kubelet(dir.path(), &api, kernel.clone());
        let scene = Self { dir, api, driver, served, kernel, volumes };
        scene.register();
        scene
    }

    fn register(&self) {
        let client = csi::Driver::new(&self.driver.socket().display().to_string());
        self.volumes.drivers.set_driver(DRIVER, Some(client));
    }

    /// Simulates a restarted kubelet, which has only the files on the disk.
    async fn restart(&mut self) {
        self.volumes = kubelet(self.dir.path(), &self.api, self.kernel.clone());
        self.volumes.reconstruct().await.unwrap();
        self.register();
    }

    async fn mount(&self, uid: &str) -> Result<MountedVolumes, String> {
        let claim = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]);
        self.mount_pod(&tests::pod(uid, claim)).await
    }

    async fn mount_pod(&self, pod: &Arc<Pod>) -> Result<MountedVolumes, String> {
        let done = self.volumes.mount(pod, &NodeFacts::default, &Tokens::default()).await;
        done.map_err(|error| error.to_string())
    }

    fn in_pod(&self, uid: &str) -> std::path::PathBuf {
        self.dir.path().join("pods").join(uid).join("volumes/kubernetes.io~csi/disk")
    }

    /// Returns the calls since the last query, without those that change nothing.
    fn calls(&self) -> Vec<String> {
        let calls = self.driver.calls();
        self.driver.forget_calls();
        calls.into_iter().filter(|call| call != "NodeGetCapabilities").collect()
    }
}

fn kubelet(root: &Path, api: &FakeApi, kernel: Arc<RecordedMounts>) -> Volumes {
    let mut volumes = tests::volumes(root, kernel, Some(api.client("kubelet")));
    volumes.operations = Operations::new(Duration::from_secs(60));
    volumes
}

fn unattached() -> Option<Value> {
    Some(json!({"attachRequired": false, "volumeLifecycleModes": ["Persistent"]}))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stages_and_publishes_for_each_pod_and_unstages_after_last() {
    let scene = Scene::new(json!({}), unattached()).await;
    let mounted = scene.mount("one").await.unwrap();
    let target = scene.in_pod("one").join("mount");
    assert_eq!(mounted.path("v").unwrap().path, target);
    assert_eq!(scene.calls(), ["NodeStageVolume vol-1", "NodePublishVolume vol-1"]);
    let record = std::fs::read(scene.in_pod("one").join("vol_data.json")).unwrap();
    let record: Value = serde_json::from_slice(&record).unwrap();
    // The SHA-256 of handle, driver and node.
    assert_eq!(
        record["attachmentID"],
        "csi-ffb326fc093aa4d9b12b83aa1f5d1939ae24d358625956275f744194f8467507"
    );
    assert_eq!(
        (
            record["driverName"].as_str(),
            record["volumeHandle"].as_str(),
            record["specVolID"].as_str()
        ),
        (Some(DRIVER), Some("vol-1"), Some("disk"))
    );
    assert_eq!(record["volumeLifecycleMode"], "Persistent");
    let asked = scene.driver.publishes().pop().unwrap();
    let hash = "d2e8363faaac7ae76def3b14091d8eb5755f6b92e9531627aeec833a8731cc49";
    let staging = scene.dir.path().join("plugins/kubernetes.io/csi").join(DRIVER).join(hash);
    assert_eq!(Path::new(&asked.staging_target_path), staging.join("globalmount"));
    assert!(staging.join("vol_data.json").is_file());
    assert_eq!(asked.volume_context["pool"], "fast");

    scene.mount("one").await.unwrap();
    assert!(scene.driver.calls().is_empty(), "what is published is not asked for again");
    scene.mount("two").await.unwrap();
    assert_eq!(scene.calls(), ["NodeStageVolume vol-1", "NodePublishVolume vol-1"]);
    scene.volumes.unmount("one").await.unwrap();
    assert_eq!(scene.calls(), ["NodeUnpublishVolume vol-1"], "another Pod has it staged");
    assert!(!scene.dir.path().join("pods/one").exists());
    scene.volumes.unmount("two").await.unwrap();
    assert_eq!(scene.calls(), ["NodeUnpublishVolume vol-1", "NodeUnstageVolume vol-1"]);
    assert!(!staging.exists());
    assert!(scene.kernel.below(scene.dir.path()).unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unmounts_volumes_of_an_earlier_kubelet() {
    let mut scene = Scene::new(json!({}), None).await;
    // Without a CSIDriver object volumes must be attached.
    let node = json!({"metadata": {"name": "node"}, "status": {}});
    scene.api.create(&Resource::NODES, node).await;
    let record = |scene: &Scene| std::fs::read(scene.in_pod("one").join("vol_data.json"));
    let name = format!("kubernetes.io/csi/{DRIVER}^vol-1");
    let handle = files::attachment("vol-1", DRIVER, "node");
    let attachment = json!({"metadata": {"name": handle}, "spec": {"nodeName": "node"},
        "status": {"attached": true, "attachmentMetadata": {"device": "/dev/vdq"}}});
    scene.api.create(&Resource::VOLUME_ATTACHMENTS, attachment).await;
    let (mounted, ()) = tokio::join!(scene.mount("one"), async {
        // The node first reports that it is about to use the volume.
        let mut changes = scene.volumes.drivers.changes();
        while scene.volumes.drivers.in_use(|_| false).is_empty() {
            changes.changed().await.unwrap();
        }
        assert_eq!(scene.volumes.drivers.in_use(|_| false), std::slice::from_ref(&name));
        assert!(scene.calls().is_empty(), "nothing is asked before it is attached");
        let status = json!({"status": {"volumesInUse": [name],
            "volumesAttached": [{"name": name, "devicePath": ""}]}});
        let at = PatchTarget { namespace: "", name: "node", subresource: "status" };
        scene.api.merge(&Resource::NODES, at, status).await;
    });
    mounted.unwrap();
    assert_eq!(scene.driver.stages()[0].publish_context["device"], "/dev/vdq");
    let before = record(&scene).unwrap();
    scene.restart().await;
    assert_eq!(scene.volumes.drivers.in_use(|_| true), std::slice::from_ref(&name));
    scene.volumes.drivers.set_driver(DRIVER, None);
    let error = scene.volumes.unmount("one").await.unwrap_err().to_string();
    assert!(error.contains("driver name disks.example.com not found in the list"), "{error}");
    assert_eq!(record(&scene).unwrap(), before, "what the driver has not taken back stays");
    assert!(scene.kernel.is_mount_point(&scene.in_pod("one").join("mount")).unwrap());
    scene.register();
    scene.calls();
    scene.volumes.unmount("one").await.unwrap();
    assert_eq!(scene.calls(), ["NodeUnpublishVolume vol-1", "NodeUnstageVolume vol-1"]);
    assert!(scene.volumes.drivers.in_use(|_| true).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cleans_up_after_every_kind_of_driver_failure() {
    let scene = Scene::new(json!({}), unattached()).await;
    let refuse = |code| Some(Fault::Refuse(code, "no".to_owned()));
    for (method, fault, words, kept) in [
        (
            "NodeStageVolume",
            refuse(tonic_code("NotFound")),
            "MountVolume.MountDevice failed for volume \"disk\" : rpc error: code = NotFound desc = no",
            (false, false),
        ),
        ("NodeStageVolume", refuse(tonic_code("Unavailable")), "code = Unavailable", (true, false)),
        (
            "NodePublishVolume",
            refuse(tonic_code("Internal")),
            "MountVolume.SetUp failed for volume \"disk\" : rpc error: code = Internal desc = no",
            (true, false),
        ),
        (
            "NodePublishVolume",
            refuse(tonic_code("DeadlineExceeded")),
            "code = DeadlineExceeded",
            (true, true),
        ),
        ("NodePublishVolume", Some(Fault::Huge), "MountVolume.SetUp failed", (true, false)),
        ("NodeGetCapabilities", Some(Fault::Huge), "MountVolume.SetUp failed", (false, false)),
    ] {
        scene.driver.set_fault(method, fault.clone());
        let error = scene.mount("one").await.unwrap_err();
        assert!(
            error.contains(words) && error.len() < 4096,
            "{fault:?}: {} {error:.300}",
            error.len()
        );
        let layout = Layout::new(scene.dir.path());
        let has = (
            !layout.staged_volumes().unwrap().is_empty(),
            !layout.of_pod("one").unwrap().is_empty(),
        );
        // The client cannot know whether the error of an oversized message is final.
        if !matches!(fault, Some(Fault::Huge)) {
            assert_eq!(has, kept, "{method} {fault:?}");
        }
        scene.driver.set_fault(method, None);
        scene.volumes.unmount("one").await.unwrap();
        scene.volumes.unstage_once().await.unwrap();
        assert!(layout.staged_volumes().unwrap().is_empty(), "{method} {fault:?}");
    }
    scene.mount("one").await.unwrap();
}

fn tonic_code(name: &str) -> testkit::Code {
    match name {
        "NotFound" => testkit::Code::NotFound,
        "Unavailable" => testkit::Code::Unavailable,
        "DeadlineExceeded" => testkit::Code::DeadlineExceeded,
        _ => testkit::Code::Internal,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hanging_driver_blocks_no_other_volume() {
    let mut scene = Scene::new(json!({}), unattached()).await;
    scene.volumes.operations = Operations::new(Duration::from_secs(2));
    scene.driver.set_fault("NodePublishVolume", Some(Fault::Hang));
    let error = scene.mount("one").await.unwrap_err();
    assert!(error.contains("have not answered for"), "{error}");
    let memory = json!([{"name": "cache", "emptyDir": {"medium": "Memory"}}]);
    scene.mount_pod(&tests::pod("other", memory)).await.unwrap();
    scene.volumes.unmount("other").await.unwrap();
    assert!(scene.volumes.unmount("one").await.is_err(), "the driver is at it still");
    // The socket disappears, which ends the call.
    assert!(scene.served.drain(Duration::from_secs(30)).await.unfinished.is_empty());
    std::fs::remove_file(scene.driver.socket()).unwrap();
    scene.volumes.operations.wait_idle("one").await.unwrap_or_default();
    let left = Layout::new(scene.dir.path()).of_pod("one").unwrap();
    assert_eq!(left.len(), 1, "nobody knows what the driver did");
    scene.volumes.operations = Operations::new(Duration::from_secs(5));
    let error = scene.mount("one").await.unwrap_err();
    assert!(error.contains("code = Unavailable"), "{error}");
    scene.driver.set_fault("NodePublishVolume", None);
    let again = rt::Tasks::new(rt::Shutdown::new());
    scene.driver.serve(&again).unwrap();
    scene.mount("one").await.unwrap();
    scene.volumes.unmount("one").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn supports_inline_volumes_only_if_csidriver_allows_them() {
    let inline =
        json!([{"name": "own", "csi": {"driver": DRIVER, "volumeAttributes": {"size": "1"}}}]);
    let pod = tests::pod("one", inline);
    let scene = Scene::new(json!({}), unattached()).await;
    let error = scene.mount_pod(&pod).await.unwrap_err();
    let words = "volume mode \"Ephemeral\" not supported by driver disks.example.com (only supports [\"Persistent\"])";
    assert!(error.contains(words), "{error}");
    let spec = json!({"podInfoOnMount": true, "volumeLifecycleModes": ["Ephemeral"]});
    let scene = Scene::new(json!({}), Some(spec)).await;
    scene.mount_pod(&pod).await.unwrap();
    let asked = scene.driver.publishes().pop().unwrap();
    let told = |key: &str| asked.volume_context[&format!("csi.storage.k8s.io/{key}")].clone();
    assert_eq!((told("pod.name"), told("pod.uid")), ("one".to_owned(), "one".to_owned()));
    assert_eq!((told("ephemeral"), &*asked.staging_target_path), ("true".to_owned(), ""));
    assert_eq!(asked.volume_id, files::ephemeral_handle("one", "own"));
    scene.volumes.unmount("one").await.unwrap();
    let calls = scene.calls();
    assert!(calls.iter().all(|call| !call.contains("Stage")), "{calls:?}");
    assert!(scene.mount("two").await.unwrap_err().contains("volume mode \"Persistent\""));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn links_block_devices_and_cleans_up() {
    let scene = Scene::new(json!({"volumeMode": "Block"}), unattached()).await;
    let mounted = scene.mount("one").await.unwrap();
    let plugin = scene.dir.path().join("plugins/kubernetes.io/csi/volumeDevices");
    let at = mounted.path("v").unwrap();
    assert!(at.block);
    assert_eq!(at.path, plugin.join("publish/disk/one").canonicalize().unwrap());
    let link = scene.dir.path().join("pods/one/volumeDevices/kubernetes.io~csi/disk");
    assert_eq!(std::fs::read_link(&link).unwrap(), plugin.join("publish/disk/one"));
    assert!(plugin.join("disk/data/vol_data.json").is_file());
    scene.volumes.unmount("one").await.unwrap();
    let calls = scene.calls();
    assert_eq!(calls[2..], ["NodeUnpublishVolume vol-1", "NodeUnstageVolume vol-1"]);
    let left: Vec<_> = Layout::new(scene.dir.path()).staged_volumes().unwrap();
    assert!(left.is_empty() && !plugin.join("disk").exists() && !link.exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refuses_second_pod_of_volume_for_one_pod() {
    let mut scene = Scene::new(json!({"accessModes": ["ReadWriteOncePod"]}), unattached()).await;
    scene.mount("one").await.unwrap();
    let words = "MountVolume.SetUp failed for volume \"disk\" : volume uses the ReadWriteOncePod access mode and is \
                 already in use by another pod";
    assert_eq!(scene.mount("two").await.unwrap_err(), words);
    scene.restart().await;
    assert_eq!(scene.mount("two").await.unwrap_err(), words);
    scene.mount("one").await.unwrap();
    scene.volumes.unmount("one").await.unwrap();
    scene.mount("two").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expands_volume_on_node_and_updates_claim() {
    let scene = Scene::new(json!({"capacity": {"storage": "2Gi"}}), unattached()).await;
    scene.mount("one").await.unwrap();
    let calls = scene.calls();
    assert_eq!(calls.last().unwrap(), "NodeExpandVolume vol-1");
    let claim = scene.api.get(&Resource::PERSISTENT_VOLUME_CLAIMS, "default", "data").unwrap();
    assert_eq!(claim["status"]["capacity"]["storage"], "2Gi");
    scene.mount("one").await.unwrap();
    assert!(scene.calls().is_empty(), "it has grown");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_failed_expansion_until_resizer_decides() {
    let scene = Scene::new(json!({"capacity": {"storage": "9Gi"}}), unattached()).await;
    let write = async |subresource: &str, change: Value| {
        let at = PatchTarget { namespace: "default", name: "data", subresource };
        scene.api.merge(&Resource::PERSISTENT_VOLUME_CLAIMS, at, change).await;
    };
    let claim = || scene.api.get(&Resource::PERSISTENT_VOLUME_CLAIMS, "default", "data").unwrap();
    let state = || claim()["status"]["allocatedResourceStatuses"]["storage"].clone();
    let request = async |size: &str| {
        let requests = json!({"storage": size});
        write("", json!({"spec": {"resources": {"requests": requests}}})).await;
    };
    let expand = async |size: &str| {
        request(size).await;
        let states = json!({"storage": "NodeResizePending"});
        let status =
            json!({"allocatedResources": {"storage": size}, "allocatedResourceStatuses": states});
        write("status", json!({"status": status})).await;
    };
    let fail = |code| {
        let fault = Fault::Refuse(code, "no".to_owned());
        scene.driver.set_fault("NodeExpandVolume", Some(fault));
    };
    expand("9Gi").await;
    fail(testkit::Code::PermissionDenied);
    scene.mount("one").await.unwrap_err();
    assert_eq!(state(), "NodeResizeInProgress");
    let condition = &claim()["status"]["conditions"][0];
    assert_eq!(condition["type"], "NodeResizeError");
    assert!(condition["message"].as_str().unwrap().starts_with("failed to expand pvc with rpc"));
    scene.mount("one").await.unwrap_err();
    assert_eq!(state(), "NodeResizeInProgress", "the user still requests this size");
    request("5Gi").await;
    scene.mount("one").await.unwrap_err();
    assert_eq!(state(), "NodeResizeInfeasible");
    scene.calls();
    scene.mount("one").await.unwrap();
    assert!(scene.calls().is_empty(), "the resizer has to decide");
    scene.driver.set_fault("NodeExpandVolume", None);
    expand("5Gi").await;
    scene.mount("one").await.unwrap();
    assert_eq!(claim()["status"]["capacity"]["storage"], "5Gi");
    assert_eq!((state(), &claim()["status"]["conditions"]), (Value::Null, &json!([])));
    expand("8Gi").await;
    fail(testkit::Code::OutOfRange);
    scene.mount("one").await.unwrap_err();
    assert_eq!(state(), "NodeResizeInfeasible");
}

#[test]
fn hostile_record_stays_in_its_directory() {
    let dir = tempfile::tempdir().unwrap();
    let layout = Layout::new(dir.path());
    let record = Record {
        driver: "d".to_owned(),
        handle: "../../../etc".to_owned(),
        spec_name: "a/b".to_owned(),
        lifecycle: PERSISTENT.to_owned(),
        ..Record::default()
    };
    let held = layout.pod_volume("uid", record.clone(), false);
    layout.record(&held).unwrap();
    assert!(held.target.ends_with("volumes/kubernetes.io~csi/a~b/mount"));
    assert_eq!(layout.of_pod("uid").unwrap(), std::slice::from_ref(&held));
    let (at, _) = layout.staging_paths(&record, false);
    assert!(
        at.starts_with(dir.path().join("plugins/kubernetes.io/csi/d"))
            && !at.to_string_lossy().contains("..")
    );
    for unknown in
        ["{\"volumeHandle\": 7", "{\"volumeHandle\": \"h\", \"driver\": {\"name\": \"d\"}}"]
    {
        std::fs::write(held.in_pod.join("vol_data.json"), unknown).unwrap();
        assert!(layout.of_pod("uid").is_err(), "it is not taken for a Pod without volumes");
    }
    // Content of a volume is never removed.
    std::fs::create_dir_all(held.target.join("rows")).unwrap();
    layout.remove_record(&held).unwrap();
    assert!(held.target.join("rows").is_dir());
}

#[test]
fn maps_access_modes_and_group_policies_as_upstream() {
    use csi::v1::volume_capability::access_mode::Mode;
    for (mode, plain, telling) in [
        ("ReadWriteOnce", Mode::SingleNodeWriter, Mode::SingleNodeMultiWriter),
        ("ReadWriteOncePod", Mode::SingleNodeWriter, Mode::SingleNodeSingleWriter),
        ("ReadOnlyMany", Mode::MultiNodeReaderOnly, Mode::MultiNodeReaderOnly),
        ("ReadWriteMany", Mode::MultiNodeMultiWriter, Mode::MultiNodeMultiWriter),
    ] {
        let mode = mode.to_owned();
        assert_eq!(
            (access_mode(Some(&mode), false), access_mode(Some(&mode), true)),
            (plain, telling)
        );
    }
    let once = ["ReadWriteOnce".to_owned()];
    let many = ["ReadWriteMany".to_owned()];
    let default = GroupPolicy::ReadWriteOnceWithFsType;
    for (policy, fs_type, modes, gives) in [
        (default, "ext4", &once, true),
        (default, "", &once, false),
        (default, "ext4", &many, false),
        (GroupPolicy::File, "", &many, true),
        (GroupPolicy::None, "ext4", &once, false),
    ] {
        assert_eq!(policy.sets_group(fs_type, modes), gives, "{policy:?} {fs_type:?} {modes:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_volume_stats_without_waiting_for_hanging_driver() {
    let mut scene = Scene::new(json!({}), unattached()).await;
    scene.mount("one").await.unwrap();
    let root = scene.dir.path().to_owned();
    let volumes = stats::published_volumes(&root, "one");
    assert_eq!(volumes.iter().map(|v| v.name.as_str()).collect::<Vec<_>>(), ["disk"]);
    // A driver that does not answer is not called again in the same round, however many volumes it has.
    let many: Vec<_> = std::iter::repeat_n(&volumes[0], 40).collect();
    scene.calls();
    assert_eq!(
        stats::query_usage(&scene.volumes.drivers, &many[..1]).await,
        [stats::StatsResponse::Nothing]
    );
    assert!(scene.calls().is_empty(), "a driver without the capability is not asked");

    let bytes = csi::v1::volume_usage::Unit::Bytes.into();
    let usage = |unit, available| csi::v1::VolumeUsage { available, total: 100, used: 60, unit };
    let (dir, kernel) = (tempfile::tempdir().unwrap(), scene.kernel.clone());
    let mut able = CsiDriver::new(DRIVER, dir.path(), kernel);
    able.capabilities = vec![csi::v1::node_service_capability::rpc::Type::GetVolumeStats];
    able.usage = vec![usage(bytes, 40), usage(77, 1), usage(2, -1)];
    scene.driver = Arc::new(able);
    scene.driver.serve(&scene.served).unwrap();
    scene.register();
    let said = stats::query_usage(&scene.volumes.drivers, &many[..1]).await;
    let of = |available| csi::Usage { available, total: 100, used: 60 };
    let figures = csi::VolumeStats { bytes: of(40), inodes: of(0) };
    assert_eq!(said, [stats::StatsResponse::Figures(figures)]);

    scene.calls();
    scene.driver.set_fault("NodeGetVolumeStats", Some(Fault::Hang));
    let said = stats::query_usage(&scene.volumes.drivers, &many).await;
    assert!(said.iter().all(|said| *said == stats::StatsResponse::NotAnswered));
    let asked = scene.calls().len();
    assert!(asked < 20, "{asked}");
    scene.volumes.drivers.set_driver(DRIVER, None);
    assert_eq!(
        stats::query_usage(&scene.volumes.drivers, &many[..1]).await,
        [stats::StatsResponse::NotAnswered]
    );
}
