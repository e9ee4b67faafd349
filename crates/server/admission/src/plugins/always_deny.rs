use serde_json::Value;

use crate::request::{AdmissionResult, Plugin, Request};

/// Rejects every request that would change something.
pub(crate) struct AlwaysDeny;

impl Plugin for AlwaysDeny {
    fn precheck(&self, request: &Request<'_>, object: &Value) -> AdmissionResult {
        Err(request.forbidden(object, "admission control is denying all modifications"))
    }
}

/// Admits every request.
pub(crate) struct AlwaysAdmit;

impl Plugin for AlwaysAdmit {}
