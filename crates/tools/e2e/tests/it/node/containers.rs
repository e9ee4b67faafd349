//! Containers: order, restarts, probes, termination, images and environment.

use std::time::{Duration, Instant};

use e2e::shared;

use super::{event, exec, in_order, ready};

#[test]
fn containers_start_and_stop_in_order() {
    let s = shared("node-order");
    let place = s.cluster.directory.join("order");
    let log = "volumeMounts: [{name: h, mountPath: /h}]";
    let says = |name: &str| {
        format!(
            "[sh, -c, \"echo {name} >>/h/log; trap 'echo {name}-term >>/h/log; exit 0' TERM; while :; do sleep 0.1; done\"]"
        )
    };
    s.apply(&format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{name: order}}
spec:
  terminationGracePeriodSeconds: 20
  volumes: [{{name: h, hostPath: {{path: {}, type: DirectoryOrCreate}}}}]
  initContainers:
  - {{name: i1, image: box:1, command: [sh, -c, "echo i1 >>/h/log; sleep 1; echo i1-end >>/h/log"], {log}}}
  - name: s1
    image: box:1
    restartPolicy: Always
    command: {}
    startupProbe: {{exec: {{command: [sh, -c, "test -e /tmp/up || {{ touch /tmp/up; false; }} && echo s1-started >>/h/log"]}}, periodSeconds: 1, failureThreshold: 20}}
    {log}
  - {{name: s2, image: box:1, restartPolicy: Always, command: {}, {log}}}
  - {{name: i2, image: box:1, command: [sh, -c, "echo i2 >>/h/log"], {log}}}
  containers:
  - name: app
    image: box:1
    command: {}
    lifecycle:
      postStart: {{exec: {{command: [sh, -c, "echo app-post >>/h/log"]}}}}
      preStop: {{exec: {{command: [sh, -c, "echo app-pre >>/h/log; sleep 1; echo app-pre-end >>/h/log"]}}}}
    {log}
"#,
        place.display(),
        says("s1"),
        says("s2"),
        says("app")
    ));
    s.until("get pod order", |row| row.contains("Init:") || row.contains("PodInitializing"));
    ready(&s, "order");
    let text = || std::fs::read_to_string(place.join("log")).unwrap();
    in_order(&text(), &["i1", "i1-end", "s1", "s1-started", "s2", "i2", "app", "app-post"]);
    s.kubectl("delete pod order").ok();
    in_order(&text(), &["app-pre", "app-pre-end", "app-term", "s2-term", "s1-term"]);
}

#[test]
fn restarts_a_failing_container_with_growing_backoff() {
    let s = shared("node-backoff");
    s.apply(
        r#"
apiVersion: v1
kind: Pod
metadata: {name: crash}
spec:
  containers:
  - {name: c, image: box:1, command: [sh, -c, "echo from the log; exit 3"], terminationMessagePolicy: FallbackToLogsOnError}
  - {name: d, image: box:1, command: [sh, -c, "echo -n from the file >/dev/termination-log; exit 4"]}
"#,
    );
    let state = "get pod crash -o jsonpath={.status.containerStatuses[0].state.waiting.message}";
    let message =
        s.until(state, |text| text.contains("back-off 20s restarting failed container=c"));
    assert!(message.contains("pod=crash_node-backoff("), "{message}");
    event(
        &s,
        "crash",
        "BackOff",
        "Back-off restarting failed container c in pod crash_node-backoff(",
    );
    let last = |at: u32| {
        let pod = s.get("pod crash");
        pod["status"]["containerStatuses"][at as usize]["lastState"]["terminated"].clone()
    };
    let (c, d) = (last(0), last(1));
    assert_eq!((c["exitCode"].as_i64(), c["message"].as_str()), (Some(3), Some("from the log\n")));
    assert_eq!((d["exitCode"].as_i64(), d["message"].as_str()), (Some(4), Some("from the file")));
    assert_eq!(
        (c["reason"].as_str(), s.field("pod crash", "{.status.phase}").as_str()),
        (Some("Error"), "Running")
    );
}

