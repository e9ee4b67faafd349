use api_meta::{Attributes, Status};

use super::AuthorizedRequest;
use crate::forbidden;

/// Checks the verb `create` if the request has another verb.
///
/// An upgrade by GET acts like a POST, and an apply may create an object. The effect of a request needs the permission,
/// whatever its verb is.
pub(super) fn as_create(asked: &AuthorizedRequest<'_>) -> Result<(), Status> {
    if asked.request.verb == "create" {
        return Ok(());
    }
    let question = Attributes { verb: "create", ..*asked.request };
    let decision = asked.authorizer.authorize(&question);
    if decision.is_allowed() { Ok(()) } else { Err(forbidden(&question, decision.reason())) }
}
