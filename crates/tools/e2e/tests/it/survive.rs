//! Recovery of clusters whose processes are killed or hang.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use e2e::{
    Background, Cluster, Session, Traffic, parent, share_machine, shared_alone, until, until_within,
};
use parking_lot::Mutex;

/// The processes that are killed during each rollout. After the last turn, which kills all of them, `up` is needed.
const TURNS: [&[&str]; 5] = [
    &["control-plane"],
    &["agent"],
    &["supervisor"],
    &["containerd"],
    &["supervisor", "agent", "control-plane", "containerd"],
];

/// A Deployment whose rollout takes several seconds, so that processes can be killed during it.
const WEB: &str = r#"{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web"},"spec":{"replicas":4,
    "minReadySeconds":1,"strategy":{"rollingUpdate":{"maxSurge":1,"maxUnavailable":1}},
    "selector":{"matchLabels":{"app":"web"}},"template":{"metadata":{"labels":{"app":"web"}},
    "spec":{"terminationGracePeriodSeconds":1,"containers":[{"name":"app","image":"app:1"}]}}}}"#;

/// Creates a Pod with an echo server and its Service.
fn echo(s: &Session<'_>) {
    let serve = ["nc", "-ll", "-p", "9000", "-e", "cat"];
    s.kubectl_with(
        &[&["run", "echo", "--image=box:1", "--command", "--"], &serve[..]].concat(),
        "",
    )
    .ok();
    s.kubectl("expose pod echo --port=7 --target-port=9000").ok();
    s.kubectl("wait pod/echo --for=condition=Ready --timeout=90s").ok();
}

/// Returns the path of a Pod's network namespace. It is found among all processes, by the inode that
/// the Pod's processes see.
fn network_of(s: &Session<'_>, pod: &str) -> PathBuf {
    use std::os::unix::fs::MetadataExt;
    let inode = s.kubectl(&format!("exec {pod} -- stat -L -c %i /proc/self/ns/net")).ok();
    let all =
        std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path().join("ns/net"));
    let found = all.into_iter().find(|path| {
        std::fs::metadata(path).is_ok_and(|meta| meta.ino().to_string() == inode.trim())
    });
    found.unwrap_or_else(|| panic!("no network namespace with inode {inode}"))
}

/// Returns id, start time and restart count of the containers of all Pods that are not part of the rollout.
fn other_containers(s: &Session<'_>) -> BTreeMap<String, String> {
    let pods = s.get("pods --all-namespaces -l app!=web");
    let mut found = BTreeMap::new();
    for pod in pods["items"].as_array().unwrap() {
        for status in pod["status"]["containerStatuses"].as_array().into_iter().flatten() {
            found.insert(
                format!("{}/{}", pod["metadata"]["name"], status["name"]),
                format!(
                    "{} since {} restarts {}",
                    status["containerID"],
                    status["state"]["running"]["startedAt"],
                    status["restartCount"]
                ),
            );
        }
    }
    found
}

/// Starts `kubectl proxy` and returns its address, so that the writer needs no TLS.
fn proxy(s: &Session<'_>) -> (Background, SocketAddr) {
    let mut proxy = s.start("proxy --port=0");
    let line = proxy.wait_for_line(|line| line.contains("Starting to serve on"));
    let address = line.rsplit(' ').next().unwrap_or_default().parse();
    (proxy, address.unwrap_or_else(|e| panic!("{line}: {e}")))
}

