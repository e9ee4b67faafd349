//! The check of the verb `create` for requests that act like a creation.

use api_meta::{Attributes, Status};

use super::request::AuthorizedRequest;
use crate::forbidden;

/// Checks the verb `create` if the request has another verb.
///
/// An upgrade by GET acts like a POST, and an apply may create an object. The effect of a request needs the permission,
/// whatever its verb is.
pub(super) fn as_create(authorized: &AuthorizedRequest<'_>) -> Result<(), Status> {
    if authorized.request.verb == "create" {
        return Ok(());
    }
    let question = Attributes { verb: "create", ..*authorized.request };
    let decision = authorized.authorizer.authorize(&question);
    if decision.is_allowed() { Ok(()) } else { Err(forbidden(&question, decision.reason())) }
}
