//! The hostpath CSI driver with its sidecars: claim, expansion, snapshot, restore, block volume, deletion.

use std::time::Duration;

use e2e::{Cluster, Programs, Session, share_machine, until, until_within};

use super::metrics::rolled_out;

/// The manifests in the order of the driver's own installation script.
const MANIFESTS: [&str; 13] = [
    "external-snapshotter/snapshot.storage.k8s.io_volumesnapshotclasses.yaml",
    "external-snapshotter/snapshot.storage.k8s.io_volumesnapshotcontents.yaml",
    "external-snapshotter/snapshot.storage.k8s.io_volumesnapshots.yaml",
    "external-snapshotter/rbac-snapshot-controller.yaml",
    "external-snapshotter/setup-snapshot-controller.yaml",
    "external-provisioner/rbac.yaml",
    "external-attacher/rbac.yaml",
    "external-snapshotter/rbac-csi-snapshotter.yaml",
    "external-resizer/rbac.yaml",
    "external-health-monitor/rbac.yaml",
    "csi-driver-host-path/csi-hostpath-driverinfo.yaml",
    "csi-driver-host-path/csi-hostpath-plugin.yaml",
    "csi-driver-host-path/csi-storageclass.yaml",
];

fn apply(s: &Session<'_>, programs: &Programs, file: &str) {
    let text = programs.manifest(s.cluster, &format!("manifests/{file}"));
    // The data stay out of the host's directories.
    let data = s.cluster.directory.join("csi-data").display().to_string();
    s.cluster.apply(&text.replace("/var/lib/csi-hostpath-data", &data), &[]);
}

/// Creates a Pod that mounts a claim and waits until it runs.
fn mount(s: &Session<'_>, pod: &str, claim: &str) {
    s.apply(&format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {pod}}}, spec: {{terminationGracePeriodSeconds: 1,
          containers: [{{name: c, image: 'box:1', volumeMounts: [{{name: data, mountPath: /data}}]}}],
          volumes: [{{name: data, persistentVolumeClaim: {{claimName: {claim}}}}}]}}}}"
    ));
    ready(s, pod);
}

fn ready(s: &Session<'_>, pod: &str) {
    let ran = s.kubectl(&format!("wait pod/{pod} --for=condition=Ready --timeout=90s"));
    assert!(ran.code == Some(0), "{ran}\n{}", s.kubectl(&format!("describe pod/{pod}")));
}

fn shell(s: &Session<'_>, pod: &str, script: &str) -> String {
    s.kubectl_with(&["exec", pod, "--", "sh", "-c", script], "").ok().trim().to_owned()
}

#[test]
fn hostpath_driver_provides_expands_snapshots_and_restores_volumes() {
    let Some(programs) = Programs::of("csi") else { return };
    let _turn = share_machine();
    let cluster = Cluster::new("hostpath");
    cluster.up().ok();
    cluster.build_images();
    let s = Session::in_default_namespace(&cluster);
    MANIFESTS.iter().for_each(|file| apply(&s, &programs, file));
    apply(&s, &programs, "csi-driver-host-path/csi-hostpath-snapshotclass.yaml");
    rolled_out(&s, "kube-system", "snapshot-controller");
    let ran = s.kubectl("rollout status statefulset csi-hostpathplugin --timeout=90s");
    assert!(ran.code == Some(0), "{ran}\n{}", s.kubectl("describe pod csi-hostpathplugin-0"));

    apply(&s, &programs, "csi-driver-host-path/csi-pvc.yaml");
    mount(&s, "first", "csi-pvc");
    shell(&s, "first", "echo before > /data/row");
    s.kubectl_with(
        &[
            "patch",
            "pvc",
            "csi-pvc",
            "-p",
            r#"{"spec": {"resources": {"requests": {"storage": "2Gi"}}}}"#,
        ],
        "",
    )
    .ok();
    // The kubelet expands a mounted file system when it next syncs the Pod, as upstream's.
    until_within(Duration::from_secs(180), "the expansion", || {
        let size = s.field("pvc csi-pvc", "{.status.capacity.storage}");
        if size == "2Gi" { Ok(()) } else { Err(size) }
    });

    apply(&s, &programs, "csi-driver-host-path/csi-snapshot-v1.yaml");
    s.until("get volumesnapshot new-snapshot-demo -o jsonpath={.status.readyToUse}", |ready| {
        ready == "true"
    });
    shell(&s, "first", "echo after > /data/row");
    let restore = programs.manifest(&cluster, "manifests/csi-driver-host-path/csi-restore.yaml");
    // The snapshot is as large as the expanded claim.
    s.apply(&restore.replace("storage: 1Gi", "storage: 2Gi"));
    mount(&s, "second", "hpvc-restore");
    assert_eq!(shell(&s, "second", "cat /data/row"), "before");
    assert_eq!(shell(&s, "first", "cat /data/row"), "after");

    apply(&s, &programs, "csi-driver-host-path/csi-pvc-block.yaml");
    s.apply(
        "{apiVersion: v1, kind: Pod, metadata: {name: raw}, spec: {terminationGracePeriodSeconds: 1,
          containers: [{name: c, image: 'box:1', volumeDevices: [{name: disk, devicePath: /dev/disk}]}],
          volumes: [{name: disk, persistentVolumeClaim: {claimName: pvc-raw}}]}}",
    );
    ready(&s, "raw");
    shell(
        &s,
        "raw",
        "echo block | dd of=/dev/disk bs=512 conv=sync && dd if=/dev/disk bs=512 count=1 | grep block",
    );
    s.apply(
        "{apiVersion: v1, kind: Pod, metadata: {name: inline}, spec: {terminationGracePeriodSeconds: 1,
          containers: [{name: c, image: 'box:1', volumeMounts: [{name: data, mountPath: /data}]}],
          volumes: [{name: data, csi: {driver: hostpath.csi.k8s.io}}]}}",
    );
    ready(&s, "inline");

    s.kubectl("delete pod first second raw inline").ok();
    s.kubectl("delete volumesnapshot new-snapshot-demo --timeout=60s").ok();
    s.kubectl("delete pvc csi-pvc hpvc-restore pvc-raw --timeout=60s").ok();
    until("the deletion of all volumes", || {
        let left = s.kubectl("get pv,volumeattachments,volumesnapshotcontents -o name");
        if left.stdout.is_empty() && left.code == Some(0) { Ok(()) } else { Err(left.to_string()) }
    });
    cluster.down(&[]).ok();
}