#[test]
fn killed_processes_lose_no_writes_and_no_connections() {
    let _turn = share_machine();
    let cluster = Cluster::new("killed");
    cluster.up().ok();
    cluster.build_images();
    let s = Session::in_default_namespace(&cluster);
    echo(&s);
    s.toolbox();
    s.apply(WEB);
    s.available("web");

    let (node, pod) = (cluster.namespace.path(), network_of(&s, "box"));
    let address = |what: &str, path: &str, port: u16| -> SocketAddr {
        format!("{}:{port}", s.field(what, path)).parse().unwrap()
    };
    let to_pod = address("pod echo", "{.status.podIP}", 9000);
    let to_service = address("service echo", "{.spec.clusterIP}", 7);
    let dns = address("service kube-dns -n kube-system", "{.spec.clusterIP}", 53);
    let (_proxy, api) = proxy(&s);
    let acknowledged = Arc::new(Mutex::new(Vec::new()));
    let steady = [
        ("a stream to a Pod", Traffic::stream(&node, to_pod)),
        ("a stream from a Pod through a Service", Traffic::stream(&pod, to_service)),
        ("DNS queries of a Pod", Traffic::queries(&pod, dns, "echo.default.svc.cluster.local")),
    ];
    let writer = Traffic::writer(&node, api, acknowledged.clone());
    let before = other_containers(&s);
    assert!(before.len() >= 3, "{before:?}");

    for (turn, killed) in TURNS.into_iter().enumerate() {
        let began = Instant::now();
        let image = if turn % 2 == 0 { "app:2" } else { "app:1" };
        s.kubectl(&format!("set image deployment/web app={image}")).ok();
        s.until("get deployment web -o jsonpath={.status.updatedReplicas}", |updated| {
            updated.parse::<u32>().is_ok_and(|updated| (1..4).contains(&updated))
        });
        let written = writer.count();
        killed.iter().for_each(|role| cluster.kill(role));
        if killed.len() > 1 {
            cluster.up().ok();
        }
        s.until("rollout status deployment/web --timeout=60s", |_| true);
        // Old Pods may still be terminating.
        s.until("get pods -l app=web -o jsonpath={.items[*].spec.containers[0].image}", |images| {
            images.split_whitespace().all(|now| now == image)
        });
        until("writes that are acknowledged again", || match writer.count() {
            now if now > written + 10 => Ok(()),
            now => Err(format!("{written} before the death of {killed:?}, and {now} now")),
        });
        assert_eq!(other_containers(&s), before, "after the death of {killed:?}");
        eprintln!("{killed:?}: the rollout took {:.1} s", began.elapsed().as_secs_f64());
    }
    let restarts =
        s.field("pods -l app=web", "{.items[*].status.containerStatuses[0].restartCount}");
    assert!(restarts.split_whitespace().all(|count| count == "0"), "{restarts}");

    for (what, steady) in steady {
        let report = steady.stop();
        eprintln!("{what}: {} times, the longest {:?}", report.done, report.longest);
        assert!(report.failures.is_empty(), "{what}: {report:?}");
        assert!(report.done > 500, "{what}: {report:?}");
    }
    let report = writer.stop();
    let acknowledged = acknowledged.lock();
    eprintln!("{} writes acknowledged, {} not", acknowledged.len(), report.failures.len());
    let kept = s.kubectl("get configmaps -o name").ok();
    let kept: std::collections::BTreeSet<&str> = kept.lines().collect();
    let lost =
        acknowledged.iter().filter(|name| !kept.contains(format!("configmap/{name}").as_str()));
    assert_eq!(lost.collect::<Vec<_>>(), Vec::<&String>::new(), "acknowledged writes were lost");
    until("a status without problems", || {
        let status = cluster.windlass(&["status"]);
        if status.code == Some(0) { Ok(()) } else { Err(status.to_string()) }
    });
    assert!(report.longest < Duration::from_secs(20), "{report:?}");
}

