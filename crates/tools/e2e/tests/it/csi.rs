//! Volumes of a CSI driver that the test implements: a PersistentVolume that must be attached, and an inline volume.

use std::sync::Arc;

use e2e::shared;
use serde_json::json;
use sys::mount::HostMounts;
use testkit::{Code, CsiDriver, Fault};

const DRIVER: &str = "disks.e2e.example.com";

const OBJECTS: &str = r#"
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: disks.e2e.example.com}
spec: {podInfoOnMount: true, volumeLifecycleModes: [Persistent, Ephemeral], fsGroupPolicy: File}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: e2e-disk}
spec:
  accessModes: [ReadWriteOnce]
  capacity: {storage: 1Gi}
  storageClassName: e2e-disks
  persistentVolumeReclaimPolicy: Retain
  csi: {driver: disks.e2e.example.com, volumeHandle: vol-1, fsType: ext4}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: e2e-disks
  resources: {requests: {storage: 1Gi}}
"#;

const POD_SPEC: &str = r#"
  terminationGracePeriodSeconds: 0
  securityContext: {runAsUser: 1234, runAsGroup: 1234, fsGroup: 4321}
  volumes:
  - {name: data, persistentVolumeClaim: {claimName: data}}
  - {name: own, csi: {driver: disks.e2e.example.com}}
  containers:
  - name: c
    image: box:1
    command: [sh, -c, "echo NAME >> /data/rows; echo NAME > /own/x; exec sleep 100000"]
    volumeMounts: [{name: data, mountPath: /data}, {name: own, mountPath: /own}]
"#;

#[test]
fn csi_volume_is_attached_staged_published_and_unmounted() {
    let s = shared("csi");
    let kubelet = s.cluster.root().join("var/lib/kubelet");
    let place = kubelet.join("plugins").join(DRIVER);
    std::fs::create_dir_all(&place).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _inside = runtime.enter();
    let tasks = rt::Tasks::new(rt::Shutdown::new());
    let mut driver = CsiDriver::new(DRIVER, &place, Arc::new(HostMounts));
    driver.info.node_id = "e2e-node".to_owned();
    // The kubelet and drivers in Pods use the usual path, at which the test has another directory.
    driver.kubelet = Some(("/var/lib/kubelet".into(), kubelet.clone()));
    driver.plugin.endpoint = format!("/var/lib/kubelet/plugins/{DRIVER}/csi.sock");
    let driver = Arc::new(driver);
    driver.serve(&tasks).unwrap();
    let registrar = kubelet.join("plugins_registry/e2e.sock");
    driver.announce(&registrar, &tasks).unwrap();
    s.apply(OBJECTS);
    s.until("get csinode -o jsonpath={.items[*].spec.drivers[*].nodeID}", |text| {
        text.contains("e2e-node")
    });

    // The test is the attacher. The kubelet does not call the driver before the volume is attached.
    driver
        .set_fault("NodePublishVolume", Some(Fault::Refuse(Code::Internal, "no disk".to_owned())));
    s.apply(&e2e::pod("one", &POD_SPEC.replace("NAME", "one")));
    let attachment = s
        .until("get volumeattachments -o jsonpath={.items[*].metadata.name}", |text| {
            text.starts_with("csi-")
        });
    assert!(driver.stages().is_empty());
    let status =
        json!({"status": {"attached": true, "attachmentMetadata": {"slot": "7"}}}).to_string();
    let patch =
        ["patch", "volumeattachment", &attachment, "--subresource=status", "--type=merge", "-p"];
    s.kubectl_with(&[&patch[..], &[&status]].concat(), "").ok();
    s.until("get events -o jsonpath={.items[*].message}", |text| {
        text.contains("AttachVolume.Attach succeeded for volume \"e2e-disk\"")
            && text.contains("MountVolume.SetUp failed for volume \"e2e-disk\" : rpc error: code = Internal desc = no disk")
    });
    driver.set_fault("NodePublishVolume", None);
    let running = "get pod one -o jsonpath={.status.phase}";
    s.until(running, |phase| phase == "Running");
    assert_eq!(driver.stages()[0].publish_context["slot"], "7");
    let rows = driver.volume("vol-1").join("rows");
    assert_eq!(std::fs::read_to_string(&rows).unwrap(), "one\n", "the Pod's group may write there");
    let own = driver.publishes().into_iter().find(|request| request.volume_id.starts_with("csi-"));
    assert_eq!(own.unwrap().volume_context["csi.storage.k8s.io/pod.name"], "one");
    s.until("get node -o jsonpath={.items[0].status.volumesInUse}", |text| text.contains("^vol-1"));

    // The kubelet does not unstage a volume while unpublishing fails.
    driver.set_fault(
        "NodeUnpublishVolume",
        Some(Fault::Refuse(Code::Unavailable, "later".to_owned())),
    );
    s.kubectl("delete pod one --wait=false").ok();
    s.until("get events -o jsonpath={.items[*].message}", |text| text.contains("desc = later"));
    assert!(!driver.calls().iter().any(|call| call.starts_with("NodeUnstageVolume")));
    driver.set_fault("NodeUnpublishVolume", None);
    s.until("get volumeattachments -o jsonpath={.items[*].metadata.name}", |text| {
        !text.contains(&attachment)
    });
    assert!(driver.calls().iter().any(|call| call == "NodeUnstageVolume vol-1"));
    assert_eq!(std::fs::read_to_string(&rows).unwrap(), "one\n", "the data on the volume is kept");

    std::fs::remove_file(&registrar).unwrap();
    s.until("get csinode -o jsonpath={.items[*].spec.drivers[*].nodeID}", |text| {
        !text.contains("e2e-node")
    });
    s.kubectl("delete pvc data --wait=false").ok();
    s.kubectl("delete pv e2e-disk").ok();
    s.kubectl(&format!("delete csidriver {DRIVER}")).ok();
    tasks.shutdown().stop();
}
