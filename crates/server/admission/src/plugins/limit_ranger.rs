use std::collections::BTreeSet;

use api_meta::{GroupResource, Quantity, Tree as _};
use api_rules::amounts::{Amounts, Overhead, amounts, pod_total};
use serde_json::Value;

use crate::request::{AdmissionResult, Outcome, Plugin, Request};

/// Sets the defaults of the namespace's LimitRanges and rejects objects outside their bounds.
pub(crate) struct LimitRanger;

const ANNOTATION: &str = "kubernetes.io/limit-ranger";

impl Plugin for LimitRanger {
    fn mutates(&self, request: &Request<'_>) -> bool {
        request.is(&GroupResource::PODS) && request.creates()
    }

    fn mutate(&self, request: &Request<'_>, pod: &mut Value) -> AdmissionResult {
        for range in request.objects.list(&GroupResource::LIMIT_RANGES, request.namespace) {
            set_defaults(&range, pod);
        }
        Ok(())
    }

    fn validate(&self, request: &Request<'_>, object: &Value, _: &mut Outcome) -> AdmissionResult {
        let pod = (request.is(&GroupResource::PODS) && request.creates())
            || (request.is_sub(&GroupResource::PODS, "resize") && request.updates());
        let claim = request.is(&GroupResource::PERSISTENT_VOLUME_CLAIMS)
            && (request.creates() || request.updates());
        if !pod && !claim {
            return Ok(());
        }
        for range in request.objects.list(&GroupResource::LIMIT_RANGES, request.namespace) {
            let mut broken = Vec::new();
            for limit in range.items("spec.limits") {
                match limit.text("type") {
                    "PersistentVolumeClaim" if claim => check_claim(limit, object, &mut broken),
                    "Container" if pod => check_containers(limit, object, &mut broken),
                    "Pod" if pod => check_pod(limit, object, &mut broken),
                    _ => {}
                }
            }
            broken.dedup();
            match broken.as_slice() {
                [] => {}
                [one] => return Err(request.forbidden(object, one)),
                several => {
                    return Err(request.forbidden(object, format!("[{}]", several.join(", "))));
                }
            }
        }
        Ok(())
    }
}

/// Sets missing requests and limits of containers, and records them in an annotation.
fn set_defaults(range: &Value, pod: &mut Value) {
    let (mut requests, mut limits) = (serde_json::Map::new(), serde_json::Map::new());
    for limit in range.items("spec.limits").iter().filter(|limit| limit.text("type") == "Container")
    {
        requests.extend(limit["defaultRequest"].as_object().cloned().unwrap_or_default());
        limits.extend(limit["default"].as_object().cloned().unwrap_or_default());
    }
    let mut changes = Vec::new();
    for (list, noun) in
        [("spec.containers", "container"), ("spec.initContainers", "init container")]
    {
        for container in pod.items_mut(list) {
            for (field, word, defaults) in
                [("requests", "request", &requests), ("limits", "limit", &limits)]
            {
                let set: Vec<&str> = defaults
                    .iter()
                    .filter(|(resource, amount)| {
                        let way = &["resources", field, resource];
                        let absent = !container.has(way);
                        if absent {
                            container.put(way, (*amount).clone());
                        }
                        absent
                    })
                    .map(|(resource, _)| resource.as_str())
                    .collect();
                if !set.is_empty() {
                    changes.push(format!(
                        "{} {word} for {noun} {}",
                        set.join(", "),
                        container.text("name")
                    ));
                }
            }
        }
    }
    if !changes.is_empty() {
        let annotation = format!("LimitRanger plugin set: {}", changes.join("; "));
        pod.put(&["metadata", "annotations", ANNOTATION], annotation);
    }
}

/// The amounts that a limit is compared with, and the limit's type.
struct Measurement<'a> {
    kind: &'a str,
    requests: &'a Amounts,
    limits: &'a Amounts,
}

fn check_containers(limit: &Value, pod: &Value, broken: &mut Vec<String>) {
    for list in ["spec.containers", "spec.initContainers"] {
        for container in pod.items(list) {
            let requests = amounts(container.at("resources.requests"));
            let limits = amounts(container.at("resources.limits"));
            Measurement { kind: "Container", requests: &requests, limits: &limits }
                .check(limit, broken);
        }
    }
}

fn check_pod(limit: &Value, pod: &Value, broken: &mut Vec<String>) {
    let requests = pod_total(pod, "requests", Overhead::Left);
    let limits = pod_total(pod, "limits", Overhead::Left);
    Measurement { kind: "Pod", requests: &requests, limits: &limits }.check(limit, broken);
}

fn check_claim(limit: &Value, claim: &Value, broken: &mut Vec<String>) {
    let requests = amounts(claim.at("spec.resources.requests"));
    let measured =
        Measurement { kind: "PersistentVolumeClaim", requests: &requests, limits: &Amounts::new() };
    for (resource, bound) in amounts(&limit["min"]) {
        broken.extend(measured.minimum_violation(&resource, bound));
    }
    for (resource, bound) in amounts(&limit["max"]) {
        let is = format!("maximum {resource} usage per {} is {bound}", measured.kind);
        match requests.get(&resource) {
            None => broken.push(format!("{is}.  No request is specified")),
            Some(request) if *request > bound => {
                broken.push(format!("{is}, but request is {request}"))
            }
            Some(_) => {}
        }
    }
}

