//! Three control planes with real etcd and a virtual address, and a worker that reaches the API by a balancer of its own.

use std::{
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use e2e::{Host, Machines, alone, connect, init, is_etcd_there, join_by, ready, until};

/// Losses are noticed sooner than by default, so that the test need not wait for minutes.
const CONFIGURATION: &str = "virtualAddress: {address: 192.0.2.100}
nodeBalancer: {port: 7445}
controllerManager: {extraArgs: [{name: node-monitor-grace-period, value: 20s}]}";

const ALL: [&str; 3] = ["192.0.2.1", "192.0.2.2", "192.0.2.3"];

/// Its Pods leave a node that is gone at once.
const WEB: &str = r#"{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web"},"spec":{"replicas":2,
    "selector":{"matchLabels":{"app":"web"}},"template":{"metadata":{"labels":{"app":"web"}},
    "spec":{"terminationGracePeriodSeconds":1,"containers":[{"name":"box","image":"box:1"}],
    "tolerations":[{"key":"node.kubernetes.io/unreachable","operator":"Exists","effect":"NoExecute","tolerationSeconds":1}],
    "affinity":{"podAntiAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[{"weight":100,"podAffinityTerm":
    {"topologyKey":"kubernetes.io/hostname","labelSelector":{"matchLabels":{"app":"web"}}}}]}}}}}}"#;

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

impl Admin<'_> {
    /// The container of a Pod that nothing here touches.
    fn untouched(&self) -> String {
        let path = "-o jsonpath={.status.containerStatuses[0].containerID}";
        until("the Pod that stays", || {
            let ran = self.kubectl(&format!("get pod stays {path}"));
            if ran.code == Some(0) { Ok(ran.stdout) } else { Err(ran.to_string()) }
        })
    }

    /// A Pod's log and a command in it, by way of whichever API server answers.
    fn reach(&self, pod: &str) {
        for line in [format!("logs {pod}"), format!("exec {pod} -- hostname")] {
            until("an answer of a Pod", || {
                let ran = self.kubectl(&line);
                if ran.stdout.contains(pod) { Ok(()) } else { Err(ran.to_string()) }
            });
        }
    }

    fn written(&self, name: &str) {
        until("a write", || {
            let ran = self.kubectl(&format!("create configmap {name}"));
            let there = ran.code == Some(0) || ran.stderr.contains("already exists");
            if there { Ok(()) } else { Err(ran.to_string()) }
        });
    }
}

const CONTROL_PLANE: [&str; 6] = [
    "kube-apiserver --",
    "kube-controller-manager --",
    "kube-scheduler --",
    "etcd --",
    "windlass virtual-address ",
    " kubelet --",
];

const NODE: [&str; 3] = [" kubelet --", "kube-proxy --", "windlass balancer "];

/// Kills the program of a machine whose first words end so, as the kernel does when memory is short.
fn kill(host: &Host<'_>, program: &str) {
    let script = "own=$(readlink /proc/self/ns/uts); found=; \
                  for p in /proc/[0-9]*; do \
                    if [ \"$(readlink $p/ns/uts)\" = \"$own\" ] && tr '\\0' ' ' <$p/cmdline | grep -q \"^[^ ]*$0\"; then \
                      kill -9 ${p#/proc/} && found=yes; \
                    fi; \
                  done 2>/dev/null; test -n \"$found\"";
    host.run("sh", &["-c", script, program]).ok();
}

/// Two control planes of three are cut off for so long that kubelets lose patience with what needs a quorum.
fn quorum_is_lost_and_found(admin: &Admin<'_>, hosts: [&Host<'_>; 3]) {
    for host in &hosts[1..] {
        host.cut();
    }
    until("nobody to hold the virtual address", || {
        let ran = hosts.map(|h| h.run("ip", &["-o", "address", "show"]).stdout).concat();
        if ran.contains(" 192.0.2.100/32 ") { Err(ran) } else { Ok(()) }
    });
    // Longer than eight failed probes in a row.
    thread::sleep(Duration::from_secs(120));
    for host in &hosts[1..] {
        host.heal();
    }
    let healed = Instant::now();
    holder(&hosts);
    admin.written("after-the-quorum");
    println!("{:?} after the quorum was back all was well", healed.elapsed());
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
    let spare = machines.start("epsilon", 5);
    let join = init(&first, CONFIGURATION);

    // etcd takes one learner at a time, so one of the two waits for its turn.
    thread::scope(|scope| {
        let joins = [
            (&second, &join.control_plane),
            (&third, &join.control_plane),
            (&worker, &join.worker),
            (&spare, &join.worker),
        ];
        let joins = joins.map(|(host, line)| scope.spawn(move || host.windlass(line).ok()));
        for join in joins {
            join.join().expect("a join");
        }
    });
    let all = [&first, &second, &third, &worker, &spare];
    connect(&first, &all);
    ready(&first, &all);
    let credentials = first.run("cat", &["/etc/kubernetes/admin.conf"]).ok();
    let kubeconfig = worker.write("admin.conf", &credentials);
    let admin = Admin { worker: &worker, kubeconfig };
    admin.servers(&ALL);
    until("the servers in the balancer's file", || {
        let ran = worker.run("cat", &["/var/lib/windlass/balancer/servers"]);
        // The virtual address, by which it joined, may stay behind them as a last resort.
        let known = |ip: &&str| ran.stdout.lines().any(|line| line == format!("{ip}:6443"));
        if ALL.iter().all(known) { Ok(()) } else { Err(ran.to_string()) }
    });
    worker.build_box();
    spare.build_box();
    worker.kubectl_with(&["--kubeconfig", &admin.kubeconfig, "apply", "-f", "-"], WEB).ok();
    let stays = r#"--overrides={"spec":{"nodeName":"delta"}}"#;
    admin.kubectl(&format!("run stays --image=box:1 --restart=Never {stays}")).ok();
    admin.kubectl("wait pod/stays --for=condition=Ready --timeout=60s").ok();
    admin.kubectl("rollout status deployment/web --timeout=60s").ok();
    let untouched = admin.untouched();
    println!("{}", admin.kubectl("get pods -A -o wide").ok());

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
        for program in CONTROL_PLANE {
            kill(&first, program);
            more(3);
        }
        for program in NODE {
            kill(&worker, program);
            more(3);
        }
        admin.servers(&ALL);
        third.cut();
        more(10);
        third.heal();
        admin.servers(&ALL);
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

    assert_eq!(untouched, admin.untouched(), "what runs on a worker does not notice");
    admin.reach("stays");

    // Workloads move from a node that is gone.
    spare.lose();
    until("both replicas on the worker that is left", || {
        let ran = admin.kubectl("get pods -l app=web -o jsonpath={.items[*].spec.nodeName}");
        let left = ran.stdout.split_whitespace().filter(|node| *node == "delta").count();
        if left >= 2 { Ok(()) } else { Err(ran.to_string()) }
    });
    admin.kubectl("rollout status deployment/web --timeout=60s").ok();

    // A new machine takes the dead one's name and address: its Node goes, and it joins by the virtual address.
    admin.kubectl("delete node alpha epsilon").ok();
    let new = machines.start("alpha", 1);
    let said = second.windlass("init phase upload-certs --upload-certs").ok();
    new.windlass(&join_by(&second, &said).control_plane).ok();
    connect(&second, &[&new, &second, &third, &worker]);
    ready(&second, &[&new]);
    admin.servers(&ALL);
    quorum_is_lost_and_found(&admin, [&new, &second, &third]);
    third.lose();
    admin.written("last");
}
