//! Scale: the number of replicas of any workload.

use api_meta::{
    FieldError, GroupKind, GroupResource, LabelSelector, Path, Status, StatusReason, Tree as _,
};
use bytes::Bytes;
use http::StatusCode;
use serde_json::{Map, Value, json};

use crate::{
    handlers::{
        body::read_body,
        call::{Answer, Call},
        change::{self, Part, Update, View},
        decode::{self, ExpectedType},
        patch::Patch,
        read::current,
        state::State,
    },
    response,
};

/// The paths of the fields that Scale shows, with a dot before each name.
struct Paths {
    spec: String,
    status: String,
    selector: Option<String>,
    /// The API version of the workload.
    api_version: String,
    /// The resource in conflicts.
    resource: GroupResource,
}

/// The value of unset replicas in a Scale that is being changed.
const UNSET: i64 = i32::MIN as i64;

pub(super) async fn answer(state: &State, call: &Call) -> Answer {
    let paths = paths(call)?;
    if call.info.verb == "get" {
        let object = current(call, call.info.query.get("resourceVersion")).await?;
        let object = call.resource.definition.shown_one(call.version, object).await?;
        let scale = scale(&call.served().tree(&object), &paths)?;
        if scale["spec"]["replicas"] == UNSET {
            let field = &paths.spec;
            let cause = format!("the spec replicas field \"{field}\" does not exist");
            return Err(Box::new(Status::internal(cause)));
        }
        return Ok(response::value(call.accepted, StatusCode::OK, &scale));
    }
    let body = read_body(state, call).await?;
    let expected = ExpectedType::builtin("autoscaling", "v1", "autoscaling/v1", "Scale")?;
    let requested = match call.info.verb {
        "update" => Requested::Scale(decode(call, expected, &body)?),
        _ => Requested::Patch(Patch::parse(call, expected, &body)?),
    };
    let change = |shown: Option<&Value>| {
        let mut scale = match &requested {
            Requested::Scale(scale) => scale.clone(),
            Requested::Patch(patch) => patch.apply(call, expected, shown)?,
        };
        if !matches!(&requested, Requested::Patch(patch) if patch.is_apply()) {
            change::track(call, expected, shown, &mut scale);
        }
        Ok(scale)
    };
    let update = Update {
        part: Part::Main,
        change: &change,
        view: Some(&paths),
        track: false,
        admission: Some(state),
    };
    let object = change::mutate(state, call, &update).await?;
    let object = object.ok_or_else(|| call.not_found())?;
    let object = call.resource.definition.shown_one(call.version, object).await?;
    let scale = scale(&call.served().tree(&object), &paths)?;
    Ok(response::value(call.accepted, StatusCode::OK, &scale))
}

/// The body of a write.
enum Requested {
    Scale(Value),
    Patch(Patch),
}

impl View for Paths {
    fn show(&self, object: &Value) -> Result<Value, Box<Status>> {
        let mut scale = scale(object, self)?;
        let owners = api_patch::owners_in_scale(&object["metadata"]["managedFields"], &self.spec);
        scale.put(&["metadata", "managedFields"], owners);
        Ok(scale)
    }

    fn take(&self, object: &Value, shown: &Value) -> Result<Value, Box<Status>> {
        scaled(object, shown, self)
    }
}

fn decode(call: &Call, expected: ExpectedType<'_>, body: &Bytes) -> Result<Value, Box<Status>> {
    let scale = decode::decode(call, body, expected)?;
    let name = scale.name();
    if name != call.path.name {
        return Err(call.wrong_name(name));
    }
    let namespace = scale.namespace();
    if !namespace.is_empty() && namespace != call.path.namespace {
        return Err(Box::new(Status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        )));
    }
    Ok(scale)
}

fn paths(call: &Call) -> Result<Paths, Box<Status>> {
    let api_version = call.served().api_version.to_string();
    let resource = call.resource.definition.group_resource();
    let resource =
        GroupResource::new(resource.group.to_string(), format!("{}/scale", resource.resource));
    if call.resource.definition.custom.is_none() {
        let (spec, status) = (".spec.replicas".into(), ".status.replicas".into());
        return Ok(Paths { spec, status, selector: None, api_version, resource });
    }
    let scale = call.served().scale.as_ref();
    let scale = scale.ok_or_else(|| Box::new(Status::no_such_resource()))?;
    Ok(Paths {
        spec: scale.text("specReplicasPath").to_owned(),
        status: scale.text("statusReplicasPath").to_owned(),
        selector: scale["labelSelectorPath"].as_str().map(str::to_owned),
        api_version,
        resource,
    })
}

fn scale(object: &Value, paths: &Paths) -> Result<Value, Box<Status>> {
    let mut metadata = Map::new();
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(value) = object["metadata"].get(field) {
            metadata.insert(field.to_owned(), value.clone());
        }
    }
    let number = |path: &str, unset: i64| match nested(object, path)? {
        None | Some(Value::Null) => Ok(unset),
        Some(value) => value.as_i64().ok_or_else(|| accessor(path, value, "int64")),
    };
    let spec = match number(&paths.spec, UNSET)? {
        0 => json!({}),
        replicas => json!({"replicas": replicas}),
    };
    let mut status = Map::from_iter([("replicas".to_owned(), json!(number(&paths.status, 0)?))]);
    let selector = match &paths.selector {
        None => selector_text(&object["spec"]["selector"]),
        Some(path) => match nested(object, path)? {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) => Some(text.clone()),
            Some(other) => return Err(accessor(path, other, "string")),
        },
    };
    if let Some(selector) = selector {
        status.insert("selector".to_owned(), selector.into());
    }
    Ok(json!({
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": metadata,
        "spec": spec,
        "status": status,
    }))
}

