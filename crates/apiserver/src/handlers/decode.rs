//! Bodies in: from JSON or YAML to trees that the schema vouches for.

use api_codec::protobuf::ProtobufError;
use api_meta::{ErrorList, Exceeded, FieldError, GroupKind, Path, Status, StatusReason, Tree as _};
use api_patch::FieldSet;
use api_schema::{DecodeError, Fill, NodeId, Schema};
use bytes::Bytes;
use http::header;
use serde_json::Value;

use super::{
    call::Call,
    options::{Validation, validation},
};
use crate::registry::{Definition, Served, custom};

/// The type that a body must have.
#[derive(Clone, Copy)]
pub(crate) struct Expected<'a> {
    pub(crate) schema: &'a Schema,
    pub(crate) node: NodeId,
    pub(crate) api_version: &'a str,
    pub(crate) version: &'a str,
    pub(crate) kind: &'a str,
    pub(crate) custom: bool,
    /// A former version of the same shape, which is taken too.
    pub(crate) former: &'a str,
}

impl<'a> Expected<'a> {
    pub(crate) fn of(definition: &Definition, served: &'a Served) -> Self {
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

    /// A built-in kind by its name.
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

    /// Has an object say what it is.
    fn put_type(&self, tree: &mut Value) -> Result<(), Box<Status>> {
        let Some(tree) = tree.as_object_mut() else {
            return Err(self.unrecognized("a JSON object is expected"));
        };
        tree.insert("kind".to_owned(), Value::from(self.kind));
        tree.insert("apiVersion".to_owned(), Value::from(self.api_version));
        Ok(())
    }

    /// Whether a tree that has been read says that it is of this type.
    fn is_type_of(&self, tree: &Value) -> bool {
        tree["kind"] == *self.kind && tree["apiVersion"] == *self.api_version
    }

    fn unrecognized(&self, cause: impl std::fmt::Display) -> Box<Status> {
        Box::new(Status::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): {cause}",
            self.kind
        )))
    }

    /// Refuses what could not be read: an object that takes too much is not looked at any closer.
    fn undecodable(&self, error: &DecodeError) -> Box<Status> {
        match error {
            DecodeError::Exceeded(Exceeded::Memory(_)) => {
                Box::new(Status::request_too_large(error))
            }
            error => self.unreadable(error),
        }
    }

    /// Refuses the result of an apply that a built-in type cannot hold. Upstream takes it for its own mistake.
    fn unconvertible(&self, tree: &Value, cause: &str) -> Box<Status> {
        let group = if self.api_version.contains('/') { "" } else { "/" };
        let gvk = format!("{group}{}, Kind={}", self.api_version, self.kind);
        let (namespace, name) = (tree.namespace(), tree.name());
        let decoding =
            if cause.starts_with("illegal base64") { "error decoding from json: " } else { "" };
        let message = format!(
            "failed to convert new object ({namespace}/{name}; {gvk}) to proper version: unable to convert unstructured object to {gvk}: {decoding}{cause}"
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

/// The body of a create or an update.
pub(crate) fn decode_object(call: &Call, body: Bytes) -> Result<Value, Box<Status>> {
    let expected = Expected::of(&call.resource.definition, call.served());
    let object = decode(call, &body, expected)?;
    call.requested(&object);
    Ok(object)
}

/// Whether a JSON body asks by an empty list for its object's owners to be forgotten; an object that has been read does
/// not tell that from one without a list.
pub(crate) fn forgets_owners(body: &[u8]) -> bool {
    const FIELD: &[u8] = b"\"managedFields\"";
    #[derive(serde::Deserialize)]
    struct Body {
        metadata: Metadata,
    }
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Metadata {
        managed_fields: Vec<serde::de::IgnoredAny>,
    }
    body.windows(FIELD.len()).any(|window| window == FIELD)
        && serde_json::from_slice::<Body>(body)
            .is_ok_and(|body| body.metadata.managed_fields.is_empty())
}

/// A body as the kind that its endpoint takes, defaults filled in, with kind and apiVersion.
pub(crate) fn decode(
    call: &Call,
    body: &Bytes,
    expected: Expected<'_>,
) -> Result<Value, Box<Status>> {
    let mut duplicates = Vec::new();
    let decoded = match given(call, body, expected)? {
        Given::Json { json, from_yaml } => {
            if from_yaml && validation(call) != Validation::Ignore {
                duplicates = api_codec::yaml_duplicates(body);
            }
            let decoded = api_schema::decode(expected.schema, expected.node, &json, Fill::Defaults);
            // A body of another kind is told so, whatever else is wrong with it. Most say that they are of this kind, and
            // need not be read a second time.
            if !decoded.as_ref().is_ok_and(|decoded| expected.is_type_of(&decoded.value)) {
                check_type(&json, expected)?;
            }
            decoded
        }
        Given::Tree(tree) => {
            check_named((tree.text("apiVersion"), tree.text("kind")), &[], expected)?;
            api_schema::decode_value(expected.schema, expected.node, tree, Fill::Defaults)
        }
    };
    let mut decoded = decoded.map_err(|error| expected.undecodable(&error))?;
    report(call, &decoded, &duplicates, expected)?;
    expected.put_type(&mut decoded.value)?;
    Ok(decoded.value)
}

/// An applied configuration: only what it says, no defaults.
pub(crate) fn decode_applied(call: &Call, body: &Bytes) -> Result<Value, Box<Status>> {
    let expected = Expected::of(&call.resource.definition, call.served());
    let tree = api_codec::from_yaml(body)
        .map_err(|e| Box::new(Status::bad_request(format!("error decoding YAML: {e}"))))?;
    let json = serde_json::to_vec(&tree).map_err(|e| expected.unrecognized(e))?;
    if tree["apiVersion"].as_str().is_none_or(str::is_empty)
        || tree["kind"].as_str().is_none_or(str::is_empty)
    {
        return Err(Box::new(Status::bad_request(
            "apiVersion and kind must be set in an applied configuration",
        )));
    }
    check_type(&json, expected)?;
    let mut decoded = match api_schema::decode(expected.schema, expected.node, &json, Fill::Given) {
        // Fields of no or another type cannot be owned: apply refuses them itself, whatever validation the request
        // wants.
        Ok(decoded) if decoded.unknown().next().is_some() => return Ok(tree),
        Err(DecodeError::Type(_)) => return Ok(tree),
        other => other.map_err(|error| expected.undecodable(&error))?,
    };
    keep_nulls(&mut decoded.value, &tree);
    match validation(call) {
        Validation::Ignore => {}
        Validation::Warn => {
            for duplicate in api_codec::yaml_duplicates(body) {
                call.warn(duplicate);
            }
        }
        Validation::Strict => {
            let duplicates = api_codec::yaml_duplicates(body);
            if !duplicates.is_empty() {
                return Err(Box::new(Status::bad_request(format!(
                    "error strict decoding YAML: error converting YAML to JSON: yaml: unmarshal errors:\n  {}",
                    duplicates.join("\n  ")
                ))));
            }
        }
    }
    expected.put_type(&mut decoded.value)?;
    Ok(decoded.value)
}

/// A patched tree, read again: a patch cannot bring in what a body could not. `shown` is what is quoted of a patch
/// that tries.
pub(crate) fn decode_patched(
    call: &Call,
    tree: &Value,
    shown: &Value,
) -> Result<Value, Box<Status>> {
    decode_again(call, tree, Fill::Defaults, |_, refusal| {
        let error = FieldError::invalid(&Path::new("patch"), shown.to_string(), refusal.cause());
        Box::new(Status::invalid(&GroupKind::new("", ""), "", &[error]))
    })
}

/// What came of an applied configuration, read again.
pub(crate) fn decode_merged(call: &Call, tree: &Value) -> Result<Value, Box<Status>> {
    decode_again(call, tree, Fill::Applied, |expected, refusal| match refusal {
        Refusal::Type(cause) if !expected.custom => expected.unconvertible(tree, &cause),
        refusal => expected.unreadable(refusal.cause()),
    })
}

/// The reason why a patched tree cannot be read.
enum Refusal {
    /// A value is of the wrong type.
    Type(String),
    /// Strict validation refuses an unknown or a duplicate field.
    Strict(String),
}

impl Refusal {
    fn cause(&self) -> &str {
        let (Self::Type(cause) | Self::Strict(cause)) = self;
        cause
    }
}

fn decode_again(
    call: &Call,
    tree: &Value,
    fill: Fill,
    refuse: impl Fn(&Expected<'_>, Refusal) -> Box<Status>,
) -> Result<Value, Box<Status>> {
    let expected = Expected::of(&call.resource.definition, call.served());
    let (schema, node) = (expected.schema, expected.node);
    let decoded = api_schema::decode_value(schema, node, tree.clone(), fill);
    let mut decoded = decoded.map_err(|error| match error {
        DecodeError::Exceeded(_) => Box::new(Status::request_too_large(&error)),
        error => refuse(&expected, Refusal::Type(error.to_string())),
    })?;
    unless_strict(call, &decoded, &[])
        .map_err(|cause| refuse(&expected, Refusal::Strict(cause)))?;
    expected.put_type(&mut decoded.value)?;
    Ok(decoded.value)
}

/// Puts back the members that a configuration has as null: it owns those all the same.
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

/// `DeleteOptions`, which every group takes as its own.
pub(crate) fn decode_options(call: &Call, body: &[u8]) -> Result<Value, Box<Status>> {
    let body = Bytes::copy_from_slice(body);
    let expected = Expected::builtin("", "v1", "v1", "DeleteOptions")?;
    let decoded = match given(call, &body, expected)? {
        Given::Json { json, .. } => {
            api_schema::decode(expected.schema, expected.node, &json, Fill::Given)
        }
        Given::Tree(tree) => {
            api_schema::decode_value(expected.schema, expected.node, tree, Fill::Given)
        }
    };
    let decoded = decoded.map_err(|error| expected.undecodable(&error))?;
    report(call, &decoded, &[], expected)?;
    call.requested(&decoded.value);
    Ok(decoded.value)
}

/// What a body is before the schema has vouched for it.
enum Given {
    Json {
        json: Bytes,
        from_yaml: bool,
    },
    /// Protobuf has no duplicate fields and no syntax to tell of, and needs not become JSON first.
    Tree(Value),
}

fn given(call: &Call, body: &Bytes, expected: Expected<'_>) -> Result<Given, Box<Status>> {
    let content_type = call
        .headers
        .get(header::CONTENT_TYPE)
        .and_then(|v| v.to_str().ok())
        .unwrap_or("application/json");
    match content_type.split(';').next().unwrap_or_default().trim() {
        "application/json" | "" | "*/*" | "application/x-www-form-urlencoded" => {
            Ok(Given::Json { json: body.clone(), from_yaml: false })
        }
        "application/yaml" | "application/x-yaml" | "text/yaml" => {
            let tree = api_codec::from_yaml(body).map_err(|error| {
                expected.unrecognized(format_args!("{} ({})", error.cause(), summary(body)))
            })?;
            let json = serde_json::to_vec(&tree).map_err(|e| expected.unrecognized(e))?;
            Ok(Given::Json { json: json.into(), from_yaml: true })
        }
        "application/vnd.kubernetes.protobuf" if !expected.custom => {
            let tree = api_codec::protobuf::from_protobuf(Schema::builtin(), body);
            tree.map(Given::Tree).map_err(|error| match error {
                ProtobufError::Exceeded(Exceeded::Memory(_)) => {
                    Box::new(Status::request_too_large(error))
                }
                error => expected.unrecognized(error),
            })
        }
        _ => Err(Box::new(Status::unsupported_media_type(&[
            "application/json",
            "application/yaml",
            "application/vnd.kubernetes.protobuf",
        ]))),
    }
}

fn check_type(json: &[u8], expected: Expected<'_>) -> Result<(), Box<Status>> {
    let given = api_codec::type_meta(json).map_err(|e| {
        expected.unrecognized(format!("couldn't get version/kind; json parse error: {e}"))
    })?;
    // Go's types stand for their kind themselves, and what is left out is filled in; nothing stands for a custom one.
    if expected.custom && given.kind.is_empty() {
        let body = String::from_utf8_lossy(json);
        let start: String = body.chars().take(40).collect();
        let more = if start.len() < body.len() { " ..." } else { "" };
        let cause = format!("Object 'Kind' is missing in '{body}' ({start}{more})");
        return Err(expected.unrecognized(cause));
    }
    check_named((&given.api_version, &given.kind), json, expected)
}

/// `json` is where an object that is refused has its name.
fn check_named(
    (api_version, kind): (&str, &str),
    json: &[u8],
    expected: Expected<'_>,
) -> Result<(), Box<Status>> {
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

/// The name of an object that is not read any further.
fn name_in(json: &[u8]) -> String {
    let tree: Value = serde_json::from_slice(json).unwrap_or_default();
    tree.name().to_owned()
}

/// The beginning of a body, as messages show it: text if it looks like JSON, and hexadecimal digits otherwise.
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

/// Refuses, warns of or ignores unknown and duplicate fields, as the request wants it. `duplicates`: those that only
/// the YAML of the body had.
fn report(
    call: &Call,
    decoded: &api_schema::Decoded,
    duplicates: &[String],
    expected: Expected<'_>,
) -> Result<(), Box<Status>> {
    unless_strict(call, decoded, duplicates).map_err(|error| expected.unreadable(error))
}

/// The same, with the bare cause.
fn unless_strict(
    call: &Call,
    decoded: &api_schema::Decoded,
    duplicates: &[String],
) -> Result<(), String> {
    let findings = decoded.findings();
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
            return Err(format!("strict decoding error: {}", errors.join(", ")));
        }
    }
    Ok(())
}

/// Fills in what the schema and the kind's own rules leave out, again after admission has changed the object.
pub(crate) fn defaults(
    served: &Served,
    definition: &Definition,
    tree: &mut Value,
) -> Result<(), Box<Status>> {
    api_schema::apply_defaults(&served.schema, served.node, tree)
        .map_err(|error| Box::new(Status::request_too_large(error)))?;
    own_defaults(served, definition, tree);
    Ok(())
}

/// Fills in what the kind's own rules leave out; they speak of the stored version.
pub(crate) fn own_defaults(served: &Served, definition: &Definition, tree: &mut Value) {
    if served.conversion.is_none() {
        definition.strategy.defaults(tree);
    }
}

/// What the schema itself demands of custom objects, and what their definitions' schemas must be.
pub(crate) fn validate(
    definition: &Definition,
    served: &Served,
    tree: &Value,
    old: Option<&Value>,
    errors: &mut ErrorList,
) {
    if definition.custom.is_some() {
        errors.append(&mut match old {
            None => api_schema::validate(&served.schema, served.node, tree),
            Some(old) => api_schema::validate_update(&served.schema, served.node, tree, old),
        });
    }
    if definition.is("apiextensions.k8s.io", "customresourcedefinitions") {
        errors.append(&mut custom::schema_errors(tree, old));
    }
}

/// Fields that a write to an endpoint cannot change, and so cannot own.
pub(crate) fn reset_fields(call: &Call) -> Option<FieldSet> {
    let fields = call.resource.definition.strategy.reset_fields(&call.path.subresource);
    (!fields.is_empty()).then(|| FieldSet::of(fields))
}
