//! The phase `mark-control-plane` of `init`: labels and taints the Node.

use std::time::Duration;

use api_config::Taint;
use api_meta::Tree as _;
use bootstrap_core::{
    constants::{CONTROL_PLANE_LABEL, EXCLUDE_BALANCER_LABEL},
    kubelet::control_plane_taint,
};
use client::{Client, PatchKind, PatchTarget, Resource};
use serde_json::{Value, json};

use super::context::Ctx;
use crate::{
    Error,
    cluster::get,
    phase::{Outcome, Phase},
};

pub(super) const PHASE: Phase<Ctx> = Phase {
    name: "mark-control-plane",
    about: "Label and taint this node as a control plane",
    run: |ctx| {
        Box::pin(async {
            if ctx.node.dry_run {
                return Ok(Outcome::skipped("dry run"));
            }
            let registration = &ctx.node.config.init.node_registration;
            let taints = registration.taints.clone().unwrap_or_else(|| vec![control_plane_taint()]);
            let name = registration.name.clone();
            let patience = ctx.node.timeouts().kubernetes_api_call.unwrap_or_default().to_std();
            let client = ctx.node.client().await?;
            mark(&client, &name, &taints, patience).await?;
            Ok(Outcome::done())
        })
    },
};

/// Adds the labels and taints to the Node once the kubelet has registered it.
pub async fn mark(
    client: &Client,
    name: &str,
    taints: &[Taint],
    patience: Duration,
) -> Result<(), Error> {
    let until = tokio::time::Instant::now() + patience;
    loop {
        let node = get(client, &Resource::NODES, "", name).await?;
        let last = match node {
            None => Error::NotUp {
                what: format!("Node {name:?}"),
                waited: format!("{}s", patience.as_secs()),
                cause:
                    "the kubelet has not registered it; its log says why (journalctl -xeu kubelet)"
                        .to_owned(),
            },
            Some(node) => {
                let patch = patch(&node, taints);
                let at = PatchTarget { name, ..PatchTarget::default() };
                match client.patch::<Value>(&Resource::NODES, at, PatchKind::Merge, &patch).await {
                    Ok(_) => return Ok(()),
                    Err(e) if e.is_conflict() => {
                        Error::Api { operation: "mark", subject: format!("Node {name}"), source: e }
                    }
                    Err(source) => {
                        return Err(Error::Api {
                            operation: "mark",
                            subject: format!("Node {name}"),
                            source,
                        });
                    }
                }
            }
        };
        if tokio::time::Instant::now() >= until {
            return Err(last);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Returns a patch with the labels, and the Node's taints with ours added. The resourceVersion protects concurrent
/// changes of the taints.
fn patch(node: &Value, taints: &[Taint]) -> Value {
    let mut all = node.items("spec.taints").to_vec();
    for taint in taints {
        if !all
            .iter()
            .any(|t| t["key"] == taint.key.as_str() && t["effect"] == taint.effect.as_str())
        {
            let mut added = json!({"key": taint.key, "effect": taint.effect});
            if !taint.value.is_empty() {
                added["value"] = taint.value.as_str().into();
            }
            all.push(added);
        }
    }
    let mut patch = json!({
        "metadata": {
            "resourceVersion": node["metadata"]["resourceVersion"],
            "labels": {CONTROL_PLANE_LABEL: "", EXCLUDE_BALANCER_LABEL: ""},
        },
    });
    if !all.is_empty() {
        patch["spec"] = json!({ "taints": all });
    }
    patch
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adds_taint_once_and_keeps_others() {
        let node = json!({"metadata": {"resourceVersion": "7"}, "spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}});
        let once = patch(&node, &[control_plane_taint()]);
        let wanted = json!([{"key": "a", "effect": "NoExecute"}, {"key": CONTROL_PLANE_LABEL, "effect": "NoSchedule"}]);
        assert_eq!(
            (&once["spec"]["taints"], &once["metadata"]["resourceVersion"]),
            (&wanted, &json!("7"))
        );
        assert_eq!(patch(&once, &[control_plane_taint()])["spec"]["taints"], wanted);
        assert!(patch(&json!({}), &[]).get("spec").is_none());
    }
}
