//! The upgrade of a cluster that upstream's kubeadm of the earlier minor version has created. Needs
//! `WINDLASS_EARLIER_PEER`, the directory of upstream's binaries of that version.

use std::path::PathBuf;

use e2e::{Host, Machines, connect, lock_machine, ready, until};

use super::site::{CONFIGURATION, CONTROL_PLANE, CURRENT, OURS, Site, UPSTREAMS, Versions};
use crate::upgrade::upgrade;

/// The versions of kubeadm v1.35.
const EARLIER: Versions =
    Versions { kubernetes: "v1.35.6", etcd: "3.6.6-0", pause: "3.10.1", coredns: "v1.13.1" };

/// A line that a user has added to the Corefile.
const OWN_LINE: &str = "    rewrite name own.example kubernetes.default.svc.cluster.local";

#[test]
fn upgrades_a_cluster_of_upstreams_earlier_version() {
    let Some(peer) = std::env::var_os("WINDLASS_EARLIER_PEER").map(PathBuf::from) else {
        eprintln!("skipped: WINDLASS_EARLIER_PEER, a directory of upstream's binaries, is not set");
        return;
    };
    let _turn = lock_machine();
    let machines = Machines::new("earlier");
    let (first, worker) = (machines.start("alpha", 1), machines.start("beta", 2));
    let site = Site { first: &first, worker: &worker, peer, versions: EARLIER };
    site.images();
    let text = CONFIGURATION.replace(CURRENT.kubernetes, EARLIER.kubernetes);
    let file = first.write("kubeadm.yaml", &text);
    let kubelets = site.hosts().map(|host| site.upstreams_kubelet(host));
    site.kubeadm(&first, &format!("init --config {file} --ignore-preflight-errors=all"));
    first.kubectl("taint node alpha node-role.kubernetes.io/control-plane-").ok();
    let line = site.kubeadm(&first, "token create --print-join-command");
    let join = line.trim().strip_prefix("kubeadm ").expect("a kubeadm command");
    site.kubeadm(&worker, &format!("{join} --ignore-preflight-errors=all"));
    connect(&first, &[&first, &worker]);
    ready(&first, &[&first, &worker]);
    site.upstreams_proxy();
    site.deploy("kept");
    site.answers("kept");
    let kept = site.containers("kept");
    change_corefile(&first);

    use_our_images(&first);
    let plan = first.windlass("upgrade plan").ok();
    for component in ["kube-apiserver", "kubelet"] {
        let row = |line: &&str| line.starts_with(component) && line.contains("alpha");
        let row = plan.lines().find(row).unwrap_or_else(|| panic!("{plan}")).split_whitespace();
        let expected = [component, "alpha", EARLIER.kubernetes, CURRENT.kubernetes];
        assert_eq!(row.collect::<Vec<_>>(), expected, "{plan}");
    }
    first.windlass(&upgrade(&format!("apply {} --yes", CURRENT.kubernetes))).ok();
    worker.windlass(&upgrade("node")).ok();
    // Without systemd, the upgrade has started our kubelets, which wait for the ports of upstream's.
    drop(kubelets);
    until("kubelets of the new version", || {
        let path = "jsonpath={.items[*].status.nodeInfo.kubeletVersion}";
        let ran = first.kubectl(&format!("get nodes -o {path}"));
        ran.ok_if(|versions| !versions.contains(EARLIER.kubernetes))
    });
    ready(&first, &[&first, &worker]);
    site.running(&CONTROL_PLANE, OURS);
    site.proxies(OURS);
    assert_eq!(site.containers("kept"), kept, "the upgrade restarted a workload");
    site.answers("kept");
    site.works("upgraded");
    let configuration = first.kubectl("-n kube-system get configmap kubeadm-config -o yaml").ok();
    assert!(configuration.contains(CURRENT.kubernetes), "{configuration}");
    let path = "jsonpath={.items[*].spec.containers[*].image}";
    let images = first.kubectl(&format!("-n kube-system get pods -o {path}")).ok();
    assert!(!images.contains(EARLIER.kubernetes), "{images}");
    let corefile = first.kubectl("-n kube-system get configmap coredns -o yaml").ok();
    assert!(corefile.contains(OWN_LINE.trim()), "{corefile}");
    let plan = first.windlass("upgrade plan").ok();
    assert!(plan.contains("up-to-date"), "{plan}");
}

/// Has the next upgrade use our images, and keep upstream's etcd: an etcd of Debian does not read a newer one's data.
fn use_our_images(first: &Host<'_>) {
    let map = first.kubectl("-n kube-system get configmap kubeadm-config -o json").ok();
    let map: serde_json::Value = serde_json::from_str(&map).unwrap();
    let configuration = map["data"]["ClusterConfiguration"].as_str().unwrap();
    let etcd = format!(
        "    dataDir: /var/lib/etcd\n    imageRepository: {UPSTREAMS}\n    imageTag: {}\n",
        EARLIER.etcd
    );
    let configuration = configuration
        .replace(&format!("imageRepository: {UPSTREAMS}"), &format!("imageRepository: {OURS}"))
        .replace("    dataDir: /var/lib/etcd\n", &etcd);
    let patch = serde_json::json!({"data": {"ClusterConfiguration": configuration}});
    patch_map(first, "kubeadm-config", &patch);
}

fn patch_map(first: &Host<'_>, name: &str, patch: &serde_json::Value) {
    let patch = patch.to_string();
    let line = ["-n", "kube-system", "patch", "configmap", name, "--type=merge", "-p", &patch];
    first.kubectl_with(&line, "").ok();
}

fn change_corefile(first: &Host<'_>) {
    let path = "jsonpath={.data.Corefile}";
    let corefile = first.kubectl(&format!("-n kube-system get configmap coredns -o {path}")).ok();
    let corefile = corefile.replacen("    errors\n", &format!("    errors\n{OWN_LINE}\n"), 1);
    patch_map(first, "coredns", &serde_json::json!({"data": {"Corefile": corefile}}));
}
