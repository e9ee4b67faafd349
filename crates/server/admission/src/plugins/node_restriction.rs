//! NodeRestriction: limits a kubelet to its own Node and to the Pods that are bound to it.

mod nodes;
mod others;
mod pods;
#[cfg(test)]
mod tests;

use api_meta::{GroupResource, Status};
use serde_json::Value;

use crate::{Outcome, Plugin, Request};

pub(crate) struct NodeRestriction;

impl Plugin for NodeRestriction {
    fn mutate(
        &self,
        request: &Request<'_>,
        object: &mut Value,
        _: &mut Outcome,
    ) -> Result<(), Status> {
        let Some(node) = request.user.as_node() else { return Ok(()) };
        if node.is_empty() {
            let cause = format!("could not determine node from user {:?}", request.user.name);
            return Err(request.forbidden(object, cause));
        }
        check(request, node, object).map_err(|refusal| match refusal {
            Refusal::Cause(cause) => request.forbidden(object, cause),
            Refusal::Status(status) => *status,
        })
    }
}

/// The reason why a node's request is rejected: a message for a Forbidden status, or a complete status.
enum Refusal {
    Cause(String),
    Status(Box<Status>),
}

impl From<String> for Refusal {
    fn from(cause: String) -> Self {
        Self::Cause(cause)
    }
}

impl From<&str> for Refusal {
    fn from(cause: &str) -> Self {
        Self::Cause(cause.to_owned())
    }
}

fn check(request: &Request<'_>, node: &str, object: &Value) -> Result<(), Refusal> {
    let resource = &request.resource.group_resource();
    if *resource == GroupResource::PODS {
        return pods::check(request, node, object);
    }
    if *resource == GroupResource::NODES {
        return nodes::check(request, node, object);
    }
    if *resource == GroupResource::SERVICE_ACCOUNTS
        && request.subresource == "token"
        && request.creates()
    {
        return others::check_token(request, node, object);
    }
    if *resource == GroupResource::CERTIFICATE_SIGNING_REQUESTS {
        return others::check_signing_request(request, node, object);
    }
    if *resource == GroupResource::PERSISTENT_VOLUME_CLAIMS {
        return others::check_claim(request, node, object);
    }
    if *resource == GroupResource::LEASES {
        return others::check_lease(request, node, object);
    }
    if *resource == GroupResource::CSI_NODES {
        return others::check_own_name(request, node, object, "CSINode");
    }
    if *resource == GroupResource::RESOURCE_SLICES {
        return others::check_resource_slice(request, node, object);
    }
    Ok(())
}
