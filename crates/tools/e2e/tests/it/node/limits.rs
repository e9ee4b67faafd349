//! Limits: cgroups, rejected Pods, evictions, and resizes.

use std::path::{Path, PathBuf};

use e2e::{Session, shared, until};
use serde_json::Value;

use super::{event, exec, ready};

/// Returns the path of a Pod's cgroup: in the controller's hierarchy for cgroup v1, in the only one for v2.
fn group(s: &Session<'_>, controller: &str, class: &str, pod: &str) -> PathBuf {
    let uid = s.field(&format!("pod {pod}"), "{.metadata.uid}");
    let root = Path::new("/sys/fs/cgroup");
    let v2 = root.join("cgroup.controllers").exists();
    let root = if v2 { root.to_owned() } else { root.join(controller) };
    root.join(format!("windlass-{}", s.cluster.name))
        .join("kubepods")
        .join(class)
        .join(format!("pod{uid}"))
}

fn number(path: &Path) -> i64 {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(-1)
}

/// Returns a cgroup's memory limit in bytes and its CPU quota in microseconds per 100 ms. -1 means no limit.
fn limits(s: &Session<'_>, class: &str, pod: &str) -> (i64, i64) {
    let memory = group(s, "memory", class, pod);
    let memory = [memory.join("memory.limit_in_bytes"), memory.join("memory.max")];
    let cpu = group(s, "cpu", class, pod);
    let cpu = [cpu.join("cpu.cfs_quota_us"), cpu.join("cpu.max")];
    let of = |files: [PathBuf; 2]| files.iter().filter(|f| f.exists()).map(|f| number(f)).next();
    let memory = of(memory).unwrap_or(-1);
    (if memory > 1 << 60 { -1 } else { memory }, of(cpu).unwrap_or(-1))
}

