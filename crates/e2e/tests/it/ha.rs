//! Three control planes with real etcd and a virtual address, and a worker that reaches the API by a balancer of its own.

use std::{
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use e2e::{Host, Machines, alone, until};

use crate::kubeadm::{connect, is_etcd_there, ready};

const CONFIGURATION: &str = "
apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {advertiseAddress: 192.0.2.1}
nodeRegistration: {ignorePreflightErrors: [SystemVerification]}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
virtualAddress: {address: 192.0.2.100}
nodeBalancer: {port: 7445}
encryptionAlgorithm: ECDSA-P256
networking: {podSubnet: 10.244.0.0/16}
---
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
evictionHard: {nodefs.available: 1%, imagefs.available: 1%}
";

/// An administrator on the worker, who goes by its balancer.
struct Admin<'a> {
    worker: &'a Host<'a>,
    kubeconfig: String,
}

impl Admin<'_> {
    fn kubectl(&self, line: &str) -> e2e::Ran {
        let mut args = vec!["--kubeconfig", &self.kubeconfig, "--request-timeout=10s"];
        args.extend(["--server=https://127.0.0.1:7445", "--tls-server-name=kubernetes"]);
        args.extend(line.split_whitespace());
        self.worker.kubectl_with(&args, "")
    }

    fn servers(&self, wanted: &[&str]) {
        until("the API servers as endpoints", || {
            let path = "-o jsonpath={.subsets[*].addresses[*].ip}";
            let ran = self.kubectl(&format!("get endpoints kubernetes {path}"));
            let mut found: Vec<&str> = ran.stdout.split_whitespace().collect();
            found.sort_unstable();
            if found == wanted { Ok(()) } else { Err(ran.to_string()) }
        });
    }
}

/// Waits until one of these machines, and no other, has the virtual address.
fn holder(hosts: &[&Host<'_>]) {
    until("one holder of the virtual address", || {
        let has = |host: &&&Host<'_>| {
            host.run("ip", &["-o", "address", "show"]).stdout.contains(" 192.0.2.100/32 ")
        };
        let holders: Vec<&str> = hosts.iter().filter(has).map(|h| h.name.as_str()).collect();
        if holders.len() == 1 { Ok(()) } else { Err(format!("{holders:?}")) }
    });
}

/// Writes one object after the other, each until it is acknowledged; tells how long the longest took.
fn write_on(admin: &Admin<'_>, done: &AtomicBool, written: &AtomicU32) -> Duration {
    let mut longest = Duration::ZERO;
    while !done.load(Ordering::Relaxed) {
        let (started, n) = (Instant::now(), written.load(Ordering::Relaxed));
        until("a write", || {
            let ran = admin.kubectl(&format!("create configmap written-{n}"));
            // One whose answer was lost is there.
            let there = ran.code == Some(0) || ran.stderr.contains("already exists");
            if there { Ok(()) } else { Err(ran.to_string()) }
        });
        written.store(n + 1, Ordering::Relaxed);
        longest = longest.max(started.elapsed());
    }
    longest
}

#[test]
#[ignore = "takes minutes: five machines, and the times after which dead ones are noticed"]
fn the_api_outlives_any_of_three_control_planes() {
    let _turn = alone();
    if !is_etcd_there() {
        return;
    }
    let machines = Machines::new("ha");
    let [first, second, third, worker] =
        [("alpha", 1), ("beta", 2), ("gamma", 3), ("delta", 4)].map(|(n, a)| machines.start(n, a));
    let configuration = first.write("kubeadm.yaml", CONFIGURATION);
    let said = first.windlass(&format!("init --config {configuration} --upload-certs")).ok();
    let key = said.lines().find(|l| l.len() == 64 && l.bytes().all(|b| b.is_ascii_hexdigit()));
    let key = key.expect("init prints the certificate key").to_owned();
    let line = first.windlass("token create --print-join-command").ok();
    let join = line.trim().strip_prefix("windlass ").expect("a command of ours").to_owned();
    let join = format!("{join} --ignore-preflight-errors=SystemVerification");
    let as_control_plane = format!("{join} --control-plane --certificate-key {key}");

    // etcd takes one learner at a time, so one of the two waits for its turn.
    thread::scope(|scope| {
        let joins = [(&second, &as_control_plane), (&third, &as_control_plane), (&worker, &join)];
        let joins = joins.map(|(host, line)| scope.spawn(move || host.windlass(line).ok()));
        for join in joins {
            join.join().expect("a join");
        }
    });
    connect(&first, &[&first, &second, &third, &worker]);
    ready(&first, &[&first, &second, &third, &worker]);
    let credentials = first.run("cat", &["/etc/kubernetes/admin.conf"]).ok();
    let kubeconfig = worker.write("admin.conf", &credentials);
    let admin = Admin { worker: &worker, kubeconfig };
    admin.servers(&["192.0.2.1", "192.0.2.2", "192.0.2.3"]);
    until("the servers in the balancer's file", || {
        let ran = worker.run("cat", &["/var/lib/windlass/balancer/servers"]);
        if ran.stdout.lines().count() == 3 { Ok(()) } else { Err(ran.to_string()) }
    });

    let (done, written) = (AtomicBool::new(false), AtomicU32::new(0));
    let longest = thread::scope(|scope| {
        let writer = scope.spawn(|| write_on(&admin, &done, &written));
        let more = |n: u32| {
            let goal = written.load(Ordering::Relaxed) + n;
            until("more writes", || {
                let now = written.load(Ordering::Relaxed);
                if now >= goal { Ok(()) } else { Err(format!("{now} of {goal}")) }
            });
        };
        more(3);
        third.cut();
        more(10);
        third.heal();
        admin.servers(&["192.0.2.1", "192.0.2.2", "192.0.2.3"]);
        first.lose();
        more(10);
        done.store(true, Ordering::Relaxed);
        writer.join().expect("the writer")
    });
    holder(&[&second, &third]);
    println!("{} writes, the longest {longest:?}", written.load(Ordering::Relaxed));
    admin.servers(&["192.0.2.2", "192.0.2.3"]);
    let kept = admin.kubectl("get configmaps -o name").ok();
    for n in 0..written.load(Ordering::Relaxed) {
        let name = format!("configmap/written-{n}");
        assert!(kept.lines().any(|l| l == name), "{name} was acknowledged and is lost: {kept}");
    }

    // A new machine takes the dead one's name and address: its Node goes, and it joins by the virtual address.
    admin.kubectl("delete node alpha").ok();
    let new = machines.start("alpha", 1);
    let line = second.windlass("token create --print-join-command").ok();
    let join = line.trim().strip_prefix("windlass ").expect("a command of ours");
    let key = second.windlass("init phase upload-certs --upload-certs").ok();
    let key = key.lines().find(|l| l.len() == 64 && l.bytes().all(|b| b.is_ascii_hexdigit()));
    let key = key.expect("a certificate key");
    let rest = "--ignore-preflight-errors=SystemVerification";
    new.windlass(&format!("{join} --control-plane --certificate-key {key} {rest}")).ok();
    connect(&second, &[&new, &second, &third, &worker]);
    ready(&second, &[&new]);
    admin.servers(&["192.0.2.1", "192.0.2.2", "192.0.2.3"]);
    third.lose();
    until("a write with the new member", || {
        let ran = admin.kubectl("create configmap last");
        let there = ran.code == Some(0) || ran.stderr.contains("already exists");
        if there { Ok(()) } else { Err(ran.to_string()) }
    });
}
