//! Maintains this API server's identity Lease, as upstream does, so that clients can count the servers. Deletes expired
//! identity Leases of other servers.

use std::{sync::Arc, time::Duration};

use api_meta::{GroupResource, Objects, Timestamp, Tree as _};
use client::{Client, DeleteOptions, Error, NotFoundExt as _, PatchKind, PatchTarget, Resource};
use serde_json::{Value, json};

use crate::clock;

const NAMESPACE: &str = "kube-system";
const IDENTITY: &str = "apiserver.kubernetes.io/identity";
const HOSTNAME: &str = "kubernetes.io/hostname";
const EVERY: Duration = Duration::from_secs(10);
/// The seconds after which a server that has not renewed its Lease counts as gone, as upstream.
const LIFE: u64 = 3600;

/// Renews this server's Lease until shutdown.
pub(crate) async fn keep(name: String, objects: Arc<dyn Objects>, client: Client) {
    let hostname = rt::hostname();
    let holder = format!("{name}_{}", rt::id());
    let mut every = tokio::time::interval(EVERY);
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        let kept = async {
            renew(&client, &name, &holder, &hostname).await?;
            clean(&*objects, &client).await
        };
        if let Err(error) = kept.await {
            tracing::warn!(%error, "failed to renew this API server's identity Lease; retrying");
        }
    }
}

async fn renew(client: &Client, name: &str, holder: &str, hostname: &str) -> Result<(), Error> {
    let now = Timestamp::from(rt::now()).micros();
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": name, "namespace": NAMESPACE,
            "labels": {IDENTITY: "kube-apiserver", HOSTNAME: hostname}},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": LIFE, "renewTime": now},
    });
    let at = PatchTarget { namespace: NAMESPACE, name, subresource: "" };
    let apply = PatchKind::Apply { manager: "kube-apiserver", force: true };
    client.patch::<Value>(&Resource::LEASES, at, apply, &lease).await.map(drop)
}

/// Deletes expired identity Leases.
async fn clean(objects: &dyn Objects, client: &Client) -> Result<(), Error> {
    let leases = objects.list(&GroupResource::LEASES, NAMESPACE);
    let now = clock::now();
    for lease in
        leases.iter().filter(|l| l.text(&["metadata", "labels", IDENTITY]) == "kube-apiserver")
    {
        let renewed = lease.text("spec.renewTime").parse::<Timestamp>().ok();
        let life = lease.at("spec.leaseDurationSeconds").as_u64().unwrap_or(LIFE);
        let over = renewed.is_none_or(|at| at.plus(Duration::from_secs(life)) < now);
        if over && let Some(name) = lease.at("metadata.name").as_str() {
            let gone =
                client.delete(&Resource::LEASES, NAMESPACE, name, &DeleteOptions::default()).await;
            gone.or_none()?;
        }
    }
    Ok(())
}
