//! Tests of devices with correct and faulty plugins.

use std::fs;

use deviceplugin::v1beta1::{ContainerAllocateResponse, DeviceSpec, Mount};
use futures_util::FutureExt as _;
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use testkit::{
    DevicePlugin, Fault,
    device_plugin::{device, register},
};

use super::{allocation::DeviceSettings, *};
use crate::placement::Placement;

const R: &str = "example.com/fpga";

struct Scene {
    root: tempfile::TempDir,
    tasks: rt::Tasks,
    devices: Arc<Devices>,
    placement: Placement,
}

impl Scene {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let tasks = rt::Tasks::new(rt::Shutdown::new());
        let devices = Arc::new(Devices::new(root.path(), Arc::new(rt::SystemClock), &tasks));
        server::serve(&devices).unwrap();
        let placement = Placement::without_policies(root.path(), devices.clone());
        Self { root, tasks, devices, placement }
    }

    /// Simulates a kubelet that was killed and restarted.
    fn restart(&mut self) {
        self.tasks.shutdown().stop();
        self.tasks = rt::Tasks::new(rt::Shutdown::new());
        let (root, clock) = (self.root.path(), Arc::new(rt::SystemClock));
        self.devices = Arc::new(Devices::new(root, clock, &self.tasks));
        self.placement = Placement::without_policies(root, self.devices.clone());
        server::serve(&self.devices).unwrap();
    }

    fn directory(&self) -> PathBuf {
        self.root.path().join("device-plugins")
    }

    /// Starts a plugin and waits until its devices are known.
    async fn plugin(&self, resource: &str, change: impl FnOnce(&mut DevicePlugin)) -> Running {
        let mut plugin = DevicePlugin::new(resource, &["a", "b"]);
        change(&mut plugin);
        let (plugin, tasks) = (Arc::new(plugin), rt::Tasks::new(rt::Shutdown::new()));
        let mut changes = self.devices.changes();
        let endpoint = format!("{}.sock", rt::id());
        plugin.serve(&self.directory().join(&endpoint), &tasks).unwrap();
        plugin.register(&self.directory(), &endpoint).await.unwrap();
        changes.changed().await.unwrap();
        Running { plugin, tasks }
    }

    async fn count(&self, resource: &str) -> (usize, usize) {
        let count = self.devices.count().await.get(resource).copied().unwrap_or_default();
        (count.capacity, count.allocatable)
    }

    async fn admit(&self, pod: &Pod) -> Result<(), String> {
        self.placement.admit(pod).await.map_err(|r| format!("{}: {}", r.reason, r.message))
    }

    async fn start(&self, pod: &Pod) -> Result<DeviceSettings, String> {
        let container = &pod.spec.as_ref().unwrap().containers[0];
        self.devices.for_start(pod, container).await.map_err(|error| error.to_string())
    }
}

struct Running {
    plugin: Arc<DevicePlugin>,
    tasks: rt::Tasks,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.tasks.shutdown().stop();
    }
}

fn pod(uid: &str, resource: &str, amount: usize) -> Pod {
    let limits = json!({"limits": {resource: amount.to_string(), "cpu": "1"}});
    let pod = json!({"metadata": {"uid": uid, "name": uid},
        "spec": {"containers": [{"name": "c", "resources": limits}]}});
    serde_json::from_value(pod).unwrap()
}

