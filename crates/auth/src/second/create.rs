use api_meta::{Attributes, Status};

use super::Asked;
use crate::forbidden;

/// Asks for `create` on the same object where the request's own verb is another.
///
/// An upgrade by GET does what a POST does, and an apply of what is not there does too: what decides is what happens,
/// not how it was asked for.
pub(super) fn as_create(asked: &Asked<'_>) -> Result<(), Status> {
    if asked.request.verb == "create" {
        return Ok(());
    }
    let question = Attributes { verb: "create", ..*asked.request };
    let decision = asked.authorizer.authorize(&question);
    if decision.is_allowed() { Ok(()) } else { Err(forbidden(&question, decision.reason())) }
}
