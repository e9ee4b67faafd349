//! Telling the API what became of a Pod.

use client::{DeleteOptions, PatchKind, Patched, Preconditions, Resource};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};
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
        if before.as_ref() == Some(&status) && !self.contradicted(pod, &status) {
            self.told = Some(uid);
            self.last = Some(status);
            self.version = self.version.or(version(pod.metadata.resource_version.as_deref()));
            return true;
        }
        let patch =
            json!({ "metadata": { "uid": uid }, "status": difference(before.as_ref(), &status) });
        let at = Patched {
            namespace: pod.metadata.namespace.as_deref().unwrap_or_default(),
            name: pod.metadata.name.as_deref().unwrap_or_default(),
            subresource: "status",
        };
        match client.patch::<Value>(&Resource::PODS, at, PatchKind::Merge, &patch).await {
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
    /// node that it believes lost, and the kubelet gives it back.
    fn contradicted(&self, pod: &Pod, status: &PodStatus) -> bool {
        let ready = |status: Option<&PodStatus>| -> Option<String> {
            let conditions = status?.conditions.as_ref()?;
            conditions.iter().find(|c| c.type_ == "Ready").map(|c| c.status.clone())
        };
        let newer = version(pod.metadata.resource_version.as_deref()) > self.version;
        self.version.is_some() && newer && ready(pod.status.as_ref()) != ready(Some(status))
    }
}

fn version(text: Option<&str>) -> Option<u64> {
    text.and_then(|text| text.parse().ok())
}

/// A merge patch's status: all of the new one, and null for what is no longer said.
fn difference(before: Option<&PodStatus>, now: &PodStatus) -> Value {
    let fields = |status: &PodStatus| match serde_json::to_value(status) {
        Ok(Value::Object(map)) => map,
        _ => Map::new(),
    };
    let mut patch = fields(now);
    for (field, _) in before.map(fields).into_iter().flatten() {
        patch.entry(field).or_insert(Value::Null);
    }
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
