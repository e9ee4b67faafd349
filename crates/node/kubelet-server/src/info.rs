//! The endpoints for health, Pods and configuration.

use cri::RuntimePod;
use http::{Response, StatusCode};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use serde_json::json;
use serve::Body;
use tokio::sync::watch;

use crate::{
    backend::Backend,
    response::{self, text},
};

/// Reports whether the runtime answers and all of the kubelet's tasks run.
pub(crate) fn healthz(
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
    response::json(
        &json!({ "kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items }),
    )
}

/// Returns the Pods assigned to this node.
pub(crate) fn pods(backend: &Backend) -> Response<Body> {
    list(backend.pods.list())
}

/// Returns the Pods that the runtime has, also orphans.
pub(crate) async fn running_pods(backend: &Backend) -> Response<Body> {
    let pods = match backend.cri.list_pods().await {
        Ok(pods) => pods,
        Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    };
    let pod = |(uid, runtime_pod): (String, RuntimePod)| {
        let mut pod = Pod::default();
        pod.metadata.name = Some(runtime_pod.name);
        pod.metadata.namespace = Some(runtime_pod.namespace);
        pod.metadata.uid = Some(uid);
        let container = |name| Container { name, ..Container::default() };
        let containers = runtime_pod.containers.into_iter().map(container).collect();
        pod.spec = Some(PodSpec { containers, ..PodSpec::default() });
        pod
    };
    list(pods.into_iter().map(pod).collect())
}

/// Returns the effective settings by the field names of KubeletConfiguration.
pub(crate) fn configz(backend: &Backend) -> Response<Body> {
    response::json(&json!({ "kubeletconfig": backend.settings.configz() }))
}
