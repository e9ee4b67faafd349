//! Decodes bodies from JSON, YAML, protobuf or CBOR to trees that match the schema.

use api_codec::{
    YamlDocument,
    cbor::{CborError, from_cbor},
    protobuf::ProtobufError,
};
use api_meta::{
    BudgetExceeded, ErrorList, FieldError, GroupKind, Path, Status, StatusReason, Tree as _,
};
use api_patch::FieldSet;
use api_schema::{DecodeError, Fill, NodeId, Schema};
use bytes::Bytes;
use http::header;
use serde::Deserialize as _;
use serde_json::Value;

use super::{
    call::Call,
    options::{Validation, validation},
};
use crate::registry::{Definition, ServedVersion, cel_metrics::CelMetrics, custom};

/// The expected type of a body.
#[derive(Clone, Copy)]
pub(crate) struct ExpectedType<'a> {
    pub(crate) schema: &'a Schema,
    pub(crate) node: NodeId,
    pub(crate) api_version: &'a str,
    pub(crate) version: &'a str,
    pub(crate) kind: &'a str,
    pub(crate) custom: bool,
    /// A former API version of the same shape, which is accepted as well.
    pub(crate) former: &'a str,
}

impl<'a> ExpectedType<'a> {
    pub(crate) fn of(definition: &Definition, served: &'a ServedVersion) -> Self {
        Self {
            schema: &served.schema,
            node: served.node,
            api_version: &served.api_version,
            version: &served.version,
            kind: &served.kind,
            custom: definition.custom.is_some(),
            former: "",
        }
    }

    /// Returns the type of a built-in kind.
    pub(crate) fn builtin(
        group: &str,
        version: &'a str,
        api_version: &'a str,
        kind: &'a str,
    ) -> Result<Self, Box<Status>> {
        let schema = Schema::builtin();
        let node = schema
            .kind(group, version, kind)
            .ok_or_else(|| Box::new(Status::internal(format!("the schema has no {kind}"))))?;
        Ok(Self { schema, node, api_version, version, kind, custom: false, former: "" })
    }

    /// Sets `kind` and `apiVersion`.
    fn put_type(&self, tree: &mut Value) -> Result<(), Box<Status>> {
        let Some(tree) = tree.as_object_mut() else {
            return Err(self.unrecognized("a JSON object is expected"));
        };
        tree.insert("kind".to_owned(), Value::from(self.kind));
        tree.insert("apiVersion".to_owned(), Value::from(self.api_version));
        Ok(())
    }

    /// Returns `true` if a decoded tree has this `kind` and `apiVersion`.
    fn is_type_of(&self, tree: &Value) -> bool {
        tree["kind"] == *self.kind && tree["apiVersion"] == *self.api_version
    }

    fn unrecognized(&self, cause: impl std::fmt::Display) -> Box<Status> {
        Box::new(Status::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): {cause}",
            self.kind
        )))
    }

    /// Returns the Status for a body that cannot be decoded: 413 if it exceeds the memory budget, otherwise 400.
    fn undecodable(&self, error: &DecodeError) -> Box<Status> {
        match error {
            DecodeError::Exceeded(BudgetExceeded::Memory(_)) => {
                Box::new(Status::request_too_large(error))
            }
            error => self.unreadable(error),
        }
    }

    /// Returns the Status for the result of an apply that does not fit a built-in type. As upstream, it is an internal
    /// error.
    fn unconvertible(&self, namespace: &str, name: &str, cause: &str) -> Box<Status> {
        let group = if self.api_version.contains('/') { "" } else { "/" };
        let gvk = format!("{group}{}, Kind={}", self.api_version, self.kind);
        let decoding =
            if cause.starts_with("illegal base64") { "error decoding from json: " } else { "" };
        let message = format!(
            "failed to convert new object ({namespace}/{name}; {gvk}) to proper version: unable to \
             convert unstructured object to {gvk}: {decoding}{cause}"
        );
        Box::new(Status::failure(500, StatusReason::Unknown, message))
    }

    fn unreadable(&self, cause: impl std::fmt::Display) -> Box<Status> {
        Box::new(Status::bad_request(format!(
            "{} in version \"{}\" cannot be handled as a {}: {cause}",
            self.kind, self.version, self.kind
        )))
    }
}

/// Decodes the body of a create or update.
pub(crate) fn decode_object(call: &Call, body: Bytes) -> Result<Value, Box<Status>> {
    let expected = ExpectedType::of(&call.resource.definition, call.served());
    let object = decode(call, &body, expected)?;
    call.requested(&object);
    Ok(object)
}