/// Returns the value at a path. As upstream, it is an error if a value on the path is not a map.
fn nested<'v>(object: &'v Value, path: &str) -> Result<Option<&'v Value>, Box<Status>> {
    let (mut at, mut way) = (object, String::new());
    for name in path.split('.').skip(1) {
        way = format!("{way}.{name}");
        at = match at {
            Value::Object(members) => match members.get(name) {
                Some(value) => value,
                None => return Ok(None),
            },
            Value::Null => return Ok(None),
            other => return Err(accessor(&way, other, "map[string]interface{}")),
        };
    }
    Ok(Some(at))
}

/// Returns the error for a value of a custom object with the wrong type for Scale.
fn accessor(path: &str, value: &Value, expected: &str) -> Box<Status> {
    let (shown, found) = match value {
        Value::String(text) => (text.clone(), "string"),
        Value::Bool(value) => (value.to_string(), "bool"),
        Value::Number(number) if number.is_f64() => (number.to_string(), "float64"),
        Value::Number(number) => (number.to_string(), "int64"),
        Value::Array(_) => (value.to_string(), "[]interface {}"),
        Value::Object(_) => (value.to_string(), "map[string]interface {}"),
        Value::Null => ("<nil>".to_owned(), "<nil>"),
    };
    let message =
        format!("{path} accessor error: {shown} is of the type {found}, expected {expected}");
    Box::new(Status::failure(500, StatusReason::Unknown, message))
}

/// Formats a label selector, or a ReplicationController's plain map of labels.
fn selector_text(selector: &Value) -> Option<String> {
    let structured =
        selector.get("matchLabels").is_some() || selector.get("matchExpressions").is_some();
    let selector = if structured { selector.clone() } else { json!({"matchLabels": selector}) };
    let selector: LabelSelector = serde_json::from_value(selector).ok()?;
    selector.to_selector().ok().map(|s| s.to_string())
}

fn scaled(object: &Value, requested: &Value, paths: &Paths) -> Result<Value, Box<Status>> {
    let replicas = requested.int("spec.replicas");
    if replicas == UNSET {
        let field = paths.spec.replace('/', ".");
        let message = format!("the spec replicas field \"{field}\" cannot be empty");
        return Err(Box::new(Status::bad_request(message)));
    }
    if replicas < 0 {
        let path = Path::new("spec").child("replicas");
        let error = FieldError::invalid(&path, replicas, "must be greater than or equal to 0");
        let name = object.name();
        return Err(Box::new(Status::invalid(
            &GroupKind::new("autoscaling", "Scale"),
            name,
            &[error],
        )));
    }
    if let (Some(wanted), Some(uid)) =
        (requested.opt_text("metadata.uid"), object.opt_text("metadata.uid"))
        && wanted != uid
    {
        return Err(Box::new(Status::conflict(
            &paths.resource,
            object.name(),
            format!(
                "Precondition failed: UID in precondition: {wanted}, UID in object meta: {uid}"
            ),
        )));
    }
    let mut object = object.clone();
    // A Scale without a resourceVersion changes the object in any version.
    let version = requested.opt_text("metadata.resourceVersion");
    match (version, object.at_mut(&["metadata"]).and_then(Value::as_object_mut)) {
        (Some(version), Some(meta)) => {
            drop(meta.insert("resourceVersion".to_owned(), json!(version)))
        }
        (None, Some(meta)) => drop(meta.remove("resourceVersion")),
        (_, None) => {}
    }
    let owners = |tree: &Value| tree["metadata"]["managedFields"].clone();
    let (parent, scale) = (owners(&object), owners(requested));
    let owners = api_patch::owners_in_parent(parent, scale, &paths.spec, &paths.api_version);
    object.put(&["metadata", "managedFields"], owners);
    put(&mut object, &paths.spec, replicas)?;
    Ok(object)
}

/// Sets the replicas at a path, and creates missing maps.
fn put(object: &mut Value, path: &str, replicas: i64) -> Result<(), Box<Status>> {
    let (way, last) = path.rsplit_once('.').unwrap_or_default();
    let mut at = object;
    let mut path = String::new();
    for name in way.split('.').skip(1) {
        path = format!("{path}.{name}");
        at = match at.as_object_mut() {
            Some(members) => members.entry(name).or_insert_with(|| json!({})),
            None => return Err(not_a_map(&path)),
        };
        if !at.is_object() {
            return Err(not_a_map(&path));
        }
    }
    match at.as_object_mut() {
        Some(members) => drop(members.insert(last.to_owned(), replicas.into())),
        None => return Err(not_a_map(&path)),
    }
    Ok(())
}

fn not_a_map(path: &str) -> Box<Status> {
    let message = format!("value cannot be set because {path} is not a map[string]interface{{}}");
    Box::new(Status::failure(500, StatusReason::Unknown, message))
}
