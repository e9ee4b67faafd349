//! The four patch types and their application.

use api_meta::{
    Budget, BudgetExceeded, FieldError, GroupKind, JsonError, Path, Status, StatusCause,
    StatusDetails, StatusReason, Tree as _,
};
use bytes::Bytes;
use serde_json::{Value, json};

use super::{
    call::Call,
    decode::{self, AppliedEncoding},
    options,
};
use crate::clock;

/// A parsed patch.
pub(crate) enum Patch {
    Json(Bytes),
    Merge(Value),
    Strategic(Value),
    Apply { configuration: Value, manager: String, force: bool },
}

const STRATEGIC: &str = "application/strategic-merge-patch+json";
const APPLY_YAML: &str = "application/apply-patch+yaml";
const APPLY_CBOR: &str = "application/apply-patch+cbor";

/// Returns the error for an unsupported media type. Custom kinds do not support strategic merge patches, because their
/// schemas have no merge keys.
fn unsupported(call: &Call) -> Box<Status> {
    let mut accepted = vec!["application/json-patch+json", "application/merge-patch+json"];
    if call.resource.definition.custom.is_none() {
        accepted.push(STRATEGIC);
    }
    accepted.push(APPLY_YAML);
    if call.encodings.cbor {
        accepted.push(APPLY_CBOR);
    }
    Box::new(Status::unsupported_media_type(&accepted))
}

impl Patch {
    pub(crate) fn parse(call: &Call, body: &Bytes) -> Result<Self, Box<Status>> {
        let content_type = decode::media_type(call);
        let tree = |body: &Bytes| {
            Budget::object().json(body).map_err(|error| match error {
                JsonError::Exceeded(BudgetExceeded::Memory(_)) => {
                    Box::new(Status::request_too_large(error))
                }
                error => Box::new(Status::bad_request(format!("error decoding patch: {error}"))),
            })
        };
        let value = |body: &Bytes| tree(body).inspect(|patch| call.requested(patch));
        let query = &call.info.query;
        let applied = match content_type {
            APPLY_YAML => Some(AppliedEncoding::Yaml),
            APPLY_CBOR if call.encodings.cbor => Some(AppliedEncoding::Cbor),
            _ => None,
        };
        options::check(call, applied.is_some())?;
        if let Some(encoding) = applied {
            let manager = query.get("fieldManager").unwrap_or_default().to_owned();
            let configuration = decode::decode_applied(call, body, encoding)?;
            call.requested(&configuration);
            return Ok(Self::Apply { configuration, manager, force: query.flag("force") });
        }
        match content_type {
            "application/json-patch+json" => {
                if call.audited.is_some()
                    && let Ok(patch) = tree(body)
                {
                    call.requested(&patch);
                }
                Ok(Self::Json(body.clone()))
            }
            "application/merge-patch+json" => value(body).map(Self::Merge),
            STRATEGIC if call.resource.definition.custom.is_none() => {
                value(body).map(Self::Strategic)
            }
            _ => Err(unsupported(call)),
        }
    }

    pub(crate) fn is_apply(&self) -> bool {
        matches!(self, Self::Apply { .. })
    }

    /// Returns the patched tree without decoding it. A strategic merge without a schema is a merge patch.
    pub(crate) fn apply_untyped(&self, call: &Call, current: &Value) -> Result<Value, Box<Status>> {
        let refuse = |error: api_patch::PatchError| Box::new(patch_status(call, &error));
        match self {
            Self::Json(patch) => api_patch::json_patch(current, patch).map_err(refuse),
            Self::Merge(patch)
            | Self::Strategic(patch)
            | Self::Apply { configuration: patch, .. } => {
                let mut object = current.clone();
                api_patch::merge_patch(&mut object, patch).map_err(refuse)?;
                Ok(object)
            }
        }
    }

    /// Returns the patched object. It is decoded with the schema, so that a patch can set only what a body can.
    pub(crate) fn apply(&self, call: &Call, current: Option<&Value>) -> Result<Value, Box<Status>> {
        if let Self::Apply { configuration, manager, force } = self {
            return apply(call, current, configuration, manager, *force);
        }
        let Some(current) = current else {
            return Err(Box::new(Status::not_found(
                &call.resource.definition.group_resource(),
                &call.path.name,
            )));
        };
        let strategic = match self {
            Self::Strategic(patch) => Some(patch),
            _ => None,
        };
        let patched = || self.patched(call, current);
        decode::decode_patched(call, patched()?, patched, strategic)
    }

