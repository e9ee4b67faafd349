//! The kubelet's server, container logs, the Node status, and static Pods.

use std::fs;

use e2e::{shared, until};

use super::{exec, ready};

#[test]
fn kubelet_authorizes_requests_by_the_api_server() {
    let s = shared("node-kubelet-auth");
    let node = s.field("nodes", "{.items[0].metadata.name}");
    let ask = |token: &str, path: &str| {
        let line = format!(
            "--server=https://192.0.2.10:10250 --insecure-skip-tls-verify --kubeconfig=/dev/null --token={token} get --raw {path}"
        );
        s.on_node("kubectl", &line.split_whitespace().collect::<Vec<_>>())
    };
    s.kubectl("create serviceaccount reader").ok();
    let token = s.kubectl("create token reader").ok();
    // kubectl's message for status 401.
    let unknown = ask("nonsense", "/pods").refused();
    assert!(unknown.contains("the server has asked for the client to provide credentials"));
    let refused = ask(&token, "/pods").refused();
    let user = "system:serviceaccount:node-kubelet-auth:reader";
    let words =
        format!("Forbidden (user={user}, verb=get, resource=nodes, subresource(s)=[pods proxy])");
    assert!(refused.contains(&words), "{refused}");
    s.kubectl("create clusterrole node-kubelet-auth --verb=get --resource=nodes/proxy,nodes/stats")
        .ok();
    s.kubectl("create clusterrolebinding node-kubelet-auth --clusterrole=node-kubelet-auth --serviceaccount=node-kubelet-auth:reader").ok();
    until("an answer of the kubelet", || {
        let ran = ask(&token, "/pods");
        if ran.stdout.contains("PodList") { Ok(()) } else { Err(ran.to_string()) }
    });
    let summary = s.json(&format!("get --raw /api/v1/nodes/{node}/proxy/stats/summary"));
    assert!(
        summary["node"]["memory"]["workingSetBytes"].as_u64().is_some_and(|n| n > 0),
        "{summary}"
    );
    s.kubectl("delete clusterrolebinding,clusterrole node-kubelet-auth").ok();
}

#[test]
fn logs_honours_its_flags_and_follows_rotation() {
    let s = shared("node-logs");
    // stdout and stderr are read concurrently, so pause between lines to keep their order.
    let script = "echo one; sleep 0.5; echo two >&2; sleep 2; echo three; while [ ! -e /tmp/go ]; do sleep 0.1; done; seq 1 900000; while :; do echo tick; sleep 0.5; done";
    s.kubectl_with(&["run", "talker", "--image=box:1", "--command", "--", "sh", "-c", script], "")
        .ok();
    s.until("logs talker", |text| text.ends_with("three\n"));
    let logs = |more: &str| s.kubectl(&format!("logs talker {more}")).ok();
    assert_eq!(logs("--tail=2"), "two\nthree\n");
    assert_eq!(logs("--limit-bytes=5"), "one\nt");
    let stamps = logs("--timestamps");
    let third = stamps.lines().nth(2).unwrap().split_whitespace().next().unwrap();
    assert_eq!(logs(&format!("--since-time={third}")), "three\n");
    assert_eq!(logs("--since=1h"), "one\ntwo\nthree\n");
    let mut follow = s.start("logs -f talker --tail=1");
    exec(&s, "talker", "touch /tmp/go");
    let uid = s.field("pod talker", "{.metadata.uid}");
    let place = s.cluster.root().join(format!("var/log/pods/node-logs_talker_{uid}/talker"));
    until("a rotated log", || {
        let names: Vec<_> =
            fs::read_dir(&place).unwrap().flatten().map(|e| e.file_name()).collect();
        if names.len() > 1 { Ok(()) } else { Err(format!("{names:?}")) }
    });
    // `logs -f` continues with the new file.
    follow.wait_for_line(|line| line == "tick");
    s.until("logs talker --tail=1", |text| text == "tick\n");
}

