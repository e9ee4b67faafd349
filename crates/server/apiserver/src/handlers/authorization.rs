//! Additional authorization checks in handlers. `auth::secondary` defines them.

use api_meta::{Attributes, ErrorList, Status};
use auth::secondary::{AuthorizedRequest, Moment};
use serde_json::Value;

use super::call::Call;
use crate::security::Security;

impl Call {
    /// Returns the attributes that the request pipeline has authorized.
    fn attributes(&self) -> Attributes<'_> {
        let path = &self.path;
        Attributes {
            version: &path.version,
            subresource: &path.subresource,
            namespace: &path.namespace,
            name: &path.name,
            ..Attributes::resource(&self.user, self.info.verb, &path.group, &path.resource)
        }
    }
}

/// Rejects the call if it needs more permissions than the pipeline has checked. Connections pass a null object.
pub(crate) fn check_further_permissions(
    security: &Security,
    call: &Call,
    moment: Moment,
    new: &Value,
    old: Option<&Value>,
) -> Result<(), Box<Status>> {
    second_authorization(security, &call.attributes(), new, old).at(moment).map_err(Box::new)
}

/// Adds errors for fields that the caller is not authorized to set.
pub(crate) fn validate_permissions(
    security: &Security,
    call: &Call,
    new: &Value,
    old: Option<&Value>,
    errors: &mut ErrorList,
) {
    second_authorization(security, &call.attributes(), new, old).validate(errors);
}

fn second_authorization<'a>(
    security: &'a Security,
    request: &'a Attributes<'a>,
    new: &'a Value,
    old: Option<&'a Value>,
) -> AuthorizedRequest<'a> {
    AuthorizedRequest {
        request,
        old,
        new,
        authorizer: &*security.authorizer,
        rbac: &security.rbac,
        objects: &*security.objects,
    }
}
