//! A kubelet that is killed, reconfigured, or without an API server. Each test has its own cluster.

use std::fs;

use e2e::{Cluster, Session, share_machine, until};

use super::{event, exec, ready};

fn pods(s: &Session<'_>) -> String {
    let line = "{.metadata.name} {.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount}{\"\\n\"}";
    let path = format!("jsonpath={{range .items[*]}}{line}{{end}}");
    s.kubectl_with(&["get", "pods", "-o", &path], "").ok()
}

/// Replaces fields of the kubelet's configuration and restarts the kubelet.
fn configure(cluster: &Cluster, lines: &str) {
    let path = cluster.root().join("var/lib/kubelet/config.yaml");
    let text = fs::read_to_string(&path).unwrap();
    // The unindented lines name the fields to replace.
    let fields: Vec<&str> =
        lines.lines().filter(|l| !l.starts_with(' ')).filter_map(|l| l.split(':').next()).collect();
    let mut kept = String::new();
    let mut skipping = false;
    for line in text.lines() {
        if !line.starts_with([' ', '-']) {
            skipping = fields.iter().any(|field| line.starts_with(&format!("{field}:")));
        }
        if !skipping {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    fs::write(&path, kept + lines).unwrap();
    cluster.kill("agent");
}

#[test]
#[expect(clippy::too_many_lines, reason = "one scenario")]
fn restarted_kubelet_adopts_pods_evicts_and_runs_static_pods() {
    let _turn = share_machine();
    let cluster = Cluster::new("node");
    cluster.up().ok();
    cluster.build_images();
    let s = Session::in_default_namespace(&cluster);
    s.apply(
        r#"
apiVersion: v1
kind: Pod
metadata: {name: stays}
spec: {containers: [{name: c, image: app:1, readinessProbe: {httpGet: {port: 8080, path: /index.html}, periodSeconds: 1}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: asked}
spec: {priority: 0, containers: [{name: c, image: box:1, resources: {requests: {memory: 64Mi}}}]}
"#,
    );
    ready(&s, "stays");
    ready(&s, "asked");
    let before = pods(&s);
    cluster.kill("agent");
    // A new Pod shows that the kubelet runs again.
    s.kubectl("run fresh --image=box:1").ok();
    ready(&s, "fresh");
    // Delete the Pod: it requests no memory and could be evicted first.
    s.kubectl("delete pod fresh --now").ok();
    for line in before.lines() {
        assert!(pods(&s).contains(line), "{line} has changed:\n{}", pods(&s));
    }

    // Static Pods start without an API server.
    cluster.kill("control-plane");
    let place = cluster.directory.join("alone");
    let manifest = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: alone}}\nspec: {{volumes: [{{name: h, hostPath: {{path: {}, type: DirectoryOrCreate}}}}], containers: [{{name: c, image: box:1, command: [sh, -c, \"echo up >/h/up; sleep 10000\"], volumeMounts: [{{name: h, mountPath: /h}}]}}]}}\n",
        place.display()
    );
    let file = cluster.root().join("etc/kubernetes/manifests/alone.yaml");
    fs::write(&file, manifest).unwrap();
    until("the static Pod", || fs::read_to_string(place.join("up")).map_err(|e| e.to_string()));
    fs::remove_file(&file).unwrap();

    // A node under memory pressure reports it, is tainted, and first evicts Pods that exceed their requests.
    s.until("get pods", |rows| rows.contains("stays"));
    configure(
        &cluster,
        "evictionHard:\n  memory.available: 99%\nevictionPressureTransitionPeriod: 5s\n",
    );
    s.until(
        "get nodes -o jsonpath={.items[0].status.conditions[?(@.type==\"MemoryPressure\")].status}",
        |status| status == "True",
    );
    s.until("get nodes -o jsonpath={.items[0].spec.taints[*].key}", |keys| {
        keys.contains("node.kubernetes.io/memory-pressure")
    });
    s.until("get pod stays -o jsonpath={.status.phase}/{.status.reason}", |seen| {
        seen == "Failed/Evicted"
    });
    let message = s.field("pod stays", "{.status.message}");
    assert!(
        message.starts_with("The node was low on resource: memory. Threshold quantity: "),
        "{message}"
    );
    assert!(
        message.contains("Container c was using ")
            && message.ends_with(", request is 0, has larger consumption of memory. "),
        "{message}"
    );
    event(&s, "stays", "Evicted", "The node was low on resource: memory.");
    let node = s.field("nodes", "{.items[0].metadata.name}");
    event(&s, &node, "EvictionThresholdMet", "Attempting to reclaim memory");
    s.kubectl_with(&["create", "-f", "-"], &format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: late}}\nspec: {{nodeName: {node}, containers: [{{name: c, image: box:1}}]}}\n")).ok();
    s.until("get pod late -o jsonpath={.status.message}", |text| {
        text == "Pod was rejected: The node had condition: [MemoryPressure]. "
    });
    configure(
        &cluster,
        "evictionHard:\n  memory.available: 100Mi\nnodeStatusUpdateFrequency: 1s\n",
    );
    s.until(
        "get nodes -o jsonpath={.items[0].status.conditions[?(@.type==\"MemoryPressure\")].status}",
        |status| status == "False",
    );

    // Unused images are deleted when their disk is too full.
    cluster.build_image("unused:1", &["sleep", "1"]);
    let images = || s.field("nodes", "{.items[0].status.images[*].names[*]}");
    until("the image", || if images().contains("unused:1") { Ok(()) } else { Err(images()) });
    configure(
        &cluster,
        "evictionHard:\n  imagefs.available: 99%\nevictionPressureTransitionPeriod: 5s\n",
    );
    until("the deletion of the image", || {
        if images().contains("unused:1") { Err(images()) } else { Ok(()) }
    });
    s.until(
        "get nodes -o jsonpath={.items[0].status.conditions[?(@.type==\"DiskPressure\")].status}",
        |status| status == "True",
    );
    cluster.down(&[]).ok();
}

#[test]
fn uses_another_cni_configuration_once_it_is_written() {
    let _turn = share_machine();
    let cluster = Cluster::new("cni");
    cluster.up().ok();
    cluster.build_images();
    let s = Session::in_default_namespace(&cluster);
    let address = |pod: &str| {
        s.kubectl(&format!("run {pod} --image=app:1")).ok();
        ready(&s, pod);
        s.field(&format!("pod {pod}"), "{.status.podIP}")
    };
    assert!(address("before").starts_with("10.244."));
    // Use our plugin with another range. The runtime uses the configuration that is first by name.
    let place = cluster.root().join("etc/cni/net.d/00-other.conflist");
    let leases = cluster.directory.join("leases");
    let other = format!(
        r#"{{"cniVersion": "1.0.0", "name": "other", "plugins": [{{"type": "windlass-cni", "bridge": "other0",
            "subnets": ["10.99.0.0/24"], "clusterCIDRs": ["10.99.0.0/24"], "dataDir": "{}"}}]}}"#,
        leases.display()
    );
    // containerd reloads when a file is written in the directory, and not when one is moved there.
    fs::write(&place, other).unwrap();
    let mut count = 0;
    until("an address of the other network", || {
        count += 1;
        let seen = address(&format!("other{count}"));
        if seen.starts_with("10.99.0.") { Ok(()) } else { Err(seen) }
    });
    let pod = format!("other{count}");
    let lookup = "nslookup kubernetes.default.svc.cluster.local";
    assert!(exec(&s, &pod, lookup).contains("10.96.0.1"));
    // A restarted agent keeps the other configuration.
    cluster.kill("agent");
    assert!(address("after").starts_with("10.99.0."));
    assert!(place.exists());
    cluster.down(&[]).ok();
}
