//! Binding: the scheduler gives a Pod its node.

use api_meta::{GroupResource, Status};
use http::StatusCode;
use serde_json::{Value, json};

use super::Answer;
use crate::{answer, call::Call, codec, server::Server};

pub(super) async fn create(server: &Server, call: &Call) -> Answer {
    let expected = codec::Expected::builtin("", "v1", "v1", "Binding")?;
    let binding = codec::decode(call, &server.read_body(call).await?, expected)?;
    let name = binding["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let target = binding["target"]["name"].as_str().unwrap_or_default();
    let kind = binding["target"]["kind"].as_str().unwrap_or_default();
    if !kind.is_empty() && kind != "Node" {
        return Err(Box::new(Status::bad_request(format!(
            "target.kind: Unsupported value: \"{kind}\": supported values: \"Node\", \"<empty>\""
        ))));
    }
    if target.is_empty() {
        return Err(Box::new(Status::bad_request("target.name: Required value")));
    }
    let pods = server.hub.kinds();
    let Some((resource, version)) = pods.find("", "v1", "pods") else {
        return Err(Box::new(Status::no_such_resource()));
    };
    let mut path = call.path.clone();
    path.resource = "pods".to_owned();
    path.subresource = "binding".to_owned();
    if path.name.is_empty() {
        path.name = name;
    }
    let on_pod = call.on(resource.clone(), version, path);
    let bind = |current: Option<&Value>| bound(current, &binding, target, &on_pod.path.name);
    super::change(server, &on_pod, &bind).await?;
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
    Ok(answer::value(call.accepted, StatusCode::CREATED, &status))
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
    let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
    if let Some(wanted) = binding["metadata"]["uid"].as_str().filter(|u| !u.is_empty() && *u != uid)
    {
        return conflict(format!(
            "Precondition failed: UID in precondition: {wanted}, UID in object meta: {uid}"
        ));
    }
    if !pod["metadata"]["deletionTimestamp"].is_null() {
        return conflict(format!("pod {name} is being deleted, cannot be assigned to a host"));
    }
    if let Some(node) = pod["spec"]["nodeName"].as_str().filter(|n| !n.is_empty()) {
        return conflict(format!("pod {name} is already assigned to node \"{node}\""));
    }
    if pod["spec"]["schedulingGates"].as_array().is_some_and(|g| !g.is_empty()) {
        return conflict(format!("pod {name} has non-empty .spec.schedulingGates"));
    }
    let mut pod = pod.clone();
    pod["spec"]["nodeName"] = json!(target);
    for field in ["annotations", "labels"] {
        for (key, value) in binding["metadata"][field].as_object().into_iter().flatten() {
            pod["metadata"][field][key] = value.clone();
        }
    }
    let mut conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.retain(|c| c["type"] != "PodScheduled");
    conditions.push(json!({
        "type": "PodScheduled",
        "status": "True",
        "lastProbeTime": null,
        "lastTransitionTime": crate::now().to_string(),
    }));
    pod["status"]["conditions"] = json!(conditions);
    Ok(pod)
}
