//! The kubelet's own metrics in `/metrics`.

use k8s_openapi::api::core::v1::Pod;

use telemetry::exposition::{Exposition, Labels, Metric, gauge};

const NAME: Metric = gauge("kubelet_node_name", "[ALPHA] The node's name. The count is always 1.");
const DESIRED: Metric = gauge(
    "kubelet_desired_pods",
    "[ALPHA] The number of pods the kubelet is being instructed to run. static is true if the pod is not from the \
     apiserver.",
);
const RUNNING_PODS: Metric =
    gauge("kubelet_running_pods", "[ALPHA] Number of pods that have a running pod sandbox");
const RUNNING: Metric =
    gauge("kubelet_running_containers", "[ALPHA] Number of containers currently running");

pub(crate) fn text(node: &str, pods: &[Pod]) -> String {
    let mut out = Exposition::default();
    out.add(NAME, &Labels::of(&[("node", node)]), 1.0, None);
    let of = |is_static| pods.iter().filter(|pod| pod_core::is_static(pod) == is_static).count();
    for (value, is_static) in [("", false), ("true", true)] {
        let labels = Labels::of(&[("static", value)]);
        out.add(DESIRED, &labels, of(is_static) as f64, None);
    }
    let statuses = || pods.iter().filter_map(|pod| pod.status.as_ref());
    let up = statuses().filter(|s| s.phase.as_deref() == Some("Running")).count();
    out.add(RUNNING_PODS, &Labels::default(), up as f64, None);
    let [mut running, mut exited, mut created] = [0.0; 3];
    let all =
        statuses().flat_map(|s| s.container_statuses.iter().chain(&s.init_container_statuses));
    for state in all.flatten().filter_map(|container| container.state.as_ref()) {
        match (&state.running, &state.terminated) {
            (Some(_), _) => running += 1.0,
            (_, Some(_)) => exited += 1.0,
            _ => created += 1.0,
        }
    }
    for (state, count) in [("created", created), ("exited", exited), ("running", running)] {
        out.add(RUNNING, &Labels::of(&[("container_state", state)]), count, None);
    }
    out.text()
}
