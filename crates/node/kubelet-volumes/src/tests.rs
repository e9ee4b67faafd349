//! Tests of volumes of several Pods on one kubelet, with a recorded kernel.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use client::Client;
use k8s_openapi::api::core::v1::Pod;
use kubelet_objects::{Events, NodeInformer, Objects};
use parking_lot::{Condvar, Mutex};
use pod_core::fields::NodeFacts;
use serde_json::{Value, json};
use sys::mount::{Mounts, RecordedMounts};

use crate::{MountedVolumes, Operations, Tokens, VolumePath, Volumes, may_change};

/// A kernel whose mounts of one volume hang until they are released.
#[derive(Default)]
struct Hanging {
    recorded: RecordedMounts,
    let_go: Mutex<bool>,
    told: Condvar,
}

impl Hanging {
    fn let_go(&self) {
        *self.let_go.lock() = true;
        self.told.notify_all();
    }
}

impl Mounts for Hanging {
    fn tmpfs(&self, at: &Path, size: Option<u64>) -> Result<(), sys::Error> {
        if at.ends_with("hangs") {
            let mut held = self.let_go.lock();
            self.told.wait_while(&mut held, |let_go| !*let_go);
        }
        self.recorded.tmpfs(at, size)
    }

    fn huge_pages(&self, at: &Path, size: u64) -> Result<(), sys::Error> {
        self.recorded.huge_pages(at, size)
    }

    fn bind(&self, from: &Path, at: &Path) -> Result<(), sys::Error> {
        self.recorded.bind(from, at)
    }

    fn bind_held(&self, from: &sys::OpenPath, at: &Path) -> Result<(), sys::Error> {
        self.recorded.bind_held(from, at)
    }

    fn unmount(&self, at: &Path) -> Result<(), sys::Error> {
        self.recorded.unmount(at)
    }

    fn below(&self, path: &Path) -> Result<Vec<PathBuf>, sys::Error> {
        self.recorded.below(path)
    }

    fn make_shared(&self, at: &Path) -> Result<(), sys::Error> {
        self.recorded.make_shared(at)
    }
}

/// Returns the volumes of a kubelet, with an API server if there is a client.
pub(crate) fn volumes(root: &Path, mounts: Arc<dyn Mounts>, client: Option<Client>) -> Volumes {
    let tasks = rt::Tasks::new(rt::Shutdown::new());
    let clock: Arc<dyn rt::Clock> = Arc::new(rt::SystemClock);
    Volumes {
        root: root.to_owned(),
        node_name: "node".to_owned(),
        node: Arc::new(NodeInformer::new(client.as_ref(), "node", &tasks)),
        objects: Arc::new(Objects::new(client, &tasks)),
        events: Events::new(
            None,
            "node",
            kubelet_objects::RateLimit::unlimited(),
            clock.clone(),
            &tasks,
        ),
        mounts,
        programs: crate::VolumePrograms::default(),
        operations: Operations::new(Duration::from_secs(2)),
        drivers: Arc::default(),
        certificates: crate::Certificates::new(true),
        space: Arc::new(crate::VolumeSpace::new(8 << 30)),
        clock,
    }
}

pub(crate) fn pod(uid: &str, volumes: Value) -> Arc<Pod> {
    let pod = json!({"metadata": {"name": uid, "namespace": "default", "uid": uid},
        "spec": {"containers": [], "volumes": volumes}});
    Arc::new(serde_json::from_value(pod).unwrap())
}

async fn mounted(volumes: &Volumes, pod: &Arc<Pod>) -> Result<MountedVolumes, String> {
    let done = volumes.mount(pod, &NodeFacts::default, &Tokens::default()).await;
    done.map_err(|error| error.to_string())
}

