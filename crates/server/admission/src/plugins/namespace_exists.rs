use api_meta::{GroupResource, Status};
use serde_json::Value;

use crate::request::{AdmissionResult, Operation, Outcome, Plugin, Request};

/// Rejects every request in a namespace that does not exist.
pub(crate) struct NamespaceExists;

impl Plugin for NamespaceExists {
    fn validate(&self, request: &Request<'_>, _: &Value, _: &mut Outcome) -> AdmissionResult {
        let indifferent = request.namespace.is_empty()
            || request.on(&GroupResource::NAMESPACES)
            || request.operation == Operation::Connect;
        if indifferent
            || request.objects.get(&GroupResource::NAMESPACES, "", request.namespace).is_some()
        {
            return Ok(());
        }
        Err(Status::not_found(&GroupResource::NAMESPACES, request.namespace))
    }
}
