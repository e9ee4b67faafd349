//! `up` with several control planes: the API stays available when any one of them fails.

use e2e::{Cluster, MachineSnapshot, Session, is_etcd_installed, lock_machine, until};

use crate::nodes::ready;

/// Creates a ConfigMap through the stable endpoint and asserts that no acknowledged one is lost.
fn write_and_check(s: &Session<'_>, written: &mut Vec<String>, during: &str) {
    let name = format!("configmap/{during}");
    until(&format!("a write while {during}"), || {
        let ran = s.kubectl(&format!("--request-timeout=10s create configmap {during}"));
        // The answer of an earlier attempt may have been lost.
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
#[ignore = "takes minutes: three control planes with etcd, and the timeouts that detect dead ones"]
fn three_control_planes_tolerate_the_loss_of_any_one() {
    let _turn = lock_machine();
    if !is_etcd_installed() {
        return;
    }
    let cluster = Cluster::new("planes");
    let before = MachineSnapshot::take(&cluster);
    cluster.up_with(&["--nodes", "4", "--control-planes", "3"]).ok();
    let s = Session::in_default_namespace(&cluster);
    // A kubelet reports its static Pods shortly after they start.
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
    write_and_check(&s, &mut written, "all-are-well");
    cluster.windlass(&["node", "stop", "control-plane2"]).ok();
    write_and_check(&s, &mut written, "one-is-stopped");
    ready(&s, "control-plane2", "Unknown");
    cluster.windlass(&["node", "start", "control-plane2"]).ok();
    ready(&s, "control-plane2", "True");
    cluster.windlass(&["node", "cut", "control-plane3"]).ok();
    write_and_check(&s, &mut written, "another-is-cut-off");
    cluster.windlass(&["node", "heal", "control-plane3"]).ok();
    ready(&s, "control-plane3", "True");

    // The first node is the machine itself, so stop only its API server, by moving its manifest away.
    let manifests = cluster.root().join("etc/kubernetes/manifests");
    let (there, aside) = (manifests.join("kube-apiserver.yaml"), cluster.root().join("aside.yaml"));
    std::fs::rename(&there, &aside).unwrap();
    until("the end of the first API server", || {
        let ran = s.on_node("sh", &["-c", "ss -Hltn 'sport = :6443'"]).ok();
        if ran.trim().is_empty() { Ok(()) } else { Err(ran) }
    });
    write_and_check(&s, &mut written, "the-first-is-gone");
    std::fs::rename(&aside, &there).unwrap();
    until("a restart of the first API server", || {
        let ran = s.on_node("sh", &["-c", "ss -Hltn 'sport = :6443'"]).ok();
        if ran.contains("6443") { Ok(()) } else { Err(ran) }
    });
    let status = cluster.windlass(&["status"]);
    assert!(status.stdout.contains("balancer of control-plane2 runs"), "{status}");
    cluster.down(&[]).ok();
    let left = MachineSnapshot::take(&cluster).since(&before);
    assert!(left.is_empty(), "{left:#?}");
}
