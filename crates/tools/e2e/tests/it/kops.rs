//! kOps with the cloud `local`: creates, validates, repairs, rolls, restores and deletes clusters.

use std::{fs, io::Read as _};

use e2e::{Kops, Output, lock_machine, until};

/// Runs a script as root in all namespaces of a machine, as a privileged Pod with `hostPID` can.
fn run_inside(kops: &Kops, machine: &str, script: &str) -> Output {
    let pid = kops.pid(&format!("machines/{machine}/machine.pid")).expect("a machine");
    kops.cluster.run("nsenter", &["--target", &pid, "--all", "--", "sh", "-c", script])
}

/// Creates the smallest cluster. Whoever has taken over a machine reaches neither the state store nor the programs of
/// the host, and sees no process of the fleet.
#[test]
fn machines_of_a_cluster_see_only_themselves() {
    let _turn = lock_machine();
    let kops = Kops::new("kops-small");
    let made = kops.run(&["create", "cluster", "--cloud", "local", "--yes"]).ok();
    assert!(made.contains("is ready"), "{made}");
    let store = kops.state().join(&kops.name).join("pki/private");
    assert!(store.exists());
    let worker = "nodes-local-1";
    let list = "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done 2>/dev/null";
    let seen = run_inside(&kops, worker, list).ok();
    assert!(seen.contains("internal machine") && seen.contains("containerd "), "{seen}");
    for foreign in ["internal fleet", "control-plane-local"] {
        assert!(!seen.contains(foreign), "{foreign}: {seen}");
    }
    let search = format!(
        "for root in '' /proc/[0-9]*/root; do ls $root{}/*/keyset.yaml; done",
        store.display()
    );
    let found = run_inside(&kops, worker, &search);
    assert!(!found.stdout.contains("keyset.yaml"), "{found}");
    let write = "for root in '' /proc/[0-9]*/root; do touch $root/opt/windlass/programs/x; done";
    let written = run_inside(&kops, worker, write);
    assert!(written.stderr.contains("Read-only file system"), "{written}");
    let programs = kops.instances().join("programs");
    assert!(programs.join("windlass").exists() && !programs.join("x").exists());
    // The control plane reads its own cluster's part of the store.
    let read = format!("ls {}/kubernetes-ca/keyset.yaml", store.display());
    let control_plane = "control-plane-local-1";
    run_inside(&kops, control_plane, &read).ok();
    // The worker finds no device with etcd's data, and the control plane has mounted its own.
    let mounted = run_inside(&kops, control_plane, "ls /mnt/master-*; ls /run/kops/volumes").ok();
    assert!(mounted.contains("volume.json") && mounted.contains("l-etcd-main"), "{mounted}");
    let mount = "mkdir /run/x; for d in /dev/loop* /run/kops/volumes/*; do mount -o ro $d /run/x && ls /run/x && \
                 umount /run/x; done 2>/dev/null; cat /opt/windlass/machine/machine.json";
    let found = run_inside(&kops, worker, mount).ok();
    assert!(!found.contains("volume.json") && !found.contains("k8s.io/etcd"), "{found}");
    let fleet = fs::read_to_string(kops.instances().join("fleet.json")).expect("a document");
    assert!(fleet.contains("\"k8s.io/etcd/main\": \"l/l\""), "{fleet}");
    assert_eq!(kops.attached_images().len(), 1);
    kops.run(&["delete", "cluster", "--yes"]).ok();
    assert_eq!(kops.attached_images(), Vec::<String>::new());
    assert!(!kops.instances().exists() && !kops.state().join(&kops.name).exists());
}

