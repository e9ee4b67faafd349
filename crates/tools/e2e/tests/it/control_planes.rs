//! `up` with several control planes: the API goes on without any one of them.

use e2e::{Cluster, Machine, Session, alone, is_etcd_there, until};

use crate::nodes::ready;

/// Writes are acknowledged through the stable endpoint, and what was acknowledged is there.
fn writes(s: &Session<'_>, written: &mut Vec<String>, during: &str) {
    let name = format!("configmap/{during}");
    until(&format!("a write while {during}"), || {
        let ran = s.kubectl(&format!("--request-timeout=10s create configmap {during}"));
        // One whose answer was lost is there.
        let there = ran.code == Some(0) || ran.stderr.contains("already exists");
        if there { Ok(()) } else { Err(ran.to_string()) }
    });
    written.push(name);
    let kept = s.kubectl("get configmaps -o name").ok();
    for name in written {
        assert!(
            kept.lines().any(|line| line == name),
            "{name} was acknowledged and is lost: {kept}"
        );
    }
}

#[test]
#[ignore = "takes minutes: three control planes with etcd, and the times after which dead ones are noticed"]
fn three_control_planes_go_on_without_any_one_of_them() {
    let _turn = alone();
    if !is_etcd_there() {
        return;
    }
    let cluster = Cluster::new("planes");
    let before = Machine::look(&cluster);
    cluster.up_with(&["--nodes", "4", "--control-planes", "3"]).ok();
    let s = Session::own(&cluster);
    // A kubelet tells of its static Pods a moment after they run.
    until("three members of etcd", || {
        let members = s.field("pod -n kube-system -l component=etcd", "{.items[*].spec.nodeName}");
        if members.split_whitespace().count() == 3 { Ok(()) } else { Err(members) }
    });
    let labelled = s.kubectl("get nodes -l node-role.kubernetes.io/control-plane -o name").ok();
    assert_eq!(labelled.lines().count(), 3, "{labelled}");
    until("three API servers as endpoints", || {
        let path = "{.endpoints[*].addresses[0]}";
        let found = s.field("endpointslice kubernetes -n default", path);
        if found.split_whitespace().count() == 3 { Ok(()) } else { Err(found) }
    });

    let mut written = Vec::new();
    writes(&s, &mut written, "all-are-well");
    cluster.windlass(&["node", "stop", "control-plane2"]).ok();
    writes(&s, &mut written, "one-is-stopped");
    ready(&s, "control-plane2", "Unknown");
    cluster.windlass(&["node", "start", "control-plane2"]).ok();
    ready(&s, "control-plane2", "True");
    cluster.windlass(&["node", "cut", "control-plane3"]).ok();
    writes(&s, &mut written, "another-is-cut-off");
    cluster.windlass(&["node", "heal", "control-plane3"]).ok();
    ready(&s, "control-plane3", "True");

    // The first is the machine itself: what goes is its API server, by its manifest.
    let manifests = cluster.root().join("etc/kubernetes/manifests");
    let (there, aside) = (manifests.join("kube-apiserver.yaml"), cluster.root().join("aside.yaml"));
    std::fs::rename(&there, &aside).unwrap();
    until("the end of the first API server", || {
        let ran = s.on_node("sh", &["-c", "ss -Hltn 'sport = :6443'"]).ok();
        if ran.trim().is_empty() { Ok(()) } else { Err(ran) }
    });
    writes(&s, &mut written, "the-first-is-gone");
    std::fs::rename(&aside, &there).unwrap();
    until("the first API server again", || {
        let ran = s.on_node("sh", &["-c", "ss -Hltn 'sport = :6443'"]).ok();
        if ran.contains("6443") { Ok(()) } else { Err(ran) }
    });
    let well = cluster.windlass(&["status"]);
    assert!(well.stdout.contains("balancer of control-plane2 runs"), "{well}");
    cluster.down(&[]).ok();
    let left = Machine::look(&cluster).since(&before);
    assert!(left.is_empty(), "{left:#?}");
}
