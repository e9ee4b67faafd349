//! Security contexts, namespaces and isolation of Pods.

use e2e::shared;

use super::{event, exec, ready};

#[test]
fn container_has_exactly_the_rights_of_its_security_context() {
    let s = shared("node-security");
    s.apply(
        r#"
apiVersion: v1
kind: Pod
metadata: {name: bound}
spec:
  securityContext: {sysctls: [{name: net.ipv4.ip_unprivileged_port_start, value: "1000"}]}
  containers:
  - name: c
    image: box:1
    securityContext: {readOnlyRootFilesystem: true, allowPrivilegeEscalation: false, runAsUser: 7, runAsGroup: 8, seccompProfile: {type: RuntimeDefault}, capabilities: {drop: [ALL], add: [NET_BIND_SERVICE]}}
  - {name: free, image: box:1, securityContext: {privileged: true}}
  - {name: plain, image: box:1}
---
apiVersion: v1
kind: Pod
metadata: {name: root}
spec: {securityContext: {runAsNonRoot: true}, containers: [{name: c, image: box:1}]}
---
apiVersion: v1
kind: Pod
metadata: {name: unsafe}
spec: {securityContext: {sysctls: [{name: kernel.msgmax, value: "65536"}]}, containers: [{name: c, image: box:1}]}
"#,
    );
    ready(&s, "bound");
    assert_eq!(exec(&s, "bound", "id").trim(), "uid=7 gid=8 groups=8");
    let status = exec(&s, "bound", "cat /proc/self/status");
    for line in
        ["CapEff:\t0000000000000000", "CapBnd:\t0000000000000400", "NoNewPrivs:\t1", "Seccomp:\t2"]
    {
        assert!(status.contains(line), "{line}:\n{status}");
    }
    s.kubectl("exec bound -- touch /x").refused();
    assert_eq!(
        exec(&s, "bound", "cat /proc/sys/net/ipv4/ip_unprivileged_port_start").trim(),
        "1000"
    );
    let of = |container: &str, file: &str| {
        s.kubectl(&format!("exec bound -c {container} -- cat {file}")).ok()
    };
    let plain = of("plain", "/proc/self/status");
    assert!(
        plain.contains("Seccomp:\t0") && plain.contains("CapBnd:\t00000000a80425fb"),
        "{plain}"
    );
    assert!(of("plain", "/proc/mounts").contains("/proc/sys "), "/proc/sys is not read-only");
    let free = of("free", "/proc/self/status");
    assert!(
        !free.contains("CapEff:\t00000000a80425fb") && free.contains("NoNewPrivs:\t0"),
        "{free}"
    );
    assert!(!of("free", "/proc/mounts").contains("/proc/sys "), "/proc/sys is masked");
    event(&s, "root", "Failed", "Error: container has runAsNonRoot and image will run as root");
    s.until("get pod unsafe", |row| row.contains("SysctlForbidden"));
    event(&s, "unsafe", "SysctlForbidden", "forbidden sysctl: \"kernel.msgmax\" not allowlisted");
}

#[test]
fn pod_shares_only_the_namespaces_of_its_spec() {
    let s = shared("node-namespaces");
    s.apply(
        r#"
apiVersion: v1
kind: Pod
metadata: {name: host}
spec: {hostPID: true, hostNetwork: true, hostIPC: true, containers: [{name: c, image: box:1}]}
---
apiVersion: v1
kind: Pod
metadata: {name: shared}
spec:
  shareProcessNamespace: true
  containers: [{name: c, image: box:1}, {name: d, image: app:1}]
---
apiVersion: v1
kind: Pod
metadata: {name: own}
spec: {hostname: me, subdomain: sub, setHostnameAsFQDN: true, hostAliases: [{ip: 192.0.2.99, hostnames: [other]}], containers: [{name: c, image: box:1}]}
"#,
    );
    for pod in ["host", "shared", "own"] {
        ready(&s, pod);
    }
    let namespace = |kind: &str| std::fs::read_link(format!("/proc/self/ns/{kind}")).unwrap();
    let seen = |pod: &str, kind: &str| exec(&s, pod, &format!("stat -c %N /proc/self/ns/{kind}"));
    for kind in ["pid", "ipc"] {
        let of_host = namespace(kind).display().to_string();
        assert!(seen("host", kind).contains(&of_host), "{kind}");
        assert!(!seen("own", kind).contains(&of_host), "{kind}");
    }
    assert_eq!(exec(&s, "host", "hostname"), s.on_node("hostname", &[]).ok());
    assert!(exec(&s, "shared", "ps").contains("httpd"));
    assert!(!exec(&s, "own", "ps").contains("httpd"));
    assert_eq!(exec(&s, "own", "hostname").trim(), "me.sub.node-namespaces.svc.cluster.local");
    let hosts = exec(&s, "own", "cat /etc/hosts");
    assert!(
        hosts.contains("192.0.2.99\tother")
            && hosts.contains("me.sub.node-namespaces.svc.cluster.local\tme"),
        "{hosts}"
    );
}

