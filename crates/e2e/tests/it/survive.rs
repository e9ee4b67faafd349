//! What goes on when processes are killed.

use std::time::{SystemTime, UNIX_EPOCH};

use e2e::{Cluster, Session, alone};

const CONTAINERS: &str = "{.items[*].status.containerStatuses[0].containerID}";

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// A Pod that sends back what it is sent, and one that asks cluster DNS all the time and says when it gets no answer.
fn watchers(s: &Session<'_>) {
    s.kubectl_with(
        &[
            "run",
            "echo",
            "--image=box:1",
            "--command",
            "--",
            "nc",
            "-lk",
            "-p",
            "9000",
            "-e",
            "cat",
        ],
        "",
    )
    .ok();
    let ask = "while :; do nslookup kubernetes.default.svc.cluster.local >/dev/null || echo lost; sleep 0.01; done";
    s.kubectl_with(&["run", "asker", "--image=box:1", "--command", "--", "sh", "-c", ask], "").ok();
    s.kubectl("wait pods/echo pods/asker --for=condition=Ready --timeout=90s").ok();
}

#[test]
fn killed_processes_lose_nothing_and_disturb_nobody() {
    let _turn = alone();
    let cluster = Cluster::new("killed");
    cluster.up().ok();
    cluster.build_images();
    let s = Session::own(&cluster);
    s.deploy("steady", "app:1", 2);
    s.deploy("web", "app:1", 3);
    watchers(&s);
    let steady = s.field("pods -l app=steady", CONTAINERS);
    let address = s.field("pod echo", "{.status.podIP}");
    let send = format!("while :; do date +%s; sleep 0.2; done | busybox nc {address} 9000");
    let mut stream = s.beside("sh", &["-c", &send]);
    stream.line(|_| true);

    let mut acknowledged = Vec::new();
    for (turn, role) in
        ["control-plane", "agent", "containerd", "supervisor"].into_iter().enumerate()
    {
        let image = if turn % 2 == 0 { "app:2" } else { "app:1" };
        s.until(&format!("set image deployment/web app={image}"), |_| true);
        cluster.kill(role);
        for number in 0..20 {
            let name = format!("written-{turn}-{number}");
            if s.kubectl(&format!("create configmap {name}")).code == Some(0) {
                acknowledged.push(name);
            }
        }
        s.until("rollout status deployment/web --timeout=60s", |_| true);
        assert_eq!(s.field("pods -l app=steady", CONTAINERS), steady, "after the death of {role}");
        let restarts =
            s.field("pods -l app=steady", "{.items[*].status.containerStatuses[0].restartCount}");
        assert_eq!(restarts, "0 0", "after the death of {role}");
        let moment = now();
        stream.line(|line| line.parse::<u64>().is_ok_and(|sent| sent >= moment));
    }
    let kept = s.kubectl("get configmaps -o name").ok();
    for name in &acknowledged {
        assert!(
            kept.lines().any(|line| line == format!("configmap/{name}")),
            "{name} was acknowledged and is lost"
        );
    }
    assert!(!acknowledged.is_empty());
    assert_eq!(s.kubectl("logs asker").ok(), "");
}
