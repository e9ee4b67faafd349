//! NodeRestriction: limits a kubelet to its own Node and to the Pods that are bound to it.

mod certificates;
mod nodes;
mod objects;
mod pods;
mod refusal;
mod resources;
#[cfg(test)]
mod tests;

use api_meta::GroupResource;
use serde_json::Value;

use self::refusal::Refusal;
use crate::request::{AdmissionResult, Plugin, Request};

/// The NodeRestriction plugin.
pub(crate) struct NodeRestriction;

impl Plugin for NodeRestriction {
    fn precheck(&self, request: &Request<'_>, object: &Value) -> AdmissionResult {
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
        return resources::check_token(request, node, object);
    }
    if *resource == GroupResource::CERTIFICATE_SIGNING_REQUESTS {
        return resources::check_signing_request(request, node, object);
    }
    if *resource == GroupResource::POD_CERTIFICATE_REQUESTS {
        return certificates::check(request, node, object);
    }
    if *resource == GroupResource::PERSISTENT_VOLUME_CLAIMS {
        return resources::check_claim(request, node, object);
    }
    if *resource == GroupResource::LEASES {
        return resources::check_lease(request, node, object);
    }
    if *resource == GroupResource::CSI_NODES {
        return resources::check_own_name(request, node, object, "CSINode");
    }
    if *resource == GroupResource::RESOURCE_SLICES {
        return resources::check_resource_slice(request, node, object);
    }
    Ok(())
}
