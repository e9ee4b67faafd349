//! metrics-server behind the aggregation layer, and kube-state-metrics.

use e2e::{Cluster, Programs, Session, share_machine, until};

const KUBE_STATE_METRICS: [&str; 5] =
    ["service-account", "cluster-role", "cluster-role-binding", "deployment", "service"];

/// Installs kube-state-metrics with its own manifests.
pub(super) fn install_kube_state_metrics(s: &Session<'_>, programs: &Programs) {
    for part in KUBE_STATE_METRICS {
        let file = format!("manifests/kube-state-metrics/{part}.yaml");
        s.cluster.apply(&programs.manifest(s.cluster, &file), &[]);
    }
    rolled_out(s, "kube-system", "kube-state-metrics");
}

/// Waits until a Deployment is rolled out. Panics with the descriptions and logs of its namespace.
pub(super) fn rolled_out(s: &Session<'_>, namespace: &str, deployment: &str) {
    let kubectl = |line: &str| s.kubectl(&format!("{line} --namespace {namespace}"));
    let ran = kubectl(&format!("rollout status deployment {deployment} --timeout=90s"));
    let state = || {
        let logs = kubectl(&format!("logs deployment/{deployment} --all-containers --tail=40"));
        format!("{ran}\n{}\n{logs}", kubectl("describe pods"))
    };
    assert!(ran.code == Some(0), "{}", state());
}

#[test]
fn metrics_server_and_kube_state_metrics_serve_their_clients() {
    let Some(programs) = Programs::of("metrics") else { return };
    let _turn = share_machine();
    let cluster = Cluster::new("metrics");
    cluster.up().ok();
    cluster.build_images();
    let s = Session::in_default_namespace(&cluster);
    let manifest = programs.manifest(&cluster, "manifests/metrics-server/components.yaml");
    cluster.apply(&manifest, &[]);
    rolled_out(&s, "kube-system", "metrics-server");
    assert_eq!(
        s.field("apiservice v1beta1.metrics.k8s.io", "{.spec.service.name}"),
        "metrics-server"
    );
    s.until(
        "get apiservice v1beta1.metrics.k8s.io -o jsonpath={.status.conditions[0].status}",
        |status| status == "True",
    );
    s.deploy("web", "app:1", 1);
    s.until("top nodes --no-headers", |out| out.lines().count() == 1 && out.contains('%'));
    s.until("top pods --no-headers", |out| out.starts_with("web-") && out.contains("Mi"));
    s.kubectl("set resources deployment web --requests=cpu=10m").ok();
    s.available("web");
    s.kubectl("autoscale deployment web --cpu=50% --min=1 --max=2").ok();
    s.until(
        "get hpa web -o jsonpath={.status.conditions[?(@.type=='ScalingActive')].status}",
        |out| out == "True",
    );

    install_kube_state_metrics(&s, &programs);
    let path = "/api/v1/namespaces/kube-system/services/kube-state-metrics:8080/proxy/metrics";
    until("metrics of the Deployment", || {
        s.kubectl_with(&["get", "--raw", path], "").ok_if(|text| {
            text.contains("kube_deployment_status_replicas_available{namespace=\"default\",deployment=\"web\"} 1")
        })
    });
    let log = s.kubectl("logs deployment/kube-state-metrics --namespace kube-system").ok();
    let errors: Vec<&str> = log.lines().filter(|line| line.starts_with('E')).collect();
    assert!(errors.is_empty(), "{errors:#?}");
    cluster.down(&[]).ok();
}
