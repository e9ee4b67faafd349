//! Tests of the registration of correct and faulty plugins.

use std::{os::unix::net::UnixListener, sync::Arc};

use client::Resource;
use serde_json::{Value, json};
use sys::mount::RecordedMounts;
use testkit::{CsiDriver, FakeApi, Fault};

use super::*;

fn announced() -> PluginKey {
    PluginKey::Driver("disks.example.com".to_owned())
}

struct Scene {
    dir: tempfile::TempDir,
    api: FakeApi,
    watcher: PluginWatcher,
    tasks: rt::Tasks,
}

impl Scene {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let api = FakeApi::default();
        let node = json!({"metadata": {"name": "node", "labels": {"zone": "here"}}});
        api.create(&Resource::NODES, node).await;
        let tasks = rt::Tasks::new(rt::Shutdown::new());
        let root = dir.path();
        let watcher = PluginWatcher {
            root: root.to_owned(),
            node_name: "node".to_owned(),
            client: api.client("kubelet"),
            drivers: Arc::default(),
            devices: Arc::new(Devices::new(root, Arc::new(rt::SystemClock), &tasks)),
            claims: Arc::new(Claims::new(root, &Default::default(), &tasks).unwrap()),
        };
        Self { dir, api, watcher, tasks }
    }

    fn driver(&self, change: impl FnOnce(&mut CsiDriver)) -> Arc<CsiDriver> {
        let mounts = Arc::new(RecordedMounts::default());
        let mut driver = CsiDriver::new("disks.example.com", self.dir.path(), mounts);
        change(&mut driver);
        let driver = Arc::new(driver);
        driver.serve(&self.tasks).unwrap();
        driver.announce(&self.socket(), &self.tasks).unwrap();
        driver
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("reg.sock")
    }

    async fn register(&self) -> Result<PluginKey, String> {
        let done = self.watcher.register(&self.socket(), &BTreeMap::new()).await;
        done.map_err(|error| error.to_string())
    }

    fn csi_node(&self) -> Value {
        self.api.get(&Resource::CSI_NODES, "", "node").unwrap_or_default()
    }
}

#[tokio::test]
async fn publishes_driver_until_its_socket_disappears() {
    let scene = Scene::new().await;
    csi_node::create_csi_node(&scene.watcher.client, "node").await;
    assert_eq!(scene.csi_node()["spec"]["drivers"], json!([]));
    let driver = scene.driver(|driver| {
        driver.info.max_volumes_per_node = 7;
        let segments =
            [("rack".to_owned(), "r1".to_owned()), ("zone".to_owned(), "here".to_owned())];
        let segments = segments.into();
        driver.info.accessible_topology = Some(csi::v1::Topology { segments });
    });
    assert_eq!(scene.register().await.unwrap(), announced());
    assert_eq!(driver.registered(), [Ok(())]);
    let entry = json!({"name": "disks.example.com", "nodeID": "node",
        "topologyKeys": ["rack", "zone"], "allocatable": {"count": 7}});
    assert_eq!(scene.csi_node()["spec"]["drivers"], json!([entry]));
    assert_eq!(scene.csi_node()["metadata"]["ownerReferences"][0]["kind"], "Node");
    let node = || scene.api.get(&Resource::NODES, "", "node").unwrap();
    assert_eq!(node()["metadata"]["labels"]["rack"], "r1");
    let ids = &node()["metadata"]["annotations"]["csi.volume.kubernetes.io/nodeid"];
    assert_eq!(ids, "{\"disks.example.com\":\"node\"}");
    scene.watcher.unregister(&announced()).await;
    assert_eq!(scene.csi_node()["spec"]["drivers"], json!([]));
    assert!(node()["metadata"]["annotations"]["csi.volume.kubernetes.io/nodeid"].is_null());
}

