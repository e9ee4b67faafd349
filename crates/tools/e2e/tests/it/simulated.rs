//! Simulated nodes: kubelets with a container runtime in memory.

use e2e::{Cluster, Session, share_machine};

#[test]
fn rolls_out_and_drains_on_simulated_nodes() {
    let _turn = share_machine();
    let cluster = Cluster::new("simulated");
    cluster.up_with(&["--simulated-nodes", "10"]).ok();
    let s = Session::in_default_namespace(&cluster);
    let simulated = "node -l windlass.io/simulated";
    s.until(&format!("get {simulated} -o name"), |names| names.lines().count() == 10);
    s.kubectl(&format!("wait {simulated} --for=condition=Ready --timeout=60s")).ok();
    s.apply(
        r#"{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "wide"}, "spec": {
            "replicas": 100, "selector": {"matchLabels": {"app": "wide"}},
            "template": {"metadata": {"labels": {"app": "wide"}}, "spec": {
                "terminationGracePeriodSeconds": 0, "nodeSelector": {"windlass.io/simulated": ""},
                "tolerations": [{"key": "windlass.io/simulated"}],
                "containers": [{"name": "c", "image": "none:1"}]}}}}"#,
    );
    s.kubectl("rollout status deployment wide --timeout=120s").ok();
    let on_first = || {
        let all = s.field("pod -l app=wide", "{.items[*].spec.nodeName}");
        all.split_whitespace().filter(|node| *node == "simulated-1").count()
    };
    assert!(on_first() > 0, "the scheduler spreads the Pods");
    s.kubectl("drain simulated-1 --timeout=60s").ok();
    assert_eq!(on_first(), 0);
    s.kubectl("set image deployment/wide c=none:2").ok();
    s.kubectl("rollout status deployment wide --timeout=120s").ok();
    // The process forgets its Pods, and its kubelets start them again.
    cluster.kill("simulated-nodes");
    s.kubectl("delete pod -l app=wide --field-selector spec.nodeName=simulated-2 --timeout=60s")
        .ok();
    s.kubectl("rollout status deployment wide --timeout=120s").ok();
}