#[test]
fn pod_cgroups_have_limits_of_their_qos_class() {
    let s = shared("node-classes");
    s.apply(
        r#"
apiVersion: v1
kind: Pod
metadata: {name: sure}
spec: {containers: [{name: c, image: box:1, resources: {limits: {cpu: 100m, memory: 32Mi}}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: some}
spec: {containers: [{name: c, image: box:1, resources: {requests: {cpu: 50m}, limits: {memory: 64Mi}}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: none}
spec: {containers: [{name: c, image: box:1}]}
---
apiVersion: v1
kind: Pod
metadata: {name: greedy}
spec: {restartPolicy: Never, containers: [{name: c, image: box:1, command: [sh, -c, "exec dd if=/dev/zero of=/dev/null bs=256M count=1"], resources: {limits: {memory: 32Mi}}}]}
"#,
    );
    for (pod, class, directory, wanted) in [
        ("sure", "Guaranteed", "", (32 << 20, 10_000)),
        ("some", "Burstable", "burstable", (64 << 20, -1)),
        ("none", "BestEffort", "besteffort", (-1, -1)),
    ] {
        ready(&s, pod);
        assert_eq!(s.field(&format!("pod {pod}"), "{.status.qosClass}"), class);
        assert_eq!(limits(&s, directory, pod), wanted, "{pod}");
        // The container's cgroup is inside the Pod's.
        let inner = std::fs::read_dir(group(&s, "memory", directory, pod)).unwrap();
        assert!(inner.flatten().filter(|e| e.path().is_dir()).count() >= 2, "{pod}");
    }
    let score =
        |pod: &str| exec(&s, pod, "cat /proc/self/oom_score_adj").trim().parse::<i32>().unwrap();
    assert_eq!(score("none"), 1000);
    assert!((3..1000).contains(&score("some")));
    // BestEffort Pods get the smallest CPU share.
    let shares = |class: &str| {
        let parent = group(&s, "cpu", class, "none");
        let parent = parent.parent().unwrap();
        [parent.join("cpu.shares"), parent.join("cpu.weight")]
            .iter()
            .filter(|f| f.exists())
            .map(|f| number(f))
            .next()
    };
    until("the classes' shares", || {
        let (least, more) = (shares("besteffort"), shares("burstable"));
        if least.is_some_and(|l| l <= 2) && more > least {
            Ok(())
        } else {
            Err(format!("{least:?} {more:?}"))
        }
    });
    s.until(
        "get pod greedy -o jsonpath={.status.containerStatuses[0].state.terminated.reason}",
        |reason| reason == "OOMKilled",
    );
}

#[test]
fn node_rejects_pods_that_do_not_fit() {
    let s = shared("node-refusals");
    let node = s.field("nodes", "{.items[0].metadata.name}");
    let pod = |name: &str, more: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{nodeName: {node}, {more}}}\n---\n"
        )
    };
    let plain = "containers: [{name: c, image: box:1}]";
    s.apply(&[
        pod("large", "containers: [{name: c, image: box:1, resources: {requests: {cpu: 1000}}}]"),
        pod("elsewhere", &format!("nodeSelector: {{no: such}}, {plain}")),
        pod("first", "containers: [{name: c, image: box:1, ports: [{containerPort: 80, hostPort: 8099}]}]"),
    ].concat());
    ready(&s, "first");
    s.apply(&pod(
        "second",
        "containers: [{name: c, image: box:1, ports: [{containerPort: 81, hostPort: 8099}]}]",
    ));
    for (name, reason, message) in [
        ("large", "OutOfcpu", "Node didn't have enough resource: cpu, requested: 1000000, used: "),
        (
            "elsewhere",
            "NodeAffinity",
            "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
        ),
        (
            "second",
            "NodePorts",
            "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports",
        ),
    ] {
        s.until(
            &format!("get pod {name} -o jsonpath={{.status.phase}}/{{.status.reason}}"),
            |seen| seen == format!("Failed/{reason}"),
        );
        event(&s, name, reason, message);
        let output = s.field(&format!("pod {name}"), "{.status.message}");
        assert!(output.starts_with(&format!("Pod was rejected: {message}")), "{output}");
        assert!(s.kubectl(&format!("get pod {name}")).ok().contains(reason));
    }
}

#[test]
fn evicts_a_pod_that_exceeds_its_storage_limit() {
    let s = shared("node-storage");
    s.apply(
        r#"
apiVersion: v1
kind: Pod
metadata: {name: writer}
spec:
  volumes: [{name: v, emptyDir: {sizeLimit: 1Mi}}]
  containers: [{name: c, image: box:1, volumeMounts: [{name: v, mountPath: /v}]}]
---
apiVersion: v1
kind: Pod
metadata: {name: layer}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: box:1, resources: {limits: {ephemeral-storage: 1Mi}}}]
"#,
    );
    for (pod, file, message) in [
        ("writer", "/v/x", "Usage of EmptyDir volume \"v\" exceeds the limit \"1Mi\". "),
        ("layer", "/x", "Container c exceeded its local ephemeral storage limit \"1Mi\". "),
    ] {
        ready(&s, pod);
        exec(&s, pod, &format!("head -c 3000000 /dev/zero >{file}"));
        s.until(
            &format!("get pod {pod} -o jsonpath={{.status.phase}}/{{.status.reason}}"),
            |seen| seen == "Failed/Evicted",
        );
        assert_eq!(s.field(&format!("pod {pod}"), "{.status.message}"), message);
        event(&s, pod, "Evicted", message.trim_end());
        let disrupted = r#"{.status.conditions[?(@.type=="DisruptionTarget")].reason}"#;
        assert_eq!(s.field(&format!("pod {pod}"), disrupted), "TerminationByKubelet");
    }
}

