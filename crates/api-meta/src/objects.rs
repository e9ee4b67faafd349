use std::sync::Arc;

use serde_json::Value;

use crate::GroupResource;

/// A consistent view of the cluster's objects: what authenticators and admission plugins read.
///
/// The API server implements it over its watch cache; tests over a map. `namespace` is empty for cluster-scoped
/// objects, and in `list` for all namespaces.
pub trait Objects: Send + Sync {
    fn get(&self, resource: &GroupResource, namespace: &str, name: &str) -> Option<Arc<Value>>;
    fn list(&self, resource: &GroupResource, namespace: &str) -> Vec<Arc<Value>>;

    /// The resource that serves a kind, and whether it is namespaced.
    fn resource_of(&self, _group: &str, _kind: &str) -> Option<(GroupResource, bool)> {
        None
    }
}

/// What became of one object.
#[derive(Clone, Copy, Debug)]
pub struct Changed<'a> {
    pub resource: &'a GroupResource,
    /// Empty for what has no namespace.
    pub namespace: &'a str,
    pub name: &'a str,
    /// The object as it is now; `None` once it is gone.
    pub object: Option<&'a Value>,
}

impl<'a> Changed<'a> {
    /// An object that is there, under the name that it says itself.
    pub fn of(resource: &'a GroupResource, object: &'a Value) -> Self {
        let text = |field| object["metadata"][field].as_str().unwrap_or_default();
        Self { resource, namespace: text("namespace"), name: text("name"), object: Some(object) }
    }

    /// The same object's end.
    pub fn gone(self) -> Self {
        Self { object: None, ..self }
    }
}

/// Something that keeps an index over objects and is told of every change, in order.
///
/// Whoever has to know what an object was keeps that by its name: nobody parses an old state for it. It is called inline
/// by the watch cache, so it must be quick and may not read the cache.
pub trait Observer: Send + Sync {
    /// The resources whose changes it wants.
    fn resources(&self) -> &[GroupResource];

    fn changed(&self, change: Changed<'_>);
}

/// Whether a write changes nothing but what the garbage collector changes: an object's owners and finalizers.
///
/// Checks of what a writer may grant or vouch for let such a write pass, because the garbage collector holds none of it.
pub fn garbage_collection_only(old: &Value, new: &Value) -> bool {
    const ITS_OWN: [&str; 4] =
        ["ownerReferences", "finalizers", "managedFields", "resourceVersion"];
    let rest = |object: &Value| {
        let mut object = object.clone();
        if let Some(meta) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            meta.retain(|field, _| !ITS_OWN.contains(&field.as_str()));
        }
        object
    };
    rest(old) == rest(new)
}

macro_rules! resources {
    ($($constant:ident $group:literal $resource:literal;)*) => {
        impl GroupResource {
            $(pub const $constant: Self = Self {
                group: std::borrow::Cow::Borrowed($group),
                resource: std::borrow::Cow::Borrowed($resource),
            };)*
        }
    };
}

resources! {
    CONFIG_MAPS "" "configmaps";
    LIMIT_RANGES "" "limitranges";
    NAMESPACES "" "namespaces";
    NODES "" "nodes";
    PERSISTENT_VOLUMES "" "persistentvolumes";
    PERSISTENT_VOLUME_CLAIMS "" "persistentvolumeclaims";
    PODS "" "pods";
    RESOURCE_QUOTAS "" "resourcequotas";
    SECRETS "" "secrets";
    SERVICES "" "services";
    SERVICE_ACCOUNTS "" "serviceaccounts";
    CLUSTER_ROLES "rbac.authorization.k8s.io" "clusterroles";
    CLUSTER_ROLE_BINDINGS "rbac.authorization.k8s.io" "clusterrolebindings";
    ROLES "rbac.authorization.k8s.io" "roles";
    ROLE_BINDINGS "rbac.authorization.k8s.io" "rolebindings";
    CSI_NODES "storage.k8s.io" "csinodes";
    STORAGE_CLASSES "storage.k8s.io" "storageclasses";
    VOLUME_ATTACHMENTS "storage.k8s.io" "volumeattachments";
    LEASES "coordination.k8s.io" "leases";
    INGRESSES "networking.k8s.io" "ingresses";
    INGRESS_CLASSES "networking.k8s.io" "ingressclasses";
    PRIORITY_CLASSES "scheduling.k8s.io" "priorityclasses";
    RUNTIME_CLASSES "node.k8s.io" "runtimeclasses";
    RESOURCE_CLAIMS "resource.k8s.io" "resourceclaims";
    RESOURCE_SLICES "resource.k8s.io" "resourceslices";
    CERTIFICATE_SIGNING_REQUESTS "certificates.k8s.io" "certificatesigningrequests";
    CLUSTER_TRUST_BUNDLES "certificates.k8s.io" "clustertrustbundles";
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_owners_and_finalizers_are_the_garbage_collectors() {
        let old = json!({"metadata": {"name": "r", "labels": {"a": "b"}, "finalizers": ["f"], "resourceVersion": "1"}, "rules": []});
        let changed = |pointer: &str, value: Value| {
            let mut new = old.clone();
            let (parent, field) = pointer.rsplit_once('/').unwrap();
            let parent = new.pointer_mut(parent).and_then(Value::as_object_mut).unwrap();
            parent.insert(field.to_owned(), value);
            garbage_collection_only(&old, &new)
        };
        for free in ["finalizers", "ownerReferences", "managedFields", "resourceVersion"] {
            assert!(changed(&format!("/metadata/{free}"), json!(["x"])), "{free}");
        }
        for pointer in ["/metadata/labels", "/metadata/annotations", "/rules", "/aggregationRule"] {
            assert!(!changed(pointer, json!({"x": "y"})), "{pointer}");
        }
    }
}