#[tokio::test]
async fn keeps_allocated_device_when_the_kubelet_is_killed() {
    let mut scene = Scene::new();
    let running = scene
        .plugin(R, |plugin| {
            plugin.options.pre_start_required = true;
            plugin.options.get_preferred_allocation_available = true;
            plugin.preferred = vec!["nonsense".to_owned(), "b".to_owned()];
            plugin.answer = ContainerAllocateResponse {
                mounts: vec![Mount {
                    container_path: "/x".into(),
                    host_path: "/y".into(),
                    read_only: true,
                }],
                devices: vec![
                    DeviceSpec { container_path: "/dev/x".into(), ..Default::default() };
                    2
                ],
                annotations: [("note".to_owned(), "1".to_owned())].into(),
                cdi_devices: vec![deviceplugin::v1beta1::CdiDevice {
                    name: "example.com/fpga=b".into(),
                }],
                ..Default::default()
            };
        })
        .await;
    assert_eq!(scene.count(R).await, (2, 2));
    let (one, two) = (pod("one", R, 1), pod("two", R, 2));
    scene.admit(&one).await.unwrap();
    // The kubelet is killed before the container starts. After the restart the plugin has not registered yet.
    scene.restart();
    assert_eq!(scene.count(R).await, (0, 0));
    scene.admit(&one).await.unwrap();
    let given = scene.start(&one).await.unwrap();
    assert_eq!(given.envs["DEVICES"], "b");
    assert!(given.mounts[0].readonly && given.mounts[0].host_path == "/y");
    assert_eq!((given.devices.len(), given.cdi[0].name.as_str()), (1, "example.com/fpga=b"));
    assert_eq!(given.annotations["note"], "1");
    let error = scene.admit(&two).await.unwrap_err();
    assert_eq!(
        error,
        format!(
            "UnexpectedAdmissionError: Allocate failed due to no healthy devices present; cannot allocate unhealthy devices {R}, which is unexpected"
        )
    );

    let mut changes = scene.devices.changes();
    running.plugin.serve(&scene.directory().join("again.sock"), &running.tasks).unwrap();
    running.plugin.register(&scene.directory(), "again.sock").await.unwrap();
    changes.changed().await.unwrap();
    let error = scene.admit(&two).await.unwrap_err();
    assert!(error.contains("Requested: 2, Available: 1"), "{error}");
    scene.start(&one).await.unwrap();
    let allocated = |call: &&String| call.starts_with("Allocate");
    let calls = running.plugin.calls();
    assert_eq!(calls.iter().filter(allocated).count(), 1, "{calls:?}");
    assert!(calls.contains(&"PreStartContainer b".to_owned()), "{calls:?}");
    scene.placement.release("one").await;
    scene.restart();
    assert!(scene.devices.holders().is_empty());
}

