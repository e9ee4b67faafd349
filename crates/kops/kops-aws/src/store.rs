//! The objects of a cluster on AWS or metal in the state store.

use api_meta::Tree as _;
use kops_api::Object;
use kops_core::{
    CloudName, Cluster as _,
    model::{
        aws::{Body, StoreObject},
        metal,
    },
};
use kops_store::{Change, ClusterObjects, Registry, StoredObject, file_changes, key_changes};
use vfs::{Precondition, Secrecy};

use crate::{error::Error, model::BuiltModel};

/// Rejects another store than the locked one and, except for metal, one on this machine, because machines could not
/// read it.
pub fn check_store(registry: &Registry, user: &Object) -> Result<(), Error> {
    let expected = format!("{}/{}", registry.url(), user.name());
    let base = user.normalized().spec.text("configStore.base").trim_end_matches('/').to_owned();
    let is_unreachable = registry.is_local() && user.cloud() != CloudName::Metal;
    if is_unreachable || base != expected {
        return Err(Error::StoreUrl { base, expected });
    }
    Ok(())
}

/// Returns the changes of the store: new keys, the copies of groups, and the objects of the model.
pub fn store_changes(
    registry: &Registry,
    stored: &ClusterObjects<'_>,
    group_copies: Option<StoredObject>,
    built: &BuiltModel,
) -> Result<Vec<Change>, Error> {
    let (mut changes, cluster) = (Vec::new(), stored.cluster());
    for keyset in built.new_keysets() {
        changes.extend(key_changes(registry, cluster, keyset)?);
    }
    if let Some((name, key)) = &built.ssh_key {
        let (name, content) = (name.clone(), Some(key.clone()));
        let (secrecy, since) = (Secrecy::Open, Precondition::Absent);
        changes.push(Change { kind: "SSHCredential", name, content, secrecy, since });
    }
    let mut objects: Vec<_> = group_copies.into_iter().collect();
    for resource in built.model.resources.values() {
        let Body::StoreObject(StoreObject { bucket, key, content }) = &resource.body else {
            continue;
        };
        let url = format!("s3://{bucket}/{key}");
        objects.push(managed_file(registry, cluster, url, content)?);
    }
    changes.extend(file_changes(stored, objects)?);
    Ok(changes)
}

/// Returns the changes of the store for a cluster on metal: new keys, and the objects of the model.
pub fn metal_changes(
    registry: &Registry,
    stored: &ClusterObjects<'_>,
    built: &BuiltModel<metal::Model>,
) -> Result<Vec<Change>, Error> {
    let (mut changes, cluster) = (Vec::new(), stored.cluster());
    for keyset in built.new_keysets() {
        changes.extend(key_changes(registry, cluster, keyset)?);
    }
    let objects = built.model.objects.iter();
    let objects = objects.map(|one| managed_file(registry, cluster, one.url.clone(), &one.content));
    changes.extend(file_changes(stored, objects.collect::<Result<_, _>>()?)?);
    Ok(changes)
}

/// Returns an object of the cluster's directory by its URL.
fn managed_file(
    registry: &Registry,
    cluster: &str,
    url: String,
    content: &str,
) -> Result<StoredObject, Error> {
    let base = format!("{}/{cluster}/", registry.url());
    let Some(name) = url.strip_prefix(&base) else {
        return Err(Error::StoreObject { url, base });
    };
    let (name, content) = (name.to_owned(), content.to_owned());
    Ok(StoredObject { name, content, secrecy: Secrecy::Open, kind: "ManagedFile" })
}
