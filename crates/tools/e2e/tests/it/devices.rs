//! Devices of a device plugin that the test implements: a device keeps its Pod when the kubelet is killed.

use std::{fs, path::Path, sync::Arc, time::SystemTime};

use e2e::{shared_alone, until};
use testkit::{DevicePlugin, device_plugin::device};

const RESOURCE: &str = "e2e.example.com/fpga";

const POD: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  MORE
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: box:1
    command: [sh, -c, "exec sleep 100000"]
    resources: {limits: {e2e.example.com/fpga: 1}}
"#;

fn pod(name: &str, more: &str) -> String {
    POD.replace("NAME", name).replace("MORE", more)
}

/// Registers the plugin with a kubelet whose socket's modification time is not `before`. Returns the socket's time.
fn register(
    runtime: &tokio::runtime::Runtime,
    plugin: &DevicePlugin,
    directory: &Path,
    before: SystemTime,
) -> SystemTime {
    let socket = directory.join("kubelet.sock");
    until("the plugin is registered", || {
        let own = fs::metadata(&socket).and_then(|meta| meta.modified());
        let own = own.map_err(|error| error.to_string())?;
        if own == before {
            return Err("the socket is the previous kubelet's".to_owned());
        }
        let done = runtime.block_on(plugin.register(directory, "fpga/plugin.sock"));
        done.map(|()| own).map_err(|status| status.to_string())
    })
}

#[test]
fn device_keeps_its_pod_across_kubelet_restarts() {
    let s = shared_alone("devices");
    let directory = s.cluster.root().join("var/lib/kubelet/device-plugins");
    // The kubelet removes sockets from its own directory, not from those below it.
    fs::create_dir_all(directory.join("fpga")).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _inside = runtime.enter();
    let tasks = rt::Tasks::new(rt::Shutdown::new());
    let plugin = Arc::new(DevicePlugin::new(RESOURCE, &["left"]));
    plugin.serve(&directory.join("fpga/plugin.sock"), &tasks).unwrap();
    let first = register(&runtime, &plugin, &directory, SystemTime::UNIX_EPOCH);
    let resources = "get node -o jsonpath={.items[0].status['capacity','allocatable'].e2e\\.example\\.com/fpga}";
    s.until(resources, |counts| counts == "1 1");

    s.apply(&pod("one", ""));
    let running = |name: &str| {
        s.until(&format!("get pod {name} -o jsonpath={{.status.phase}}"), |phase| {
            phase == "Running"
        })
    };
    running("one");
    assert!(s.kubectl("exec one -- env").ok().lines().any(|line| line == "DEVICES=left"));
    let health = "get pod one -o jsonpath={.status.containerStatuses[0].allocatedResourcesStatus[0].resources[0]['resourceID','health']}";
    s.until(health, |text| text == "left Healthy");
    s.apply(&pod("two", ""));
    let why = "get pod two -o jsonpath={.status.conditions[?(@.type=='PodScheduled')].message}";
    s.until(why, |text| text.contains("Insufficient e2e.example.com/fpga"));
    // This Pod bypasses the scheduler.
    let node = s.kubectl("get node -o jsonpath={.items[0].metadata.name}").ok();
    s.apply(&pod("three", &format!("nodeName: {node}")));
    let refused = "get pod three -o jsonpath={.status.reason}:{.status.message}";
    s.until(refused, |text| {
        text == "UnexpectedAdmissionError:Pod was rejected: Allocate failed due to requested number of devices unavailable for e2e.example.com/fpga. Requested: 1, Available: 0, which is unexpected"
    });

    let status =
        "get pod one -o jsonpath={.status.containerStatuses[0]['containerID','restartCount']}";
    let before = s.kubectl(status).ok();
    s.cluster.kill("agent");
    register(&runtime, &plugin, &directory, first);
    s.until(resources, |counts| counts == "1 1");
    s.apply(&pod("four", &format!("nodeName: {node}")));
    s.until("get pod four -o jsonpath={.status.reason}", |text| text == "UnexpectedAdmissionError");
    assert_eq!(s.kubectl(status).ok(), before, "the Pod was restarted");
    assert_eq!(s.kubectl("get pod two -o jsonpath={.status.phase}").ok(), "Pending");

    s.kubectl("delete pod one --wait=false").ok();
    running("two");
    let calls = plugin.calls();
    let allocations: Vec<&String> =
        calls.iter().filter(|call| call.starts_with("Allocate")).collect();
    assert_eq!(allocations, ["Allocate left", "Allocate left"], "{calls:?}");

    plugin.set_devices(vec![device("left", "Unhealthy", None)]);
    s.until(resources, |counts| counts == "1 0");
    s.until(&health.replace("pod one", "pod two"), |text| text == "left Unhealthy");
    plugin.set_devices(vec![device("left", "Healthy", None)]);
    s.until(resources, |counts| counts == "1 1");
    tasks.shutdown().stop();
    s.until(resources, |counts| counts == "1 0");
}
