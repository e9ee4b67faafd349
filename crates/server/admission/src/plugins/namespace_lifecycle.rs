use api_meta::{GroupResource, Status, StatusCause, Tree as _};
use serde_json::Value;

use crate::request::{AdmissionResult, Operation, Plugin, Request};

/// Rejects new objects in namespaces that are missing or terminating, and the deletion of system namespaces.
pub(crate) struct NamespaceLifecycle;

const IMMORTAL: [&str; 3] = ["default", "kube-public", "kube-system"];

impl Plugin for NamespaceLifecycle {
    fn precheck(&self, request: &Request<'_>, object: &Value) -> AdmissionResult {
        if request.on(&GroupResource::NAMESPACES) {
            if request.deletes()
                && request.subresource.is_empty()
                && IMMORTAL.contains(&request.name)
            {
                return Err(request.forbidden(object, "this namespace may not be deleted"));
            }
            return Ok(());
        }
        let indifferent = request.namespace.is_empty()
            || matches!(request.operation, Operation::Delete | Operation::Connect)
            || (request.resource.group == "authorization.k8s.io"
                && request.resource.resource == "localsubjectaccessreviews");
        if indifferent {
            return Ok(());
        }
        let Some(namespace) =
            request.objects.get(&GroupResource::NAMESPACES, "", request.namespace)
        else {
            return Err(Status::not_found(&GroupResource::NAMESPACES, request.namespace));
        };
        if request.creates() && namespace.text("status.phase") == "Terminating" {
            return Err(terminating(request, object));
        }
        Ok(())
    }
}

fn terminating(request: &Request<'_>, object: &Value) -> Status {
    let name = request.namespace;
    let cause =
        format!("unable to create new content in namespace {name} because it is being terminated");
    let mut status = request.forbidden(object, cause);
    status.details.get_or_insert_default().causes.push(StatusCause {
        reason: "NamespaceTerminating".into(),
        message: format!("namespace {name} is being terminated"),
        field: "metadata.namespace".into(),
    });
    status
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{Cluster, Try, pod};

    #[test]
    fn rejects_objects_in_missing_or_ending_namespaces() {
        let namespace = |name: &str, phase: &str| json!({"metadata": {"name": name}, "status": {"phase": phase}});
        let cluster =
            Cluster::default().with(&GroupResource::NAMESPACES, namespace("ns", "Active"));
        let create = |cluster: &Cluster| {
            Try::create(cluster, &GroupResource::PODS).refusal(&NamespaceLifecycle, pod(json!({})))
        };
        assert!(create(&cluster).starts_with("admitted"));
        assert_eq!(create(&Cluster::default()), "namespaces \"ns\" not found");
        let cluster = cluster.with(&GroupResource::NAMESPACES, namespace("ns", "Terminating"));
        assert_eq!(
            create(&cluster),
            "pods \"p\" is forbidden: unable to create new content in namespace ns because it is being terminated"
        );
        let update = Try::update(&cluster, &GroupResource::PODS, pod(json!({})));
        assert!(update.refusal(&NamespaceLifecycle, pod(json!({}))).starts_with("admitted"));
        let delete = |name: &str| {
            Try::delete(&cluster, &GroupResource::NAMESPACES, namespace(name, "Active"))
                .refusal(&NamespaceLifecycle, Value::Null)
        };
        assert_eq!(
            delete("kube-system"),
            "namespaces \"kube-system\" is forbidden: this namespace may not be deleted"
        );
        assert!(delete("ns").starts_with("admitted"));
    }
}
