//! The complaints of `status` about a cluster that is not well.

use std::fs;

use e2e::{Cluster, Session, beside_others, until};

/// Waits until `status` fails and says all of this.
#[track_caller]
fn says(cluster: &Cluster, wanted: &[&str]) {
    until("a complaint", || {
        let ran = cluster.windlass(&["status"]);
        let told = ran.code == Some(1) && wanted.iter().all(|part| ran.stdout.contains(part));
        if told { Ok(()) } else { Err(format!("{wanted:?} is not all in {ran}")) }
    });
}

#[track_caller]
fn well(cluster: &Cluster) {
    until("a cluster that is well", || {
        let ran = cluster.windlass(&["status"]);
        if ran.code == Some(0) { Ok(()) } else { Err(ran.to_string()) }
    });
}

#[test]
fn status_names_broken_parts_with_their_causes() {
    // What other tests leave in a cluster that they share may not be well.
    let _turn = beside_others();
    let cluster = &Cluster::new("status");
    cluster.up().ok();
    let s = Session::own(cluster);
    well(cluster);

    // Nobody starts again what dies while those are held that would.
    cluster.signal("STOP", cluster.pid("supervisor"));
    cluster.kill("agent");
    says(cluster, &["✗ agent does not run; its log", "✓ the API server answers"]);
    cluster.kill("control-plane");
    says(cluster, &["✗ control-plane does not run", "✗ the API server does not answer"]);
    cluster.signal("CONT", cluster.pid("supervisor"));
    well(cluster);

    let runtime = cluster.pid("containerd");
    cluster.signal("STOP", runtime);
    says(cluster, &["✓ containerd runs", "runs and does not answer"]);
    cluster.signal("CONT", runtime);
    well(cluster);

    s.kubectl("run lost --image=lost:1 --image-pull-policy=Never").ok();
    says(cluster, &["✗ Pod default/lost is not Ready", "ErrImageNeverPull"]);
    s.kubectl("delete pod lost --now").ok();
    s.apply(
        r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"big"},"spec":{"containers":[
            {"name":"c","image":"app:1","resources":{"requests":{"cpu":"1000"}}}]}}"#,
    );
    says(cluster, &["✗ Pod default/big is not Ready", "1 Insufficient cpu"]);
    s.kubectl("delete pod big --now").ok();

    let settings = cluster.root().join("cluster.json");
    let whole = fs::read(&settings).unwrap();
    fs::write(&settings, &whole[..whole.len() / 2]).unwrap();
    let refused = cluster.windlass(&["status"]).refused();
    fs::write(&settings, &whole).unwrap();
    assert!(refused.contains("cluster.json"), "{refused}");
    well(cluster);
    cluster.down(&[]).ok();
}