#[tokio::test]
async fn hanging_mount_blocks_no_other_volume() {
    let dir = tempfile::tempdir().unwrap();
    let kernel = Arc::new(Hanging::default());
    let volumes = volumes(dir.path(), kernel.clone(), None);
    let memory = |name: &str| json!({"name": name, "emptyDir": {"medium": "Memory"}});
    let downward = json!({"name": "about", "downwardAPI": {"items": [
        {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}});
    let hung = pod("hung", json!([memory("hangs"), downward]));
    let (others, error) = tokio::join!(
        async {
            for number in 0..20 {
                let other = pod(&format!("other{number}"), json!([memory("cache")]));
                mounted(&volumes, &other).await.unwrap();
                volumes.unmount(&format!("other{number}")).await.unwrap();
            }
            true
        },
        mounted(&volumes, &hung),
    );
    let error = error.unwrap_err();
    let words = "MountVolume.SetUp failed for volume \"hangs\" : the volume's files, or its driver, have not answered";
    assert!(others && error.starts_with(words), "{error}");
    let about = dir.path().join("pods/hung/volumes/kubernetes.io~downward-api/about/name");
    assert_eq!(std::fs::read_to_string(about).unwrap(), "hung");
    // A running mount is neither repeated nor removed.
    assert!(mounted(&volumes, &hung).await.is_err() && volumes.unmount("hung").await.is_err());
    assert!(dir.path().join("pods/hung").is_dir());
    kernel.let_go();
    let at = mounted(&volumes, &hung).await.unwrap();
    assert!(kernel.is_mount_point(&at.path("hangs").unwrap().path).unwrap());
    assert_eq!(kernel.below(dir.path()).unwrap().len(), 1);
    volumes.unmount("hung").await.unwrap();
    assert!(!dir.path().join("pods/hung").exists());
    assert!(kernel.below(dir.path()).unwrap().is_empty());
}

#[tokio::test]
async fn only_volumes_in_memory_have_sticky_bit() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let volumes = volumes(dir.path(), Arc::new(RecordedMounts::default()), None);
    let memory = json!({"name": "memory", "emptyDir": {"medium": "Memory"}});
    let pod = pod("user", json!([memory, {"name": "disk", "emptyDir": {}}]));
    let paths = mounted(&volumes, &pod).await.unwrap();
    let mode = |volume: &str| {
        let path = &paths.path(volume).unwrap().path;
        path.metadata().unwrap().permissions().mode() & 0o7777
    };
    assert_eq!((mode("memory"), mode("disk")), (0o1777, 0o777));
}

#[tokio::test]
async fn mounts_huge_pages() {
    let dir = tempfile::tempdir().unwrap();
    let kernel = Arc::new(RecordedMounts::default());
    let volumes = volumes(dir.path(), kernel.clone(), None);
    let asking = |volume: &str| {
        let volumes = json!([{"name": "v", "emptyDir": {"medium": volume}}]);
        let mut pod = Pod::clone(&pod("huge", volumes));
        let limits = json!({"memory": "1Mi", "hugepages-2Mi": "4Mi"});
        let containers = json!([{"name": "c", "resources": {"limits": limits}}]);
        pod.spec.as_mut().unwrap().containers = serde_json::from_value(containers).unwrap();
        Arc::new(pod)
    };
    let pod = asking("HugePages-2Mi");
    for _ in 0..2 {
        mounted(&volumes, &pod).await.unwrap();
        assert_eq!(kernel.below(dir.path()).unwrap().len(), 1);
    }
    volumes.unmount("huge").await.unwrap();
    assert!(kernel.below(dir.path()).unwrap().is_empty());
    let error = mounted(&volumes, &asking("HugePages-1Gi")).await.unwrap_err();
    assert!(error.contains("there is no resource request for huge pages"), "{error}");
    assert!(kernel.below(dir.path()).unwrap().is_empty());
}

#[tokio::test]
async fn refuses_volumes_that_take_too_much_memory() {
    let dir = tempfile::tempdir().unwrap();
    let kernel = Arc::new(RecordedMounts::default());
    let api = testkit::FakeApi::default();
    let secret = json!({"metadata": {"name": "s", "namespace": "default"},
        "data": {"large": "QUJD".repeat(50_000)}});
    api.create(&client::Resource::SECRETS, secret).await;
    let volumes = volumes(dir.path(), kernel.clone(), Some(api.client("kubelet")));
    let items = |count: usize| -> Value {
        (0..count).map(|n| json!({"key": "large", "path": format!("f{n}")})).collect()
    };
    let secret = |count| json!({"secretName": "s", "items": items(count)});
    let sources = |count: usize| -> Value {
        (0..count)
            .map(|n| {
                json!({"secret": {"name": "s", "items": [
            {"key": "large", "path": format!("f{n}")}]}})
            })
            .collect()
    };
    for (source, words) in [
        (json!({"secret": secret(5000)}), "the files of the volume take more than 64 MiB"),
        (
            json!({"projected": {"sources": sources(2000)}}),
            "the files of the volume take more than 64 MiB",
        ),
    ] {
        let mut volume = source;
        volume["name"] = json!("v");
        let error = mounted(&volumes, &pod("p", json!([volume]))).await.unwrap_err();
        assert!(error.starts_with("MountVolume.SetUp failed for volume \"v\" : "), "{error}");
        assert!(error.contains(words), "{error}");
    }
    let many: Value = (0..1100).map(|n| json!({"name": format!("v{n}"), "emptyDir": {}})).collect();
    let error = mounted(&volumes, &pod("q", many)).await.unwrap_err();
    assert!(
        error.starts_with("MountVolume.SetUp failed for volume \"v1024\" : the volumes of the Pod take more than 64"),
        "{error}"
    );
    // Another Pod is not affected.
    mounted(&volumes, &pod("r", json!([{"name": "v", "secret": secret(2)}]))).await.unwrap();
    assert_eq!(kernel.sizes().last(), Some(&Some(128 << 20)));
    // The removal of 1,024 volumes may take longer than a caller waits.
    let unmounted =
        rt::retry(Duration::from_secs(60), Duration::ZERO, |_| true, || volumes.unmount("q"));
    unmounted.await.unwrap();
    mounted(&volumes, &pod("q", json!([{"name": "v", "secret": secret(2)}]))).await.unwrap();
}

#[test]
fn reports_which_volume_types_may_change() {
    for (source, changes) in [
        (json!({"emptyDir": {}}), false),
        (json!({"hostPath": {"path": "/"}}), false),
        (json!({"configMap": {"name": "a"}}), true),
        (json!({"secret": {"secretName": "a"}}), true),
        (json!({"projected": {"sources": []}}), true),
        (json!({"downwardAPI": {"items": []}}), true),
    ] {
        let mut volume = source.clone();
        volume["name"] = json!("v");
        assert_eq!(may_change(&pod("p", json!([volume]))), changes, "{source}");
    }
}

/// Returns a kubelet with a claim `data` and a volume `disk`, each merged with the given fields.
async fn with_claim(root: &Path, claim: Value, volume: Value) -> (Volumes, Arc<RecordedMounts>) {
    let api = testkit::FakeApi::default();
    let merge = |base: Value, more: Value| {
        let mut base = base;
        json_patch(&mut base, more);
        base
    };
    let made = json!({"metadata": {"name": "data", "namespace": "default", "uid": "u"},
        "spec": {"volumeName": "disk"}, "status": {"phase": "Bound"}});
    let claim = api.create(&client::Resource::PERSISTENT_VOLUME_CLAIMS, merge(made, claim)).await;
    let disk = json!({"metadata": {"name": "disk"}, "spec": {"claimRef": {
        "namespace": "default", "name": "data", "uid": claim["metadata"]["uid"]}}});
    api.create(&client::Resource::PERSISTENT_VOLUMES, merge(disk, volume)).await;
    let kernel = Arc::new(RecordedMounts::default());
    let mut volumes = volumes(root, kernel.clone(), Some(api.client("kubelet")));
    volumes.operations = Operations::default();
    (volumes, kernel)
}

fn json_patch(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                json_patch(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

fn user() -> Arc<Pod> {
    pod("db", json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]))
}

#[tokio::test]
async fn mounts_only_the_volume_of_the_pods_claim() {
    let dir = tempfile::tempdir().unwrap();
    let (srv, none) = (json!({"spec": {"hostPath": {"path": dir.path()}}}), json!({}));
    let with = |spec: Value| {
        let mut volume = srv.clone();
        json_patch(&mut volume, json!({ "spec": spec }));
        volume
    };
    let elsewhere = json!({"required": {"nodeSelectorTerms": [{"matchFields": [
        {"key": "metadata.name", "operator": "In", "values": ["other"]}]}]}});
    let going =
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["a/b"]}});
    for (claim, volume, words) in [
        (
            json!({"metadata": {"name": "other"}}),
            srv.clone(),
            "persistentvolumeclaim \"data\" not found",
        ),
        (
            json!({"metadata": {"namespace": "else"}}),
            srv.clone(),
            "persistentvolumeclaim \"data\" not found",
        ),
        (
            json!({"status": {"phase": "Pending"}}),
            srv.clone(),
            "PersistentVolumeClaim is not bound: \"default/data\"",
        ),
        (
            json!({"spec": {"volumeName": "none"}}),
            srv.clone(),
            "persistentvolume \"none\" not found",
        ),
        // A claim may name any volume, so the volume must refer back to the claim.
        (
            none.clone(),
            with(json!({"claimRef": {"namespace": "else"}})),
            "is not bound to PersistentVolumeClaim",
        ),
        (
            none.clone(),
            with(json!({"claimRef": {"uid": "former"}})),
            "is not bound to PersistentVolumeClaim",
        ),
        (none.clone(), with(json!({"claimRef": null})), "is not bound to PersistentVolumeClaim"),
        (none.clone(), with(json!({"nodeAffinity": elsewhere})), "no matching NodeSelectorTerms"),
        (none.clone(), with(json!({"volumeMode": "Block"})), "is a block volume"),
        (
            none.clone(),
            with(json!({"hostPath": null, "glusterfs": {"endpoints": "e", "path": "/"}})),
            "does not support",
        ),
        (going, srv.clone(), "PVC is being deleted"),
    ] {
        let case = format!("{claim} {volume}");
        let (volumes, _) = with_claim(&dir.path().join("kubelet"), claim, volume).await;
        let error = mounted(&volumes, &user()).await.unwrap_err();
        assert!(error.contains(words), "{case}: {error}");
    }
    let (volumes, _) = with_claim(&dir.path().join("kubelet"), none, srv).await;
    let at = mounted(&volumes, &user()).await.unwrap();
    assert_eq!(at.path("v").unwrap(), &VolumePath::new(dir.path().to_owned()));
    // The name is that of an ephemeral volume's claim, but the claim does not belong to this Pod.
    let thief =
        pod("da", json!([{"name": "ta", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}]));
    let named = json!({"metadata": {"name": "da-ta"}});
    let (volumes, _) = with_claim(&dir.path().join("kubelet"), named, json!({})).await;
    let error = mounted(&volumes, &thief).await.unwrap_err();
    assert!(error.contains("was not created for pod default/da (pod is not owner)"), "{error}");
}

