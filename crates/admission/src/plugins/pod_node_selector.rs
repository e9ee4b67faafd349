use api_meta::{GroupResource, Selector, Status, Tree as _};
use serde_json::Value;

use crate::{Outcome, Plugin, Request};

/// Keeps the Pods of a namespace on the nodes that its annotation names.
pub(crate) struct PodNodeSelector;

const ANNOTATION: &str = "scheduler.alpha.kubernetes.io/node-selector";

impl Plugin for PodNodeSelector {
    fn mutate(
        &self,
        request: &Request<'_>,
        pod: &mut Value,
        _: &mut Outcome,
    ) -> Result<(), Status> {
        for (key, value) in wanted(request, pod)? {
            let way = &["spec", "nodeSelector", &key];
            if pod.has(way) && *pod.at(way) != value.as_str() {
                return Err(conflict(request, pod));
            }
            pod.put(way, value);
        }
        Ok(())
    }

    fn validate(&self, request: &Request<'_>, pod: &Value, _: &mut Outcome) -> Result<(), Status> {
        let kept = wanted(request, pod)?
            .iter()
            .all(|(key, value)| pod["spec"]["nodeSelector"][key] == value.as_str());
        if kept { Ok(()) } else { Err(conflict(request, pod)) }
    }
}

fn conflict(request: &Request<'_>, pod: &Value) -> Status {
    request
        .forbidden(pod, "pod node label selector conflicts with its namespace node label selector")
}

/// The labels that the namespace asks for, as `a=b,c=d`.
fn wanted(request: &Request<'_>, pod: &Value) -> Result<Vec<(String, String)>, Status> {
    if !request.is(&GroupResource::PODS) || !request.creates() {
        return Ok(Vec::new());
    }
    let namespace = request.objects.get(&GroupResource::NAMESPACES, "", request.namespace);
    let Some(text) = namespace.as_deref().and_then(|namespace| namespace.annotation(ANNOTATION))
    else {
        return Ok(Vec::new());
    };
    let selector: Selector = text
        .parse()
        .map_err(|e| request.forbidden(pod, format!("namespace {}: {e}", request.namespace)))?;
    Ok(selector
        .requirements()
        .iter()
        .filter_map(|r| Some((r.key().to_owned(), r.values().first()?.clone())))
        .collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{Cluster, Try, pod};

    #[test]
    fn adds_and_guards_the_selector() {
        let namespace =
            json!({"metadata": {"name": "ns", "annotations": {ANNOTATION: "disk=ssd,zone=a"}}});
        let cluster = Cluster::default().with(&GroupResource::NAMESPACES, namespace);
        let create = Try::create(&cluster, &GroupResource::PODS);
        let made = create
            .admitted(&PodNodeSelector, pod(json!({"nodeSelector": {"zone": "a", "x": "y"}})));
        assert_eq!(made["spec"]["nodeSelector"], json!({"disk": "ssd", "zone": "a", "x": "y"}));
        let refusal = create.refusal(&PodNodeSelector, pod(json!({"nodeSelector": {"zone": "b"}})));
        assert!(
            refusal.ends_with(
                "pod node label selector conflicts with its namespace node label selector"
            )
        );
    }
}
