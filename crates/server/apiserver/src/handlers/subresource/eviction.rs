//! Eviction: a deletion that PodDisruptionBudgets may refuse.

use std::sync::Arc;

use api_meta::{
    GroupResource, LabelSelector, Objects, Status, StatusCause, StatusDetails, StatusReason,
    Tree as _,
};
use serde_json::{Value, json};

use crate::{
    clock,
    handlers::{
        admission,
        attributes::Attributes,
        call::{Answer, Call},
        change, decode,
        delete::{DeleteOptions, Origin, remove},
        read::current,
        state::State,
    },
    request::ResourcePath,
    response,
    watch_cache::store_status,
};

pub(super) async fn create(state: &State, call: &Call) -> Answer {
    let mut expected = decode::ExpectedType::builtin("policy", "v1", "policy/v1", "Eviction")?;
    expected.former = "policy/v1beta1";
    let attributes = Attributes::create(call);
    let eviction = super::body::decode_and_admit(state, call, expected, &attributes).await?;
    if eviction["metadata"]["name"] != *call.path.name {
        let message = "name in URL does not match name in Eviction object";
        return Err(Box::new(Status::bad_request(message)));
    }
    admission::validate(state, &attributes, &eviction).await?;
    // Parse the options before the eviction has its first effect.
    let options = match &eviction["deleteOptions"] {
        Value::Null => DeleteOptions::default(),
        options => serde_json::from_value(options.clone())
            .map_err(|e| Box::new(Status::bad_request(format!("decoding DeleteOptions: {e}"))))?,
    };
    options.validate()?;
    options.apply_dry_run(call);
    let read = [GroupResource::PODS, GroupResource::new("policy", "poddisruptionbudgets")];
    state.cache.consistent(&read).await.map_err(store_status)?;
    let object = current(call, Some("0")).await?;
    let pod = object.tree().map_err(|e| Box::new(Status::internal(e)))?;
    // Evicting a finished or pending Pod causes no disruption.
    let idle = matches!(pod.text("status.phase"), "Succeeded" | "Failed" | "Pending");
    if !idle && !pod.has("metadata.deletionTimestamp") {
        check_budgets(state, call, &pod).await?;
    }
    // A precondition on the resourceVersion would fail after this update.
    if !call.dry_run() && !options.names_a_version() {
        announce(state, call).await?;
    }
    let at = (call.path.namespace.as_str(), call.path.name.as_str());
    remove(state, call, at, &options, Origin::Effect).await?;
    Ok(response::created(call.accepted))
}

/// Sets the Pod's condition `DisruptionTarget`, so that the Pod's owner can see the reason.
async fn announce(state: &State, call: &Call) -> Result<(), Box<Status>> {
    let kinds = state.cache.kinds();
    let Some((resource, version)) = kinds.find("", "v1", "pods") else { return Ok(()) };
    let path = ResourcePath { subresource: "status".into(), ..call.path.clone() };
    let on_pod = call.on(resource.clone(), version, path);
    let say = |current: Option<&Value>| {
        let gone = || Box::new(Status::not_found(&GroupResource::PODS, &call.path.name));
        let mut pod = current.ok_or_else(gone)?.clone();
        let mut conditions = pod.items("status.conditions").to_vec();
        conditions.retain(|c| c["type"] != "DisruptionTarget");
        conditions.push(json!({
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting",
            "observedGeneration": pod.int("metadata.generation"),
            "lastProbeTime": null,
            "lastTransitionTime": clock::now().to_string(),
        }));
        pod.put(&["status", "conditions"], json!(conditions));
        Ok(pod)
    };
    change::effect(state, &on_pod, &say, true).await
}

/// Takes one disruption from the Pod's budget, or rejects the eviction.
async fn check_budgets(state: &State, call: &Call, pod: &Value) -> Result<(), Box<Status>> {
    let resource = GroupResource::new("policy", "poddisruptionbudgets");
    let budgets = state.security.objects.list(&resource, &call.path.namespace);
    let covering: Vec<&Arc<Value>> = budgets.iter().filter(|budget| covers(budget, pod)).collect();
    let budget = match covering.as_slice() {
        [] => return Ok(()),
        [one] => one,
        _ => {
            let message = "This pod has more than one PodDisruptionBudget, which the eviction \
                           subresource does not support.";
            return Err(Box::new(Status::failure(500, StatusReason::Unknown, message)));
        }
    };
    let conditions = pod.items("status.conditions");
    let ready = conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == "True");
    let healthy = budget.int("status.desiredHealthy") > 0
        && budget.int("status.currentHealthy") >= budget.int("status.desiredHealthy");
    if !ready && (healthy || budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow") {
        return Ok(());
    }
    let kinds = state.cache.kinds();
    let Some((resource, version)) = kinds.find("policy", "v1", "poddisruptionbudgets") else {
        return Ok(());
    };
    let path = ResourcePath {
        group: "policy".into(),
        version: "v1".into(),
        resource: "poddisruptionbudgets".into(),
        subresource: "status".into(),
        namespace: call.path.namespace.clone(),
        name: budget.name().to_owned(),
        ..ResourcePath::default()
    };
    let on_budget = call.on(resource.clone(), version, path);
    let take = |current: Option<&Value>| disrupt(current, &call.path.name);
    change::effect(state, &on_budget, &take, true).await
}

fn covers(budget: &Value, pod: &Value) -> bool {
    let selector: Option<LabelSelector> =
        serde_json::from_value(budget["spec"]["selector"].clone()).ok();
    let Some(selector) = selector.and_then(|s| s.to_selector().ok()) else { return false };
    selector.matches_with(|key| pod["metadata"]["labels"][key].as_str())
}

/// The Retry-After in seconds: the controller will have processed the budget by then.
const SOON: u32 = 10;

fn disrupt(budget: Option<&Value>, pod: &str) -> Result<Value, Box<Status>> {
    let Some(budget) = budget else {
        return Err(Box::new(Status::internal("the disruption budget has just been deleted")));
    };
    let name = budget.name();
    let refuse = |message: String, retry_after: u32| {
        let cause =
            StatusCause { reason: "DisruptionBudget".into(), message, field: String::new() };
        let status = Status::too_many_requests(
            "Cannot evict pod as it would violate the pod's disruption budget.",
            0,
        );
        let details = StatusDetails { causes: vec![cause], ..StatusDetails::default() };
        Err(Box::new(status.with_details(details).with_retry_after(retry_after)))
    };
    if budget.int("status.observedGeneration") < budget.int("metadata.generation") {
        let message =
            format!("The disruption budget {name} is still being processed by the server.");
        return refuse(message, SOON);
    }
    let allowed = budget.int("status.disruptionsAllowed");
    if allowed <= 0 {
        let message = format!(
            "The disruption budget {name} needs {} healthy pods and has {} currently",
            budget.int("status.desiredHealthy"),
            budget.int("status.currentHealthy")
        );
        return refuse(message, 0);
    }
    let mut budget = budget.clone();
    budget.put(&["status", "disruptionsAllowed"], json!(allowed - 1));
    budget.put(&["status", "disruptedPods", pod], json!(clock::now().to_string()));
    Ok(budget)
}
