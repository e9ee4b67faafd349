use api_meta::Status;
use serde_json::Value;

use crate::request::{Outcome, Plugin, Request};

/// Rejects every request that would change something.
pub(crate) struct AlwaysDeny;

impl Plugin for AlwaysDeny {
    fn mutate(
        &self,
        request: &Request<'_>,
        object: &mut Value,
        _: &mut Outcome,
    ) -> Result<(), Status> {
        Err(request.forbidden(object, "admission control is denying all modifications"))
    }
}

/// Admits every request.
pub(crate) struct AlwaysAdmit;

impl Plugin for AlwaysAdmit {}
