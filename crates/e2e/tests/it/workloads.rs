//! Deployments from creation to rollback, and single Pods.

use e2e::shared;

#[test]
fn a_paused_deployment_waits() {
    let s = shared("workloads-paused");
    s.deploy("web", "app:1", 1);
    s.kubectl("rollout pause deployment/web").ok();
    s.kubectl("set image deployment/web app=app:2").ok();
    s.until(
        "get deployment web -o jsonpath={.status.observedGeneration}/{.metadata.generation}",
        |seen| seen.split_once('/').is_some_and(|(a, b)| a == b),
    );
    assert_eq!(s.field("replicasets", "{.items[*].metadata.name}").split_whitespace().count(), 1);
    s.kubectl("rollout resume deployment/web").ok();
    s.available("web");
    assert_eq!(
        s.field(
            "pods -l app=web --field-selector=status.phase=Running",
            "{.items[0].spec.containers[0].image}"
        ),
        "app:2"
    );
}

#[test]
fn a_pod_that_is_killed_comes_back() {
    let s = shared("workloads-killed");
    s.deploy("web", "app:1", 1);
    let first = s.field("pods -l app=web", "{.items[0].metadata.name}");
    s.kubectl(&format!("delete pod {first} --wait=true")).ok();
    s.available("web");
    let second = s.field("pods -l app=web", "{.items[0].metadata.name}");
    assert_ne!(first, second);
}

#[test]
fn a_container_that_ends_is_started_again() {
    let s = shared("workloads-restart");
    s.kubectl_with(
        &[
            "run",
            "brief",
            "--image=box:1",
            "--restart=Always",
            "--command",
            "--",
            "sh",
            "-c",
            "exit 3",
        ],
        "",
    )
    .ok();
    s.until("get pod brief -o jsonpath={.status.containerStatuses[0].restartCount}", |count| {
        count.parse::<u32>().is_ok_and(|n| n > 0)
    });
    let code = s.until(
        "get pod brief -o jsonpath={.status.containerStatuses[0].lastState.terminated.exitCode}",
        |code| !code.is_empty(),
    );
    assert_eq!(code, "3");
}

#[test]
fn a_pod_ends_as_its_container_did() {
    let s = shared("workloads-ends");
    for (name, code, phase) in [("good", "0", "Succeeded"), ("bad", "7", "Failed")] {
        let script = format!("exit {code}");
        s.kubectl_with(
            &[
                "run",
                name,
                "--image=box:1",
                "--restart=Never",
                "--command",
                "--",
                "sh",
                "-c",
                &script,
            ],
            "",
        )
        .ok();
        s.until(&format!("get pod {name} -o jsonpath={{.status.phase}}"), |seen| seen == phase);
    }
}

#[test]
fn a_pod_that_fits_no_node_says_why() {
    let s = shared("workloads-unfit");
    s.apply(
        r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"big"},"spec":{"containers":[
            {"name":"c","image":"app:1","resources":{"requests":{"cpu":"1000"}}}]}}"#,
    );
    s.until("describe pod big", |text| {
        text.contains("0/1 nodes are available: 1 Insufficient cpu")
    });
}