#[tokio::test]
async fn updates_volume_limit_of_drivers_that_declare_an_interval() {
    let scene = Scene::new().await;
    let name = "disks.example.com";
    scene.driver(|driver| driver.info.max_volumes_per_node = 7);
    scene.register().await.unwrap();
    let count = || scene.csi_node()["spec"]["drivers"][0]["allocatable"]["count"].clone();
    assert_eq!(count(), 7);
    let client = &scene.watcher.client;
    csi_node::set_count(client, "node", name, 3).await.unwrap();
    assert_eq!(count(), 3);
    let before = scene.csi_node();
    csi_node::set_count(client, "node", "other.example.com", 3).await.unwrap();
    assert!(csi_node::set_count(client, "node", name, -1).await.is_err());
    assert_eq!(scene.csi_node(), before, "a driver that is not registered gets no entry");

    let drivers = &scene.watcher.drivers;
    let limits = VolumeLimits::new(client.clone(), "node", drivers.clone(), &scene.tasks);
    scene.tasks.spawn_until_shutdown("limits", limits.run());
    // Without an interval, nothing is updated even if the node is full.
    drivers.set_exhausted(name);
    tokio::time::timeout(std::time::Duration::from_secs(20), async {
        while !drivers.exhausted().borrow().is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    assert_eq!(count(), 3);
    let declared =
        json!({"metadata": {"name": name}, "spec": {"nodeAllocatableUpdatePeriodSeconds": 3600}});
    scene.api.create(&Resource::CSI_DRIVERS, declared).await;
    scene
        .api
        .until("the driver is asked", |api| {
            drivers.set_exhausted(name);
            let node = api.get(&Resource::CSI_NODES, "", "node").unwrap_or_default();
            node["spec"]["drivers"][0]["allocatable"]["count"] == 7
        })
        .await;
}

#[tokio::test]
async fn rejects_invalid_drivers_and_notifies_them() {
    for (change, words) in [
        (
            (|d| d.plugin.r#type = "Oracle".to_owned()) as fn(&mut CsiDriver),
            "no handler registered for plugin type: Oracle",
        ),
        (|d| d.plugin.name = "../../etc".to_owned(), "invalid driver name"),
        (
            |d| {
                let name = "a,spec.nodeName=other".to_owned();
                (d.plugin.r#type, d.plugin.name) = ("DRAPlugin".to_owned(), name);
            },
            "invalid driver name",
        ),
        (
            |d| d.plugin.r#type = "DRAPlugin".to_owned(),
            "none of services supported by the plugin ([\"1.0.0\"])",
        ),
        (|d| d.plugin.name = String::new(), "invalid driver name"),
        (|d| d.plugin.name = "x".repeat(64), "invalid driver name"),
        (
            |d| d.plugin.supported_versions = vec!["0.3.0".to_owned(), "2.0.0".to_owned()],
            "none of the versions specified",
        ),
        (|d| d.plugin.endpoint = "/nowhere.sock".to_owned(), "failed to get node info"),
        (|d| d.info.node_id = String::new(), "no node ID"),
        (|d| d.info.max_volumes_per_node = -1, "-1 volumes"),
        (
            |d| {
                let segments = [("zone".to_owned(), "elsewhere".to_owned())].into();
                d.info.accessible_topology = Some(csi::v1::Topology { segments });
            },
            "detected topology value collision: driver reported \"zone\":\"elsewhere\"",
        ),
        (|d| d.set_fault("NodeGetInfo", Some(Fault::Huge)), "failed to get node info"),
    ] {
        let scene = Scene::new().await;
        let driver = scene.driver(change);
        let error = scene.register().await.unwrap_err();
        assert!(error.contains(words), "{error:.300}");
        let told = driver.registered();
        assert!(matches!(&told[..], [Err(why)] if why.contains(words)), "{words}");
        let drivers = scene.csi_node();
        assert!(drivers.is_null() || drivers["spec"]["drivers"] == json!([]), "{words}");
    }
}

#[tokio::test]
async fn rejects_socket_that_does_not_speak_grpc() {
    let scene = Scene::new().await;
    let listener = UnixListener::bind(scene.socket()).unwrap();
    let garbage = std::thread::spawn(move || {
        use std::io::Write as _;
        // The client reconnects once before it fails.
        for stream in listener.incoming().take(1) {
            stream.unwrap().write_all(b"SSH-2.0-OpenSSH\r\n").unwrap();
        }
    });
    let error = scene.register().await.unwrap_err();
    assert!(error.starts_with("failed to get plugin info using RPC GetInfo at socket"), "{error}");
    garbage.join().unwrap();
}

#[test]
fn finds_sockets_and_detects_replaced_ones() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("below")).unwrap();
    std::fs::write(dir.path().join("file"), "").unwrap();
    let path = |name: &str| dir.path().join(name);
    let first = UnixListener::bind(path("a.sock")).unwrap();
    let others =
        [".hidden.sock", "below/b.sock"].map(|name| UnixListener::bind(path(name)).unwrap());
    std::os::unix::fs::symlink(path("a.sock"), path("link.sock")).unwrap();
    let there = sockets(dir.path());
    let names: Vec<_> = there.keys().cloned().collect();
    assert_eq!(names, [path("a.sock"), path("below/b.sock")]);
    let known = |driver: &str, at: &str| SocketState {
        plugin: Some(PluginKey::Driver(driver.to_owned())),
        stamp: there.get(&path(at)).copied(),
        ..SocketState::default()
    };
    let mut seen: BTreeMap<PathBuf, SocketState> =
        [("a.sock", "a"), ("below/b.sock", "b")].map(|(at, d)| (path(at), known(d, at))).into();
    assert!(missing(&mut seen, &there).is_empty());
    drop((first, others));
    std::fs::remove_file(path("below/b.sock")).unwrap();
    let mut anew = sockets(dir.path());
    anew.values_mut().for_each(|stamp| stamp.0 += 1);
    let gone = missing(&mut seen, &anew);
    assert_eq!(gone.len(), 2, "{gone:?}");
    assert!(seen.is_empty());
}

#[tokio::test]
async fn registers_device_plugins_by_their_socket() {
    let scene = Scene::new().await;
    let plugin = Arc::new(testkit::DevicePlugin::new("example.com/fpga", &["a"]));
    let socket = scene.dir.path().join("fpga.sock");
    plugin.serve(&socket, &scene.tasks).unwrap();
    let announce = |change: fn(&mut csi::registration::PluginInfo)| {
        let driver = scene.driver(|driver| {
            driver.plugin.r#type = "DevicePlugin".to_owned();
            driver.plugin.name = "example.com/fpga".to_owned();
            driver.plugin.endpoint = socket.display().to_string();
            driver.plugin.supported_versions = vec!["v1beta1".to_owned()];
            change(&mut driver.plugin);
        });
        drop(driver);
    };
    type Change = fn(&mut csi::registration::PluginInfo);
    let wrong: [(Change, &str); 3] = [
        (
            |p| p.supported_versions = vec!["v1".to_owned()],
            "is not among plugin supported versions",
        ),
        (
            |p| p.name = "kubernetes.io/x".to_owned(),
            "the ResourceName \"kubernetes.io/x\" is invalid",
        ),
        (|p| p.endpoint = "/nowhere".to_owned(), "failed to get device plugin options"),
    ];
    for (change, words) in wrong {
        announce(change);
        let error = scene.register().await.unwrap_err();
        assert!(error.contains(words), "{error}");
    }
    let mut changes = scene.watcher.devices.changes();
    announce(|_| {});
    let announced = scene.register().await.unwrap();
    changes.changed().await.unwrap();
    let count = async || scene.watcher.devices.count().await["example.com/fpga"];
    assert_eq!((count().await.capacity, count().await.allocatable), (1, 1));
    scene.watcher.unregister(&announced).await;
    assert_eq!((count().await.capacity, count().await.allocatable), (1, 0));
}

#[test]
fn supports_versions_of_csi_1() {
    for (version, supported) in [
        ("1.0.0", true),
        ("v1.9.0", true),
        ("1", true),
        ("0.3.0", false),
        ("2.0", false),
        ("1.x", false),
        ("", false),
    ] {
        assert_eq!(is_supported(version), supported, "{version}");
    }
}