    /// Returns the patched tree with the kind, version and name of the current one.
    fn patched(&self, call: &Call, current: &Value) -> Result<Value, Box<Status>> {
        let served = call.served();
        let refuse = |error: api_patch::PatchError| Box::new(patch_status(call, &error));
        let mut patched = match self {
            Self::Strategic(patch) => {
                let mut object = current.clone();
                api_patch::strategic(&served.schema, Some(served.node), &mut object, patch)
                    .map_err(refuse)?;
                object
            }
            _ => self.apply_untyped(call, current)?,
        };
        for (field, what) in [("kind", "kind"), ("apiVersion", "apiVersion")] {
            let custom = call.resource.definition.custom.is_some();
            if custom && patched[field] != current[field] && patched[field].is_string() {
                let expected = current[field].as_str().unwrap_or_default();
                let value = patched[field].as_str().unwrap_or_default();
                let detail = format!("must be {expected}");
                let error = FieldError::invalid(&Path::new(field), value, detail);
                let named = patched.text("kind");
                let kind = GroupKind::new(served.group.to_string(), named.to_owned());
                return Err(Box::new(Status::invalid(&kind, &call.path.name, &[error])));
            }
            if patched[field] != current[field] && !patched[field].is_null() {
                let message = format!(
                    "the {what} in the patched data ({}) does not match the expected one ({})",
                    patched[field], current[field]
                );
                return Err(Box::new(Status::bad_request(message)));
            }
        }
        // Metadata of another type is reported below.
        let has_metadata = patched["metadata"].is_object() || patched["metadata"].is_null();
        if has_metadata && patched["metadata"]["name"] != current["metadata"]["name"] {
            return Err(Box::new(Status::bad_request(format!(
                "the name of the object ({}) does not match the name on the URL ({})",
                patched.name(),
                call.path.name
            ))));
        }
        // An empty list resets the owners. A list without entries would mean that none were given.
        if let Some(owners) = patched.at_mut("metadata.managedFields")
            && owners.as_array().is_some_and(Vec::is_empty)
        {
            *owners = json!([{}]);
        }
        Ok(patched)
    }
}

fn apply(
    call: &Call,
    current: Option<&Value>,
    configuration: &Value,
    manager: &str,
    force: bool,
) -> Result<Value, Box<Status>> {
    let served = call.served();
    let name = configuration.name();
    if !name.is_empty() && name != call.path.name {
        let message = format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            call.path.name
        );
        return Err(Box::new(Status::bad_request(message)));
    }
    let now = clock::now().to_string();
    let reset = decode::reset_fields(call);
    let context = api_patch::Context {
        schema: &served.schema,
        node: Some(served.node),
        manager,
        api_version: &served.api_version,
        versions: Some(&*call.resource.definition),
        subresource: &call.path.subresource,
        force,
        now: &now,
        reset: reset.as_ref(),
    };
    let mut configuration = configuration.clone();
    configuration.put(&["metadata", "name"], json!(call.path.name));
    let mut merged = api_patch::apply(&context, current, &configuration)
        .map_err(|e| Box::new(apply_status(&e)))?;
    if let (Some(version), Some(meta)) = (
        configuration["metadata"].get("resourceVersion"),
        merged.at_mut(&["metadata"]).and_then(Value::as_object_mut),
    ) {
        meta.insert("resourceVersion".to_owned(), version.clone());
    }
    // If no fields are owned any more, do not restore the previous owners.
    if current.is_some() && merged["metadata"].get("managedFields").is_none() {
        merged.put(&["metadata", "managedFields"], json!([{}]));
    }
    // A configuration is partial, so the defaults of the other fields are applied as in other writes.
    decode::decode_merged(call, merged)
}

fn patch_status(call: &Call, error: &api_patch::PatchError) -> Status {
    match error.code() {
        422 => {
            let message = api_patch::PatchError::REJECTED;
            tracing::debug!(path = %call.info.path, %error, "a patch does not apply");
            Status::failure(422, StatusReason::Invalid, message)
        }
        413 => Status::request_too_large(error),
        500 => Status::internal(error),
        _ => Status::bad_request(error.to_string()),
    }
}

fn apply_status(error: &api_patch::ApplyError) -> Status {
    let api_patch::ApplyError::Conflicts(conflicts) = error else {
        return match error.code() {
            500 => Status::failure(500, StatusReason::Unknown, error.to_string()),
            _ => Status::bad_request(error.to_string()),
        };
    };
    let causes = conflicts
        .0
        .iter()
        .map(|conflict| StatusCause {
            reason: "FieldManagerConflict".into(),
            message: format!("conflict with {}", conflict.manager),
            field: conflict.field.clone(),
        })
        .collect();
    Status::failure(409, StatusReason::Conflict, error.to_string())
        .with_details(StatusDetails { causes, ..StatusDetails::default() })
}