#[test]
fn resizes_a_running_container() {
    let s = shared("node-resize");
    s.apply(
        r#"
apiVersion: v1
kind: Pod
metadata: {name: sized}
spec:
  containers:
  - name: c
    image: box:1
    resizePolicy: [{resourceName: memory, restartPolicy: RestartContainer}]
    resources: {requests: {cpu: 50m, memory: 32Mi}, limits: {cpu: 100m, memory: 64Mi}}
"#,
    );
    ready(&s, "sized");
    assert_eq!(limits(&s, "burstable", "sized"), (64 << 20, 10_000));
    let ask = |resources: &str| {
        let patch =
            format!(r#"{{"spec":{{"containers":[{{"name":"c","resources":{resources}}}]}}}}"#);
        s.kubectl_with(&["patch", "pod", "sized", "--subresource", "resize", "-p", &patch], "")
    };
    let status = || -> Value { s.get("pod sized")["status"].clone() };
    let condition = |status: &Value, kind: &str| {
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        conditions.into_iter().find(|c| c["type"] == kind)
    };
    ask(r#"{"requests":{"cpu":"100m"},"limits":{"cpu":"200m"}}"#).ok();
    until("more CPU", || {
        let status = status();
        let own = &status["containerStatuses"][0];
        let done = own["resources"]["limits"]["cpu"] == "200m"
            && own["allocatedResources"]["cpu"] == "100m"
            && condition(&status, "PodResizeInProgress").is_none();
        if done { Ok(()) } else { Err(status.to_string()) }
    });
    assert_eq!(limits(&s, "burstable", "sized"), (64 << 20, 20_000));
    assert_eq!(status()["containerStatuses"][0]["restartCount"], 0);
    // A memory resize restarts the container, as its resizePolicy demands.
    ask(r#"{"limits":{"memory":"96Mi"}}"#).ok();
    until("a restart", || {
        let status = status();
        let own = &status["containerStatuses"][0];
        let done = own["restartCount"] == 1 && own["resources"]["limits"]["memory"] == "96Mi";
        if done { Ok(()) } else { Err(status.to_string()) }
    });
    assert_eq!(limits(&s, "burstable", "sized").0, 96 << 20);
    event(&s, "sized", "Killing", "Container c resize requires restart");
    // The API rejects a resize beyond the node's capacity, and the old resources stay.
    let refused = ask(r#"{"requests":{"cpu":"1000"},"limits":{"cpu":"1000"}}"#).refused();
    let cause = "node didn't have enough allocatable resources: cpu, requested: 1000000";
    assert!(refused.contains(cause), "{refused}");
    let status = status();
    assert_eq!(status["containerStatuses"][0]["allocatedResources"]["cpu"], "100m");
    assert!(condition(&status, "PodResizePending").is_none(), "{status}");
}

#[test]
fn resizes_resources_that_containers_share() {
    let s = shared("node-resize-shared");
    s.apply(
        r#"
apiVersion: v1
kind: Pod
metadata: {name: sharing}
spec:
  resources: {requests: {cpu: 50m, memory: 32Mi}, limits: {cpu: 100m, memory: 64Mi}}
  containers:
  - {name: c, image: box:1}
  - {name: d, image: box:1, resources: {limits: {memory: 16Mi}}}
"#,
    );
    ready(&s, "sharing");
    assert_eq!(limits(&s, "burstable", "sharing"), (64 << 20, 10_000));
    let ask = |resources: &str| {
        let patch = format!(r#"{{"spec":{{"resources":{resources}}}}}"#);
        s.kubectl_with(&["patch", "pod", "sharing", "--subresource", "resize", "-p", &patch], "")
    };
    let is_resized = |memory: &str| {
        until("the resize", || {
            let status = s.get("pod sharing")["status"].clone();
            let mut conditions = status["conditions"].as_array().into_iter().flatten();
            let done = status["resources"]["limits"]["memory"] == memory
                && conditions.all(|c| c["type"] != "PodResizeInProgress");
            if done { Ok(()) } else { Err(status.to_string()) }
        });
    };
    ask(r#"{"requests":{"cpu":"100m"},"limits":{"cpu":"200m","memory":"96Mi"}}"#).ok();
    is_resized("96Mi");
    assert_eq!(limits(&s, "burstable", "sharing"), (96 << 20, 20_000));
    let status = s.get("pod sharing")["status"].clone();
    assert_eq!(status["allocatedResources"]["cpu"], "100m");
    ask(r#"{"limits":{"memory":"48Mi"}}"#).ok();
    is_resized("48Mi");
    assert_eq!(limits(&s, "burstable", "sharing").0, 48 << 20);
    let status = s.get("pod sharing")["status"].clone();
    for container in status["containerStatuses"].as_array().unwrap() {
        assert_eq!(container["restartCount"], 0, "{container}");
    }
    // No node has as much.
    let refused = ask(r#"{"requests":{"cpu":"1000"},"limits":{"cpu":"1000"}}"#).refused();
    assert!(refused.contains("node didn't have enough allocatable resources: cpu"), "{refused}");
}
