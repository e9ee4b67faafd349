//! A cluster of `init`: upstream's kubeadm and kubelet join it, and upstream's components replace ours one by one.

use e2e::{Machines, connect, is_etcd_installed, lock_machine, ready};

use super::{
    peer,
    results::Results,
    site::{CONFIGURATION, CONTROL_PLANE, CURRENT, OURS, Site, UPSTREAMS},
};

const JOINS: &str = "upstream's kubeadm and kubelet join our control plane with our token";
const WORKS: &str = "upstream's kubelet runs Pods of our control plane, with logs and exec";
const SCHEDULER: &str = "upstream's scheduler in our cluster";
const MANAGER: &str = "upstream's controller manager in our cluster";
const PROXY: &str = "upstream's kube-proxy in our cluster";
const SERVER: &str = "upstream's API server on the etcd data of ours";
const BACK: &str = "our components again, on the etcd data of upstream's API server";

#[test]
fn upstreams_components_join_a_cluster_of_init() {
    let Some(peer) = peer() else { return };
    if !is_etcd_installed() {
        return;
    }
    let _turn = lock_machine();
    let claims = [JOINS, WORKS, SCHEDULER, MANAGER, PROXY, SERVER, BACK];
    let mut results = Results::new("joined", &peer, &claims);
    let machines = Machines::new("joined");
    let (first, worker) = (machines.start("alpha", 1), machines.start("beta", 2));
    let site = Site { first: &first, worker: &worker, peer, versions: CURRENT };
    site.images();
    let file = first.write("kubeadm.yaml", CONFIGURATION);
    let ignored = "--ignore-preflight-errors=SystemVerification";
    first.windlass(&format!("init --config {file} {ignored}")).ok();
    first.kubectl("taint node alpha node-role.kubernetes.io/control-plane-").ok();

    results.begin(JOINS);
    let line = first.windlass("token create --print-join-command").ok();
    let join = line.trim().strip_prefix("windlass ").expect("a windlass command");
    let _kubelet = site.upstreams_kubelet(&worker);
    let output = site.kubeadm(&worker, &format!("{join} --ignore-preflight-errors=all"));
    assert!(output.contains("This node has joined the cluster"), "{output}");
    connect(&first, &[&first, &worker]);
    ready(&first, &[&first, &worker]);
    site.proxies(OURS);

    results.begin(WORKS);
    site.works("begin");
    site.deploy("kept");
    let kept = site.containers("kept");
    results.begin(SCHEDULER);
    site.swap(&["kube-scheduler"], OURS, UPSTREAMS);
    site.works("scheduled");
    results.begin(MANAGER);
    site.swap(&["kube-controller-manager"], OURS, UPSTREAMS);
    site.works("controlled");
    results.begin(PROXY);
    site.upstreams_proxy();
    site.works("proxied");
    results.begin(SERVER);
    first.kubectl("create configmap written-by-ours --from-literal=a=b").ok();
    site.swap(&["kube-apiserver"], OURS, UPSTREAMS);
    assert_eq!(first.kubectl("get configmap written-by-ours -o jsonpath={.data.a}").ok(), "b");
    first.kubectl("create configmap written-by-theirs --from-literal=c=d").ok();
    site.works("served");
    results.begin(BACK);
    site.swap(&CONTROL_PLANE, UPSTREAMS, OURS);
    first.kubectl("-n kube-system rollout undo daemonset/kube-proxy").ok();
    site.proxies(OURS);
    assert_eq!(first.kubectl("get configmap written-by-theirs -o jsonpath={.data.c}").ok(), "d");
    site.works("back");
    assert_eq!(site.containers("kept"), kept, "the replacement restarted a workload");
    site.answers("kept");
}
