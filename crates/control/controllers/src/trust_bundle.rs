//! Publishes the ClusterTrustBundle with the CA that verifies the serving certificates of the API server. Deletes the
//! bundles of the signer that an earlier CA left behind.

use api_meta::{ObjectMeta, PartialObject};
use client::{DeleteOptions, Error, NotFoundExt as _, Resource, WorkQueue};
use data_encoding::HEXLOWER;
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::{
    context::{Context, synced},
    shared::Watched,
};

const SIGNER: &str = "kubernetes.io/kube-apiserver-serving";
const PREFIX: &str = "kubernetes.io:kube-apiserver-serving:";
const BUNDLES: Resource = Resource::CLUSTER_TRUST_BUNDLES;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Bundle {
    metadata: ObjectMeta,
    spec: Spec,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    signer_name: String,
    trust_bundle: String,
}

/// Returns the name of the bundle with this CA, which contains a part of the CA's digest.
fn name_of(ca: &str) -> String {
    let digest = Sha256::digest(ca.as_bytes());
    format!("{PREFIX}{}", HEXLOWER.encode(&digest[..8]))
}

pub(crate) fn start(context: Context) {
    let Some(ca) = context.config.root_ca.clone() else {
        tracing::info!("no root CA is configured, so no trust bundle of {SIGNER} is published");
        return;
    };
    let queue = WorkQueue::default();
    let bundles = context.watch::<Bundle>(BUNDLES);
    // Every change of a bundle of the signer leads to the one reconciliation.
    queue.add(String::new());
    let add = queue.clone();
    bundles.on(move |change| {
        if change.key.starts_with(PREFIX) {
            add.add(String::new());
        }
    });
    let waits = vec![synced(&bundles)];
    let state = (context.clone(), bundles, ca);
    context.run(&queue, 1, waits, state, |(context, bundles, ca), _| async move {
        reconcile(&context, &bundles, &ca).await
    });
}

async fn reconcile(context: &Context, bundles: &Watched<Bundle>, ca: &str) -> Result<(), Error> {
    let name = name_of(ca);
    let spec = json!({"signerName": SIGNER, "trustBundle": ca});
    let desired = json!({"metadata": {"name": name}, "spec": spec});
    match bundles.get(&name) {
        None => {
            let created = context.client.create::<_, Value>(&BUNDLES, "", &desired).await;
            match created {
                Err(error) if error.is_already_exists() => {}
                other => drop(other?),
            }
        }
        Some(found) if found.spec.trust_bundle == ca => {}
        Some(_) => {
            context.client.update::<_, PartialObject>(&BUNDLES, "", &name, &desired).await?;
        }
    }
    for old in bundles.list().iter().filter(|bundle| bundle.spec.signer_name == SIGNER) {
        let meta = &old.metadata;
        if meta.name != name {
            let options = DeleteOptions::default();
            context.client.delete(&BUNDLES, "", &meta.name, &options).await.or_none()?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_bundle_by_ca() {
        let name = name_of("ca");
        assert_eq!(name.len(), PREFIX.len() + 16);
        assert_ne!(name, name_of("other"));
        assert!(name.starts_with(&format!("{}:", SIGNER.replace('/', ":"))));
    }
}