#[test]
fn node_reports_conditions_capacity_and_lease() {
    let s = shared("node-status");
    let node = &s.get("nodes")["items"][0].clone();
    let name = node["metadata"]["name"].as_str().unwrap();
    for (kind, status, reason) in [
        ("MemoryPressure", "False", "KubeletHasSufficientMemory"),
        ("DiskPressure", "False", "KubeletHasNoDiskPressure"),
        ("PIDPressure", "False", "KubeletHasSufficientPID"),
        ("Ready", "True", "KubeletReady"),
    ] {
        let conditions = node["status"]["conditions"].as_array().unwrap();
        let condition = conditions.iter().find(|c| c["type"] == kind).unwrap();
        assert_eq!(
            (condition["status"].as_str(), condition["reason"].as_str()),
            (Some(status), Some(reason))
        );
    }
    let quantity = |of: &str, what: &str| {
        let text = node["status"][of][what].as_str().unwrap_or_default().to_owned();
        text.trim_end_matches("Ki")
            .parse::<i64>()
            .unwrap_or_else(|e| panic!("{of} {what} {text}: {e}"))
    };
    assert_eq!(
        quantity("capacity", "memory") - quantity("allocatable", "memory"),
        100 * 1024,
        "evictionHard"
    );
    assert_eq!(quantity("capacity", "pods"), 110);
    assert_eq!(node["status"]["nodeInfo"]["kubeletVersion"], version::BUILD_VERSION);
    let lease = |field: &str| {
        let path = format!("{{.spec.{field}}}");
        s.kubectl_with(
            &[
                "get",
                "lease",
                name,
                "--namespace=kube-node-lease",
                "-o",
                &format!("jsonpath={path}"),
            ],
            "",
        )
        .ok()
    };
    assert_eq!(
        (lease("holderIdentity").as_str(), lease("leaseDurationSeconds").as_str()),
        (name, "40")
    );
    let first = lease("renewTime");
    until("a renewal", || if lease("renewTime") > first { Ok(()) } else { Err(first.clone()) });
}

#[test]
fn static_pod_follows_its_manifest_file() {
    let s = shared("node-static");
    let node = s.field("nodes", "{.items[0].metadata.name}");
    let file = s.cluster.root().join("etc/kubernetes/manifests/still.yaml");
    let manifest = |says: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: still, namespace: node-static}}\nspec: {{terminationGracePeriodSeconds: 1, containers: [{{name: c, image: box:1, env: [{{name: SAYS, value: {says}}}]}}]}}\n"
        )
    };
    let pod = format!("still-{node}");
    let uid = || {
        s.kubectl(&format!(
            "get pod {pod} -o jsonpath={{.metadata.annotations.kubernetes\\.io/config\\.hash}}"
        ))
        .stdout
    };
    fs::write(&file, manifest("one")).unwrap();
    s.until(&format!("get pod {pod}"), |row| row.contains("Running"));
    let first = uid();
    // A partial manifest changes nothing.
    fs::write(&file, &manifest("two")[..70]).unwrap();
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!(uid(), first);
    fs::write(&file, manifest("two")).unwrap();
    until("the new Pod", || {
        let ran = s.kubectl_with(&["exec", &pod, "--", "sh", "-c", "echo $SAYS"], "");
        if ran.stdout == "two\n" { Ok(()) } else { Err(ran.to_string()) }
    });
    assert_ne!(uid(), first);
    // A deleted mirror Pod is created again, and its containers keep running.
    let started =
        s.field(&format!("pod {pod}"), "{.status.containerStatuses[0].state.running.startedAt}");
    s.kubectl(&format!("delete pod {pod} --wait=false")).ok();
    s.until(
        &format!(
            "get pod {pod} -o jsonpath={{.status.containerStatuses[0].state.running.startedAt}}"
        ),
        |seen| seen == started,
    );
    ready(&s, &pod);
    fs::remove_file(&file).unwrap();
    s.kubectl(&format!("wait pod/{pod} --for=delete --timeout=60s")).ok();
}
