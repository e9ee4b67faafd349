//! Telling the API what became of a Pod.

use client::{DeleteOptions, PatchKind, Patched, Preconditions, Resource};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition, PodStatus};
use pod_core::namespaced_name;
use serde_json::{Map, Value, json};

use crate::context::Context;

/// What was told of one Pod.
#[derive(Default)]
pub(crate) struct Report {
    last: Option<PodStatus>,
    /// The uid of the object that was told; a mirror may be made anew.
    told: Option<String>,
    /// The object's resource version after it was told.
    version: Option<u64>,
}

impl Report {
    pub(crate) fn last(&self) -> Option<&PodStatus> {
        self.last.as_ref()
    }

    /// What the next status is compared with and carries on from.
    pub(crate) fn previous(&self, ctx: &Context, pod: &Pod) -> PodStatus {
        // Before anything was told, the kubelet before this one has the word.
        let before = if self.told.is_none() { ctx.mirrors.reported(pod) } else { None };
        before.or_else(|| self.last.clone()).unwrap_or_default()
    }

    /// Sends a status if it is new; returns whether there is nothing left to tell.
    pub(crate) async fn send(&mut self, ctx: &Context, pod: &Pod, status: PodStatus) -> bool {
        let target =
            if pod_core::is_static(pod) { ctx.mirrors.uid(pod) } else { pod.metadata.uid.clone() };
        let (Some(client), Some(uid)) = (&ctx.client, target) else {
            // Nobody to tell, or not yet: the mirror's coming wakes the worker.
            self.last = Some(status);
            return true;
        };
        let before = match &self.told {
            Some(told) if *told == uid => self.last.clone(),
            _ => ctx.mirrors.reported(pod),
        };
        let (shown_at, shown) = ctx.mirrors.shown(pod);
        let shown_at = version(shown_at.as_deref());
        if before.as_ref() == Some(&status) && !self.contradicted(shown_at, shown.as_ref(), &status)
        {
            self.told = Some(uid);
            self.last = Some(status);
            self.version = self.version.or(shown_at);
            return true;
        }
        let patch =
            json!({ "metadata": { "uid": uid }, "status": difference(before.as_ref(), &status) });
        let at = Patched {
            namespace: pod.metadata.namespace.as_deref().unwrap_or_default(),
            name: pod.metadata.name.as_deref().unwrap_or_default(),
            subresource: "status",
        };
        match client.patch::<Value>(&Resource::PODS, at, PatchKind::Strategic, &patch).await {
            Ok(answer) => self.version = version(answer["metadata"]["resourceVersion"].as_str()),
            // The Pod is gone, or another has taken its name: nobody wants to know any more.
            Err(error) if error.is_not_found() || error.is_conflict() => {
                tracing::debug!(pod = %namespaced_name(pod), %error, "a status is not wanted");
            }
            Err(error) => {
                tracing::warn!(pod = %namespaced_name(pod), %error, "report a Pod's status");
                return false;
            }
        }
        self.told = Some(uid);
        self.last = Some(status);
        true
    }
}

impl Report {
    /// Whether somebody has said otherwise since: the node life cycle controller takes readiness from the Pods of a
    /// node that it believes lost, static ones included, and the kubelet gives it back.
    fn contradicted(
        &self,
        shown_at: Option<u64>,
        shown: Option<&PodStatus>,
        status: &PodStatus,
    ) -> bool {
        let ready = |status: Option<&PodStatus>| -> Option<String> {
            let conditions = status?.conditions.as_ref()?;
            conditions.iter().find(|c| c.type_ == "Ready").map(|c| c.status.clone())
        };
        self.version.is_some() && shown_at > self.version && ready(shown) != ready(Some(status))
    }
}

fn version(text: Option<&str>) -> Option<u64> {
    text.and_then(|text| text.parse().ok())
}

/// A strategic patch's status: all of the new one that is the kubelet's, and null for what it no longer says. Lists are
/// replaced as a whole, except for conditions: others have theirs among them, which the kubelet may not have seen yet.
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
    let said = own(now);
    let old = before.map(own).unwrap_or_default();
    let taken_back = old.iter().filter(|old| !said.iter().any(|c| c.type_ == old.type_));
    let taken_back = taken_back.map(|c| json!({ "$patch": "delete", "type": c.type_ }));
    // What a condition does not say any more goes, too.
    let whole = |condition: &PodCondition| {
        let mut whole = json!({ "reason": null, "message": null });
        whole.as_object_mut().into_iter().for_each(|map| {
            map.extend(json!(condition).as_object().cloned().unwrap_or_default());
        });
        whole
    };
    let conditions: Vec<Value> = said.iter().map(whole).chain(taken_back).collect();
    patch.insert("conditions".to_owned(), json!(conditions));
    Value::Object(patch)
}

/// Tells by Events which containers have begun to wait before they are tried again.
pub(crate) fn tell_back_offs(ctx: &Context, pod: &Pod, before: &PodStatus, now: &PodStatus) {
    let reason =
        |container: &ContainerStatus| container.state.as_ref()?.waiting.as_ref()?.reason.clone();
    let all = |status: &PodStatus| -> Vec<ContainerStatus> {
        let lists = [&status.init_container_statuses, &status.container_statuses];
        lists.into_iter().flatten().flatten().cloned().collect()
    };
    let old = all(before);
    for container in all(now) {
        let known = old.iter().find(|o| o.name == container.name);
        let same_run = known.is_some_and(|o| o.container_id == container.container_id);
        let waits = reason(&container);
        if waits.is_none() || (same_run && known.and_then(reason) == waits) {
            continue;
        }
        let name = &container.name;
        match waits.as_deref() {
            Some("CrashLoopBackOff") => {
                let text = |t: &Option<String>| t.clone().unwrap_or_default();
                let meta = &pod.metadata;
                let of =
                    format!("{}_{}({})", text(&meta.name), text(&meta.namespace), text(&meta.uid));
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

/// Lets the API forget a Pod whose containers have ended; returns whether it has.
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
    fn only_the_kubelets_conditions_are_told() {
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
