use api_meta::{Attributes, GroupResource, Tree as _};
use serde_json::Value;

use crate::request::{AdmissionResult, Outcome, Plugin, Request};

/// Requires permission to delete an object whose owners change, and to update the finalizers of an owner with
/// `blockOwnerDeletion`.
pub(crate) struct OwnerReferencesPermissionEnforcement;

const REFERENCES: &str = "metadata.ownerReferences";

impl Plugin for OwnerReferencesPermissionEnforcement {
    fn validate(&self, request: &Request<'_>, object: &Value, _: &mut Outcome) -> AdmissionResult {
        // The status subresource of Pods cannot change owners, and old kubelets left them out.
        if !(request.creates() || request.updates())
            || request.is_sub(&GroupResource::PODS, "status")
        {
            return Ok(());
        }
        let old = request.old.unwrap_or(&Value::Null);
        if old.items(REFERENCES).iter().eq(object.items(REFERENCES)) {
            return Ok(());
        }
        // The creator of an object may set its owners.
        if !request.creates() {
            authorize_deletion(request).map_err(|cause| request.forbidden(object, cause))?;
        }
        let blocked = |reference: &&Value| {
            reference.opt_flag("blockOwnerDeletion") == Some(true)
                && !old.items(REFERENCES).iter().any(|before| {
                    before.text("uid") == reference.text("uid")
                        && before.opt_flag("blockOwnerDeletion") == Some(true)
                })
        };
        for reference in object.items(REFERENCES).iter().filter(blocked) {
            authorize_owner(request, reference)
                .map_err(|cause| request.forbidden(object, cause))?;
        }
        Ok(())
    }
}

/// The reason why an owner reference is rejected, with upstream's messages.
#[derive(Debug, thiserror::Error)]
enum OwnerError {
    /// The authorizer's reason precedes Go's nil error.
    #[error("{message}: {reason}, <nil>")]
    Denied { message: &'static str, reason: String },
    #[error(
        "cannot set blockOwnerDeletion in this case because cannot find RESTMapping for APIVersion {version} Kind \
         {kind}"
    )]
    UnknownKind { version: String, kind: String },
}

fn authorize(
    request: &Request<'_>,
    question: &Attributes<'_>,
    message: &'static str,
) -> Result<(), OwnerError> {
    let decision = request.authorizer.authorize(question);
    if decision.is_allowed() {
        return Ok(());
    }
    Err(OwnerError::Denied { message, reason: decision.reason().to_string() })
}

fn authorize_deletion(request: &Request<'_>) -> Result<(), OwnerError> {
    let resource = request.resource;
    let question =
        Attributes::resource(request.user, "delete", &resource.group, &resource.resource);
    let question = Attributes {
        version: &resource.version,
        subresource: request.subresource,
        namespace: request.namespace,
        name: request.name,
        ..question
    };
    authorize(request, &question, "cannot set an ownerRef on a resource you can't delete")
}

/// Checks the permission to update the owner's finalizers, which block its deletion in the same way.
fn authorize_owner(request: &Request<'_>, reference: &Value) -> Result<(), OwnerError> {
    let finalizers = |group, resource, namespace, name| {
        Attributes::resource(request.user, "update", group, resource)
            .with_subresource("finalizers")
            .in_namespace(namespace)
            .named(name)
    };
    // A user with this permission on everything may also name owners of unknown kinds.
    if request.authorizer.authorize(&finalizers("*", "*", "", "*")).is_allowed() {
        return Ok(());
    }
    let (version, kind) = (reference.text("apiVersion"), reference.text("kind"));
    let group = version.split_once('/').map_or("", |(group, _)| group);
    let Some((resource, namespaced)) = request.objects.resource_of(group, kind) else {
        let (version, kind) = (version.to_owned(), kind.to_owned());
        return Err(OwnerError::UnknownKind { version, kind });
    };
    let namespace = if namespaced { request.namespace } else { "" };
    let name = reference.text("name");
    authorize(
        request,
        &finalizers(&resource.group, &resource.resource, namespace, name),
        "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on",
    )
}

#[cfg(test)]
mod tests {
    use api_meta::GroupResource;
    use serde_json::json;

    use super::*;
    use crate::testing::{Cluster, Try};

    #[test]
    fn requires_permission_to_block_owner_deletion() {
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
        assert!(create(&["update * *"], owned("Widget", true)).starts_with("admitted"));
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
