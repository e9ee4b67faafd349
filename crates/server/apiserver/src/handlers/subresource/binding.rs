//! Binding: assigns a Pod to a node on behalf of the scheduler.

use api_meta::{GroupResource, Status, Tree as _};
use serde_json::{Value, json};

use crate::{
    clock,
    handlers::{
        admission,
        attributes::Attributes,
        call::{Answer, Call},
        change, decode,
        state::State,
    },
    response,
};

pub(super) async fn create(state: &State, call: &Call) -> Answer {
    let expected = decode::ExpectedType::builtin("", "v1", "v1", "Binding")?;
    let attributes = Attributes::create(call);
    let binding = super::body::decode_and_admit(state, call, expected, &attributes).await?;
    let name = binding.name().to_owned();
    if !call.path.name.is_empty() && call.path.name != name {
        let message = "name in URL does not match name in Binding object";
        return Err(Box::new(Status::bad_request(message)));
    }
    let target = binding.text("target.name");
    let kind = binding.text("target.kind");
    if !kind.is_empty() && kind != "Node" {
        return Err(Box::new(Status::bad_request(format!(
            "target.kind: Unsupported value: \"{kind}\": supported values: \"Node\", \"<empty>\""
        ))));
    }
    if target.is_empty() {
        return Err(Box::new(Status::bad_request("target.name: Required value")));
    }
    admission::validate(state, &attributes, &binding).await?;
    let pods = state.cache.kinds();
    let Some((resource, version)) = pods.find("", "v1", "pods") else {
        return Err(Box::new(Status::no_such_resource()));
    };
    let mut path = call.path.clone();
    path.resource = "pods".to_owned();
    path.subresource = "binding".to_owned();
    path.name = name;
    let on_pod = call.on(resource.clone(), version, path);
    let bind = |current: Option<&Value>| bound(current, &binding, target, &on_pod.path.name);
    change::effect(state, &on_pod, &bind, true).await?;
    Ok(response::created(call.accepted))
}

fn bound(
    current: Option<&Value>,
    binding: &Value,
    target: &str,
    name: &str,
) -> Result<Value, Box<Status>> {
    let Some(pod) = current else {
        return Err(Box::new(Status::not_found(&GroupResource::PODS, name)));
    };
    let conflict = |cause: String| {
        let resource = GroupResource::new("", "pods/binding");
        Err(Box::new(Status::conflict(&resource, name, cause)))
    };
    for (field, word) in [("uid", "UID"), ("resourceVersion", "ResourceVersion")] {
        let text =
            |object: &Value| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        let (wanted, own) = (text(binding), text(pod));
        if !wanted.is_empty() && wanted != own {
            return conflict(format!(
                "Precondition failed: {word} in precondition: {wanted}, {word} in object meta: {own}"
            ));
        }
    }
    if pod.has("metadata.deletionTimestamp") {
        return conflict(format!("pod {name} is being deleted, cannot be assigned to a host"));
    }
    if let Some(node) = pod.opt_text("spec.nodeName") {
        return conflict(format!("pod {name} is already assigned to node \"{node}\""));
    }
    if !pod.items("spec.schedulingGates").is_empty() {
        return conflict(format!("pod {name} has non-empty .spec.schedulingGates"));
    }
    let mut pod = pod.clone();
    pod.put(&["spec", "nodeName"], json!(target));
    // A bound Pod has no nominated node.
    if let Some(status) = pod.at_mut(&["status"]).and_then(Value::as_object_mut) {
        status.remove("nominatedNodeName");
    }
    for field in ["annotations", "labels"] {
        for (key, value) in binding["metadata"][field].as_object().into_iter().flatten() {
            pod.put(&["metadata", field, key], value.clone());
        }
    }
    let mut conditions = pod.items("status.conditions").to_vec();
    conditions.retain(|c| c["type"] != "PodScheduled");
    conditions.push(json!({
        "type": "PodScheduled",
        "status": "True",
        "lastProbeTime": null,
        "lastTransitionTime": clock::now().to_string(),
    }));
    pod.put(&["status", "conditions"], json!(conditions));
    Ok(pod)
}
