//! Claims of the default StorageClass: data outlives Pods and is deleted with the claim.

use std::path::Path;

use e2e::shared;

const DATABASE: &str = r#"
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  replicas: 1
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 0
      securityContext: {runAsUser: 1234, runAsGroup: 1234, fsGroup: 4321}
      containers:
      - name: db
        image: box:1
        command: [sh, -c, "date >> /data/rows; exec sleep 100000"]
        volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
"#;

/// A claim and a Pod of another user, which refer to the database's volume.
const THIEF: &str = r#"
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data-db-0, namespace: thief}
spec:
  accessModes: [ReadWriteOnce]
  volumeName: VOLUME
  storageClassName: local
  resources: {requests: {storage: 1Gi}}
---
apiVersion: v1
kind: Pod
metadata: {name: thief, namespace: thief}
spec:
  terminationGracePeriodSeconds: 0
  volumes: [{name: v, persistentVolumeClaim: {claimName: data-db-0}}]
  containers: [{name: c, image: box:1, volumeMounts: [{name: v, mountPath: /v}]}]
"#;

#[test]
fn data_outlives_pods_and_is_deleted_with_its_claim() {
    let s = shared("storage");
    s.apply(DATABASE);
    let running = "get pod db-0 -o jsonpath={.status.phase}";
    s.until(running, |phase| phase == "Running");
    let uid = s.field("pod db-0", "{.metadata.uid}");
    let volume = s.kubectl("get pvc data-db-0 -o jsonpath={.spec.volumeName}").ok();
    let path = s.kubectl(&format!("get pv {volume} -o jsonpath={{.spec.local.path}}")).ok();
    // On the host, the kubelet's directory is below the cluster's root.
    let path = s.cluster.root().join(path.trim_start_matches('/'));
    let rows = |path: &Path| std::fs::read_to_string(path.join("rows")).unwrap().lines().count();
    assert_eq!(rows(&path), 1);
    s.kubectl("delete pod db-0 --wait=false").ok();
    let again = "get pod db-0 -o jsonpath={.metadata.uid}/{.status.phase}";
    s.until(again, |text| text.ends_with("/Running") && !text.starts_with(&uid));
    assert_eq!(rows(&path), 2, "the second Pod lost the first one's data");

    s.kubectl("create namespace thief").ok();
    let stolen = THIEF.replace("VOLUME", &volume);
    s.kubectl_with(&["apply", "--namespace", "thief", "-f", "-"], &stolen).ok();
    s.until("get events -n thief -o jsonpath={.items[*].message}", |text| {
        text.contains("already bound to a different claim")
    });
    assert_eq!(s.kubectl("get pod thief -n thief -o jsonpath={.status.phase}").ok(), "Pending");
    s.kubectl("delete namespace thief --wait=false").ok();

    // The claim and the directory stay while the Pod uses them.
    s.kubectl("delete pvc data-db-0 --wait=false").ok();
    s.kubectl("delete statefulset db").ok();
    s.until("get pv -o jsonpath={.items[*].metadata.name}", |text| !text.contains(&volume));
    assert!(!path.exists(), "the directory was not deleted with the claim");
}

const CLAIMS: &str = r#"
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: files}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 16Mi}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: raw}
spec: {accessModes: [ReadWriteOnce], volumeMode: Block, resources: {requests: {storage: 8Mi}}}
"#;

const PODS: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: sized}
spec:
  terminationGracePeriodSeconds: 0
  volumes:
  - {name: files, persistentVolumeClaim: {claimName: files}}
  - {name: raw, persistentVolumeClaim: {claimName: raw}}
  containers:
  - name: c
    image: box:1
    command: [sleep, "100000"]
    volumeMounts: [{name: files, mountPath: /files}]
    volumeDevices: [{name: raw, devicePath: /dev/raw}]
---
apiVersion: v1
kind: Pod
metadata: {name: beside}
spec:
  terminationGracePeriodSeconds: 0
  volumes: [{name: files, persistentVolumeClaim: {claimName: files}}]
  containers:
  - {name: c, image: box:1, command: [sleep, "100000"], volumeMounts: [{name: files, mountPath: /files}]}
"#;

/// Reports whether this process may expand a mounted file system (CAP_SYS_RESOURCE), and so the cluster's kubelet.
fn may_resize_mounted() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() & (1 << 24) != 0
}

fn has_loop_device(volume: &str) -> bool {
    let listed = std::process::Command::new("losetup").arg("--list").output().unwrap();
    String::from_utf8_lossy(&listed.stdout).contains(volume)
}

#[test]
fn volumes_have_their_sizes_and_are_expanded_while_in_use() {
    let s = shared("storage-sizes");
    s.apply(CLAIMS);
    s.apply(PODS);
    for pod in ["sized", "beside"] {
        let phase = format!("get pod {pod} -o jsonpath={{.status.phase}}");
        s.until(&phase, |phase| phase == "Running");
    }
    let run = |script: &str| s.kubectl_with(&["exec", "sized", "--", "sh", "-c", script], "");
    let full = run("cat /dev/zero > /files/large");
    assert_ne!(full.code, Some(0));
    assert!(full.stderr.contains("No space left on device"), "{}", full.stderr);
    assert_eq!(run("wc -c < /dev/raw").stdout.trim(), (8 << 20).to_string());
    for (claim, size) in [("files", "64Mi"), ("raw", "32Mi")] {
        let patch = format!(r#"{{"spec":{{"resources":{{"requests":{{"storage":"{size}"}}}}}}}}"#);
        s.kubectl_with(&["patch", "pvc", claim, "-p", &patch], "").ok();
        if claim == "files" && !may_resize_mounted() {
            // The next Pods finish the expansion, after the volume was unmounted.
            s.until("describe pvc files", |text| text.contains("FileSystemResizePending"));
            s.kubectl("delete pod sized beside").ok();
            let volume = s.kubectl("get pvc files -o jsonpath={.spec.volumeName}").ok();
            s.until("get pvc files", |_| !has_loop_device(&volume));
            s.apply(PODS);
            s.until("get pod sized -o jsonpath={.status.phase}", |phase| phase == "Running");
        }
        let capacity = format!("get pvc {claim} -o jsonpath={{.status.capacity.storage}}");
        s.until(&capacity, |capacity| capacity == size);
        let reasons = ["Resizing", "FileSystemResizeRequired", "FileSystemResizeSuccessful"];
        s.until(&format!("describe pvc {claim}"), |text| {
            reasons.iter().all(|reason| text.contains(reason))
        });
    }
    assert_eq!(run("wc -c < /dev/raw").stdout.trim(), (32 << 20).to_string());
    run("head -c 20000000 /dev/zero > /files/more").ok();
    // The claims stay until their Pods are gone, and leave no loop device.
    let volumes = "get pv -o jsonpath={.items[*].metadata.name}";
    let names = s.kubectl("get pvc files raw -o jsonpath={.items[*].spec.volumeName}").ok();
    s.kubectl("delete pvc files raw --wait=false").ok();
    s.kubectl("delete pod sized beside").ok();
    s.until(volumes, |all| names.split(' ').all(|name| !all.contains(name)));
    assert!(names.split(' ').all(|name| !has_loop_device(name)), "{names}");
}
