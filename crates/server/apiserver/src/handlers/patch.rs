//! The four patch types and their application.

use api_meta::{
    BudgetExceeded, FieldError, GroupKind, Path, Status, StatusCause, StatusDetails, StatusReason,
    Tree as _,
};
use api_schema::{DecodeError, Decoded};
use bytes::Bytes;
use serde_json::{Value, json};

use super::{
    call::Call,
    change::with_patch_context,
    decode::{self, AppliedEncoding, ExpectedType},
    options,
};

/// A parsed patch. A body that cannot be read is rejected when the patch is applied, because a missing object is
/// reported first.
pub(crate) enum Patch {
    Json(Result<Decoded, DecodeError>),
    Merge(Result<Decoded, DecodeError>),
    Strategic(Result<Decoded, DecodeError>),
    Apply { configuration: Value, manager: String, force: bool },
}

const JSON: &str = "application/json-patch+json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const APPLY_YAML: &str = "application/apply-patch+yaml";
const APPLY_CBOR: &str = "application/apply-patch+cbor";

/// Returns the error for an unsupported media type. Custom kinds do not support strategic merge patches, because their
/// schemas have no merge keys.
fn unsupported(call: &Call) -> Box<Status> {
    let mut accepted = vec![JSON, MERGE];
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
    pub(crate) fn parse(
        call: &Call,
        expected: ExpectedType<'_>,
        body: &Bytes,
    ) -> Result<Self, Box<Status>> {
        let content_type = decode::media_type(call);
        let read =
            || api_schema::decode_untyped(body).inspect(|patch| call.requested(&patch.value));
        let query = &call.info.query;
        let strategic = call.resource.definition.custom.is_none();
        let applied = match content_type {
            APPLY_YAML => Some(AppliedEncoding::Yaml),
            APPLY_CBOR if call.encodings.cbor => Some(AppliedEncoding::Cbor),
            JSON | MERGE => None,
            STRATEGIC if strategic => None,
            _ => return Err(unsupported(call)),
        };
        options::check(call, applied.is_some())?;
        if let Some(encoding) = applied {
            let manager = query.get("fieldManager").unwrap_or_default().to_owned();
            let configuration = decode::decode_applied(call, expected, body, encoding)?;
            call.requested(&configuration);
            return Ok(Self::Apply { configuration, manager, force: query.flag("force") });
        }
        Ok(match content_type {
            JSON => Self::Json(read()),
            MERGE => Self::Merge(read()),
            _ => Self::Strategic(read()),
        })
    }

    pub(crate) fn is_apply(&self) -> bool {
        matches!(self, Self::Apply { .. })
    }

    /// Returns the body, or the Status for one that cannot be read.
    fn body(&self) -> Result<&Decoded, Box<Status>> {
        let (body, prefix) = match self {
            Self::Json(body) | Self::Merge(body) => (body, "error decoding patch: "),
            Self::Strategic(body) => (body, ""),
            Self::Apply { .. } => return Err(Box::new(Status::internal("an apply has no body"))),
        };
        body.as_ref().map_err(|error| match error {
            DecodeError::Exceeded(BudgetExceeded::Memory(_)) => {
                Box::new(Status::request_too_large(error))
            }
            error => Box::new(Status::bad_request(format!("{prefix}{error}"))),
        })
    }

    /// Returns the unknown and duplicate members of the body itself.
    fn findings(&self, body: &Decoded) -> Vec<String> {
        let mut findings = body.findings();
        if !matches!(self, Self::Json(..)) {
            return findings;
        }
        for (at, operation) in body.value.as_array().into_iter().flatten().enumerate() {
            let known = ["op", "path", "from", "value"];
            let names = operation.as_object().into_iter().flat_map(|members| members.keys());
            let unknown = names.filter(|name| !known.contains(&name.as_str()));
            findings.extend(unknown.map(|name| format!("unknown field \"[{at}].{name}\"")));
        }
        findings.into_iter().map(|finding| format!("json patch {finding}")).collect()
    }

    /// Returns the patched object. It is decoded with the schema, so that a patch can set only what a body can.
    pub(crate) fn apply(
        &self,
        call: &Call,
        expected: ExpectedType<'_>,
        current: Option<&Value>,
    ) -> Result<Value, Box<Status>> {
        if let Self::Apply { configuration, manager, force } = self {
            return apply(call, expected, current, configuration, manager, *force);
        }
        let Some(current) = current else {
            return Err(Box::new(Status::not_found(
                &call.resource.definition.group_resource(),
                &call.path.name,
            )));
        };
        let body = self.body()?;
        let strategic = matches!(self, Self::Strategic(_)).then_some(&body.value);
        let patched = || self.patched(call, expected, current, body);
        decode::decode_patched(call, expected, patched()?, patched, strategic, self.findings(body))
    }

    /// Returns the patched tree with the type and name of the current one.
    fn patched(
        &self,
        call: &Call,
        expected: ExpectedType<'_>,
        current: &Value,
        body: &Decoded,
    ) -> Result<Value, Box<Status>> {
        let refuse = |error: api_patch::PatchError| Box::new(patch_status(call, &error));
        let (schema, node) = (expected.schema, Some(expected.node));
        let mut patched = match self {
            Self::Json(_) => api_patch::json_patch_tree(current, &body.value).map_err(refuse)?,
            Self::Strategic(_) => {
                let mut object = current.clone();
                api_patch::strategic(schema, node, &mut object, &body.value).map_err(refuse)?;
                object
            }
            _ => {
                let mut object = current.clone();
                api_patch::merge_patch(&mut object, &body.value).map_err(refuse)?;
                object
            }
        };
        self.check_type(call, expected, current, &patched)?;
        // Metadata of another type is reported below.
        let has_metadata = patched["metadata"].is_object() || patched["metadata"].is_null();
        if has_metadata && patched["metadata"]["name"] != current["metadata"]["name"] {
            return Err(call.wrong_name(patched.name()));
        }
        // An empty list resets the owners. A list without entries would mean that none were given.
        if let Some(owners) = patched.at_mut("metadata.managedFields")
            && owners.as_array().is_some_and(Vec::is_empty)
        {
            *owners = json!([{}]);
        }
        Ok(patched)
    }

    /// Checks that a patch keeps the type. A strategic merge patch cannot change it, because upstream ignores these
    /// members in the result.
    fn check_type(
        &self,
        call: &Call,
        expected: ExpectedType<'_>,
        current: &Value,
        patched: &Value,
    ) -> Result<(), Box<Status>> {
        let changed =
            |field: &&str| patched[*field] != current[*field] && !patched[*field].is_null();
        let Some(field) = ["kind", "apiVersion"].into_iter().find(changed) else { return Ok(()) };
        let (kind, api_version) = (patched.text("kind"), patched.text("apiVersion"));
        if matches!(self, Self::Strategic(_)) && patched[field].is_string() {
            return Ok(());
        }
        if expected.custom && patched[field].is_string() {
            let detail = format!("must be {}", current.text(field));
            let error = FieldError::invalid(&Path::new(field), patched.text(field), detail);
            let group = expected.api_version.split_once('/').map_or("", |(group, _)| group);
            let kind = GroupKind::new(group.to_owned(), kind.to_owned());
            return Err(Box::new(Status::invalid(&kind, &call.path.name, &[error])));
        }
        let detail = format!(
            "no kind {kind:?} is registered for version {api_version:?} in scheme \
             \"pkg/api/legacyscheme/scheme.go:30\""
        );
        let error = FieldError::invalid(&Path::new("patch"), patched.to_string(), detail);
        Err(Box::new(Status::invalid(&GroupKind::new("", ""), "", &[error])))
    }
}

fn apply(
    call: &Call,
    expected: ExpectedType<'_>,
    current: Option<&Value>,
    configuration: &Value,
    manager: &str,
    force: bool,
) -> Result<Value, Box<Status>> {
    let name = configuration.name();
    if !name.is_empty() && name != call.path.name {
        return Err(call.wrong_name(name));
    }
    let mut configuration = configuration.clone();
    configuration.put(&["metadata", "name"], json!(call.path.name));
    let merged = with_patch_context(call, expected, |context| {
        let context = api_patch::Context { manager, force, ..*context };
        api_patch::apply(&context, current, &configuration)
    });
    let mut merged = merged.map_err(|error| Box::new(apply_status(&error)))?;
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
    decode::decode_merged(call, expected, merged, configuration.namespace())
}

fn patch_status(call: &Call, error: &api_patch::PatchError) -> Status {
    match error.code() {
        422 => {
            let message = api_patch::PatchError::REJECTED;
            tracing::debug!(path = %call.info.path, %error, "a patch does not apply");
            Status::failure(422, StatusReason::Invalid, message)
        }
        413 => Status::request_too_large(error),
        500 => Status::failure(500, StatusReason::Unknown, error.to_string()),
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