#[test]
#[ignore = "takes minutes: a control plane, a worker, and a rolling update"]
fn creates_repairs_rolls_and_deletes_a_cluster() {
    let _turn = lock_machine();
    let kops = Kops::new("kops");
    kops.run(&["create", "cluster", "--cloud", "local"]).ok();
    let preview = kops.run(&["update", "cluster"]).ok();
    assert!(
        preview.contains("Must specify --yes") && preview.contains("InstanceGroup/nodes-local"),
        "{preview}"
    );
    assert!(!kops.instances().exists(), "the preview created machines");
    let made = kops.run(&["update", "cluster", "--yes"]).ok();
    assert!(made.contains("is ready"), "{made}");
    // A second update has no changes.
    let again = kops.run(&["update", "cluster"]).ok();
    assert!(again.contains("No changes need to be applied"), "{again}");

    // The keeper, its guard and the machines are restarted.
    kops.kill_and_wait("keeper.pid");
    kops.kill_and_wait("guard.pid");
    kops.kill_and_wait("machines/nodes-local-1/machine.pid");
    kops.wait_until_valid();

    let none = kops.run(&["rolling-update", "cluster"]).ok();
    assert!(none.contains("No rolling-update required"), "{none}");
    show_tools(&kops);
    assert_static_proxies(&kops);
    let before = ["nodes-local-1", "control-plane-local-1"].map(|name| kops.machine_id(name));
    let roll = ["rolling-update", "cluster", "--force", "--instance-group-roles", "node"];
    let preview = kops.run(&roll).ok();
    assert!(
        preview.contains("Must specify --yes") && !preview.contains("control-plane"),
        "{preview}"
    );
    let rolled = kops.run(&[&roll[..], &["--yes", "--post-drain-delay", "0s"]].concat()).ok();
    assert!(rolled.contains("Rolling update completed"), "{rolled}");
    let after = ["nodes-local-1", "control-plane-local-1"].map(|name| kops.machine_id(name));
    assert!(before[0] != after[0] && before[1] == after[1], "{before:?} {after:?}");
    let unknown = kops.run(&["rolling-update", "cluster", "--yes", "--instance-group", "x"]);
    assert!(unknown.refused().contains("\"x\" not found"));

    let end = ["delete", "instance", "nodes-local-1", "--post-drain-delay", "0s"];
    let preview = kops.run(&end).ok();
    assert!(preview.contains("Must specify --yes to delete instance"), "{preview}");
    let ended = kops.run(&[&end[..], &["--yes"]].concat()).ok();
    assert!(ended.contains("Draining the node: \"nodes-local-1\"."), "{ended}");
    kops.wait_until_valid();
    let left = kops.run(&["get", "instances"]).ok();
    assert!(left.contains("nodes-local-2") && !left.contains("nodes-local-1"), "{left}");

    kops.run(&["delete", "cluster", "--yes"]).ok();
    assert!(!kops.instances().exists() && !kops.state().join(&kops.name).exists());
    let links = kops.cluster.run("ip", &["-o", "link"]).ok();
    assert!(!links.contains("kops-"), "{links}");
}

/// Asserts that each machine runs kube-proxy as a static Pod, by which a Service is reached from the worker.
fn assert_static_proxies(kops: &Kops) {
    let namespace = ["--namespace", "kube-system", "get"];
    let kubectl = |args: &[&str]| kops.cluster.kubectl(&[&namespace, args].concat()).ok();
    let pods = kubectl(&["pods", "--selector", "k8s-app=kube-proxy"]);
    for name in ["kube-proxy-nodes-local-1", "kube-proxy-control-plane-local-1"] {
        let line = pods.lines().find(|line| line.starts_with(name));
        assert!(
            line.is_some_and(|line| line.contains("1/1") && line.contains("Running")),
            "{pods}"
        );
    }
    assert!(!kubectl(&["daemonsets"]).contains("kube-proxy"));
    let address = "jsonpath={.spec.clusterIP}";
    let service = kops.cluster.kubectl(&["get", "service", "kubernetes", "-o", address]).ok();
    let ask = format!("curl --insecure --silent --max-time 5 https://{}/version", service.trim());
    let answer = run_inside(kops, "nodes-local-1", &ask);
    // The API server rejects requests without credentials.
    assert!(answer.stdout.contains("Unauthorized"), "{answer}");
}