#[test]
fn probes_of_every_kind_control_readiness_and_restarts() {
    let s = shared("node-probes");
    s.apply(
        r#"
apiVersion: v1
kind: Pod
metadata: {name: probed}
spec:
  containers:
  - name: c
    image: app:1
    ports: [{name: web, containerPort: 8080}]
    startupProbe: {httpGet: {port: web, path: /index.html}, periodSeconds: 1, failureThreshold: 60}
    readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
    livenessProbe: {exec: {command: [test, "!", -e, /tmp/dead]}, periodSeconds: 1, failureThreshold: 1}
---
apiVersion: v1
kind: Pod
metadata: {name: silent}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: box:1
    startupProbe: {tcpSocket: {port: 81}, periodSeconds: 1, failureThreshold: 2}
    readinessProbe: {exec: {command: ["true"]}, periodSeconds: 1}
---
apiVersion: v1
kind: Pod
metadata: {name: speechless}
spec:
  containers:
  - {name: c, image: app:1, readinessProbe: {grpc: {port: 8080}, periodSeconds: 1}}
---
apiVersion: v1
kind: Pod
metadata: {name: secure}
spec:
  containers:
  - {name: c, image: box:1, readinessProbe: {httpGet: {scheme: HTTPS, host: 192.0.2.10, port: 6443, path: /livez}, periodSeconds: 1}}
"#,
    );
    ready(&s, "probed");
    ready(&s, "secure");
    let restarts = |pod: &str| {
        format!("get pod {pod} -o jsonpath={{.status.containerStatuses[0].restartCount}}")
    };
    exec(&s, "probed", "touch /tmp/dead");
    s.until(&restarts("probed"), |count| count == "1");
    event(&s, "probed", "Unhealthy", "Liveness probe failed: ");
    event(&s, "probed", "Killing", "Container c failed liveness probe, will be restarted");
    ready(&s, "probed");
    // A container whose startup probe fails is never ready and is restarted.
    s.until(&restarts("silent"), |count| count != "0");
    event(&s, "silent", "Unhealthy", "Startup probe failed: dial tcp ");
    event(&s, "silent", "Killing", "Container c failed startup probe, will be restarted");
    assert_ne!(s.field("pod silent", "{.status.containerStatuses[0].ready}"), "true");
    event(&s, "speechless", "Unhealthy", "Readiness probe failed: ");
}

#[test]
fn kills_a_container_that_ignores_sigterm_after_its_grace() {
    let s = shared("node-grace");
    s.apply(
        r#"
apiVersion: v1
kind: Pod
metadata: {name: deaf}
spec:
  terminationGracePeriodSeconds: 4
  containers: [{name: c, image: box:1, command: [sh, -c, "trap '' TERM; while :; do sleep 1; done"]}]
---
apiVersion: v1
kind: Pod
metadata: {name: late}
spec:
  activeDeadlineSeconds: 2
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: box:1}]
"#,
    );
    ready(&s, "deaf");
    let started = Instant::now();
    s.kubectl("delete pod deaf --wait=false").ok();
    s.until("get pod deaf", |row| row.contains("Terminating"));
    s.kubectl("wait pod/deaf --for=delete --timeout=60s").ok();
    let took = started.elapsed();
    assert!((4..20).contains(&took.as_secs()), "{took:?}");
    s.until("get pod late -o jsonpath={.status.reason}", |reason| reason == "DeadlineExceeded");
    event(
        &s,
        "late",
        "DeadlineExceeded",
        "Pod was active on the node longer than the specified deadline",
    );
    // A forced deletion takes effect at once.
    s.kubectl_with(
        &["run", "rude", "--image=box:1", "--", "sh", "-c", "trap '' TERM; sleep 1000"],
        "",
    )
    .ok();
    ready(&s, "rude");
    let started = Instant::now();
    s.kubectl("delete pod rude --grace-period=0 --force").ok();
    assert!(started.elapsed() < Duration::from_secs(20));
}

#[test]
fn pulls_images_according_to_the_pull_policy() {
    let s = shared("node-pull");
    s.apply(
        r#"
apiVersion: v1
kind: Pod
metadata: {name: always}
spec: {containers: [{name: c, image: "nothere.invalid/x:1"}]}
---
apiVersion: v1
kind: Pod
metadata: {name: present}
spec: {containers: [{name: c, image: "box:1", imagePullPolicy: IfNotPresent}]}
---
apiVersion: v1
kind: Pod
metadata: {name: never}
spec: {containers: [{name: c, image: "nothere.invalid/x:1", imagePullPolicy: Never}]}
"#,
    );
    ready(&s, "present");
    event(
        &s,
        "present",
        "Pulled",
        "Container image \"box:1\" already present on machine and can be accessed by the pod",
    );
    event(&s, "present", "Created", "Container created");
    event(&s, "present", "Started", "Container started");
    event(
        &s,
        "never",
        "ErrImageNeverPull",
        "Container image \"nothere.invalid/x:1\" is not present with pull policy of Never",
    );
    event(&s, "always", "Pulling", "Pulling image \"nothere.invalid/x:1\"");
    event(&s, "always", "Failed", "Failed to pull image \"nothere.invalid/x:1\": ");
    event(&s, "always", "BackOff", "Back-off pulling image \"nothere.invalid/x:1\"");
    s.until("get pod always", |row| row.contains("ImagePullBackOff"));
}

