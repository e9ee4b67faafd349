//! Reports Pod statuses to the API server.

use client::{DeleteOptions, PatchKind, PatchTarget, Preconditions, Resource};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition, PodStatus};
use pod_core::namespaced_name;
use serde_json::{Map, Value, json};

use crate::context::Context;

/// The status that was last reported for one Pod.
#[derive(Default)]
pub(crate) struct Report {
    last: Option<PodStatus>,
    /// The UID of the reported object. It changes if a mirror Pod is created again.
    reported_uid: Option<String>,
    /// The resourceVersion of the object after the report.
    version: Option<u64>,
}

impl Report {
    pub(crate) fn last(&self) -> Option<&PodStatus> {
        self.last.as_ref()
    }

    /// Returns the status on which the next one is based.
    pub(crate) fn previous(&self, ctx: &Context, pod: &Pod) -> PodStatus {
        // Before the first report, use the status that an earlier kubelet reported.
        let before = if self.reported_uid.is_none() { ctx.mirrors.api_status(pod) } else { None };
        before.or_else(|| self.last.clone()).unwrap_or_default()
    }

    /// Sends a status if it differs from the last one. Returns `false` if the report must be retried.
    pub(crate) async fn send(&mut self, ctx: &Context, pod: &Pod, status: PodStatus) -> bool {
        let target =
            if pod_core::is_static(pod) { ctx.mirrors.uid(pod) } else { pod.metadata.uid.clone() };
        let (Some(client), Some(uid)) = (&ctx.client, target) else {
            // Without an API server or a mirror Pod there is no object. The worker wakes when the mirror Pod appears.
            self.last = Some(status);
            return true;
        };
        let before = match &self.reported_uid {
            Some(reported_uid) if *reported_uid == uid => self.last.clone(),
            _ => ctx.mirrors.api_status(pod),
        };
        let (api_version, api_status) = ctx.mirrors.api_version_and_status(pod);
        let api_version = version(api_version.as_deref());
        if before.as_ref() == Some(&status)
            && !self.was_overwritten(api_version, api_status.as_ref(), &status)
        {
            self.reported_uid = Some(uid);
            self.last = Some(status);
            self.version = self.version.or(api_version);
            return true;
        }
        let patch =
            json!({ "metadata": { "uid": uid }, "status": difference(before.as_ref(), &status) });
        let at = PatchTarget {
            namespace: pod.metadata.namespace.as_deref().unwrap_or_default(),
            name: pod.metadata.name.as_deref().unwrap_or_default(),
            subresource: "status",
        };
        match client.patch::<Value>(&Resource::PODS, at, PatchKind::Strategic, &patch).await {
            Ok(response) => {
                self.version = version(response["metadata"]["resourceVersion"].as_str())
            }
            // The Pod was deleted, or its name belongs to another Pod: the status is obsolete.
            Err(error) if error.is_not_found() || error.is_conflict() => {
                tracing::debug!(pod = %namespaced_name(pod), %error, "drop the status of a deleted Pod");
            }
            Err(error) => {
                tracing::warn!(pod = %namespaced_name(pod), %error, "report a Pod's status");
                return false;
            }
        }
        self.reported_uid = Some(uid);
        self.last = Some(status);
        true
    }
}

impl Report {
    /// Reports whether another writer has changed the Pod's readiness since the last report. The node lifecycle
    /// controller sets Pods of an unreachable node to not ready, and the kubelet corrects that.
    fn was_overwritten(
        &self,
        api_version: Option<u64>,
        api_status: Option<&PodStatus>,
        status: &PodStatus,
    ) -> bool {
        let ready = |status: Option<&PodStatus>| -> Option<String> {
            let conditions = status?.conditions.as_ref()?;
            conditions.iter().find(|c| c.type_ == "Ready").map(|c| c.status.clone())
        };
        self.version.is_some()
            && api_version > self.version
            && ready(api_status) != ready(Some(status))
    }
}

fn version(text: Option<&str>) -> Option<u64> {
    text.and_then(|text| text.parse().ok())
}

