//! The endpoints for health, Pods and configuration.

use http::{Response, StatusCode};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use serde_json::json;
use serve::Body;
use tokio::sync::watch;

use super::{Server, text};
use crate::{context::Context, pods::Pods, runtime};

/// Reports whether the runtime answers and all of the kubelet's tasks run.
pub(super) fn healthz(
    health: &watch::Receiver<Option<String>>,
    tasks: &rt::Tasks,
) -> Response<Body> {
    let failed: String =
        tasks.missing().iter().map(|m| format!("[-]{} failed\n", m.name)).collect();
    if !failed.is_empty() {
        return text(StatusCode::INTERNAL_SERVER_ERROR, format!("{failed}healthz check failed\n"));
    }
    match &*health.borrow() {
        None => text(StatusCode::OK, "ok"),
        Some(cause) => text(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("the container runtime is not healthy: {cause}"),
        ),
    }
}

fn list(items: Vec<Pod>) -> Response<Body> {
    super::json(&json!({ "kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items }))
}

/// Returns the Pods assigned to this node.
pub(super) fn pods(pods: &Pods) -> Response<Body> {
    list(pods.list())
}

/// Returns the Pods that the runtime has, also orphans.
pub(super) async fn running_pods(server: &Server) -> Response<Body> {
    let known = match runtime::list_pods(&server.ctx).await {
        Ok(known) => known,
        Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    };
    let pod = |(uid, known): (String, runtime::RuntimePod)| {
        let mut pod = Pod::default();
        pod.metadata.name = Some(known.name);
        pod.metadata.namespace = Some(known.namespace);
        pod.metadata.uid = Some(uid);
        let container = |name| Container { name, ..Container::default() };
        let containers = known.containers.into_iter().map(container).collect();
        pod.spec = Some(PodSpec { containers, ..PodSpec::default() });
        pod
    };
    list(known.into_iter().map(pod).collect())
}

/// Returns the effective settings by the field names of KubeletConfiguration.
pub(super) fn configz(ctx: &Context) -> Response<Body> {
    let settings = &ctx.settings;
    let seconds = |d: std::time::Duration| format!("{}s", d.as_secs());
    super::json(&json!({ "kubeletconfig": {
        "kind": "KubeletConfiguration",
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "staticPodPath": settings.static_pods,
        "syncFrequency": seconds(settings.sync_frequency),
        "address": settings.address,
        "port": settings.port,
        "clusterDomain": settings.cluster_domain,
        "clusterDNS": settings.cluster_dns,
        "nodeStatusUpdateFrequency": seconds(settings.status_update),
        "nodeStatusReportFrequency": seconds(settings.status_report),
        "nodeLeaseDurationSeconds": settings.lease_duration.as_secs(),
        "imageGCHighThresholdPercent": settings.image_gc_high,
        "imageGCLowThresholdPercent": settings.image_gc_low,
        "cgroupRoot": settings.cgroup_root,
        "runtimeRequestTimeout": seconds(settings.request_timeout),
        "maxPods": settings.max_pods,
        "podCIDR": settings.pod_cidr,
        "resolvConf": settings.resolv_conf,
        "cpuCFSQuota": settings.cpu_quota,
        "containerLogMaxSize": settings.log_max_size.to_string(),
        "containerLogMaxFiles": settings.log_max_files,
        "podLogsDir": settings.logs,
        "containerRuntimeEndpoint": settings.runtime_endpoint,
    } }))
}