/// Returns `true` if the body resets the owners with an empty `managedFields` list. The decoded object does not
/// distinguish it from a missing list.
pub(crate) fn forgets_owners(call: &Call, body: &[u8]) -> bool {
    const FIELD: &[u8] = b"managedFields";
    #[derive(serde::Deserialize)]
    struct Body {
        metadata: Metadata,
    }
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Metadata {
        managed_fields: Vec<serde::de::IgnoredAny>,
    }
    if !body.windows(FIELD.len()).any(|window| window == FIELD) {
        return false;
    }
    let read = if media_type(call) == CBOR {
        from_cbor(body).ok().and_then(|tree| Body::deserialize(tree).ok())
    } else {
        serde_json::from_slice::<Body>(body).ok()
    };
    read.is_some_and(|body| body.metadata.managed_fields.is_empty())
}

/// Decodes a body with defaults, and sets `kind` and `apiVersion`.
pub(crate) fn decode(
    call: &Call,
    body: &Bytes,
    expected: ExpectedType<'_>,
) -> Result<Value, Box<Status>> {
    let mut duplicates = Vec::new();
    let decoded = match raw_body(call, body, expected)? {
        RawBody::Json(json) => {
            let decoded = api_schema::decode(expected.schema, expected.node, &json, Fill::Defaults);
            // A wrong type is reported before other errors. If the decoded object has the expected type, the body need
            // not be parsed again.
            if !decoded.as_ref().is_ok_and(|decoded| expected.is_type_of(&decoded.value)) {
                check_type(&json, expected)?;
            }
            decoded
        }
        RawBody::Tree { tree, duplicates: found } => {
            if validation(call) != Validation::Ignore {
                duplicates = found;
            }
            check_tree_type(&tree, expected)?;
            api_schema::decode_value(expected.schema, expected.node, tree, Fill::Defaults)
        }
    };
    let mut decoded = decoded.map_err(|error| expected.undecodable(&error))?;
    report(call, &decoded, &duplicates, expected)?;
    expected.put_type(&mut decoded.value)?;
    Ok(decoded.value)
}

/// The encoding of an applied configuration.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum AppliedEncoding {
    Yaml,
    Cbor,
}

/// Decodes an applied configuration without defaults.
pub(crate) fn decode_applied(
    call: &Call,
    expected: ExpectedType<'_>,
    body: &Bytes,
    encoding: AppliedEncoding,
) -> Result<Value, Box<Status>> {
    let YamlDocument { value: tree, duplicates } = match encoding {
        AppliedEncoding::Yaml => api_codec::yaml_document(body)
            .map_err(|e| Box::new(Status::bad_request(format!("error decoding YAML: {e}"))))?,
        AppliedEncoding::Cbor => {
            let value = read_cbor(body, |error| {
                Box::new(Status::bad_request(format!("error decoding CBOR: {error}")))
            })?;
            YamlDocument { value, ..YamlDocument::default() }
        }
    };
    if !tree.is_object() && !tree.is_null() {
        return Err(Box::new(Status::bad_request(format!(
            "error decoding YAML: error unmarshaling JSON: while decoding JSON: json: cannot \
             unmarshal {} into Go value of type map[string]interface {{}}",
            api_patch::json_word(&tree)
        ))));
    }
    if !expected.is_type_of(&tree) {
        let (api_version, kind) = (tree.text("apiVersion"), tree.text("kind"));
        let named = match api_version.matches('/').count() {
            0 => format!("/{api_version}, Kind={kind}"),
            1 => format!("{api_version}, Kind={kind}"),
            _ => "/, Kind=".to_owned(),
        };
        return Err(Box::new(Status::bad_request(format!("invalid object type: {named}"))));
    }
    let (schema, node) = (expected.schema, expected.node);
    let mut decoded = match api_schema::decode_value(schema, node, tree.clone(), Fill::Given) {
        // Unknown fields and fields of a wrong type cannot be owned. The apply itself rejects them, with every
        // `fieldValidation`.
        Ok(decoded) if decoded.unknown().next().is_some() => return Ok(tree),
        Err(DecodeError::Type(_)) => return Ok(tree),
        other => other.map_err(|error| expected.undecodable(&error))?,
    };
    keep_nulls(&mut decoded.value, &tree);
    match validation(call) {
        Validation::Ignore => {}
        Validation::Warn => duplicates.into_iter().for_each(|duplicate| call.warn(duplicate)),
        Validation::Strict if duplicates.is_empty() => {}
        Validation::Strict => {
            return Err(Box::new(Status::bad_request(format!(
                "error strict decoding YAML: error converting YAML to JSON: \
                 yaml: unmarshal errors:\n  {}",
                duplicates.join("\n  ")
            ))));
        }
    }
    expected.put_type(&mut decoded.value)?;
    Ok(decoded.value)
}