/// Returns a strategic merge patch for the status: all fields that the kubelet owns, and null for removed ones. Lists
/// are replaced, except for conditions, because other writers have conditions in the same list.
fn difference(before: Option<&PodStatus>, now: &PodStatus) -> Value {
    let fields = |status: &PodStatus| match serde_json::to_value(status) {
        Ok(Value::Object(map)) => map,
        _ => Map::new(),
    };
    let mut patch = fields(now);
    for (field, _) in before.map(fields).into_iter().flatten() {
        patch.entry(field).or_insert(Value::Null);
    }
    for others in ["nominatedNodeName", "resourceClaimStatuses", "extendedResourceClaimStatus"] {
        patch.remove(others);
    }
    for field in ["hostIPs", "podIPs"] {
        if let Some(Value::Array(items)) = patch.get_mut(field) {
            items.insert(0, json!({ "$patch": "replace" }));
        }
    }
    let own = |status: &PodStatus| -> Vec<PodCondition> {
        let all = status.conditions.iter().flatten();
        all.filter(|condition| pod_core::is_kubelets(condition)).cloned().collect()
    };
    let conditions = own(now);
    let old = before.map(own).unwrap_or_default();
    let taken_back = old.iter().filter(|old| !conditions.iter().any(|c| c.type_ == old.type_));
    let taken_back = taken_back.map(|c| json!({ "$patch": "delete", "type": c.type_ }));
    // Null removes a reason or message that the new condition does not have.
    let whole = |condition: &PodCondition| {
        let mut whole = json!({ "reason": null, "message": null });
        whole.as_object_mut().into_iter().for_each(|map| {
            map.extend(json!(condition).as_object().cloned().unwrap_or_default());
        });
        whole
    };
    let conditions: Vec<Value> = conditions.iter().map(whole).chain(taken_back).collect();
    patch.insert("conditions".to_owned(), json!(conditions));
    Value::Object(patch)
}

/// Records Events for containers that have entered a back-off.
pub(crate) fn record_back_offs(ctx: &Context, pod: &Pod, before: &PodStatus, now: &PodStatus) {
    let reason =
        |container: &ContainerStatus| container.state.as_ref()?.waiting.as_ref()?.reason.clone();
    let all = |status: &PodStatus| -> Vec<ContainerStatus> {
        let lists = [&status.init_container_statuses, &status.container_statuses];
        lists.into_iter().flatten().flatten().cloned().collect()
    };
    let old = all(before);
    for container in all(now) {
        let earlier = old.iter().find(|o| o.name == container.name);
        let same_run = earlier.is_some_and(|o| o.container_id == container.container_id);
        let waits = reason(&container);
        if waits.is_none() || (same_run && earlier.and_then(reason) == waits) {
            continue;
        }
        let name = &container.name;
        match waits.as_deref() {
            Some("CrashLoopBackOff") => {
                let of = pod_core::log_name(pod);
                let message = format!("Back-off restarting failed container {name} in pod {of}");
                ctx.events.of_container(pod, name, "Warning", "BackOff", message);
            }
            Some("ImagePullBackOff") => {
                let message = format!("Back-off pulling image {:?}", container.image);
                ctx.events.of_container(pod, name, "Normal", "BackOff", message);
                let message = "Error: ImagePullBackOff".to_owned();
                ctx.events.of_container(pod, name, "Warning", "Failed", message);
            }
            _ => {}
        }
    }
}

/// Confirms the deletion of a Pod whose containers have ended. Returns `false` if that must be retried.
pub(crate) async fn confirm_deletion(ctx: &Context, pod: &Pod) -> bool {
    let Some(client) = &ctx.client else { return true };
    let options = DeleteOptions {
        grace_period_seconds: Some(0),
        preconditions: Some(Preconditions {
            uid: pod.metadata.uid.clone(),
            resource_version: None,
        }),
        ..DeleteOptions::default()
    };
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    match client.delete(&Resource::PODS, namespace, name, &options).await {
        Ok(()) => true,
        Err(error) if error.is_not_found() || error.is_conflict() => true,
        Err(error) => {
            tracing::warn!(pod = %namespaced_name(pod), %error, "confirm a Pod's deletion");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(conditions: Value) -> PodStatus {
        let ips = json!([{ "ip": "10.0.0.1" }]);
        serde_json::from_value(json!({ "podIPs": ips, "conditions": conditions })).unwrap()
    }

    #[test]
    fn reports_only_conditions_of_the_kubelet() {
        let ready = json!({ "type": "Ready", "status": "True" });
        let gate = json!({ "type": "example.com/gate", "status": "False" });
        let evicted = json!({ "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI" });
        let resize = json!({ "type": "PodResizePending", "status": "True", "reason": "Deferred" });
        let before = status(json!([ready, gate, resize]));
        let patch = difference(Some(&before), &status(json!([ready, gate, evicted])));
        assert_eq!(
            patch["conditions"],
            json!([
                { "type": "Ready", "status": "True", "reason": null, "message": null },
                { "$patch": "delete", "type": "PodResizePending" },
            ])
        );
        assert_eq!(patch["podIPs"], json!([{ "$patch": "replace" }, { "ip": "10.0.0.1" }]));
        assert_eq!(difference(Some(&before), &PodStatus::default())["podIPs"], Value::Null);
    }
}