/// Checks that the toolbox sees machines, Nodes, Pods and add-ons, and that a reconciliation changes nothing.
fn show_tools(kops: &Kops) {
    let logs = kops.cluster.directory.join("dump");
    let directory = logs.display().to_string();
    let dump = ["toolbox", "dump", "--k8s-resources", "-o", "json", "--dir", &directory];
    let dump = kops.run(&dump).ok();
    for part in ["nodes-local-1", "kube-apiserver-control-plane-local-1", "privateAddresses"] {
        assert!(dump.contains(part), "{part}: {dump}");
    }
    assert!(logs.join("nodes-local-1/nodeup.log").exists(), "no log of the worker");
    let addons = kops.run(&["toolbox", "addons", "list"]).ok();
    assert!(addons.contains("kube-system") && addons.contains("bootstrap-channel"), "{addons}");
    let before = kops.machine_id("control-plane-local-1");
    let done = kops.run(&["reconcile", "cluster", "--yes"]).ok();
    let end = done.split("Performing rolling-update for nodes").nth(1).unwrap_or_default();
    assert!(end.contains("No rolling-update required"), "{done}");
    assert_eq!(kops.machine_id("control-plane-local-1"), before);
}

/// A Pod that stays on its node until its finalizer is removed.
const HELD: &str = "apiVersion: v1
kind: Pod
metadata: {name: web, finalizers: [example.com/hold]}
spec:
  nodeSelector: {kops.k8s.io/instancegroup: nodes-local}
  containers: [{name: c, image: none.example/none}]
";

