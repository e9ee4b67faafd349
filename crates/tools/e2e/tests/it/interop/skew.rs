//! A node whose kubelet is of an earlier minor version than our control plane, and its change to ours. Needs
//! `WINDLASS_EARLIER_KUBELET`, the path of upstream's kubelet of that version.

use e2e::{Host, Machines, connect, is_etcd_installed, lock_machine, ready, until};

use super::site::{CONFIGURATION, rename, run_kubelet};

/// A Pod with the parts that a kubelet prepares: volumes of each local kind, a container before, one beside, probes.
const POD: &str = "
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {color: green}
---
apiVersion: v1
kind: Secret
metadata: {name: hidden}
stringData: {word: hunter2}
---
apiVersion: v1
kind: Pod
metadata: {name: whole, labels: {app: whole}}
spec:
  nodeSelector: {kubernetes.io/hostname: beta}
  terminationGracePeriodSeconds: 2
  securityContext: {fsGroup: 77}
  initContainers:
  - {name: before, image: 'app:1', command: [sh, -c, 'echo prepared >/memory/before'],
     volumeMounts: [{name: memory, mountPath: /memory}]}
  - {name: beside, image: 'app:1', command: [sh, -c, 'trap exit TERM; while :; do sleep 1; done'], restartPolicy: Always}
  containers:
  - name: app
    image: app:1
    env:
    - {name: COLOR, valueFrom: {configMapKeyRef: {name: settings, key: color}}}
    - {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
    resources: {requests: {cpu: 10m, memory: 16Mi}, limits: {cpu: 500m, memory: 64Mi}}
    startupProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
    readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
    livenessProbe: {exec: {command: [sh, -c, 'test -d /www']}, periodSeconds: 1}
    lifecycle: {preStop: {sleep: {seconds: 1}}}
    volumeMounts:
    - {name: memory, mountPath: /memory}
    - {name: settings, mountPath: /settings}
    - {name: hidden, mountPath: /hidden}
    - {name: about, mountPath: /about}
    - {name: host, mountPath: /machine, readOnly: true}
  volumes:
  - {name: memory, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
  - {name: settings, configMap: {name: settings}}
  - {name: hidden, secret: {secretName: hidden}}
  - {name: about, downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}}
  - {name: host, hostPath: {path: /etc, type: Directory}}
---
apiVersion: v1
kind: Pod
metadata: {name: failing}
spec:
  nodeSelector: {kubernetes.io/hostname: beta}
  terminationGracePeriodSeconds: 0
  containers:
  - {name: app, image: 'app:1', livenessProbe: {exec: {command: [sh, -c, 'exit 1']}, periodSeconds: 1, failureThreshold: 1}}
";

/// A Deployment that a drain moves, one Pod at a time.
const MOVED: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: moved}
spec:
  replicas: 2
  selector: {matchLabels: {app: moved}}
  template:
    metadata: {labels: {app: moved}}
    spec:
      terminationGracePeriodSeconds: 1
      affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [
        {weight: 100, preference: {matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [beta]}]}}]}}
      containers: [{name: app, image: 'app:1', readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}}]
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: moved}
spec: {minAvailable: 1, selector: {matchLabels: {app: moved}}}
";

#[test]
fn runs_pods_by_a_kubelet_of_an_earlier_minor_version() {
    let Some(kubelet) = std::env::var_os("WINDLASS_EARLIER_KUBELET") else {
        eprintln!("skipped: WINDLASS_EARLIER_KUBELET, the path of a kubelet, is not set");
        return;
    };
    if !is_etcd_installed() {
        return;
    }
    let kubelet = kubelet.to_string_lossy().into_owned();
    let _turn = lock_machine();
    let machines = Machines::new("skew");
    let (first, worker) = (machines.start("alpha", 1), machines.start("beta", 2));
    let version = worker.run(&kubelet, &["--version"]).ok();
    let version = version.trim().trim_start_matches("Kubernetes ").to_owned();
    let ignored = "--ignore-preflight-errors=SystemVerification";
    let file = first.write("kubeadm.yaml", CONFIGURATION);
    first.windlass(&format!("init --config {file} {ignored}")).ok();
    first.kubectl("taint node alpha node-role.kubernetes.io/control-plane-").ok();
    let line = first.windlass("token create --print-join-command").ok();
    let join = line.trim().strip_prefix("windlass ").expect("a windlass command");
    worker.windlass(&format!("{join} {ignored}")).ok();
    stop_our_kubelet(&worker);
    rename(&worker, "pause:3.10.2", "pause:3.6");
    let earlier = run_kubelet(&worker, &[&kubelet]);
    connect(&first, &[&first, &worker]);
    wait_for_version(&first, &version);
    ready(&first, &[&first, &worker]);
    for host in [&first, &worker] {
        host.build_app();
    }

    first.kubectl_with(&["apply", "-f", "-"], POD).ok();
    whole_pod_works(&first);
    until("a restart by the liveness probe", || {
        let path = "jsonpath={.status.containerStatuses[0].restartCount}";
        let ran = first.kubectl(&format!("get pod failing -o {path}"));
        ran.ok_if(|count| count.parse::<u32>().is_ok_and(|count| count > 0))
    });
    first.kubectl("delete pod failing").ok();
    serves_measurements(&first);
    drains(&first);

    // The change of the kubelet to ours restarts no container.
    let before = container(&first);
    drop(earlier);
    let _ours = run_kubelet(&worker, &[&worker.binary(), "kubelet"]);
    wait_for_version(&first, version::KUBERNETES_VERSION);
    ready(&first, &[&worker]);
    whole_pod_works(&first);
    assert_eq!(container(&first), before, "the change of the kubelet restarted a container");
    first.kubectl("delete pod whole").ok();
}