#[tokio::test]
async fn mounts_local_volumes_and_creates_only_own_ones() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("kubelet");
    let (real, link) = (dir.path().join("real"), dir.path().join("link"));
    std::fs::create_dir(&real).unwrap();
    std::os::unix::fs::symlink("/", &link).unwrap();
    let local = |path: &Path| json!({"spec": {"local": {"path": path}}});
    let provisioned = |path: &Path| {
        let annotations = json!({"pv.kubernetes.io/provisioned-by": "windlass.local/volumes"});
        json!({"metadata": {"annotations": annotations}, "spec": {"local": {"path": path}}})
    };
    for (path, words) in [
        (link.clone(), "it is not a directory below another one"),
        (real.join("../real"), "must not contain '..'"),
        (dir.path().join("none"), "No such file"),
        (PathBuf::from("/"), "it is not a directory below another one"),
        // The path does not end with the volume's name, so the kubelet creates nothing.
        (root.join("local-volumes/other"), "No such file"),
    ] {
        let (volumes, _) = with_claim(&root, json!({}), provisioned(&path)).await;
        let error = mounted(&volumes, &user()).await.unwrap_err();
        assert!(error.contains(words), "{}: {error}", path.display());
    }
    std::fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(&real, &link).unwrap();
    let (volumes, kernel) = with_claim(&root, json!({}), local(&link)).await;
    let at = mounted(&volumes, &user()).await.unwrap().path("v").unwrap().path.clone();
    assert_eq!(at, root.join("pods/db/volumes/kubernetes.io~local-volume/disk"));
    assert_eq!(kernel.below(&root).unwrap(), [at]);
    let own = root.join("local-volumes/disk");
    let (volumes, _) = with_claim(&root, json!({}), provisioned(&own)).await;
    mounted(&volumes, &user()).await.unwrap();
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(own.metadata().unwrap().permissions().mode() & 0o7777, 0o777);
    std::fs::write(own.join("row"), "1").unwrap();
    volumes.unmount("db").await.unwrap();
    assert_eq!(std::fs::read_to_string(own.join("row")).unwrap(), "1", "it outlives its Pod");

    // A volume may have another path of the same directory.
    let other = dir.path().join("usual");
    std::os::unix::fs::symlink(&root, &other).unwrap();
    std::fs::remove_dir_all(&own).unwrap();
    let (volumes, _) =
        with_claim(&root, json!({}), provisioned(&other.join("local-volumes/disk"))).await;
    mounted(&volumes, &user()).await.unwrap();
    assert!(own.exists(), "the kubelet creates it");
}
