//! Clusters that come and go.

use e2e::{Cluster, Machine, Session, beside_others, until};

#[track_caller]
fn nothing_is_left(cluster: &Cluster, before: &Machine) {
    assert!(!cluster.root().exists());
    let left = std::fs::read_to_string(cluster.kubeconfig()).unwrap_or_default();
    assert!(!left.contains(&cluster.name), "{left}");
    until("a machine as it was before", || match Machine::look(cluster).since(before) {
        left if left.is_empty() => Ok(()),
        left => Err(left.join("\n")),
    });
}

#[test]
fn up_and_down_twice_leave_nothing_behind() {
    let _turn = beside_others();
    let cluster = Cluster::new("life");
    let before = Machine::look(&cluster);
    cluster.up().ok();
    cluster.up().ok();
    assert!(!Machine::look(&cluster).since(&before).is_empty());
    cluster.build_images();
    let s = Session::own(&cluster);
    s.deploy("web", "app:1", 2);
    s.kubectl("expose deployment web --port=80 --target-port=8080 --type=NodePort").ok();
    let status = cluster.windlass(&["status"]).ok();
    assert!(status.contains("control-plane"), "{status}");
    the_timeline_tells(&cluster);
    cluster.down(&[]).ok();
    nothing_is_left(&cluster, &before);
    cluster.down(&[]).ok();

    // Not even where everything that could have tidied up was killed before.
    cluster.up().ok();
    for role in ["supervisor", "agent", "control-plane", "containerd"] {
        cluster.kill(role);
    }
    cluster.down(&[]).ok();
    nothing_is_left(&cluster, &before);
}

/// Asserts that the timeline shows starts, waits and the files that were read and written.
fn the_timeline_tells(cluster: &Cluster) {
    let timeline = cluster.windlass(&["timeline"]).ok();
    assert!(timeline.contains("wait for the node"), "{timeline}");
    let page = cluster.directory.join("timeline.html");
    cluster.windlass(&["timeline", "--html", &page.display().to_string()]).ok();
    let page = std::fs::read_to_string(page).unwrap();
    let root = cluster.root().display().to_string();
    for told in [
        "control-plane",
        "start the API server",
        "waited for <code>the node's Pod range</code>",
        "waited for <code>containerd</code>",
        &format!("wrote <code>{root}/etc/kubernetes/pki/ca.crt</code>"),
        &format!("wrote <code>{root}/etc/kubernetes/admin.conf</code>"),
        &format!("read <code>{root}/etc/kubernetes/pki/apiserver.crt</code>"),
        &format!("read <code>{root}/var/lib/kubelet/config.yaml</code>"),
    ] {
        assert!(page.contains(told), "{told} is not in {page}");
    }
    assert!(!page.contains("http://") && !page.contains("https://"), "it is one page by itself");
}

#[test]
fn up_finds_the_store_that_down_has_kept() {
    let _turn = beside_others();
    let cluster = Cluster::new("kept");
    cluster.up().ok();
    let s = Session::own(&cluster);
    s.kubectl("create configmap kept --from-literal=a=1").ok();
    cluster.down(&["--keep-data"]).ok();
    cluster.up().ok();
    assert_eq!(s.field("configmap kept", "{.data.a}"), "1");
}
