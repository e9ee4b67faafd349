//! Clusters that come and go.

use e2e::{Cluster, Machine, Session, alone, until};

#[test]
fn up_and_down_twice_leave_nothing_behind() {
    let _turn = alone();
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
    let timeline = cluster.windlass(&["timeline"]).ok();
    assert!(timeline.contains("wait for the node"), "{timeline}");

    cluster.down(&[]).ok();
    assert!(!cluster.root().exists());
    let left = std::fs::read_to_string(cluster.kubeconfig()).unwrap_or_default();
    assert!(!left.contains(&cluster.name), "{left}");
    until("a machine as it was before", || match Machine::look(&cluster).since(&before) {
        left if left.is_empty() => Ok(()),
        left => Err(left.join("\n")),
    });
    cluster.down(&[]).ok();
}

#[test]
fn a_kept_store_is_found_again() {
    let _turn = alone();
    let cluster = Cluster::new("kept");
    cluster.up().ok();
    let s = Session::own(&cluster);
    s.kubectl("create configmap kept --from-literal=a=1").ok();
    cluster.down(&["--keep-data"]).ok();
    cluster.up().ok();
    assert_eq!(s.field("configmap kept", "{.data.a}"), "1");
}
