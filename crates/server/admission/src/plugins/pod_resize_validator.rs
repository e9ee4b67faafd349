use api_meta::{GroupResource, Quantity, Status, StatusCause, Tree as _, go_quote};
use api_rules::amounts::{Overhead, pod_total, quantity};
use serde_json::Value;

use crate::request::{AdmissionResult, Outcome, Plugin, Request};

/// Rejects a resize of a Pod beyond its node's allocatable resources.
pub(crate) struct PodResizeValidator;

impl Plugin for PodResizeValidator {
    fn validate(&self, request: &Request<'_>, pod: &Value, _: &mut Outcome) -> AdmissionResult {
        let name = pod.text("spec.nodeName");
        let changes = request.old.is_some_and(|old| old["spec"] != pod["spec"]);
        if !request.updates()
            || !request.is_sub(&GroupResource::PODS, "resize")
            || name.is_empty()
            || !changes
        {
            return Ok(());
        }
        let Some(node) = request.objects.get(&GroupResource::NODES, "", name) else {
            return Err(request.forbidden(pod, format!("node {} not found", go_quote(name))));
        };
        let system = node["metadata"]["labels"]["kubernetes.io/os"].as_str().unwrap_or("linux");
        if system != "linux" {
            let (name, system) = (go_quote(name), go_quote(system));
            let cause =
                format!("pod resize is only supported on linux nodes, node {name} is {system}");
            return Err(refusal(request, pod, cause, "UnsupportedPlatform"));
        }
        let missing = missing(pod, &node);
        if missing.is_empty() {
            return Ok(());
        }
        let cause =
            format!("node didn't have enough allocatable resources: {}", missing.join("; "));
        Err(refusal(request, pod, cause, "NodeCapacity"))
    }
}

/// Returns the requests of a Pod that exceed its node's allocatable resources.
fn missing(pod: &Value, node: &Value) -> Vec<String> {
    let requests = pod_total(pod, "requests", Overhead::Counted);
    let beyond = |resource: &str, number: fn(&Quantity) -> i64| {
        let requested = requests.get(resource).copied().unwrap_or(Quantity::ZERO);
        let allocatable = quantity(&node["status"]["allocatable"][resource]);
        let allocatable = allocatable.unwrap_or(Quantity::ZERO);
        (requested > allocatable).then(|| {
            let (requested, allocatable) = (number(&requested), number(&allocatable));
            format!("{resource}, requested: {requested}, allocatable: {allocatable}")
        })
    };
    let all = [beyond("cpu", Quantity::milli_value), beyond("memory", Quantity::value)];
    all.into_iter().flatten().collect()
}

fn refusal(request: &Request<'_>, pod: &Value, cause: String, reason: &str) -> Status {
    let mut status = request.forbidden(pod, cause);
    let cause = StatusCause { reason: reason.into(), ..StatusCause::default() };
    status.details.get_or_insert_default().causes.push(cause);
    status
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{Cluster, Try, pod};

    fn resized(cluster: &Cluster, cpu: &str, memory: &str) -> String {
        let sized = |cpu: &str, memory: &str| {
            let requests = json!({"requests": {"cpu": cpu, "memory": memory}});
            pod(
                json!({"nodeName": "n", "containers": [{"name": "c", "image": "i", "resources": requests}]}),
            )
        };
        let update = Try::update(cluster, &GroupResource::PODS, sized("1m", "1Mi")).sub("resize");
        update.refusal(&PodResizeValidator, sized(cpu, memory))
    }

    fn node(os: &str) -> Cluster {
        let node = json!({"metadata": {"name": "n", "labels": {"kubernetes.io/os": os}}, "status": {"allocatable": {"cpu": "2", "memory": "1Gi"}}});
        Cluster::default().with(&GroupResource::NODES, node)
    }

    #[test]
    fn rejects_resize_beyond_allocatable() {
        let cluster = node("linux");
        assert!(resized(&cluster, "2", "1Gi").starts_with("admitted"));
        assert!(resized(&Cluster::default(), "1m", "1Mi").starts_with("admitted"), "no change");
        let refused = "pods \"p\" is forbidden: node didn't have enough allocatable resources: ";
        assert_eq!(
            resized(&cluster, "2500m", "2Gi"),
            format!(
                "{refused}cpu, requested: 2500, allocatable: 2000; memory, requested: 2147483648, allocatable: 1073741824"
            )
        );
        let told = resized(&Cluster::default(), "2", "1Gi");
        assert!(told.ends_with("node \"n\" not found"), "{told}");
        let told = resized(&node("windows"), "2", "1Gi");
        assert!(
            told.ends_with("only supported on linux nodes, node \"n\" is \"windows\""),
            "{told}"
        );
    }
}
