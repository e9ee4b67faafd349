//! Claims of the default StorageClass: data outlives Pods and is deleted with the claim.

use std::path::{Path, PathBuf};

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
    spec:
      accessModes: [ReadWriteOnce]
      resources: {requests: {storage: 1Gi}}
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
    let path = PathBuf::from(path);
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
