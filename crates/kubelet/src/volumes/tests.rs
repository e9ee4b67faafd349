//! Volumes of several Pods on one kubelet, with a recorded kernel.

use std::{
    sync::{Condvar, Mutex},
    time::Duration,
};

use serde_json::{Value, json};
use sys::mount::RecordedMounts;

use super::*;

/// A kernel whose mounts of one volume do not come back before they are let go.
#[derive(Default)]
struct Hanging {
    recorded: RecordedMounts,
    let_go: Mutex<bool>,
    told: Condvar,
}

impl Hanging {
    fn let_go(&self) {
        *self.let_go.lock().unwrap() = true;
        self.told.notify_all();
    }
}

impl Mounts for Hanging {
    fn tmpfs(&self, at: &Path, size: Option<u64>) -> Result<(), sys::Error> {
        if at.ends_with("hangs") {
            let held = self.let_go.lock().unwrap();
            drop(self.told.wait_while(held, |let_go| !*let_go).unwrap());
        }
        self.recorded.tmpfs(at, size)
    }

    fn bind(&self, from: &Path, at: &Path) -> Result<(), sys::Error> {
        self.recorded.bind(from, at)
    }

    fn bind_held(&self, from: &sys::Held, at: &Path) -> Result<(), sys::Error> {
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

fn context(root: &Path, mounts: Arc<dyn Mounts>) -> Context {
    let place = crate::Place {
        node_name: "node".to_owned(),
        node_ips: vec!["192.0.2.1".to_owned()],
        root: root.to_owned(),
        cert_dir: root.join("pki"),
        labels: Default::default(),
    };
    let settings = crate::Settings::new(&Default::default(), place).unwrap();
    let tasks = rt::Tasks::new(rt::Shutdown::new());
    let clock: Arc<dyn rt::Clock> = Arc::new(rt::SystemClock);
    Context {
        machine: crate::machine::Machine::read(),
        runtime_name: "test".to_owned(),
        objects: crate::objects::Objects::new(None, &tasks),
        node: crate::node::Own::new(None, "node", &tasks),
        events: crate::events::Events::new(None, "node", clock.clone(), &tasks),
        cgroups: Box::new(sys::cgroup::RecordedCgroups::default()),
        mounts,
        operations: Operations::new(Duration::from_millis(50)),
        pulls: tokio::sync::Semaphore::new(1),
        mirrors: Default::default(),
        pressures: Default::default(),
        pull_records: crate::pulls::PullRecords::new(root, settings.verification.clone()),
        client: None,
        clock,
        cri: cri::Client::new("unix:///none", Duration::from_secs(1)),
        tasks,
        settings,
    }
}

fn pod(uid: &str, volumes: Value) -> Arc<Pod> {
    let pod = json!({"metadata": {"name": uid, "namespace": "default", "uid": uid},
        "spec": {"containers": [], "volumes": volumes}});
    Arc::new(serde_json::from_value(pod).unwrap())
}

async fn mounted(ctx: &Context, pod: &Arc<Pod>) -> Result<Mounted, String> {
    set_up(ctx, pod, &[], &Tokens::default()).await.map_err(|error| error.to_string())
}

#[tokio::test]
async fn a_mount_that_hangs_stops_neither_other_pods_nor_the_pods_other_volumes() {
    let dir = tempfile::tempdir().unwrap();
    let kernel = Arc::new(Hanging::default());
    let ctx = context(dir.path(), kernel.clone());
    let memory = |name: &str| json!({"name": name, "emptyDir": {"medium": "Memory"}});
    let downward = json!({"name": "about", "downwardAPI": {"items": [
        {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}});
    let hung = pod("hung", json!([memory("hangs"), downward]));
    let (others, error) = tokio::join!(
        async {
            for number in 0..20 {
                let other = pod(&format!("other{number}"), json!([memory("cache")]));
                mounted(&ctx, &other).await.unwrap();
                tear_down(&ctx, &format!("other{number}")).await.unwrap();
            }
            true
        },
        mounted(&ctx, &hung),
    );
    let error = error.unwrap_err();
    let words =
        "MountVolume.SetUp failed for volume \"hangs\" : the volume's files have not answered";
    assert!(others && error.starts_with(words), "{error}");
    let about = dir.path().join("pods/hung/volumes/kubernetes.io~downward-api/about/name");
    assert_eq!(std::fs::read_to_string(about).unwrap(), "hung");
    // It is neither mounted twice nor removed under the mount that is under way.
    assert!(mounted(&ctx, &hung).await.is_err() && tear_down(&ctx, "hung").await.is_err());
    assert!(dir.path().join("pods/hung").is_dir());
    kernel.let_go();
    let at = mounted(&ctx, &hung).await.unwrap();
    assert!(kernel.is_mount_point(&at.path("hangs").unwrap().path).unwrap());
    assert_eq!(kernel.below(dir.path()).unwrap().len(), 1);
    tear_down(&ctx, "hung").await.unwrap();
    assert!(!dir.path().join("pods/hung").exists());
    assert!(kernel.below(dir.path()).unwrap().is_empty());
}

#[test]
fn a_volume_is_of_one_type_and_only_what_shows_objects_changes() {
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