/// Decodes a patched tree like a body. Upstream converts the result of a `strategic` merge patch, and quotes the patch
/// in errors. It decodes the results of other patches, and quotes these. `findings` are those of the patch itself.
///
/// Decoding consumes the tree. For an error, `again` computes it once more.
pub(crate) fn decode_patched(
    call: &Call,
    expected: ExpectedType<'_>,
    tree: Value,
    again: impl Fn() -> Result<Value, Box<Status>>,
    strategic: Option<&Value>,
    findings: Vec<String>,
) -> Result<Value, Box<Status>> {
    decode_again(call, expected, tree, Fill::Defaults, findings, |error| {
        let detail = match (&error, strategic) {
            (TreeError::Type(DecodeError::Type(error)), Some(_)) => error.conversion().to_owned(),
            _ => error.to_string(),
        };
        let shown = match strategic {
            Some(patch) => api_patch::go_print(patch),
            None => again().map(|tree| tree.to_string()).unwrap_or_default(),
        };
        let error = FieldError::invalid(&Path::new("patch"), shown, detail);
        Box::new(Status::invalid(&GroupKind::new("", ""), "", &[error]))
    })
}

/// Decodes the result of an apply. `namespace` is that of the configuration, which errors name.
pub(crate) fn decode_merged(
    call: &Call,
    expected: ExpectedType<'_>,
    tree: Value,
    namespace: &str,
) -> Result<Value, Box<Status>> {
    let name = tree.name().to_owned();
    decode_again(call, expected, tree, Fill::Applied, Vec::new(), |error| match error {
        TreeError::Type(error) if !expected.custom => {
            expected.unconvertible(namespace, &name, &error.to_string())
        }
        error => expected.unreadable(error),
    })
}

/// The reason for which a patched tree is rejected.
#[derive(Debug, thiserror::Error)]
enum TreeError {
    /// A value has the wrong type.
    #[error(transparent)]
    Type(DecodeError),
    #[error(transparent)]
    Strict(StrictError),
}

/// The unknown and duplicate fields of a body with strict validation.
#[derive(Debug, thiserror::Error)]
#[error("strict decoding error: {}", .0.join(", "))]
struct StrictError(Vec<String>);

fn decode_again(
    call: &Call,
    expected: ExpectedType<'_>,
    tree: Value,
    fill: Fill,
    mut findings: Vec<String>,
    reject: impl Fn(TreeError) -> Box<Status>,
) -> Result<Value, Box<Status>> {
    let (schema, node) = (expected.schema, expected.node);
    let decoded = api_schema::decode_value(schema, node, tree, fill);
    let mut decoded = decoded.map_err(|error| match error {
        DecodeError::Exceeded(_) => Box::new(Status::request_too_large(&error)),
        error => reject(TreeError::Type(error)),
    })?;
    findings.extend(decoded.findings());
    report_findings(call, findings, &[]).map_err(|error| reject(TreeError::Strict(error)))?;
    expected.put_type(&mut decoded.value)?;
    Ok(decoded.value)
}

/// Restores members that a configuration sets to null, because the manager owns them, too.
fn keep_nulls(value: &mut Value, given: &Value) {
    match (value, given) {
        (Value::Object(members), Value::Object(given)) => {
            for (name, given) in given {
                match members.get_mut(name) {
                    Some(member) => keep_nulls(member, given),
                    None if given.is_null() => drop(members.insert(name.clone(), Value::Null)),
                    None => {}
                }
            }
        }
        (Value::Array(items), Value::Array(given)) if items.len() == given.len() => {
            items.iter_mut().zip(given).for_each(|(item, given)| keep_nulls(item, given));
        }
        _ => {}
    }
}

/// Decodes `DeleteOptions`, which every group accepts.
pub(crate) fn decode_options(call: &Call, body: &[u8]) -> Result<Value, Box<Status>> {
    let body = Bytes::copy_from_slice(body);
    let expected = ExpectedType::builtin("", "v1", "v1", "DeleteOptions")?;
    let decoded = match raw_body(call, &body, expected)? {
        RawBody::Json(json) => {
            api_schema::decode(expected.schema, expected.node, &json, Fill::Given)
        }
        RawBody::Tree { tree, .. } => {
            api_schema::decode_value(expected.schema, expected.node, tree, Fill::Given)
        }
    };
    let decoded = decoded.map_err(|error| expected.undecodable(&error))?;
    report(call, &decoded, &[], expected)?;
    call.requested(&decoded.value);
    Ok(decoded.value)
}

