//! The objects of a cluster on AWS in the state store.

use kops_api::{Object, Spec as _};
use kops_core::model::aws::{Body, StoreObject};
use kops_store::{Change, Registry, StoredObject, file_changes, key_changes};
use vfs::{Precondition, Secrecy};

use crate::{error::Error, model::BuiltModel};

/// Rejects a store on this machine, or another one than the locked one, because machines could not read it.
pub fn check_store(registry: &Registry, user: &Object) -> Result<(), Error> {
    let expected = format!("{}/{}", registry.url(), user.name());
    let base = user.normalized().spec.text("configStore.base").trim_end_matches('/').to_owned();
    if registry.is_local() || base != expected {
        return Err(Error::StoreUrl { base, expected });
    }
    Ok(())
}

/// Returns the changes of the store: new keys, and the objects of the model.
pub fn store_changes(
    registry: &Registry,
    cluster: &str,
    built: &BuiltModel,
) -> Result<Vec<Change>, Error> {
    let mut changes = Vec::new();
    for keyset in built.new_keysets() {
        changes.extend(key_changes(registry, cluster, keyset)?);
    }
    if let Some((name, key)) = &built.ssh_key {
        let (name, content) = (name.clone(), Some(key.clone()));
        let (secrecy, since) = (Secrecy::Open, Precondition::Absent);
        changes.push(Change { kind: "SSHCredential", name, content, secrecy, since });
    }
    let base = format!("{}/{cluster}/", registry.url());
    let mut objects = Vec::new();
    for resource in built.model.resources.values() {
        let Body::StoreObject(StoreObject { bucket, key, content }) = &resource.body else {
            continue;
        };
        let url = format!("s3://{bucket}/{key}");
        let Some(name) = url.strip_prefix(&base) else {
            return Err(Error::StoreObject { url, base });
        };
        let (name, content) = (name.to_owned(), content.clone());
        objects.push(StoredObject { name, content, secrecy: Secrecy::Open, kind: "ManagedFile" });
    }
    changes.extend(file_changes(registry, cluster, objects)?);
    Ok(changes)
}
