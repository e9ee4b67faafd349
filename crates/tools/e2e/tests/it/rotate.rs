//! Replacement of the certificate authorities of a running cluster without an outage.

use e2e::{Host, Machines, connect, init, is_etcd_installed, lock_machine, ready, until};

/// Counts the certificates in the files and objects that list trusted authorities.
fn trusted(first: &Host<'_>, worker: &Host<'_>) -> Vec<usize> {
    let count = |text: String| text.matches("BEGIN CERTIFICATE").count();
    let files = ["ca.crt", "front-proxy-ca.crt", "etcd/ca.crt"];
    let mut found: Vec<usize> = files
        .iter()
        .map(|file| count(first.run("cat", &[&format!("/etc/kubernetes/pki/{file}")]).ok()))
        .collect();
    found.push(count(worker.run("cat", &["/etc/kubernetes/pki/ca.crt"]).ok()));
    let map = "get configmap kube-root-ca.crt -n kube-system -o jsonpath={.data.ca\\.crt}";
    found.push(count(first.kubectl(map).ok()));
    found
}

/// Asserts that both nodes are Ready and that a new Pod, its log, cluster DNS and a new Service work.
fn check_cluster(first: &Host<'_>, worker: &Host<'_>, round: &str) {
    ready(first, &[first, worker]);
    first.kubectl(&format!("run {round} --image=box:1 --restart=Never")).ok();
    first.kubectl(&format!("wait pod/{round} --for=condition=Ready --timeout=90s")).ok();
    until("the log of a Pod", || {
        let ran = first.kubectl(&format!("logs {round}"));
        if ran.stdout.contains(&format!("here is {round}")) { Ok(()) } else { Err(ran.to_string()) }
    });
    // Cluster DNS and kube-proxy still receive updates.
    first.kubectl(&format!("expose pod {round} --port=80")).ok();
    let address =
        first.kubectl(&format!("get service {round} -o jsonpath={{.spec.clusterIP}}")).ok();
    until("an answer of cluster DNS", || {
        let name = format!("{round}.default.svc.cluster.local");
        let ran = first.kubectl(&format!("exec {round} -- nslookup {name}"));
        if ran.stdout.contains(&address) { Ok(()) } else { Err(ran.to_string()) }
    });
    until("rules for a new Service", || {
        let ran = worker.run("nft", &["list", "ruleset"]);
        if ran.stdout.contains(&address) { Ok(()) } else { Err(address.clone()) }
    });
}

#[test]
#[ignore = "takes minutes: cargo xtask test --full"]
fn authorities_are_replaced_while_the_cluster_runs() {
    let _turn = lock_machine();
    if !is_etcd_installed() {
        return;
    }
    let machines = Machines::new("rotate");
    let (first, worker) = (machines.start("alpha", 1), machines.start("beta", 2));
    let join = init(&first, "controlPlaneEndpoint: 192.0.2.1:6443\nnodeBalancer: {port: 7445}");
    worker.windlass(&join.worker).ok();
    connect(&first, &[&first, &worker]);
    worker.build_box();
    check_cluster(&first, &worker, "before");
    let id = "get pod before -o jsonpath={.status.containerStatuses[0].containerID}";
    let started = first.kubectl(id).ok();
    let old = first.run("cat", &["/etc/kubernetes/pki/ca.crt"]).ok();
    let old_admin = first.run("cat", &["/etc/kubernetes/admin.conf"]).ok();
    let old_admin = first.write("old-admin.conf", &old_admin);
    assert_eq!(trusted(&first, &worker), [1; 5]);

    // A step out of order is rejected, and the error names the machine that must run first.
    let early = worker.windlass("certs rotate-ca trust").refused();
    assert!(
        early.contains("run `windlass certs rotate-ca trust` on each of them first"),
        "{early}"
    );
    first.windlass("certs rotate-ca trust").ok();
    let early = first.windlass("certs rotate-ca issue").refused();
    assert!(early.contains("cannot issue yet: beta does not trust"), "{early}");
    worker.windlass("certs rotate-ca trust").ok();
    until("two trusted authorities everywhere", || {
        let found = trusted(&first, &worker);
        if found == [2; 5] { Ok(()) } else { Err(format!("{found:?}")) }
    });
    check_cluster(&first, &worker, "trusting");

    first.windlass("certs rotate-ca issue").ok();
    check_cluster(&first, &worker, "between");
    worker.windlass("certs rotate-ca issue").ok();
    check_cluster(&first, &worker, "issued");
    let early = first.windlass("certs rotate-ca finish").refused();
    assert!(early.contains("tokens of the old key"), "{early}");
    // Restart the add-ons, which get new tokens then. Otherwise the test would wait for an hour.
    first.kubectl("-n kube-system rollout restart daemonset/kube-proxy deployment/coredns").ok();
    first.kubectl("-n kube-system rollout status daemonset/kube-proxy --timeout=90s").ok();
    first.kubectl("-n kube-system rollout status deployment/coredns --timeout=90s").ok();

    first.windlass("certs rotate-ca finish --force").ok();
    worker.windlass("certs rotate-ca finish").ok();
    until("one trusted authority everywhere", || {
        let found = trusted(&first, &worker);
        if found == [1; 5] { Ok(()) } else { Err(format!("{found:?}")) }
    });
    let new = first.run("cat", &["/etc/kubernetes/pki/ca.crt"]).ok();
    assert_ne!(old, new);
    assert_eq!(new, worker.run("cat", &["/etc/kubernetes/pki/ca.crt"]).ok());
    check_cluster(&first, &worker, "finished");
    assert_eq!(started, first.kubectl(id).ok(), "the Pod was restarted");

    // Certificates of the old authority are rejected.
    let args = ["--kubeconfig", &old_admin, "--insecure-skip-tls-verify", "get", "nodes"];
    let refused = first.kubectl_with(&args, "").refused();
    assert!(refused.contains("nauthorized") || refused.contains("logged in"), "{refused}");

    // A machine that joins later trusts the new authority.
    let later = machines.start("gamma", 3);
    let line = first.windlass("token create --print-join-command").ok();
    let line = line.trim().strip_prefix("windlass ").expect("a windlass command");
    later.windlass(&format!("{line} --ignore-preflight-errors=SystemVerification")).ok();
}