/// A body before it is decoded with the schema.
enum RawBody {
    Json(Bytes),
    /// A body in YAML, protobuf or CBOR. It has no syntax errors, so it is not converted to JSON first.
    Tree {
        tree: Value,
        /// The duplicate keys of a body in YAML.
        duplicates: Vec<String>,
    },
}

const CBOR: &str = "application/cbor";

/// Returns the media type of the body without parameters.
pub(super) fn media_type(call: &Call) -> &str {
    let content_type = call
        .headers
        .get(header::CONTENT_TYPE)
        .and_then(|v| v.to_str().ok())
        .unwrap_or("application/json");
    content_type.split(';').next().unwrap_or_default().trim()
}

fn raw_body(call: &Call, body: &Bytes, expected: ExpectedType<'_>) -> Result<RawBody, Box<Status>> {
    match media_type(call) {
        "application/json" | "" | "*/*" => Ok(RawBody::Json(body.clone())),
        "application/yaml" | "application/x-yaml" | "text/yaml" => {
            let document = api_codec::yaml_document(body).map_err(|error| {
                expected.unrecognized(format_args!("{} ({})", error.cause(), summary(body)))
            })?;
            Ok(RawBody::Tree { tree: document.value, duplicates: document.duplicates })
        }
        "application/vnd.kubernetes.protobuf" if !expected.custom => {
            let tree = api_codec::protobuf::from_protobuf(Schema::builtin(), body);
            tree.map(|tree| RawBody::Tree { tree, duplicates: Vec::new() }).map_err(|error| {
                match error {
                    ProtobufError::Exceeded(BudgetExceeded::Memory(_)) => {
                        Box::new(Status::request_too_large(error))
                    }
                    error => expected.unrecognized(error),
                }
            })
        }
        CBOR if call.encodings.cbor => {
            let tree = read_cbor(body, |error| expected.unrecognized(error))?;
            Ok(RawBody::Tree { tree, duplicates: Vec::new() })
        }
        _ => Err(Box::new(Status::unsupported_media_type(&call.encodings.media_types()))),
    }
}

/// Decodes a body in CBOR. `reject` returns the error of a body that is not valid.
fn read_cbor(
    body: &[u8],
    reject: impl FnOnce(CborError) -> Box<Status>,
) -> Result<Value, Box<Status>> {
    from_cbor(body).map_err(|error| match error {
        CborError::Exceeded(BudgetExceeded::Memory(_)) => {
            Box::new(Status::request_too_large(error))
        }
        error => reject(error),
    })
}

/// Like [`check_type`]. Only a tree of another type is converted to JSON, which the error may quote.
fn check_tree_type(tree: &Value, expected: ExpectedType<'_>) -> Result<(), Box<Status>> {
    if expected.is_type_of(tree) {
        return Ok(());
    }
    let json = serde_json::to_vec(tree).map_err(|e| expected.unrecognized(e))?;
    check_type(&json, expected)
}

fn check_type(json: &[u8], expected: ExpectedType<'_>) -> Result<(), Box<Status>> {
    let meta = api_codec::type_meta(json).map_err(|e| {
        expected.unrecognized(format!("couldn't get version/kind; json parse error: {e}"))
    })?;
    // In built-in types a missing kind is filled in, as Go's types imply it. Custom kinds must state it.
    if expected.custom && meta.kind.is_empty() {
        let body = String::from_utf8_lossy(json);
        let start: String = body.chars().take(40).collect();
        let more = if start.len() < body.len() { " ..." } else { "" };
        let cause = format!("Object 'Kind' is missing in '{body}' ({start}{more})");
        return Err(expected.unrecognized(cause));
    }
    let (api_version, kind) = (&*meta.api_version, &*meta.kind);
    let left_out = api_version.is_empty() && !expected.custom;
    let fits = api_version == expected.api_version
        || !expected.former.is_empty() && api_version == expected.former;
    if !left_out && !fits {
        return Err(Box::new(Status::bad_request(format!(
            "the API version in the data ({}) does not match the expected API version ({})",
            api_version, expected.api_version
        ))));
    }
    if expected.custom && kind != expected.kind {
        let detail = format!("must be {}", expected.kind);
        let error = FieldError::invalid(&Path::new("kind"), kind, detail);
        let group = expected.api_version.split_once('/').map_or("", |(group, _)| group);
        let named = GroupKind::new(group.to_owned(), kind.to_owned());
        return Err(Box::new(Status::invalid(&named, &name_in(json), &[error])));
    }
    if !kind.is_empty() && kind != expected.kind {
        return Err(Box::new(Status::bad_request(format!(
            "{} in version \"{}\" cannot be handled as a {}: converting ({}) to ({}): unknown conversion",
            kind, expected.version, expected.kind, kind, expected.kind
        ))));
    }
    Ok(())
}