/// Covers a `restricted` namespace: validation and the kubelet reject what PodSecurity does not check.
#[test]
fn rejects_isolation_that_the_node_does_not_support() {
    let s = shared("node-isolation");
    s.kubectl("label namespace node-isolation pod-security.kubernetes.io/enforce=restricted").ok();
    let pod = |name: &str, of_pod: &str, of_container: &str| {
        let spec = format!(
            r#"
  {of_pod}
  volumes: [{{name: v, emptyDir: {{}}}}]
  containers: [{{name: c, image: box:1, {of_container}}}]
"#
        );
        e2e::pod(name, &spec)
    };
    const LINUX: &str = "securityContext: {runAsNonRoot: true, runAsUser: 7, seccompProfile: {type: RuntimeDefault}}";
    const CONFINED: &str = "allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}";
    let context = |more: &str| format!("securityContext: {{{CONFINED}{more}}}");
    let mounted =
        |more: &str| format!("{}, volumeMounts: [{{name: v, mountPath: /v, {more}}}]", context(""));
    for (of_pod, of_container, words) in [
        (
            "os: {name: windows}\n  securityContext: {runAsNonRoot: true, runAsUser: 0}",
            "imagePullPolicy: Never".to_owned(),
            "spec.securityContext.runAsUser: Forbidden: cannot be set for a windows pod",
        ),
        (
            LINUX,
            context(", seccompProfile: {type: Localhost, localhostProfile: /tmp/all.json}"),
            "localhostProfile: Invalid value: \"/tmp/all.json\": must be a relative path",
        ),
        (
            LINUX,
            context(", seccompProfile: {type: Localhost, localhostProfile: ../pods/all.json}"),
            "localhostProfile: Invalid value: \"../pods/all.json\": must not contain '..'",
        ),
        (
            LINUX,
            mounted("mountPropagation: Bidirectional"),
            "Bidirectional mount propagation is available only to privileged containers",
        ),
        (
            LINUX,
            mounted("recursiveReadOnly: Enabled"),
            "recursiveReadOnly: Forbidden: may only be specified when readOnly is true",
        ),
    ] {
        let manifest = pod("bad", of_pod, &of_container);
        let output = s.kubectl_with(&["apply", "-f", "-"], &manifest).refused();
        assert!(output.contains(words), "{output}");
    }
    let windows = "os: {name: windows}\n  securityContext: {runAsNonRoot: true}";
    s.apply(&pod("windows", windows, "imagePullPolicy: Never"));
    let strict = LINUX.replace("runAsUser", "supplementalGroupsPolicy: Strict, runAsUser");
    s.apply(&pod("strict", &strict, &context("")));
    let recursive = |mode: &str| mounted(&format!("readOnly: true, recursiveReadOnly: {mode}"));
    s.apply(&pod("recursive", LINUX, &recursive("Enabled")));
    s.apply(&pod("possible", LINUX, &recursive("IfPossible")));
    ready(&s, "possible");
    s.until("get pod windows", |row| row.contains("PodOSNotSupported"));
    let text = "Failed to admit pod as the OS field doesn't match node OS";
    event(&s, "windows", "PodOSNotSupported", text);
    let node = s.get("nodes");
    let features = &node["items"][0]["status"]["features"];
    let handlers = &node["items"][0]["status"]["runtimeHandlers"];
    eprintln!("the features of the runtime: {features}; the features of its handlers: {handlers}");
    if features["supplementalGroupsPolicy"] != true {
        s.until("get pod strict", |row| row.contains("SupplementalGroupsPolicyNotSupported"));
    }
    if handlers[0]["features"]["recursiveReadOnlyMounts"] != true {
        let text = "requested recursive read-only mode, but it is not supported by the runtime";
        s.until("get pod recursive", |row| row.contains("CreateContainerConfigError"));
        event(&s, "recursive", "Failed", text);
    }
}
