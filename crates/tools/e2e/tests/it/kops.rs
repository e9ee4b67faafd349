//! kOps' cloud local: from flags to a validated cluster, whose machines come back and are rolled, and of which deletion
//! leaves nothing.

use std::fs;

use e2e::{Kops, Ran, alone, binary, until};

/// It takes minutes: a control plane and a worker, each with a container runtime, and a replacement.
#[test]
#[ignore = "it takes minutes"]
fn a_cluster_is_made_by_flags_mends_itself_and_leaves_nothing() {
    let _turn = alone();
    let place = Kops::new("kops");
    place.run(&["create", "cluster", "--cloud", "local"]).ok();
    let preview = place.run(&["update", "cluster"]).ok();
    assert!(
        preview.contains("Must specify --yes") && preview.contains("InstanceGroup/nodes-local"),
        "{preview}"
    );
    assert!(!place.instances().exists(), "a preview made something");
    let made = place.run(&["update", "cluster", "--yes"]).ok();
    assert!(made.contains("is ready"), "{made}");
    // Nothing is left to do.
    let again = place.run(&["update", "cluster"]).ok();
    assert!(again.contains("No changes need to be applied"), "{again}");

    // Whoever keeps the machines is kept, too.
    place.kill_and_wait("keeper.pid");
    place.kill_and_wait("guard.pid");
    place.kill_and_wait("machines/nodes-local-1/machine.pid");
    place.is_valid();

    let none = place.run(&["rolling-update", "cluster"]).ok();
    assert!(none.contains("No rolling-update required"), "{none}");
    let before = ["nodes-local-1", "control-plane-local-1"].map(|name| place.machine(name));
    let roll = ["rolling-update", "cluster", "--force", "--instance-group-roles", "node"];
    let preview = place.run(&roll).ok();
    assert!(
        preview.contains("Must specify --yes") && !preview.contains("control-plane"),
        "{preview}"
    );
    let rolled = place.run(&[&roll[..], &["--yes", "--post-drain-delay", "0s"]].concat()).ok();
    assert!(rolled.contains("Rolling update completed"), "{rolled}");
    let after = ["nodes-local-1", "control-plane-local-1"].map(|name| place.machine(name));
    assert!(before[0] != after[0] && before[1] == after[1], "{before:?} {after:?}");
    let unknown = place.run(&["rolling-update", "cluster", "--yes", "--instance-group", "x"]);
    assert!(unknown.refused().contains("\"x\" not found"));

    place.run(&["delete", "cluster", "--yes"]).ok();
    assert!(!place.instances().exists() && !place.state().join(&place.name).exists());
    let links = place.cluster.run("ip", &["-o", "link"]).ok();
    assert!(!links.contains("kops-"), "{links}");
}

/// Three control planes outlive the end of one of them and the loss of its volume.
#[test]
#[ignore = "it takes minutes"]
fn replaces_a_control_plane_with_and_without_its_volume() {
    let _turn = alone();
    let place = Kops::new("kops");
    place
        .run(&["create", "cluster", "--cloud", "local", "--control-plane-count", "3", "--yes"])
        .ok();
    place.cluster.kubectl(&["create", "configmap", "kept", "--from-literal", "a=b"]).ok();
    let machine = "control-plane-local-1-1";

    place.kill_and_wait(&format!("machines/{machine}/machine.pid"));
    // The balancer leads to the others meanwhile.
    until("the API without one of its servers", || {
        place
            .cluster
            .kubectl(&["get", "configmap", "kept", "--request-timeout", "5s"])
            .when(|_| true)
    });
    place.is_valid();

    // Its volume is lost: it joins the others as a new member.
    let lost = place.instances().join("volumes").join(machine);
    // etcd writes to it until it ends.
    until("a volume that is gone", || fs::remove_dir_all(&lost).map_err(|e| e.to_string()));
    place.kill_and_wait(&format!("machines/{machine}/machine.pid"));
    place.is_valid();
    let volume =
        place.instances().join("volumes").join(machine).join(format!("{}--main--0", place.name));
    assert!(volume.join("data/member").exists(), "no data on the new volume");
    place.cluster.kubectl(&["get", "configmap", "kept"]).ok();
}

/// Makes a cluster whose etcd is backed up every few seconds.
fn backed_up(place: &Kops, control_planes: &str) {
    place
        .run(&["create", "cluster", "--cloud", "local", "--control-plane-count", control_planes])
        .ok();
    let spec = place.run(&["get", "cluster", "-o", "yaml"]).ok();
    let often = "backupInterval: 3s\n      backupRetentionDays: 90";
    let file = place.cluster.directory.join("spec.yaml");
    fs::write(&file, spec.replace("backupRetentionDays: 90", often)).expect("a spec");
    place.run(&["replace", "-f", &file.display().to_string()]).ok();
    place.run(&["update", "cluster", "--yes"]).ok();
}

