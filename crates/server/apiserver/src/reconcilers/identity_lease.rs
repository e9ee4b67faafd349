//! Maintains this API server's identity Lease, as upstream does, so that clients can count the servers. Deletes expired
//! identity Leases of other servers.

use std::{collections::BTreeSet, net::SocketAddr, sync::Arc, time::Duration};

use api_meta::{GroupResource, Objects, Timestamp, Tree as _};
use client::{Client, DeleteOptions, Error, NotFoundExt as _, PatchKind, PatchTarget, Resource};
use serde_json::{Value, json};

use crate::clock;

const NAMESPACE: &str = "kube-system";
const IDENTITY: &str = "apiserver.kubernetes.io/identity";
const HOSTNAME: &str = "kubernetes.io/hostname";
/// The annotation that shows the address for peers. No server reads it: addresses come from keys in the store.
const PEER_ADDRESS: &str = "kubernetes.io/peer-advertise-address";
const EVERY: Duration = Duration::from_secs(10);
/// The seconds after which a server that has not renewed its Lease counts as gone, as upstream.
const LIFE: u64 = 3600;

/// This server's identity, as other API servers see it.
#[derive(Clone)]
pub(crate) struct ServerIdentity {
    pub(crate) name: String,
    /// The address for peers; `None` if the feature is off.
    pub(crate) peer_address: Option<SocketAddr>,
}

/// Renews this server's Lease until shutdown.
pub(crate) async fn keep(identity: ServerIdentity, objects: Arc<dyn Objects>, client: Client) {
    let holder = format!("{}_{}", identity.name, rt::id());
    let lease = lease(&identity, &holder);
    let mut every = tokio::time::interval(EVERY);
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        let kept = async {
            renew(&client, &identity.name, lease.clone()).await?;
            clean(&*objects, &client).await
        };
        if let Err(error) = kept.await {
            tracing::warn!(%error, "failed to renew this API server's identity Lease; retrying");
        }
    }
}

fn lease(identity: &ServerIdentity, holder: &str) -> Value {
    let mut lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": identity.name, "namespace": NAMESPACE,
            "labels": {IDENTITY: "kube-apiserver", HOSTNAME: rt::hostname()}},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": LIFE},
    });
    if let Some(address) = identity.peer_address {
        lease.put(&["metadata", "annotations"], json!({PEER_ADDRESS: address.to_string()}));
    }
    lease
}

async fn renew(client: &Client, name: &str, mut lease: Value) -> Result<(), Error> {
    lease.put(&["spec", "renewTime"], json!(Timestamp::from(rt::now()).micros()));
    let at = PatchTarget { namespace: NAMESPACE, name, subresource: "" };
    let apply = PatchKind::Apply { manager: "kube-apiserver", force: true };
    client.patch::<Value>(&Resource::LEASES, at, apply, &lease).await.map(drop)
}

/// Returns the names of the API servers whose Leases have not expired.
pub(crate) fn servers(objects: &dyn Objects) -> BTreeSet<String> {
    let leases = identity_leases(objects).filter(|lease| !has_expired(lease));
    leases.map(|lease| lease.name().to_owned()).collect()
}

fn identity_leases(objects: &dyn Objects) -> impl Iterator<Item = Arc<Value>> {
    let leases = objects.list(&GroupResource::LEASES, NAMESPACE).into_iter();
    leases.filter(|lease| lease.text(&["metadata", "labels", IDENTITY]) == "kube-apiserver")
}

fn has_expired(lease: &Value) -> bool {
    let renewed = lease.text("spec.renewTime").parse::<Timestamp>().ok();
    let life = lease.at("spec.leaseDurationSeconds").as_u64().unwrap_or(LIFE);
    renewed.is_none_or(|at| at.plus(Duration::from_secs(life)) < clock::now())
}

/// Deletes expired identity Leases.
async fn clean(objects: &dyn Objects, client: &Client) -> Result<(), Error> {
    for lease in identity_leases(objects) {
        if has_expired(&lease)
            && let Some(name) = lease.at("metadata.name").as_str()
        {
            let gone =
                client.delete(&Resource::LEASES, NAMESPACE, name, &DeleteOptions::default()).await;
            gone.or_none()?;
        }
    }
    Ok(())
}
