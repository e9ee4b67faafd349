//! Where handlers ask for second authorisations; what they are is `auth::second`'s list.

use api_meta::{Attributes, ErrorList, Status};
use auth::second::{Asked, Moment};
use serde_json::Value;

use super::call::Call;
use crate::security::Security;

impl Call {
    /// What the filter chain was asked about this call.
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

/// Refuses the call if it needs more than the filter chain asked for. A connection's object is null.
pub(crate) fn ask_again(
    security: &Security,
    call: &Call,
    moment: Moment,
    new: &Value,
    old: Option<&Value>,
) -> Result<(), Box<Status>> {
    asked(security, &call.attributes(), new, old).at(moment).map_err(Box::new)
}

/// Adds to what validation has against an object the fields that its writer may not set so.
pub(crate) fn ask_in_validation(
    security: &Security,
    call: &Call,
    new: &Value,
    old: Option<&Value>,
    errors: &mut ErrorList,
) {
    asked(security, &call.attributes(), new, old).in_validation(errors);
}

fn asked<'a>(
    security: &'a Security,
    request: &'a Attributes<'a>,
    new: &'a Value,
    old: Option<&'a Value>,
) -> Asked<'a> {
    Asked {
        request,
        old,
        new,
        authorizer: &*security.authorizer,
        rbac: &security.rbac,
        objects: &*security.objects,
    }
}
