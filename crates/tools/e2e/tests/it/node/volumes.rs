//! Volumes: contents, permissions, updates and errors.

use std::time::{Duration, Instant};

use e2e::shared;

use super::{event, exec, ready};

#[test]
fn volumes_have_their_contents_modes_and_owners() {
    let s = shared("node-volumes");
    let host = s.cluster.directory.join("host");
    s.kubectl("create configmap map --from-literal=A=one --from-literal=file=text").ok();
    s.kubectl("create secret generic secret --from-literal=S=hush").ok();
    s.apply(&format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{name: full, labels: {{l: v1}}}}
spec:
  securityContext: {{fsGroup: 2000, runAsUser: 1000, runAsGroup: 3000, supplementalGroups: [4000]}}
  volumes:
  - {{name: e, emptyDir: {{}}}}
  - {{name: m, emptyDir: {{medium: Memory, sizeLimit: 1Mi}}}}
  - {{name: c, configMap: {{name: map, defaultMode: 0400, items: [{{key: A, path: sub/a}}, {{key: file, path: file, mode: 0444}}]}}}}
  - {{name: s, secret: {{secretName: secret}}}}
  - {{name: o, configMap: {{name: none, optional: true}}}}
  - {{name: d, downwardAPI: {{items: [{{path: labels, fieldRef: {{fieldPath: metadata.labels}}}}, {{path: cpu, resourceFieldRef: {{containerName: c, resource: requests.cpu, divisor: 1m}}}}]}}}}
  - name: p
    projected: {{sources: [{{configMap: {{name: map}}}}, {{secret: {{name: secret}}}}, {{serviceAccountToken: {{path: token, expirationSeconds: 600, audience: me}}}}, {{downwardAPI: {{items: [{{path: name, fieldRef: {{fieldPath: metadata.name}}}}]}}}}]}}
  - {{name: h, hostPath: {{path: {}, type: DirectoryOrCreate}}}}
  containers:
  - name: c
    image: box:1
    resources: {{requests: {{cpu: 50m}}}}
    env: [{{name: NAME, valueFrom: {{fieldRef: {{fieldPath: metadata.name}}}}}}]
    volumeMounts:
    - {{name: e, mountPath: /e}}
    - {{name: m, mountPath: /m}}
    - {{name: c, mountPath: /c}}
    - {{name: s, mountPath: /s}}
    - {{name: o, mountPath: /o}}
    - {{name: d, mountPath: /d}}
    - {{name: p, mountPath: /p}}
    - {{name: h, mountPath: /h, readOnly: true}}
    - {{name: e, mountPath: /below, subPath: in/side}}
    - {{name: e, mountPath: /named, subPathExpr: "$(NAME)"}}
    - {{name: c, mountPath: /one/a, subPath: sub/a}}
"#,
        host.display()
    ));
    ready(&s, "full");
    let see = |script: &str| exec(&s, "full", script);
    assert_eq!(see("id").trim(), "uid=1000 gid=3000 groups=2000,3000,4000");
    assert_eq!(see("cat /c/sub/a /s/S /p/A /p/S /p/name /one/a"), "onehushonehushfullone");
    assert_eq!(see("cat /d/labels; echo; cat /d/cpu"), "l=\"v1\"\n50");
    assert_eq!(see("ls /o"), "");
    // Writable volumes, also below a subPath, belong to the Pod's fsGroup.
    assert_eq!(
        see("for d in e m below named; do touch /$d/x && stat -c %g /$d/x; done"),
        "2000\n".repeat(4)
    );
    assert_eq!(see("ls /e"), "full\nin\nx\n");
    // Volumes with API objects, and the read-only hostPath, are not writable.
    for place in ["c", "s", "d", "p", "h", "one"] {
        let ran =
            s.kubectl_with(&["exec", "full", "--", "sh", "-c", &format!("echo >/{place}/a")], "");
        assert_ne!(ran.code, Some(0), "{place} is writable");
    }
    let modes = see("stat -L -c '%a %u %g' /c/sub/a /c/file /p/token /s/S");
    assert_eq!(modes, "440 0 2000\n444 0 2000\n640 1000 2000\n644 0 2000\n");
    assert!(see("mount").lines().any(|l| l.contains(" /m ") && l.contains("size=1024k")));
    see(
        "dd if=/dev/zero of=/m/large bs=1024 count=2000 2>/dev/null || true; test $(stat -c %s /m/large) -le 1048576",
    );
    let token = see("cat /p/token");
    let review = format!(
        r#"{{"apiVersion":"authentication.k8s.io/v1","kind":"TokenReview","spec":{{"token":"{token}","audiences":["me"]}}}}"#
    );
    let answer = s.kubectl_with(&["create", "-f", "-", "-o", "json"], &review).ok();
    assert!(answer.contains("system:serviceaccount:node-volumes:default"), "{answer}");
}