impl Measurement<'_> {
    fn check(&self, limit: &Value, broken: &mut Vec<String>) {
        let (min, max) = (amounts(&limit["min"]), amounts(&limit["max"]));
        let ratios = amounts(&limit["maxLimitRequestRatio"]);
        let resources: BTreeSet<&String> =
            min.keys().chain(max.keys()).chain(ratios.keys()).collect();
        for resource in resources {
            broken.extend(
                min.get(resource).and_then(|bound| self.minimum_violation(resource, *bound)),
            );
            broken.extend(
                max.get(resource).and_then(|bound| self.maximum_violation(resource, *bound)),
            );
            broken.extend(
                ratios.get(resource).and_then(|bound| self.ratio_violation(resource, *bound)),
            );
        }
    }

    fn minimum_violation(&self, resource: &str, bound: Quantity) -> Option<String> {
        let is = format!("minimum {resource} usage per {} is {bound}", self.kind);
        match (self.requests.get(resource), self.limits.get(resource)) {
            (None, _) => Some(format!("{is}.  No request is specified")),
            (Some(request), _) if *request < bound => {
                Some(format!("{is}, but request is {request}"))
            }
            (_, Some(limit)) if *limit < bound => Some(format!("{is}, but limit is {limit}")),
            _ => None,
        }
    }

    fn maximum_violation(&self, resource: &str, bound: Quantity) -> Option<String> {
        let is = format!("maximum {resource} usage per {} is {bound}", self.kind);
        match (self.requests.get(resource), self.limits.get(resource)) {
            (_, None) => Some(format!("{is}.  No limit is specified")),
            (_, Some(limit)) if *limit > bound => Some(format!("{is}, but limit is {limit}")),
            (Some(request), _) if *request > bound => {
                Some(format!("{is}, but request is {request}"))
            }
            _ => None,
        }
    }

    fn ratio_violation(&self, resource: &str, bound: Quantity) -> Option<String> {
        let is = format!("{resource} max limit to request ratio per {} is {bound}", self.kind);
        let given =
            |amounts: &Amounts| amounts.get(resource).copied().filter(|amount| !amount.is_zero());
        let Some(request) = given(self.requests) else {
            return Some(format!("{is}, but no request is specified or request is 0"));
        };
        let Some(limit) = given(self.limits) else {
            return Some(format!("{is}, but no limit is specified or limit is 0"));
        };
        let ratio = limit.as_f64() / request.as_f64();
        (ratio > bound.as_f64()).then(|| format!("{is}, but provided ratio is {ratio:.6}"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{Cluster, Try, pod};

    fn cluster(limit: Value) -> Cluster {
        let range =
            json!({"metadata": {"name": "r", "namespace": "ns"}, "spec": {"limits": [limit]}});
        Cluster::default().with(&GroupResource::LIMIT_RANGES, range)
    }

    #[test]
    fn sets_missing_requests_and_limits() {
        let cluster = cluster(
            json!({"type": "Container", "default": {"cpu": "2", "memory": "1Gi"}, "defaultRequest": {"cpu": "1"}}),
        );
        let spec = json!({"containers": [{"name": "a", "resources": {"limits": {"cpu": "3"}}}]});
        let made = Try::create(&cluster, &GroupResource::PODS).admitted(&LimitRanger, pod(spec));
        assert_eq!(
            made["spec"]["containers"][0]["resources"],
            json!({"requests": {"cpu": "1"}, "limits": {"cpu": "3", "memory": "1Gi"}})
        );
        assert_eq!(
            made["metadata"]["annotations"][ANNOTATION],
            "LimitRanger plugin set: cpu request for container a; memory limit for container a"
        );
    }

    #[test]
    fn rejects_amounts_out_of_bounds() {
        let asks = |request: &str, limit: &str| json!({"containers": [{"name": "a", "resources": {"requests": {"cpu": request}, "limits": {"cpu": limit}}}]});
        let cases = [
            (
                json!({"type": "Container", "min": {"cpu": "100m"}}),
                asks("50m", "1"),
                "minimum cpu usage per Container is 100m, but request is 50m",
            ),
            (
                json!({"type": "Container", "min": {"cpu": "100m"}}),
                json!({"containers": [{}]}),
                "minimum cpu usage per Container is 100m.  No request is specified",
            ),
            (
                json!({"type": "Container", "max": {"cpu": "1"}}),
                asks("1", "2"),
                "maximum cpu usage per Container is 1, but limit is 2",
            ),
            (
                json!({"type": "Pod", "max": {"cpu": "1"}}),
                json!({"containers": [{}]}),
                "maximum cpu usage per Pod is 1.  No limit is specified",
            ),
            (
                json!({"type": "Container", "maxLimitRequestRatio": {"cpu": "2"}}),
                asks("1", "3"),
                "cpu max limit to request ratio per Container is 2, but provided ratio is 3.000000",
            ),
            (
                json!({"type": "Container", "max": {"cpu": "1", "memory": "1Gi"}}),
                asks("1", "2"),
                "[maximum cpu usage per Container is 1, but limit is 2, maximum memory usage per Container is 1Gi.  No limit is specified]",
            ),
        ];
        for (limit, spec, want) in cases {
            let cluster = cluster(limit);
            let refusal =
                Try::create(&cluster, &GroupResource::PODS).refusal(&LimitRanger, pod(spec));
            assert_eq!(refusal, format!("pods \"p\" is forbidden: {want}"));
        }
        let cluster = cluster(json!({"type": "PersistentVolumeClaim", "max": {"storage": "1Gi"}}));
        let claim = json!({"metadata": {"name": "c", "namespace": "ns"}, "spec": {"resources": {"requests": {"storage": "2Gi"}}}});
        assert_eq!(
            Try::create(&cluster, &GroupResource::PERSISTENT_VOLUME_CLAIMS)
                .refusal(&LimitRanger, claim),
            "persistentvolumeclaims \"c\" is forbidden: maximum storage usage per PersistentVolumeClaim is 1Gi, but request is 2Gi"
        );
    }
}
