//! An in-memory cluster and signing keys for tests.

use std::{collections::BTreeMap, sync::Arc};

use api_meta::{Changed, GroupResource, Objects, Observer as _, Timestamp, Tree as _};
use serde_json::Value;

use crate::{
    authn::{Authenticated, BearerToken, TokenAuthenticator, TokenError, keys::SigningKey},
    rbac::{Rbac, bootstrap_objects},
};

#[derive(Default)]
pub(crate) struct Cluster(BTreeMap<(GroupResource, String, String), Arc<Value>>);

impl Cluster {
    pub(crate) fn put(&mut self, resource: &GroupResource, object: Value) {
        self.0.insert(
            (resource.clone(), object.namespace().to_owned(), object.name().to_owned()),
            Arc::new(object),
        );
    }
}

impl Objects for Cluster {
    fn get(&self, resource: &GroupResource, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.0.get(&(resource.clone(), namespace.to_owned(), name.to_owned())).cloned()
    }

    fn list(&self, resource: &GroupResource, namespace: &str) -> Vec<Arc<Value>> {
        let here = |ns: &str| namespace.is_empty() || ns == namespace;
        self.0
            .iter()
            .filter(|((r, ns, _), _)| r == resource && here(ns))
            .map(|(_, o)| o.clone())
            .collect()
    }
}

/// Authenticates a token for one audience.
pub(crate) fn authenticate(
    method: &dyn TokenAuthenticator,
    token: &str,
    audience: &str,
    now: Timestamp,
    objects: &Cluster,
) -> Result<Option<Authenticated>, TokenError> {
    method.authenticate(BearerToken { token, audiences: &[audience.to_owned()], now, objects })
}

/// Returns an authorizer with the bootstrap policy.
pub(crate) fn bootstrapped() -> Rbac {
    let rbac = Rbac::new();
    for (resource, object) in bootstrap_objects() {
        rbac.changed(Changed::of(resource, object));
    }
    rbac
}

/// Generates a key of a kind.
pub(crate) fn signing_key(kind: &'static rcgen::SignatureAlgorithm) -> SigningKey {
    SigningKey::from_pem(rcgen::KeyPair::generate_for(kind).unwrap().serialize_pem().as_bytes())
        .unwrap()
}
