//! Creation and removal of clusters by `up` and `down`.

use e2e::{Cluster, MachineSnapshot, Session, share_machine, until};

#[track_caller]
fn nothing_is_left(cluster: &Cluster, before: &MachineSnapshot) {
    assert!(!cluster.root().exists());
    let left = std::fs::read_to_string(cluster.kubeconfig()).unwrap_or_default();
    assert!(!left.contains(&cluster.name), "{left}");
    until("a machine without traces of the cluster", || {
        match MachineSnapshot::take(cluster).since(before) {
            left if left.is_empty() => Ok(()),
            left => Err(left.join("\n")),
        }
    });
}

#[test]
fn up_and_down_twice_leave_nothing_behind() {
    let _turn = share_machine();
    let cluster = Cluster::new("life");
    let before = MachineSnapshot::take(&cluster);
    cluster.up().ok();
    cluster.up().ok();
    assert!(!MachineSnapshot::take(&cluster).since(&before).is_empty());
    cluster.build_images();
    let s = Session::in_default_namespace(&cluster);
    s.deploy("web", "app:1", 2);
    s.kubectl("expose deployment web --port=80 --target-port=8080 --type=NodePort").ok();
    let status = cluster.windlass(&["status"]).ok();
    assert!(status.contains("control-plane"), "{status}");
    check_timeline(&cluster);
    check_node_events(&s);
    cluster.down(&[]).ok();
    nothing_is_left(&cluster, &before);
    cluster.down(&[]).ok();

    // `down` also cleans up after all processes of the cluster were killed.
    cluster.up().ok();
    for role in ["supervisor", "agent", "control-plane", "containerd"] {
        cluster.kill(role);
    }
    cluster.down(&[]).ok();
    nothing_is_left(&cluster, &before);
}

/// Asserts that the kubelet has reported its start. The cluster must be young, because Events expire after an hour.
fn check_node_events(s: &Session<'_>) {
    let node = s.field("nodes", "{.items[0].metadata.name}");
    let query =
        "get events --field-selector=involvedObject.kind=Node -o jsonpath={.items[*].message}";
    let events = s.kubectl(query).ok();
    for message in [
        "Starting kubelet.",
        &format!("Node {node} status is now: NodeHasSufficientMemory"),
        &format!("Node {node} status is now: NodeReady"),
        "Updated Node Allocatable limit across pods",
    ] {
        assert!(events.contains(message), "{message}: {events}");
    }
}

/// Asserts that the timeline shows starts, waits and the files that were read and written.
fn check_timeline(cluster: &Cluster) {
    let timeline = cluster.windlass(&["timeline"]).ok();
    assert!(timeline.contains("wait for the node"), "{timeline}");
    let page = cluster.directory.join("timeline.html");
    cluster.windlass(&["timeline", "--html", &page.display().to_string()]).ok();
    let page = std::fs::read_to_string(page).unwrap();
    let root = cluster.root().display().to_string();
    for part in [
        "control-plane",
        "start the API server",
        "waited for <code>the node's Pod range</code>",
        "waited for <code>containerd</code>",
        &format!("wrote <code>{root}/etc/kubernetes/pki/ca.crt</code>"),
        &format!("wrote <code>{root}/etc/kubernetes/admin.conf</code>"),
        &format!("read <code>{root}/etc/kubernetes/pki/apiserver.crt</code>"),
        &format!("read <code>{root}/var/lib/kubelet/config.yaml</code>"),
    ] {
        assert!(page.contains(part), "{part} is not in {page}");
    }
    assert!(
        !page.contains("http://") && !page.contains("https://"),
        "the page loads no other resources"
    );
}

#[test]
fn up_uses_the_store_kept_by_down_keep_data() {
    let _turn = share_machine();
    let cluster = Cluster::new("kept");
    cluster.up().ok();
    let s = Session::in_default_namespace(&cluster);
    s.kubectl("create configmap kept --from-literal=a=1").ok();
    cluster.down(&["--keep-data"]).ok();
    cluster.up().ok();
    assert_eq!(s.field("configmap kept", "{.data.a}"), "1");
    // The stored Pods start after the import of their images.
    let warnings = "get events -A --field-selector=type=Warning -o jsonpath={.items[*].message}";
    let warnings = s.kubectl(warnings).ok();
    assert!(!warnings.contains("pull"), "{warnings}");
}