/// Kills processes inside Pods: cluster DNS and a shim of containerd.
#[test]
fn restarts_cluster_dns_and_pods_whose_processes_are_killed() {
    let s = shared_alone("survive-pods");
    s.toolbox();
    s.deploy("web", "app:1", 1);
    let status = "{.items[0].status.containerStatuses[0]['containerID','restartCount']}";
    let wait_for_restart = |what: &str, pods: &str, began: Instant, before: &str| {
        s.until(&format!("get pods {pods} -o jsonpath={status}"), |now| now != before);
        s.kubectl(&format!("wait pods {pods} --for=condition=Ready --timeout=90s")).ok();
        eprintln!("{what} came back within {:.1} s", began.elapsed().as_secs_f64());
    };

    let dns = "-n kube-system -l k8s-app=kube-dns";
    let before = s.field(&format!("pods {dns}"), status);
    let container = before.split_whitespace().next().unwrap();
    let began = Instant::now();
    s.cluster.pids_of(container).into_iter().for_each(|pid| s.cluster.signal("KILL", pid));
    s.until("exec box -- nslookup kubernetes.default.svc.cluster.local", |answer| {
        answer.contains("10.96.0.1")
    });
    wait_for_restart("cluster DNS", dns, began, &before);

    let web = "-l app=web";
    let before = s.field(&format!("pods {web}"), status);
    let processes = s.cluster.pids_of(before.split_whitespace().next().unwrap());
    let parents = processes.iter().map(|process| parent(*process));
    let shim = parents.into_iter().find(|parent| !processes.contains(parent)).unwrap();
    let began = Instant::now();
    s.cluster.signal("KILL", shim);
    wait_for_restart("a Pod whose shim was killed", web, began, &before);
}

/// Stops the control plane, which then hangs without exiting.
#[test]
fn restarts_a_control_plane_that_does_not_answer() {
    // Use an own cluster, because no other test can use it during this one.
    let _turn = share_machine();
    let cluster = Cluster::new("silence");
    cluster.up().ok();
    let s = Session::in_default_namespace(&cluster);
    let stopped = cluster.pid("control-plane");
    cluster.signal("STOP", stopped);
    let began = Instant::now();
    until_within(Duration::from_secs(120), "another control plane", || {
        if cluster.pid("control-plane") != stopped {
            Ok(())
        } else {
            Err("the process is the same".to_owned())
        }
    });
    eprintln!("restarted {:.1} s after it was stopped", began.elapsed().as_secs_f64());
    s.until("get --raw /readyz", |answer| answer == "ok");
    let log = std::fs::read_to_string(cluster.root().join("var/log/supervisor.log")).unwrap();
    assert!(log.contains("does not answer; ending it"), "{log}");
    assert!(log.contains("T in do_signal_stop"), "the threads are stopped: {log}");
}

#[test]
fn up_of_another_build_replaces_processes_and_keeps_containers() {
    let _turn = share_machine();
    let cluster = Cluster::new("build");
    cluster.up_with(&["--nodes", "2"]).ok();
    cluster.build_images();
    let s = Session::in_default_namespace(&cluster);
    echo(&s);
    s.toolbox();
    let to_pod = format!("{}:9000", s.field("pod echo", "{.status.podIP}")).parse().unwrap();
    let stream = Traffic::stream(&cluster.namespace.path(), to_pod);
    let before = other_containers(&s);
    let processes = || ["supervisor", "control-plane", "agent"].map(|role| cluster.pid(role));
    let old = processes();

    // A byte behind the program makes another build of the same program.
    let other = cluster.directory.join("other-build");
    std::fs::copy(e2e::binary(), &other).unwrap();
    let mut file = std::fs::OpenOptions::new().append(true).open(&other).unwrap();
    std::io::Write::write_all(&mut file, b"\n").unwrap();
    drop(file);
    let kubeconfig = cluster.kubeconfig().display().to_string();
    let up = || cluster.windlass_of(&other, &["up", "--kubeconfig", &kubeconfig]).ok();
    up();
    let new = processes();
    let length = std::fs::metadata(&other).unwrap().len();
    for (old, new) in old.iter().zip(new) {
        assert_ne!(*old, new);
        assert_eq!(std::fs::metadata(format!("/proc/{new}/exe")).unwrap().len(), length);
    }
    assert_eq!(other_containers(&s), before);
    s.kubectl("wait node --all --for=condition=Ready --timeout=60s").ok();
    s.kubectl("exec box -- true").ok();
    let report = stream.stop();
    assert!(report.failures.is_empty() && report.done > 100, "{report:?}");

    up();
    assert_eq!(processes(), new, "the same build changes nothing");
}