#[test]
#[expect(clippy::too_many_lines, reason = "one scenario")]
fn environment_has_values_of_every_source() {
    let s = shared("node-environment");
    s.kubectl("create configmap map --from-literal=A=one --from-literal=b.c=two").ok();
    s.kubectl("create secret generic secret --from-literal=S=hush").ok();
    s.kubectl("create service clusterip red-is --tcp=80:8080").ok();
    s.apply(
        r#"
apiVersion: v1
kind: Pod
metadata: {name: told, labels: {l: v1}, annotations: {a: "x y"}}
spec:
  volumes: [{name: e, emptyDir: {}}]
  initContainers: [{name: i, image: box:1, command: [sh, -c, "echo \"F='by an init container'\" >/e/env"], volumeMounts: [{name: e, mountPath: /e}]}]
  containers:
  - name: c
    image: box:1
    resources: {requests: {cpu: 50m, memory: 16Mi}, limits: {memory: 32Mi}}
    envFrom: [{configMapRef: {name: map}, prefix: P_}, {secretRef: {name: none, optional: true}}]
    env:
    - {name: ONE, value: x}
    - {name: ALL, value: "$(ONE)-$$(ONE)-$(NONE)-$(KEY)-$(RED_IS_SERVICE_PORT)"}
    - {name: KEY, valueFrom: {configMapKeyRef: {name: map, key: A}}}
    - {name: HIDDEN, valueFrom: {secretKeyRef: {name: secret, key: S}}}
    - {name: OPTIONAL, valueFrom: {secretKeyRef: {name: none, key: S, optional: true}}}
    - {name: NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    - {name: LABEL, valueFrom: {fieldRef: {fieldPath: "metadata.labels['l']"}}}
    - {name: NOTE, valueFrom: {fieldRef: {fieldPath: "metadata.annotations['a']"}}}
    - {name: HOST, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}
    - {name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
    - {name: WHO, valueFrom: {fieldRef: {fieldPath: spec.serviceAccountName}}}
    - {name: MEMORY, valueFrom: {resourceFieldRef: {resource: limits.memory, divisor: 1Mi}}}
    - {name: CPU, valueFrom: {resourceFieldRef: {resource: requests.cpu, divisor: 1m}}}
    - {name: FILE, valueFrom: {fileKeyRef: {volumeName: e, path: env, key: F}}}
---
apiVersion: v1
kind: Pod
metadata: {name: curt}
spec:
  enableServiceLinks: false
  containers: [{name: c, image: box:1}]
---
apiVersion: v1
kind: Pod
metadata: {name: waits}
spec: {containers: [{name: c, image: box:1, env: [{name: A, valueFrom: {configMapKeyRef: {name: map, key: missing}}}]}]}
"#,
    );
    ready(&s, "told");
    // Run env without a shell, which would drop names that are not valid shell variables.
    let env = s.kubectl("exec told -- env").ok();
    let ip = s.field("pod told", "{.status.podIP}");
    for (name, value) in [
        ("ONE", "x"),
        ("ALL", "x-$(ONE)-$(NONE)-$(KEY)-80"),
        ("KEY", "one"),
        ("HIDDEN", "hush"),
        ("NAME", "told"),
        ("LABEL", "v1"),
        ("NOTE", "x y"),
        ("HOST", "192.0.2.10"),
        ("IP", ip.as_str()),
        ("WHO", "default"),
        ("MEMORY", "32"),
        ("CPU", "50"),
        ("FILE", "by an init container"),
        ("P_A", "one"),
        ("P_b.c", "two"),
        ("RED_IS_SERVICE_PORT", "80"),
        ("KUBERNETES_SERVICE_HOST", "10.96.0.1"),
    ] {
        assert!(
            env.lines().any(|line| line == format!("{name}={value}")),
            "{name}={value}:\n{env}"
        );
    }
    assert!(!env.contains("OPTIONAL="), "{env}");
    ready(&s, "curt");
    let env = exec(&s, "curt", "env");
    assert!(!env.contains("RED_IS") && env.contains("KUBERNETES_SERVICE_HOST"), "{env}");
    event(
        &s,
        "waits",
        "Failed",
        "Error: couldn't find key missing in ConfigMap node-environment/map",
    );
    s.until("get pod waits", |row| row.contains("CreateContainerConfigError"));
    s.kubectl_with(&["patch", "configmap", "map", "-p", r#"{"data":{"missing":"no more"}}"#], "")
        .ok();
    ready(&s, "waits");
}

#[test]
fn debug_adds_an_ephemeral_container_to_a_running_pod() {
    let s = shared("node-debug");
    s.deploy("web", "app:1", 1);
    let pod = s.field("pods -l app=web", "{.items[0].metadata.name}");
    let ran = s.kubectl(&format!(
        "debug {pod} --image=box:1 --target=app --container=probe --profile=general -- sleep 1000"
    ));
    ran.ok();
    s.until(
        &format!(
            "get pod {pod} -o jsonpath={{.status.ephemeralContainerStatuses[0].state.running}}"
        ),
        |state| !state.is_empty(),
    );
    let seen = s.kubectl(&format!("exec {pod} -c probe -- ps")).ok();
    assert!(seen.contains("httpd"), "the target's processes are not listed: {seen}");
    assert_eq!(s.field(&format!("pod {pod}"), "{.status.containerStatuses[0].restartCount}"), "0");
}
