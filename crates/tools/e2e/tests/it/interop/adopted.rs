//! A cluster of upstream's kubeadm and components, which ours replace one by one, and the way back.

use e2e::{Machines, connect, lock_machine, ready};

use super::{
    peer,
    results::Results,
    site::{CONFIGURATION, CONTROL_PLANE, CURRENT, OURS, Site, UPSTREAMS},
};

const MADE: &str = "upstream's kubeadm creates a cluster of upstream's components";
const JOINS: &str = "our kubelet joins upstream's control plane with kubeadm's token";
const WORKS: &str = "our kubelet runs Pods of upstream's control plane, with logs and exec";
const SCHEDULER: &str = "our scheduler in upstream's cluster";
const MANAGER: &str = "our controller manager in upstream's cluster";
const PROXY: &str = "our kube-proxy in upstream's cluster, after its mode iptables";
const SERVER: &str = "our API server on the etcd data of upstream's";
const TAKEN: &str = "the whole cluster runs Windlass: also the kubelet and phases of `init`";
const BACK: &str = "the cluster returns to upstream's kubeadm, kubelet and components";

#[test]
fn replaces_components_of_kubeadms_cluster_and_returns() {
    let Some(peer) = peer() else { return };
    let _turn = lock_machine();
    let claims = [MADE, JOINS, WORKS, SCHEDULER, MANAGER, PROXY, SERVER, TAKEN, BACK];
    let mut results = Results::new("adopted", &peer, &claims);
    let machines = Machines::new("adopted");
    let (first, worker) = (machines.start("alpha", 1), machines.start("beta", 2));
    let site = Site { first: &first, worker: &worker, peer, versions: CURRENT };
    site.images();
    let file = first.write("kubeadm.yaml", CONFIGURATION);

    results.begin(MADE);
    let upstreams = site.upstreams_kubelet(&first);
    let output =
        site.kubeadm(&first, &format!("init --config {file} --ignore-preflight-errors=all"));
    assert!(output.contains("initialized successfully"), "{output}");
    first.kubectl("taint node alpha node-role.kubernetes.io/control-plane-").ok();

    results.begin(JOINS);
    let line = site.kubeadm(&first, "token create --print-join-command");
    let join = line.trim().strip_prefix("kubeadm ").expect("a kubeadm command");
    worker.windlass(&format!("{join} --ignore-preflight-errors=SystemVerification")).ok();
    connect(&first, &[&first, &worker]);
    ready(&first, &[&first, &worker]);
    site.upstreams_proxy();

    results.begin(WORKS);
    site.works("begin");
    site.deploy("kept");
    let kept = site.containers("kept");
    results.begin(SCHEDULER);
    site.swap(&["kube-scheduler"], UPSTREAMS, OURS);
    site.works("scheduled");
    results.begin(MANAGER);
    site.swap(&["kube-controller-manager"], UPSTREAMS, OURS);
    site.works("controlled");
    results.begin(PROXY);
    first.windlass(&format!("init phase addon kube-proxy --config {file}")).ok();
    site.proxies(OURS);
    site.works("proxied");
    results.begin(SERVER);
    first.kubectl("create configmap written-by-theirs --from-literal=a=b").ok();
    site.swap(&["kube-apiserver"], UPSTREAMS, OURS);
    assert_eq!(first.kubectl("get configmap written-by-theirs -o jsonpath={.data.a}").ok(), "b");
    site.works("served");

    results.begin(TAKEN);
    let etcd = || {
        let path = "-o jsonpath={.status.containerStatuses[0].containerID}";
        first.kubectl(&format!("-n kube-system get pod etcd-alpha {path}")).ok()
    };
    let etcd_before = etcd();
    drop(upstreams);
    let ours = site.our_kubelet(&first);
    first.windlass(&format!("init phase control-plane all --config {file}")).ok();
    site.running(&CONTROL_PLANE, OURS);
    first.kubectl("create configmap written-by-ours --from-literal=c=d").ok();
    first.windlass("token create").ok();
    site.works("taken");
    assert_eq!(etcd(), etcd_before, "a static Pod with an unchanged manifest was restarted");

    results.begin(BACK);
    site.kubeadm(&first, &format!("init phase control-plane all --config {file}"));
    site.kubeadm(&first, &format!("init phase addon kube-proxy --config {file}"));
    drop(ours);
    let _upstreams = site.upstreams_kubelet(&first);
    site.running(&CONTROL_PLANE, UPSTREAMS);
    site.upstreams_proxy();
    assert_eq!(first.kubectl("get configmap written-by-ours -o jsonpath={.data.c}").ok(), "d");
    site.kubeadm(&first, "token create");
    site.works("back");
    assert_eq!(site.containers("kept"), kept, "the replacement restarted a workload");
    site.answers("kept");
}