fn ctl(place: &Kops, args: &[&str]) -> Ran {
    let store = place.state().join(&place.name).join("backups/etcd/main");
    let store = format!("--backup-store=file://{}", store.display());
    let all = [&["etcd-manager-ctl", store.as_str()], args].concat();
    place.cluster.run(&binary().display().to_string(), &all)
}

/// The name of a backup that was begun after this was called.
fn later_backup(place: &Kops) -> String {
    let list = || -> Vec<String> {
        ctl(place, &["list-backups"]).ok().lines().skip(1).map(str::to_owned).collect()
    };
    // One may have begun before; the next one is after.
    let before = list().len();
    let backups = until("two backups more", || {
        let backups = list();
        if backups.len() > before + 1 { Ok(backups) } else { Err(format!("{backups:?}")) }
    });
    backups.last().expect("a backup").clone()
}

/// A worker that knows a later revision than the restored store learns that the store is older.
#[test]
#[ignore = "it takes minutes"]
fn workers_that_live_on_follow_a_restored_store() {
    let _turn = alone();
    let place = Kops::new("kops-back");
    backed_up(&place, "1");
    let backup = later_backup(&place);
    // So many that the restored store needs minutes until it has come as far by itself.
    let map = |n| format!("{{apiVersion: v1, kind: ConfigMap, metadata: {{name: lost-{n}}}}}\n");
    let file = place.cluster.directory.join("lost.yaml");
    fs::write(&file, (0..1500).map(map).collect::<Vec<_>>().join("---\n")).expect("objects");
    place.cluster.kubectl(&["create", "-f", &file.display().to_string()]).ok();
    ctl(&place, &["restore-backup", &backup]).ok();
    until("what came after the backup to be gone", || {
        let found = place.cluster.kubectl(&["get", "configmap", "lost-0"]);
        if found.stderr.contains("NotFound") { Ok(()) } else { Err(found.to_string()) }
    });
    place.is_valid();
    // The worker hears of Pods that are made now.
    let proxies = ["--namespace", "kube-system"];
    let of_proxies = |args: &[&str]| place.cluster.kubectl(&[&proxies, args].concat()).ok();
    of_proxies(&["delete", "pod", "--selector", "k8s-app=kube-proxy", "--wait=false"]);
    of_proxies(&["rollout", "status", "daemonset/kube-proxy", "--timeout=60s"]);
}

/// All machines and all volumes are gone, and the store with its backups is left.
#[test]
#[ignore = "it takes minutes"]
fn a_backup_brings_back_what_no_machine_has_any_more() {
    let _turn = alone();
    let place = Kops::new("kops");
    backed_up(&place, "3");
    place.cluster.kubectl(&["create", "configmap", "kept", "--from-literal", "a=b"]).ok();
    let newest = later_backup(&place);
    let unknown = ctl(&place, &["restore-backup", "2026-01-01T00:00:00Z-000000"]).refused();
    assert!(unknown.contains("does not exist"), "{unknown}");

    let control_planes = [1, 2, 3].map(|n| format!("control-plane-local-{n}-1"));
    let worker = "nodes-local-1".to_owned();
    for machine in &control_planes {
        let volume = place.instances().join("volumes").join(machine);
        // etcd writes to it until it ends.
        until("a volume that is gone", || fs::remove_dir_all(&volume).map_err(|e| e.to_string()));
    }
    for machine in control_planes.iter().chain([&worker]) {
        place.kill_and_wait(&format!("machines/{machine}/machine.pid"));
    }
    // Nothing begins anew by itself.
    let log = |machine: &String| {
        let log = place.instances().join("machines").join(machine).join("disk/var/log/nodeup.log");
        fs::read_to_string(log).unwrap_or_default()
    };
    for machine in &control_planes {
        until("a member that waits", || {
            let log = log(machine);
            if log.contains("no quorum of its members answers") { Ok(()) } else { Err(log) }
        });
    }
    let added = ctl(&place, &["restore-backup", &newest]).ok();
    assert!(added.contains("added restore-backup command"), "{added}");
    place.is_valid();
    let kept =
        place.cluster.kubectl(&["get", "configmap", "kept", "-o", "jsonpath={.data.a}"]).ok();
    assert_eq!(kept, "b");
    assert_eq!(
        ctl(&place, &["list-commands"]).ok().lines().count(),
        1,
        "the command is carried out once"
    );

    // A member that comes later, with nothing, gets all of it.
    let machine = &control_planes[0];
    let volume = place.instances().join("volumes").join(machine);
    until("a volume that is gone", || fs::remove_dir_all(&volume).map_err(|e| e.to_string()));
    place.kill_and_wait(&format!("machines/{machine}/machine.pid"));
    place.is_valid();
    place.cluster.kubectl(&["get", "configmap", "kept"]).ok();
}
