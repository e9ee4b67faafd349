//! The problems that `status` reports.

use std::fs;

use e2e::{Cluster, Session, share_machine, until};

/// Waits until `status` fails and prints all of `wanted`.
#[track_caller]
fn wait_for_problems(cluster: &Cluster, wanted: &[&str]) {
    until("a problem in status", || {
        let ran = cluster.windlass(&["status"]);
        let found = ran.code == Some(1) && wanted.iter().all(|part| ran.stdout.contains(part));
        if found { Ok(()) } else { Err(format!("{wanted:?} is not all in {ran}")) }
    });
}

#[track_caller]
/// Waits until `status` succeeds.
fn wait_until_healthy(cluster: &Cluster) {
    until("a healthy cluster", || {
        let ran = cluster.windlass(&["status"]);
        if ran.code == Some(0) { Ok(()) } else { Err(ran.to_string()) }
    });
}

#[test]
fn status_names_broken_parts_with_their_causes() {
    // Use an own cluster, because other tests may leave problems in a shared one.
    let _turn = share_machine();
    let cluster = &Cluster::new("status");
    cluster.up().ok();
    let s = Session::in_default_namespace(cluster);
    wait_until_healthy(cluster);

    // Stop the supervisor, so that it does not restart killed processes.
    cluster.signal("STOP", cluster.pid("supervisor"));
    cluster.kill("agent");
    wait_for_problems(cluster, &["✗ agent does not run; its log", "✓ the API server answers"]);
    cluster.kill("control-plane");
    wait_for_problems(
        cluster,
        &["✗ control-plane does not run", "✗ the API server does not answer"],
    );
    cluster.signal("CONT", cluster.pid("supervisor"));
    wait_until_healthy(cluster);

    let runtime = cluster.pid("containerd");
    cluster.signal("STOP", runtime);
    wait_for_problems(cluster, &["✓ containerd runs", "runs and does not answer"]);
    cluster.signal("CONT", runtime);
    wait_until_healthy(cluster);

    s.kubectl("run lost --image=lost:1 --image-pull-policy=Never").ok();
    wait_for_problems(cluster, &["✗ Pod default/lost is not Ready", "ErrImageNeverPull"]);
    s.kubectl("delete pod lost --now").ok();
    s.apply(
        r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"big"},"spec":{"containers":[
            {"name":"c","image":"app:1","resources":{"requests":{"cpu":"1000"}}}]}}"#,
    );
    wait_for_problems(cluster, &["✗ Pod default/big is not Ready", "1 Insufficient cpu"]);
    s.kubectl("delete pod big --now").ok();

    let settings = cluster.root().join("cluster.json");
    let whole = fs::read(&settings).unwrap();
    fs::write(&settings, &whole[..whole.len() / 2]).unwrap();
    let refused = cluster.windlass(&["status"]).refused();
    fs::write(&settings, &whole).unwrap();
    assert!(refused.contains("cluster.json"), "{refused}");
    wait_until_healthy(cluster);
    cluster.down(&[]).ok();
}