#[test]
fn volumes_follow_changed_objects_in_one_step() {
    let s = shared("node-updates");
    s.kubectl("create configmap map --from-literal=A=1 --from-literal=B=1").ok();
    s.kubectl("create secret generic secret --from-literal=S=1").ok();
    s.apply(
        r#"
apiVersion: v1
kind: Pod
metadata: {name: watcher, labels: {l: "1"}}
spec:
  volumes:
  - {name: c, configMap: {name: map}}
  - {name: later, configMap: {name: later, optional: true}}
  - {name: s, projected: {sources: [{secret: {name: secret}}]}}
  - {name: d, downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}}
  containers:
  - name: c
    image: box:1
    volumeMounts: [{name: c, mountPath: /c}, {name: s, mountPath: /s}, {name: d, mountPath: /d}, {name: later, mountPath: /later}, {name: c, mountPath: /fixed, subPath: A}]
"#,
    );
    ready(&s, "watcher");
    let started = Instant::now();
    s.kubectl_with(
        &["patch", "configmap", "map", "-p", r#"{"data":{"A":"2","B":null,"C":"2"}}"#],
        "",
    )
    .ok();
    s.kubectl_with(&["patch", "secret", "secret", "-p", r#"{"stringData":{"S":"2"}}"#], "").ok();
    s.kubectl("label pod watcher l=2 --overwrite").ok();
    s.kubectl("create configmap later --from-literal=L=2").ok();
    let line = [
        "exec",
        "watcher",
        "--",
        "sh",
        "-c",
        "cat /c/A /c/C /s/S /d/labels /later/L; ls /c; cat /fixed",
    ];
    e2e::until("the new content", || {
        let ran = s.kubectl_with(&line, "");
        // A file mounted by subPath is not updated.
        if ran.stdout == "222l=\"2\"2A\nC\n1" { Ok(()) } else { Err(ran.to_string()) }
    });
    let took = started.elapsed();
    assert!(took < Duration::from_secs(30), "the kubelet polls instead of watching: {took:?}");
}

#[test]
fn reports_why_a_volume_cannot_be_set_up() {
    let s = shared("node-mounts");
    let host = s.cluster.directory.join("types");
    std::fs::create_dir_all(&host).unwrap();
    std::fs::write(host.join("file"), "text").unwrap();
    let pod = |name: &str, volume: String| {
        format!(
            "
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec: {{volumes: [{{name: v, {volume}}}], containers: [{{name: c, image: box:1, volumeMounts: [{{name: v, mountPath: /v}}]}}]}}
---"
        )
    };
    let path = |name: &str, kind: &str| {
        format!("hostPath: {{path: {}, type: {kind}}}", host.join(name).display())
    };
    s.apply(
        &[
            pod("map", "configMap: {name: missing}".to_owned()),
            pod(
                "key",
                "configMap: {name: kube-root-ca.crt, items: [{key: missing, path: x}]}".to_owned(),
            ),
            pod("kind", path("file", "Directory")),
            pod("socket", path("file", "Socket")),
            pod("file", path("file", "File")),
            pod("made", path("made", "FileOrCreate")),
            pod("device", "hostPath: {path: /dev/null, type: CharDevice}".to_owned()),
        ]
        .concat(),
    );
    for (name, cause) in [
        ("map", "MountVolume.SetUp failed for volume \"v\" : configmap \"missing\" not found"),
        (
            "key",
            "MountVolume.SetUp failed for volume \"v\" : references non-existent config key: missing",
        ),
        ("kind", "hostPath type check failed: "),
        ("socket", "is not a socket"),
    ] {
        event(&s, name, "FailedMount", cause);
    }
    for name in ["file", "made", "device"] {
        ready(&s, name);
    }
    assert_eq!(exec(&s, "file", "cat /v"), "text");
    s.kubectl("create configmap missing --from-literal=a=b").ok();
    ready(&s, "map");
}
