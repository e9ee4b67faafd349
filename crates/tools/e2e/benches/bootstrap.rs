//! Measures how long machines take to become a cluster by kubeadm's commands: `cargo xtask bench bootstrap`.

use std::time::{Duration, Instant};

use e2e::{
    Host, Machines, configuration, install_network, is_etcd_installed, join_commands, lock_machine,
    until,
};

/// Installs the CNI configuration before the node exists, as a prepared machine image would.
fn network(host: &Host<'_>, range: &str) {
    let configuration = format!(
        r#"{{"cniVersion":"1.0.0","name":"pods","plugins":[{{"type":"windlass-cni","bridge":"wl0","mtu":0,"subnets":["{range}"],"clusterCIDRs":["10.244.0.0/16"],"dataDir":"/var/lib/windlass/cni"}}]}}"#
    );
    install_network(host, &configuration);
}

fn wait_until_ready(admin: &Host<'_>, node: &Host<'_>) {
    until("a Ready node", || {
        let path = r#"-o jsonpath={.status.conditions[?(@.type=="Ready")].status}"#;
        let ran = admin.kubectl(&format!("get node {} {path}", node.name));
        if ran.stdout == "True" { Ok(()) } else { Err(ran.to_string()) }
    });
}

fn show(what: &str, took: Duration, budget: Duration) {
    let (took, budget) = (took.as_secs_f64(), budget.as_secs_f64());
    println!("{what:<60} {took:>8.2} s   (budget {budget:.0} s)");
}

fn main() {
    let _turn = lock_machine();
    if !is_etcd_installed() {
        return;
    }
    let machines = Machines::new("bootstrap");
    let (first, worker) = (machines.start("alpha", 1), machines.start("beta", 2));
    let file = first.write("kubeadm.yaml", &configuration("controlPlaneEndpoint: 192.0.2.1:6443"));
    // Pull the images first: a prepared machine has them already.
    for host in [&first, &worker] {
        host.windlass(&format!("config images pull --config {file}")).ok();
    }
    network(&first, "10.244.0.0/24");
    network(&worker, "10.244.1.0/24");

    let started = Instant::now();
    let ran = first.windlass(&format!("init --config {file} --upload-certs"));
    let init = started.elapsed();
    eprintln!("{}", ran.stderr);
    let output = ran.ok();
    wait_until_ready(&first, &first);
    let ready = started.elapsed();
    until("an answer of cluster DNS", || {
        let args = ["nslookup", "kubernetes.default.svc.cluster.local", "10.96.0.10"];
        let ran = first.run("busybox", &args);
        if ran.stdout.contains("10.96.0.1\n") { Ok(()) } else { Err(ran.to_string()) }
    });
    let answers = started.elapsed();

    let join = join_commands(&first, &output);
    let started = Instant::now();
    let ran = worker.windlass(&join.worker);
    let joined = started.elapsed();
    eprintln!("{}", ran.stderr);
    ran.ok();
    wait_until_ready(&first, &worker);
    let worker_ready = started.elapsed();

    let second = Duration::from_secs(1);
    show("init, images at hand, to the end of the command", init, 10 * second);
    show("… to a Ready node", ready, 10 * second);
    show("… to cluster DNS answering", answers, 10 * second);
    show("join of a worker, to the end of the command", joined, 3 * second);
    show("… to a Ready node", worker_ready, 3 * second);
}
