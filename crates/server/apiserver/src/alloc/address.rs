//! IPAddress objects of Services. The server that creates the object owns the address: the store accepts only one
//! create.

use std::net::IpAddr;

use api_meta::Tree as _;
use client::{Client, DeleteOptions, Error, NotFoundExt as _, Preconditions, Resource};
use serde_json::{Value, json};

use super::service::family;

const IP_ADDRESSES: Resource =
    Resource::constant("networking.k8s.io", "v1", "ipaddresses", "IPAddress", false);
const FAMILY: &str = "ipaddress.kubernetes.io/ip-family";
const MANAGED: &str = "ipaddress.kubernetes.io/managed-by";
const MANAGER: &str = "ipallocator.k8s.io";

/// Namespace and name of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ServiceName {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl ServiceName {
    pub(crate) fn of(service: &Value) -> Self {
        Self { namespace: service.namespace().to_owned(), name: service.name().to_owned() }
    }

    /// Returns the Service that an IPAddress belongs to, or `None` if its parent is not a Service.
    pub(crate) fn parent(address: &Value) -> Option<Self> {
        let parent = address.at("spec.parentRef");
        let service = parent.text("group").is_empty() && parent.text("resource") == "services";
        let place = || Self {
            namespace: parent.text("namespace").into(),
            name: parent.text("name").into(),
        };
        service.then(place)
    }
}

/// An IPAddress at a certain revision, as the precondition of its deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AddressRevision {
    pub(crate) address: IpAddr,
    uid: String,
    version: String,
}

impl AddressRevision {
    pub(crate) fn of(address: IpAddr, object: &Value) -> Self {
        Self {
            address,
            uid: object.uid().to_owned(),
            version: object.text("metadata.resourceVersion").to_owned(),
        }
    }
}

/// Returns `true` if an API server created it for a Service.
pub(crate) fn is_managed(object: &Value) -> bool {
    *object.at(&["metadata", "labels", MANAGED]) == MANAGER
}

/// Returns `true` if it has the labels that an API server sets.
pub(crate) fn is_labelled(address: IpAddr, object: &Value) -> bool {
    is_managed(object) && *object.at(&["metadata", "labels", FAMILY]) == family(address)
}

/// Creates the object. Returns `None` if the address is allocated already.
pub(crate) async fn create(
    client: &Client,
    address: IpAddr,
    of: &ServiceName,
) -> Result<Option<AddressRevision>, Error> {
    let object = json!({
        "metadata": {
            "name": address.to_string(),
            "labels": {FAMILY: family(address), MANAGED: MANAGER},
        },
        "spec": {
            "parentRef": {
                "group": "",
                "resource": "services",
                "namespace": of.namespace,
                "name": of.name,
            },
        },
    });
    match client.create::<_, Value>(&IP_ADDRESSES, "", &object).await {
        Ok(made) => Ok(Some(AddressRevision::of(address, &made))),
        Err(error) if error.is_already_exists() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the current object.
pub(crate) async fn get(client: &Client, address: IpAddr) -> Result<Option<Value>, Error> {
    client.get(&IP_ADDRESSES, "", &address.to_string()).await.or_none()
}

/// Deletes the object, unless it is gone or has changed.
pub(crate) async fn delete(client: &Client, known: &AddressRevision) -> Result<(), Error> {
    let preconditions = Preconditions {
        uid: Some(known.uid.clone()),
        resource_version: Some(known.version.clone()),
    };
    let options = DeleteOptions { preconditions: Some(preconditions), ..DeleteOptions::default() };
    let name = known.address.to_string();
    match client.delete(&IP_ADDRESSES, "", &name, &options).await.or_none() {
        Err(error) if !error.is_conflict() => Err(error),
        _ => Ok(()),
    }
}
