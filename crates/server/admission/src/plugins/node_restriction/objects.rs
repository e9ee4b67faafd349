//! The objects on which decisions about a node's requests depend.

use std::sync::Arc;

use api_meta::{GroupResource, Status};
use serde_json::Value;

use super::refusal::Refusal;
use crate::request::Request;

/// Returns an object, or the error NotFound.
pub(super) fn find(
    request: &Request<'_>,
    resource: &GroupResource,
    namespace: &str,
    name: &str,
) -> Result<Arc<Value>, Refusal> {
    let found = request.objects.get(resource, namespace, name);
    found.ok_or_else(|| Refusal::Status(Box::new(Status::not_found(resource, name))))
}