#[tokio::test]
async fn reports_device_health_to_node_and_pods() {
    let scene = Scene::new();
    let running = scene.plugin(R, |_| {}).await;
    scene.admit(&pod("one", R, 1)).await.unwrap();
    let mut changes = scene.devices.changes();
    running.plugin.set_devices(vec![device("a", "on fire", None), device("b", HEALTHY, Some(3))]);
    changes.changed().await.unwrap();
    assert_eq!(scene.count(R).await, (2, 1));
    assert_eq!(scene.devices.take_changed_pods(), ["one".to_owned()].into());
    let status = json!({"containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0}]});
    let mut status: PodStatus = serde_json::from_value(status).unwrap();
    scene.devices.describe("one", &mut status);
    let told =
        serde_json::to_value(&status.container_statuses.unwrap()[0].allocated_resources_status);
    let expected = json!([{"name": R, "resources": [{"resourceID": "a", "health": "Unhealthy"}]}]);
    assert_eq!(told.unwrap(), expected);
    running.tasks.shutdown().stop();
    while scene.count(R).await != (2, 0) {
        changes.changed().await.unwrap();
    }
}

#[tokio::test]
async fn rejects_invalid_registrations() {
    let scene = Scene::new();
    let directory = scene.directory();
    for (version, endpoint, resource, words) in [
        ("v1alpha", "x.sock", R, "requested API version \"v1alpha\" is not supported by kubelet"),
        ("v1beta1", "x.sock", "cpu", "the ResourceName \"cpu\" is invalid"),
        ("v1beta1", "x.sock", "a/b/../c", "is invalid"),
        ("v1beta1", "../../x.sock", R, "is not a path below"),
        ("v1beta1", "/run/x.sock", R, "is not a path below"),
        ("v1beta1", "", R, "is not a path below"),
        ("v1beta1", "nobody.sock", R, "failed to get device plugin options"),
    ] {
        let error = register(&directory, version, endpoint, resource).await.unwrap_err();
        assert!(error.message().contains(words), "{error}");
    }
    assert_eq!(scene.count(R).await, (0, 0));
}

#[tokio::test]
async fn hanging_plugin_blocks_only_pods_that_need_its_devices() {
    let scene = Scene::new();
    let slow = scene.plugin("example.com/slow", |_| {}).await;
    let _quick = scene.plugin(R, |_| {}).await;
    slow.plugin.set_fault("Allocate", Some(Fault::Hang));
    let stuck = pod("stuck", "example.com/slow", 1);
    tokio::select! {
        biased;
        _ = scene.admit(&stuck) => unreachable!("it was answered"),
        // Wait until the plugin has been called.
        () = async { while !slow.plugin.calls().contains(&"Allocate a".to_owned()) { tokio::task::yield_now().await } } => {}
    }
    tokio::select! {
        biased;
        _ = scene.admit(&stuck) => unreachable!("it was answered"),
        done = async { scene.admit(&pod("one", R, 2)).await } => done.unwrap(),
    }
    // The caller that stopped waiting holds no device.
    assert_eq!(scene.devices.holders(), ["one"]);
    slow.plugin.set_fault("Allocate", Some(Fault::Refuse(testkit::Code::Internal, "no".into())));
    let error = scene.admit(&stuck).await.unwrap_err();
    assert!(error.contains("rpc error: code = Internal desc = no"), "{error}");
    slow.plugin.set_fault("Allocate", None);
    scene.admit(&stuck).await.unwrap();
}

#[tokio::test]
async fn waits_for_devices_of_an_ending_pod() {
    let scene = Scene::new();
    let running = scene.plugin(R, |_| {}).await;
    scene.admit(&pod("one", R, 2)).await.unwrap();
    assert!(scene.admit(&pod("two", R, 1)).await.unwrap_err().contains("Available: 0"));
    scene.placement.mark_ending("one");
    let two = pod("two", R, 1);
    let admitted = scene.admit(&two);
    tokio::pin!(admitted);
    assert!(admitted.as_mut().now_or_never().is_none(), "they are another's");
    assert_eq!(running.plugin.calls().iter().filter(|c| c.starts_with("Allocate")).count(), 1);
    scene.placement.release("one").await;
    admitted.await.unwrap();
    assert_eq!(scene.devices.holders(), ["two"]);
    // A Pod without devices is not tracked.
    scene.placement.mark_ending("nobody");
    assert!(!scene.placement.has_ending_pods());
}

#[tokio::test]
async fn drops_device_list_beyond_the_message_limit() {
    let scene = Scene::new();
    let running = scene.plugin(R, |_| {}).await;
    let mut changes = scene.devices.changes();
    let many = (0..1_000_000).map(|n| device(&n.to_string(), HEALTHY, None)).collect();
    running.plugin.set_devices(many);
    changes.changed().await.unwrap();
    assert_eq!(scene.count(R).await, (2, 0));
    assert!(scene.admit(&pod("one", R, 1)).await.unwrap_err().contains("no healthy devices"));
}

#[tokio::test]
async fn last_plugin_of_a_resource_wins() {
    let scene = Scene::new();
    let first = scene.plugin(R, |_| {}).await;
    let second =
        scene.plugin(R, |plugin| plugin.set_devices(vec![device("z", HEALTHY, None)])).await;
    first.plugin.set_devices(vec![device("old", HEALTHY, None)]);
    scene.admit(&pod("one", R, 1)).await.unwrap();
    assert!(second.plugin.calls().contains(&"Allocate z".to_owned()));
    assert_eq!(scene.count(R).await, (1, 1));
}

#[tokio::test]
async fn allocates_nothing_if_checkpoint_cannot_be_written() {
    let scene = Scene::new();
    let _running = scene.plugin(R, |_| {}).await;
    let path = scene.directory().join(CHECKPOINT);
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    let error = scene.admit(&pod("one", R, 1)).await.unwrap_err();
    assert!(error.contains("failed to write checkpoint file"), "{error}");
    assert!(scene.devices.holders().is_empty());
    fs::remove_dir(&path).unwrap();
    scene.admit(&pod("one", R, 1)).await.unwrap();
}

#[tokio::test]
async fn allocates_again_after_checkpoint_was_damaged() {
    let mut scene = Scene::new();
    let running = scene.plugin(R, |_| {}).await;
    let one = pod("one", R, 1);
    scene.admit(&one).await.unwrap();
    fs::write(scene.directory().join(CHECKPOINT), "{\"Data\":").unwrap();
    scene.restart();
    running.plugin.serve(&scene.directory().join("again.sock"), &running.tasks).unwrap();
    let mut changes = scene.devices.changes();
    running.plugin.register(&scene.directory(), "again.sock").await.unwrap();
    changes.changed().await.unwrap();
    assert_eq!(scene.start(&one).await.unwrap().envs["DEVICES"], "a");
    assert!(fs::read_to_string(scene.directory().join(CHECKPOINT)).unwrap().contains("one"));
}