/// Machines end after a drain only, and a failed rolling update is continued by the next one.
#[test]
#[ignore = "takes minutes: cargo xtask test --full"]
fn drains_machines_before_they_end() {
    let _turn = lock_machine();
    let kops = Kops::new("kops");
    kops.run(&["create", "cluster", "--cloud", "local", "--node-count", "2", "--yes"]).ok();
    let group = kops.run(&["get", "ig", "nodes-local", "-o", "yaml"]).ok();
    let file = kops.cluster.directory.join("group.yaml").display().to_string();
    fs::write(&file, group.replace("Size: 2", "Size: 1")).expect("a group");
    kops.run(&["replace", "-f", &file]).ok();
    let plan = kops.cluster.directory.join("plan.json").display().to_string();
    let preview = kops.run(&["update", "cluster", "--plan-out", &plan]).ok();
    assert!(preview.contains("nodes-local-2"), "{preview}");
    let done = kops.run(&["update", "cluster", "--yes", "--plan", &plan]).ok();
    assert!(done.contains("Draining the node: \"nodes-local-2\""), "{done}");
    let nodes = kops.cluster.kubectl(&["get", "nodes", "-o", "name"]).ok();
    assert!(nodes.contains("nodes-local-1") && !nodes.contains("nodes-local-2"), "{nodes}");
    assert!(!kops.instances().join("machines/nodes-local-2").exists());
    // The plan was carried out, so it is out of date.
    let stale = kops.run(&["update", "cluster", "--yes", "--plan", &plan]).refused();
    assert!(stale.contains("out of date"), "{stale}");

    fs::write(&file, HELD).expect("a Pod");
    kops.cluster.kubectl(&["create", "-f", &file]).ok();
    until("a Pod on the worker", || {
        let pod = ["get", "pod", "web", "-o", "jsonpath={.spec.nodeName}"];
        kops.cluster.kubectl(&pod).ok_if(|node| node.contains("nodes-local-1"))
    });
    let before = kops.machine_id("nodes-local-1");
    let roll = ["rolling-update", "cluster", "--yes", "--instance-group", "nodes-local"];
    let forced = ["--force", "--fail-on-drain-error", "--drain-timeout", "3s"];
    let failed = kops.run(&[&roll[..], &forced].concat()).refused();
    assert!(
        failed.contains("draining node \"nodes-local-1\"") && failed.contains("web"),
        "{failed}"
    );
    assert_eq!(kops.machine_id("nodes-local-1"), before);
    let left = kops.run(&["rolling-update", "cluster"]).ok();
    assert!(left.contains("NeedsUpdate"), "{left}");
    let release =
        ["patch", "pod", "web", "--type=merge", "-p", r#"{"metadata":{"finalizers":null}}"#];
    kops.cluster.kubectl(&release).ok();
    kops.run(&[&roll[..], &["--post-drain-delay", "0s"]].concat()).ok();
    assert_ne!(kops.machine_id("nodes-local-1"), before);
    let none = kops.run(&["rolling-update", "cluster"]).ok();
    assert!(none.contains("No rolling-update required"), "{none}");

    let valid = kops.run(&["validate", "cluster", "-o", "json"]).ok();
    let tree: serde_json::Value = serde_json::from_str(&valid).expect("only JSON");
    assert!(tree["failures"].is_null() && tree["nodes"][0]["status"] == "True", "{valid}");
    kops.run(&["delete", "cluster", "--yes"]).ok();
    let kubeconfig = fs::read_to_string(kops.cluster.kubeconfig()).unwrap_or_default();
    assert!(!kubeconfig.contains(&kops.name), "{kubeconfig}");
}

/// Kills one of three control planes, and then deletes its volume too.
#[test]
#[ignore = "takes minutes: cargo xtask test --full"]
fn replaces_a_control_plane_with_and_without_its_volume() {
    let _turn = lock_machine();
    let kops = Kops::new("kops");
    kops.run(&["create", "cluster", "--cloud", "local", "--control-plane-count", "3", "--yes"])
        .ok();
    kops.cluster.kubectl(&["create", "configmap", "kept", "--from-literal", "a=b"]).ok();
    let machine = "control-plane-local-1-1";

    kops.kill_and_wait(&format!("machines/{machine}/machine.pid"));
    // The balancer uses the other API servers meanwhile.
    until("an answer of the remaining API servers", || {
        kops.cluster
            .kubectl(&["get", "configmap", "kept", "--request-timeout", "5s"])
            .ok_if(|_| true)
    });
    kops.wait_until_valid();

    // A control plane without its volume joins etcd as a new member.
    let lost = kops.instances().join("volumes").join(machine);
    // etcd writes to it until it ends.
    until("the deletion of the volume", || fs::remove_dir_all(&lost).map_err(|e| e.to_string()));
    kops.kill_and_wait(&format!("machines/{machine}/machine.pid"));
    kops.wait_until_valid();
    run_inside(&kops, machine, "ls -d /mnt/master-*-etcd-main/data/member").ok();
    kops.cluster.kubectl(&["get", "configmap", "kept"]).ok();
}

/// The first backup of a new cluster, taken as soon as etcd holds an object, starts a cluster. A damaged one is refused
/// before any machine ends, also if its command is written by another program.
#[test]
#[ignore = "takes minutes: cargo xtask test --full"]
fn restores_the_first_backup_and_refuses_a_damaged_one() {
    let _turn = lock_machine();
    let kops = Kops::new("kops-first");
    kops.create_with_backups("1", "1");
    let first = kops.list_backups().first().expect("a backup").clone();
    kops.restore(&first);

    let machine = kops.machine_id("control-plane-local-1");
    let root = kops.state().join(&kops.name).join("backups/etcd/main");
    let damaged = root.join(kops.wait_for_backup());
    fs::write(damaged.join("etcd.backup.gz"), "photo").expect("a damaged archive");
    let name = damaged.file_name().expect("a name").to_string_lossy().into_owned();
    let refused = kops.ctl(&["restore-backup", &name]).refused();
    assert!(refused.contains("its archive is damaged"), "{refused}");
    let command = root.join("control/2030-01-01T00:00:00Z-000000");
    fs::create_dir_all(&command).expect("a command's directory");
    let text = format!(
        r#"{{"timestamp": "1893456000000000000", "restoreBackup": {{"clusterSpec": {{}}, "backup": "{name}"}}}}"#
    );
    fs::write(command.join("_command.json"), text).expect("a command");
    kops.wait_for_removed_commands();
    assert_eq!(kops.machine_id("control-plane-local-1"), machine);
    kops.wait_until_valid();
}

/// Kills the only control plane as soon as its volume has an owner. Its replacement starts the cluster.
#[test]
#[ignore = "takes minutes: cargo xtask test --full"]
fn starts_after_a_crash_of_the_first_start() {
    let _turn = lock_machine();
    let kops = Kops::new("kops-crash");
    kops.run(&["create", "cluster", "--cloud", "local"]).ok();
    let machine = "machines/control-plane-local-1/machine.pid";
    std::thread::scope(|scope| {
        let update = scope.spawn(|| kops.run(&["update", "cluster", "--yes"]));
        until("an owner of the volume", || {
            let pid = kops.pid(machine).ok_or("no machine")?;
            let marked = format!("/proc/{pid}/root/mnt/master-l-etcd-main/volume.json");
            if fs::exists(&marked).unwrap_or(false) { Ok(()) } else { Err(marked) }
        });
        kops.kill_and_wait(machine);
        let updated = update.join().expect("an update").ok();
        assert!(updated.contains("is ready"), "{updated}");
    });
}

/// A disk with other data is neither formatted nor mounted, and the cause is shown. With its own volume, the control
/// plane continues.
#[test]
#[ignore = "takes minutes: cargo xtask test --full"]
fn leaves_a_volume_with_foreign_data_alone() {
    let _turn = lock_machine();
    let kops = Kops::new("kops-disk");
    kops.run(&["create", "cluster", "--cloud", "local", "--yes"]).ok();
    kops.cluster.kubectl(&["create", "configmap", "kept", "--from-literal", "a=b"]).ok();
    let machine = "machines/control-plane-local-1/machine.pid";
    let volumes = kops.instances().join("volumes/control-plane-local-1");
    let (image, aside) = (volumes.join("l-etcd-main.img"), volumes.join("aside.img"));
    fs::rename(&image, &aside).expect("an image");
    let foreign = [b"photo".to_vec(), vec![0; 1 << 20]].concat();
    fs::write(&image, &foreign).expect("another image");
    kops.kill_and_wait(machine);
    until("the cause", || {
        let found = kops.run(&["validate", "cluster"]);
        if found.to_string().contains("data of an unknown format") {
            Ok(())
        } else {
            Err(found.to_string())
        }
    });
    let mut content = vec![0; foreign.len()];
    let disk = fs::File::open(&image).and_then(|mut disk| disk.read_exact(&mut content));
    disk.expect("the image");
    assert!(content == foreign, "the disk was written");
    fs::rename(&aside, &image).expect("an image");
    kops.kill_and_wait(machine);
    kops.wait_until_valid();
    kops.cluster.kubectl(&["get", "configmap", "kept"]).ok();
}

/// With upstream's two etcd clusters, events are in one of their own, on a volume of their own. Both survive the
/// machine.
#[test]
#[ignore = "takes minutes: cargo xtask test --full"]
fn keeps_events_in_an_etcd_of_their_own() {
    let _turn = lock_machine();
    let kops = Kops::new("kops-events");
    let size = ["--etcd-clusters", "main,events", "--yes"];
    kops.run(&[&["create", "cluster", "--cloud", "local"], &size[..]].concat()).ok();
    let machine = "control-plane-local-1";
    let search = "for name in main events; do grep -aq /registry/events/ \
                  /mnt/master-l-etcd-$name/data/member/snap/db && echo $name; done; true";
    until("events in their etcd alone", || {
        run_inside(&kops, machine, search).ok_if(|found| found.trim() == "events")
    });
    kops.cluster.kubectl(&["create", "configmap", "kept", "--from-literal", "a=b"]).ok();
    let event = "get events -A -o jsonpath={.items[0].metadata.uid}";
    let before = kops.cluster.kubectl(&event.split(' ').collect::<Vec<_>>()).ok();
    kops.kill_and_wait(&format!("machines/{machine}/machine.pid"));
    kops.wait_until_valid();
    kops.cluster.kubectl(&["get", "configmap", "kept"]).ok();
    let uids = "get events -A -o jsonpath={.items[*].metadata.uid}";
    let after = kops.cluster.kubectl(&uids.split(' ').collect::<Vec<_>>()).ok();
    assert!(!before.is_empty() && after.contains(&before), "{before} {after}");
    assert_eq!(kops.attached_images().len(), 2);
}

/// A restored store has a lower revision than a running worker has seen. The worker must list again.
#[test]
#[ignore = "takes minutes: cargo xtask test --full"]
fn running_workers_follow_a_restored_store() {
    let _turn = lock_machine();
    let kops = Kops::new("kops-back");
    kops.create_with_backups("1", "1");
    let backup = kops.wait_for_backup();
    // Write so much that the restored store does not reach the old revision during the test.
    let map = |n| format!("{{apiVersion: v1, kind: ConfigMap, metadata: {{name: lost-{n}}}}}\n");
    let file = kops.cluster.directory.join("lost.yaml");
    fs::write(&file, (0..1500).map(map).collect::<Vec<_>>().join("---\n")).expect("objects");
    kops.cluster.kubectl(&["create", "-f", &file.display().to_string()]).ok();
    kops.ctl(&["restore-backup", &backup]).ok();
    until("the removal of objects newer than the backup", || {
        let found = kops.cluster.kubectl(&["get", "configmap", "lost-0"]);
        if found.stderr.contains("NotFound") { Ok(()) } else { Err(found.to_string()) }
    });
    kops.wait_until_valid();
    // The worker's kubelet starts new Pods.
    let namespace = ["--namespace", "kube-system"];
    let kubectl = |args: &[&str]| kops.cluster.kubectl(&[&namespace, args].concat()).ok();
    kubectl(&["delete", "pod", "--selector", "k8s-app=windlass-network", "--wait=false"]);
    kubectl(&["rollout", "status", "daemonset/windlass-network", "--timeout=60s"]);
}

/// Deletes all machines and volumes, and restores the cluster from a backup in the state store.
#[test]
#[ignore = "takes minutes: cargo xtask test --full"]
fn restores_a_cluster_from_its_backup_alone() {
    let _turn = lock_machine();
    let kops = Kops::new("kops");
    kops.create_with_backups("3", "1");
    kops.cluster.kubectl(&["create", "configmap", "kept", "--from-literal", "a=b"]).ok();
    let newest = kops.wait_for_backup();
    let unknown = kops.ctl(&["restore-backup", "2026-01-01T00:00:00Z-000000"]).refused();
    assert!(unknown.contains("does not exist"), "{unknown}");

    let control_planes = [1, 2, 3].map(|n| format!("control-plane-local-{n}-1"));
    let worker = "nodes-local-1".to_owned();
    for machine in &control_planes {
        let volume = kops.instances().join("volumes").join(machine);
        // etcd writes to it until it ends.
        until("the deletion of the volume", || {
            fs::remove_dir_all(&volume).map_err(|e| e.to_string())
        });
    }
    for machine in control_planes.iter().chain([&worker]) {
        kops.kill_and_wait(&format!("machines/{machine}/machine.pid"));
    }
    // No member starts a new etcd cluster by itself.
    let log = |machine: &String| {
        let log = kops.instances().join("machines").join(machine).join("disk/var/log/nodeup.log");
        fs::read_to_string(log).unwrap_or_default()
    };
    for machine in &control_planes {
        until("a member that waits for a restore", || {
            let log = log(machine);
            if log.contains("no quorum of its members answers") { Ok(()) } else { Err(log) }
        });
    }
    let added = kops.ctl(&["restore-backup", &newest]).ok();
    assert!(added.contains("added restore-backup command"), "{added}");
    kops.wait_until_valid();
    let kept = kops.cluster.kubectl(&["get", "configmap", "kept", "-o", "jsonpath={.data.a}"]).ok();
    assert_eq!(kept, "b");
    assert_eq!(
        kops.ctl(&["list-commands"]).ok().lines().count(),
        1,
        "the restore command was not removed"
    );

    // A member without data joins later and receives all data.
    let machine = &control_planes[0];
    let volume = kops.instances().join("volumes").join(machine);
    until("the deletion of the volume", || fs::remove_dir_all(&volume).map_err(|e| e.to_string()));
    kops.kill_and_wait(&format!("machines/{machine}/machine.pid"));
    kops.wait_until_valid();
    kops.cluster.kubectl(&["get", "configmap", "kept"]).ok();
}