/// Returns the name of a rejected object.
fn name_in(json: &[u8]) -> String {
    let tree: Value = serde_json::from_slice(json).unwrap_or_default();
    tree.name().to_owned()
}

/// Returns the beginning of a body for messages: text if it looks like JSON, otherwise hexadecimal.
fn summary(body: &[u8]) -> String {
    const LENGTH: usize = 30;
    let start = &body[..body.len().min(LENGTH)];
    let mut summary = match start.first() {
        None => return "<empty>".to_owned(),
        Some(b'{') => String::from_utf8_lossy(start).into_owned(),
        Some(_) => start.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}")),
    };
    if body.len() > LENGTH {
        summary.push_str(" ...");
    }
    summary
}

/// Rejects, warns of or ignores unknown and duplicate fields, as requested by `fieldValidation`. `duplicates` are those
/// that only the YAML form had.
fn report(
    call: &Call,
    decoded: &api_schema::Decoded,
    duplicates: &[String],
    expected: ExpectedType<'_>,
) -> Result<(), Box<Status>> {
    report_findings(call, decoded.findings(), duplicates)
        .map_err(|error| expected.unreadable(error))
}

/// Like [`report`], with the bare cause as the error.
fn report_findings(
    call: &Call,
    findings: Vec<String>,
    duplicates: &[String],
) -> Result<(), StrictError> {
    match validation(call) {
        Validation::Ignore => {}
        Validation::Warn => {
            duplicates.iter().cloned().chain(findings).for_each(|finding| call.warn(finding));
        }
        Validation::Strict if duplicates.is_empty() && findings.is_empty() => {}
        Validation::Strict => {
            let yaml = format!("yaml: unmarshal errors:\n  {}", duplicates.join("\n  "));
            let yaml = (!duplicates.is_empty()).then_some(yaml);
            let errors: Vec<String> = yaml.into_iter().chain(findings).collect();
            return Err(StrictError(errors));
        }
    }
    Ok(())
}

/// Applies the defaults of the schema and the kind to an object that has changed since it was decoded.
pub(crate) fn defaults(
    served: &ServedVersion,
    definition: &Definition,
    tree: &mut Value,
) -> Result<(), Box<Status>> {
    let filled = api_schema::apply_defaults(&served.schema, served.node, tree);
    filled.map_err(|error| Box::new(Status::request_too_large(error)))?;
    own_defaults(served, definition, tree);
    Ok(())
}

/// Applies the schema's defaults of missing members, but not those within the members that are present.
pub(crate) fn member_defaults(served: &ServedVersion, tree: &mut Value) -> Result<(), Box<Status>> {
    let filled = api_schema::apply_member_defaults(&served.schema, served.node, tree);
    filled.map_err(|error| Box::new(Status::request_too_large(error)))
}

/// Applies the kind's own defaults, which are defined for the storage version.
pub(crate) fn own_defaults(served: &ServedVersion, definition: &Definition, tree: &mut Value) {
    if served.conversion.is_none() {
        definition.strategy.defaults(tree);
    }
}

/// Validates custom objects against their schema, and definitions of custom kinds against the rules for schemas.
pub(crate) fn validate(
    cel: &CelMetrics,
    definition: &Definition,
    served: &ServedVersion,
    tree: &Value,
    old: Option<&Value>,
    errors: &mut ErrorList,
) {
    if definition.custom.is_some() {
        let mut found = api_schema::validate(&served.schema, served.node, tree, old);
        cel.evaluate(served, tree, old, &mut found);
        errors.append(&mut found);
    }
    if definition.is("apiextensions.k8s.io", "customresourcedefinitions") {
        errors.append(&mut custom::schema_errors(tree, old, cel));
    }
}

/// Returns the fields that an endpoint cannot change, and whose writers therefore do not own them.
pub(crate) fn reset_fields(call: &Call) -> Option<FieldSet> {
    let fields = call.resource.definition.strategy.reset_fields(&call.path.subresource);
    (!fields.is_empty()).then(|| FieldSet::of(fields))
}