/// Stops the kubelet that `join` has started, and its supervisor.
fn stop_our_kubelet(worker: &Host<'_>) {
    // The files contain a process ID and its start time.
    let script = "id() { cut -d' ' -f1 /run/windlass/$1.pid; }; kill $(id kubelet-supervisor) && \
                  while kill -0 $(id kubelet) 2>/dev/null; do sleep 0.1; done";
    worker.run("sh", &["-c", script]).ok();
}

fn wait_for_version(first: &Host<'_>, version: &str) {
    until(&format!("a kubelet of {version}"), || {
        let ran = first.kubectl("get node beta -o jsonpath={.status.nodeInfo.kubeletVersion}");
        ran.ok_if(|found| found.starts_with(version))
    });
}

/// Returns the id of the long-running container.
fn container(first: &Host<'_>) -> String {
    first.kubectl("get pod whole -o jsonpath={.status.containerStatuses[0].containerID}").ok()
}

/// Asserts that the Pod is ready, and that exec, logs and all its volumes work.
#[track_caller]
fn whole_pod_works(first: &Host<'_>) {
    let ran = first.kubectl("wait pod/whole --for=condition=Ready --timeout=90s");
    assert!(ran.code == Some(0), "{ran}\n{}", first.kubectl("describe pod whole"));
    let script = "for file in /memory/before /settings/color /hidden/word /about/labels /machine/hostname \
                  /var/run/secrets/kubernetes.io/serviceaccount/namespace; do \
                  while read -r line || [ -n \"$line\" ]; do echo \"$line\"; done <$file; done; \
                  echo $COLOR on $NODE";
    let text =
        first.kubectl_with(&["exec", "whole", "-c", "app", "--", "sh", "-c", script], "").ok();
    for part in ["prepared", "green\n", "hunter2", "app=\"whole\"", "default", "green on beta"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(first.kubectl("logs whole -c app").ok().contains("here is whole"));
}

/// Asserts that the node's measurements are readable through the API server.
fn serves_measurements(first: &Host<'_>) {
    let path = "/api/v1/nodes/beta/proxy";
    let summary = first.kubectl(&format!("get --raw {path}/stats/summary")).ok();
    assert!(summary.contains("\"nodeName\": \"beta\""), "{summary}");
    let resources = first.kubectl(&format!("get --raw {path}/metrics/resource")).ok();
    assert!(resources.contains("node_memory_working_set_bytes"), "{resources}");
}

/// Drains the node within a disruption budget, and lets Pods return.
#[track_caller]
fn drains(first: &Host<'_>) {
    first.kubectl_with(&["apply", "-f", "-"], MOVED).ok();
    let available = || first.kubectl("rollout status deployment/moved --timeout=90s").ok();
    available();
    let nodes = "get pods -l app=moved -o jsonpath={.items[*].spec.nodeName}";
    assert_eq!(first.kubectl(nodes).ok(), "beta beta");
    let drain = "drain beta --ignore-daemonsets --pod-selector=app=moved --timeout=90s";
    first.kubectl(drain).ok();
    available();
    assert_eq!(first.kubectl(nodes).ok(), "alpha alpha");
    first.kubectl("uncordon beta").ok();
    first.kubectl("delete deployment,poddisruptionbudget moved").ok();
}
