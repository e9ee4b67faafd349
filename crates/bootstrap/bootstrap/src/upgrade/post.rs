//! The phase `post-upgrade` of `upgrade`: restarts what still runs an earlier binary on this machine.

use api_meta::Tree as _;
use bootstrap_core::{images, upgrade::first_image};
use client::{Client, DeleteOptions, List, ListOptions, Resource};
use serde_json::Value;

use super::context::Ctx;
use crate::{
    Error,
    phase::{Outcome, Phase},
};

pub(super) const PHASE: Phase<Ctx> = Phase {
    name: "post-upgrade",
    about: "Run post upgrade tasks",
    run: |ctx| {
        Box::pin(async {
            // `apply` changes the DaemonSets and thereby restarts their Pods. If this machine built its images after
            // that, its Pods still run the earlier image.
            if ctx.node.dry_run || !ctx.rebuilt {
                return Ok(Outcome::skipped("no image of this machine has changed"));
            }
            let client = ctx.node.client().await?;
            let restarted = restart_daemons(&client, ctx.node.name()).await?;
            Ok(Outcome::Waited(restarted))
        })
    },
};

/// Deletes the DaemonSets' Pods of our own images on this machine. Their DaemonSets start new ones.
async fn restart_daemons(client: &Client, node: &str) -> Result<Vec<String>, Error> {
    let options =
        ListOptions { field_selector: format!("spec.nodeName={node}"), ..ListOptions::default() };
    let failed = |operation, subject| move |source| Error::Api { operation, subject, source };
    let listed: Result<List<Value>, _> =
        client.list(&Resource::PODS, "kube-system", &options).await;
    let pods = listed.map_err(failed("list", format!("the Pods of Node {node}")))?.items;
    let mut restarted = Vec::new();
    for pod in pods.iter().filter(|pod| is_daemon_of_ours(pod)) {
        let name = pod.name().to_owned();
        let deleted =
            client.delete(&Resource::PODS, "kube-system", &name, &DeleteOptions::default()).await;
        match deleted {
            Err(error) if !error.is_not_found() => {
                return Err(failed("delete", format!("Pod kube-system/{name}"))(error));
            }
            _ => restarted.push(name),
        }
    }
    Ok(restarted)
}

fn is_daemon_of_ours(pod: &Value) -> bool {
    let owners = pod.items("metadata.ownerReferences");
    images::is_own(first_image(pod)) && owners.iter().any(|owner| owner["kind"] == "DaemonSet")
}
