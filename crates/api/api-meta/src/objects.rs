use std::sync::Arc;

use serde_json::Value;

use crate::gvk::GroupResource;

/// A consistent view of the cluster's objects for authenticators and admission plugins.
///
/// The API server implements it over its watch cache; tests use a map. `namespace` is empty for cluster-scoped objects,
/// and in `list` for all namespaces.
pub trait Objects: Send + Sync {
    /// Returns an object.
    fn get(&self, resource: &GroupResource, namespace: &str, name: &str) -> Option<Arc<Value>>;
    /// Returns the objects of a namespace.
    fn list(&self, resource: &GroupResource, namespace: &str) -> Vec<Arc<Value>>;

    /// Returns the resource of a kind, and `true` if it is namespaced.
    fn resource_of(&self, _group: &str, _kind: &str) -> Option<(GroupResource, bool)> {
        None
    }
}

/// A change of one object.
#[derive(Clone, Copy, Debug)]
pub struct Changed<'a> {
    /// The resource of the object.
    pub resource: &'a GroupResource,
    /// The namespace; empty for a cluster-scoped object.
    pub namespace: &'a str,
    /// The name of the object.
    pub name: &'a str,
    /// The current object; `None` if it was deleted.
    pub object: Option<&'a Value>,
}

impl<'a> Changed<'a> {
    /// Returns the change for an existing object. Namespace and name come from its metadata.
    pub fn of(resource: &'a GroupResource, object: &'a Value) -> Self {
        let text = |field| object["metadata"][field].as_str().unwrap_or_default();
        Self { resource, namespace: text("namespace"), name: text("name"), object: Some(object) }
    }

    /// Returns the deletion of the same object.
    pub fn gone(self) -> Self {
        Self { object: None, ..self }
    }
}

/// Receives every change of some resources in order, to keep an index.
///
/// An observer that needs the old state of an object must store it by name; changes do not carry it. The watch cache
/// calls observers inline, so they must be quick and must not read the cache.
pub trait Observer: Send + Sync {
    /// Returns the resources whose changes the observer receives.
    fn resources(&self) -> &[GroupResource];

    /// Processes a change.
    fn changed(&self, change: Changed<'_>);
}

/// Returns `true` if a write changes only fields that the garbage collector changes: owners and finalizers.
///
/// Checks of permissions to grant or approve let such a write pass, because the garbage collector has none of them.
pub fn garbage_collection_only(old: &Value, new: &Value) -> bool {
    const COLLECTOR_FIELDS: [&str; 4] =
        ["ownerReferences", "finalizers", "managedFields", "resourceVersion"];
    let rest = |object: &Value| {
        let mut object = object.clone();
        if let Some(meta) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            meta.retain(|field, _| !COLLECTOR_FIELDS.contains(&field.as_str()));
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
    POD_GROUPS "scheduling.k8s.io" "podgroups";
    WORKLOADS "scheduling.k8s.io" "workloads";
    PRIORITY_CLASSES "scheduling.k8s.io" "priorityclasses";
    RUNTIME_CLASSES "node.k8s.io" "runtimeclasses";
    RESOURCE_CLAIMS "resource.k8s.io" "resourceclaims";
    RESOURCE_SLICES "resource.k8s.io" "resourceslices";
    CERTIFICATE_SIGNING_REQUESTS "certificates.k8s.io" "certificatesigningrequests";
    CLUSTER_TRUST_BUNDLES "certificates.k8s.io" "clustertrustbundles";
    POD_CERTIFICATE_REQUESTS "certificates.k8s.io" "podcertificaterequests";
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn recognizes_changes_of_owners_and_finalizers_only() {
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
