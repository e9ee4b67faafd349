//! The usual paths of a node in Pods: its logs, its kubelet's directory and its runtime, as CSI drivers, device plugins
//! and log collectors use them.

use e2e::{Session, shared, until};

/// A driver with all paths. It mounts a file system below the kubelet's directory.
const DRIVER_SPEC: &str = r#"
  nodeName: NODE
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: box:1
    command: [sh, -c, "mkdir -p /var/lib/kubelet/plugins/e2e && mount -t tmpfs e2e /var/lib/kubelet/plugins/e2e && echo mounted > /var/lib/kubelet/plugins/e2e/file && echo hello; exec sleep 100000"]
    securityContext: {privileged: true}
    volumeMounts:
    - {name: kubelet, mountPath: /var/lib/kubelet, mountPropagation: Bidirectional}
    - {name: log, mountPath: /var/log, readOnly: true}
    - {name: runtime, mountPath: /run/containerd}
    - {name: socket, mountPath: /containerd.sock}
    - {name: registry, mountPath: /registration}
    - {name: cni, mountPath: /cni}
  volumes:
  - {name: kubelet, hostPath: {path: /var/lib/kubelet, type: Directory}}
  - {name: log, hostPath: {path: /var/log, type: Directory}}
  - {name: runtime, hostPath: {path: /run/containerd}}
  - {name: socket, hostPath: {path: /run/containerd/containerd.sock, type: Socket}}
  - {name: registry, hostPath: {path: /var/lib/kubelet/device-plugins/kubelet.sock, type: Socket}}
  - {name: cni, hostPath: {path: /etc/cni/net.d, type: Directory}}
"#;

/// A Pod that reads the paths.
const OTHER_SPEC: &str = r#"
  nodeName: NODE
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: box:1
    command: [sh, -c, "exec sleep 100000"]
    volumeMounts:
    - {name: kubelet, mountPath: /kubelet, mountPropagation: HostToContainer}
    - {name: logs, mountPath: /logs/pods}
    - {name: links, mountPath: /logs/containers}
  volumes:
  - {name: kubelet, hostPath: {path: /var/lib/kubelet}}
  - {name: logs, hostPath: {path: /var/log/pods}}
  - {name: links, hostPath: {path: /var/log/containers}}
"#;

/// Asserts that Pods of a node see the node's own directories at the usual paths.
pub(crate) fn pods_see_usual_paths(s: &Session<'_>, node: &str) {
    for (name, spec) in [("driver", DRIVER_SPEC), ("other", OTHER_SPEC)] {
        s.apply(&e2e::pod(&format!("{name}-{node}"), &spec.replace("NODE", node)));
    }
    s.kubectl("wait pod --all --for=condition=Ready --timeout=60s").ok();
    let (driver, other) = (format!("driver-{node}"), format!("other-{node}"));
    let in_driver = |script: &str| s.kubectl_with(&["exec", &driver, "--", "sh", "-c", script], "");
    let log = format!("cat /var/log/containers/{driver}_*.log");
    until("the driver's log", || in_driver(&log).ok_if(|text| text.contains("stdout F hello")));
    s.until(&format!("exec {other} -- cat /kubelet/plugins/e2e/file"), |text| text == "mounted\n");
    let uid = s.field(&format!("pod {driver}"), "{.metadata.uid}");
    assert!(in_driver("ls /var/lib/kubelet/pods").ok().lines().any(|name| name == uid));
    assert!(in_driver("ls /run/containerd").ok().contains("containerd.sock"));
    assert!(in_driver("ls /cni").ok().contains("10-windlass.conflist"));
    let log = format!("cat /logs/containers/{driver}_*.log");
    let shown = s.kubectl_with(&["exec", &other, "--", "sh", "-c", &log], "").ok();
    assert!(shown.contains("stdout F hello"), "{shown}");
    in_driver("busybox umount /var/lib/kubelet/plugins/e2e").ok();
    s.until(&format!("exec {other} -- ls /kubelet/plugins/e2e"), str::is_empty);
}

#[test]
fn pods_of_first_node_see_its_directories_and_the_host_does_not() {
    let s = shared("paths");
    let node = s.kubectl("get node -o jsonpath={.items[0].metadata.name}").ok();
    pods_see_usual_paths(&s, &node);
    let links = std::fs::read_dir("/var/log/containers").into_iter().flatten().flatten();
    let is_own = |name: std::ffi::OsString| name.to_string_lossy().contains("_paths_");
    assert!(!links.map(|link| link.file_name()).any(is_own), "the host has its own directory");
}
