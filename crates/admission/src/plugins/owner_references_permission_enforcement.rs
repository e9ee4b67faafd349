use api_meta::{Attributes, Status};
use serde_json::Value;

use crate::{
    Outcome, Plugin, Request,
    tree::{flag, items, text},
};

/// Makes whoever names an owner show that they may delete what they hand over, and may hold up the owner's deletion.
pub(crate) struct OwnerReferencesPermissionEnforcement;

const REFERENCES: &str = "/metadata/ownerReferences";

impl Plugin for OwnerReferencesPermissionEnforcement {
    fn validate(
        &self,
        request: &Request<'_>,
        object: &Value,
        _: &mut Outcome,
    ) -> Result<(), Status> {
        if !(request.creates() || request.updates()) {
            return Ok(());
        }
        let old = request.old.unwrap_or(&Value::Null);
        if items(old, REFERENCES).eq(items(object, REFERENCES)) {
            return Ok(());
        }
        // A new object is its maker's to hand over.
        if !request.creates() && !may_delete(request) {
            let (resource, name) = (request.resource.group_resource(), request.object_name(object));
            return Err(request.forbidden(
                object,
                format!(
                    "cannot set an ownerRef on a resource you can't delete: {resource} {name:?}"
                ),
            ));
        }
        let blocked = |reference: &&Value| {
            flag(reference, "/blockOwnerDeletion") == Some(true)
                && !items(old, REFERENCES).any(|before| {
                    text(before, "/uid") == text(reference, "/uid")
                        && flag(before, "/blockOwnerDeletion") == Some(true)
                })
        };
        for reference in items(object, REFERENCES).filter(blocked) {
            check_owner(request, reference).map_err(|cause| request.forbidden(object, cause))?;
        }
        Ok(())
    }
}

fn may_delete(request: &Request<'_>) -> bool {
    let attributes = Attributes {
        version: &request.resource.version,
        ..Attributes::resource(
            request.user,
            "delete",
            &request.resource.group,
            &request.resource.resource,
        )
    };
    request
        .authorizer
        .authorize(&attributes.in_namespace(request.namespace).named(request.name))
        .is_allowed()
}

/// Holding up a deletion is what a finalizer does, so it takes the same permission.
fn check_owner(request: &Request<'_>, reference: &Value) -> Result<(), String> {
    let (version, kind) = (text(reference, "/apiVersion"), text(reference, "/kind"));
    let group = version.split_once('/').map_or("", |(group, _)| group);
    let Some((resource, namespaced)) = request.objects.resource_of(group, kind) else {
        return Err(format!(
            "cannot set blockOwnerDeletion in this case because cannot find RESTMapping for APIVersion {version} Kind {kind}"
        ));
    };
    let attributes =
        Attributes::resource(request.user, "update", &resource.group, &resource.resource)
            .with_subresource("finalizers")
            .in_namespace(if namespaced { request.namespace } else { "" })
            .named(text(reference, "/name"));
    if request.authorizer.authorize(&attributes).is_allowed() {
        return Ok(());
    }
    Err("cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on".into())
}

#[cfg(test)]
mod tests {
    use api_meta::GroupResource;
    use serde_json::json;

    use super::*;
    use crate::testing::{Cluster, Try};

    #[test]
    fn blocking_takes_permission_on_the_owner() {
        let owned = |kind: &str, block: bool| {
            let owner = json!({"apiVersion": "v1", "kind": kind, "name": "o", "uid": "u", "blockOwnerDeletion": block});
            json!({"metadata": {"name": "c", "namespace": "ns", "ownerReferences": [owner]}})
        };
        let create = |allowed: &[&'static str], object: Value| {
            let cluster = Cluster { allowed: allowed.to_vec(), ..Cluster::default() };
            Try::create(&cluster, &GroupResource::CONFIG_MAPS)
                .refusal(&OwnerReferencesPermissionEnforcement, object)
        };
        assert!(create(&[], owned("Pod", false)).starts_with("admitted"));
        assert!(create(&["update pods o"], owned("Pod", true)).starts_with("admitted"));
        assert!(create(&[], owned("Pod", true)).contains("you can't set finalizers on"));
        assert!(create(&[], owned("Widget", true)).contains("cannot find RESTMapping"));
        let cluster = Cluster::default();
        let plain = json!({"metadata": {"name": "c", "namespace": "ns"}});
        let update = Try::update(&cluster, &GroupResource::CONFIG_MAPS, plain);
        let refusal = update.refusal(&OwnerReferencesPermissionEnforcement, owned("Pod", false));
        assert!(refusal.contains("cannot set an ownerRef on a resource you can't delete"));
        let same = Try::update(&cluster, &GroupResource::CONFIG_MAPS, owned("Pod", true));
        assert!(
            same.refusal(&OwnerReferencesPermissionEnforcement, owned("Pod", true))
                .starts_with("admitted")
        );
    }
}
