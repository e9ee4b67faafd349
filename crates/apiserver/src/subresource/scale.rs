//! Scale: the number of replicas of a workload, whatever its kind.

use api_meta::{FieldError, GroupKind, LabelSelector, Path, Status};
use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};

use super::Answer;
use crate::{
    answer,
    call::Call,
    codec,
    patch::Patch,
    server::Server,
    write::{Part, Update, View},
};

/// Where a kind keeps what Scale shows, as JSON pointers.
struct Paths {
    spec: String,
    status: String,
    selector: Option<String>,
}

pub(super) async fn answer(server: &Server, call: &Call) -> Answer {
    let paths = paths(call)?;
    let shown = async |object| {
        let object = call.resource.definition.shown_one(call.version, object).await?;
        let scale = scale(&answer::tree(call.served(), &object), &paths);
        Ok(answer::value(call.accepted, StatusCode::OK, &scale))
    };
    if call.info.verb == "get" {
        return shown(server.current(call, call.info.query.get("resourceVersion")).await?).await;
    }
    let body = server.read_body(call).await?;
    let wanted = if call.info.verb == "update" { Some(decode(call, &body)?) } else { None };
    let change = |shown: Option<&Value>| match (&wanted, shown) {
        (Some(scale), _) => Ok(scale.clone()),
        (None, Some(shown)) => Patch::parse(call, &body)?.apply_untyped(call, shown),
        (None, None) => {
            let resource = call.resource.definition.group_resource();
            Err(Box::new(Status::not_found(&resource, &call.path.name)))
        }
    };
    let update = Update {
        part: Part::Main,
        change: &change,
        view: Some(&paths),
        create_if_absent: false,
        track: true,
    };
    let (object, _) = server.mutate(call, update).await?;
    shown(object).await
}

impl View for Paths {
    fn show(&self, object: &Value) -> Value {
        scale(object, self)
    }

    fn take(&self, object: &Value, shown: &Value) -> Result<Value, Box<Status>> {
        scaled(object, shown, self)
    }
}

fn decode(call: &Call, body: &Bytes) -> Result<Value, Box<Status>> {
    let expected = codec::Expected::builtin("autoscaling", "v1", "autoscaling/v1", "Scale")?;
    let scale = codec::decode(call, body, expected)?;
    let name = scale["metadata"]["name"].as_str().unwrap_or_default();
    if name != call.path.name {
        return Err(Box::new(Status::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            call.path.name
        ))));
    }
    Ok(scale)
}

fn paths(call: &Call) -> Result<Paths, Box<Status>> {
    let Some(custom) = &call.resource.definition.custom else {
        let (spec, status) = ("/spec/replicas".into(), "/status/replicas".into());
        return Ok(Paths { spec, status, selector: None });
    };
    let versions = custom["spec"]["versions"].as_array();
    let version = versions.into_iter().flatten().find(|v| v["name"] == *call.served().version);
    let scale = version.map(|v| &v["subresources"]["scale"]);
    let scale = scale.ok_or_else(|| Box::new(Status::no_such_resource()))?;
    let pointer = |field: &str| scale[field].as_str().map(|path| path.replace('.', "/"));
    Ok(Paths {
        spec: pointer("specReplicasPath").unwrap_or_default(),
        status: pointer("statusReplicasPath").unwrap_or_default(),
        selector: pointer("labelSelectorPath"),
    })
}

fn scale(object: &Value, paths: &Paths) -> Value {
    let mut metadata = json!({});
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(value) = object["metadata"].get(field) {
            metadata[field] = value.clone();
        }
    }
    let number = |pointer: &str| object.pointer(pointer).and_then(Value::as_i64).unwrap_or(0);
    let mut status = json!({"replicas": number(&paths.status)});
    let selector = match &paths.selector {
        Some(pointer) => object.pointer(pointer).and_then(Value::as_str).map(str::to_owned),
        None => selector_text(&object["spec"]["selector"]),
    };
    if let Some(selector) = selector {
        status["selector"] = json!(selector);
    }
    let spec = match number(&paths.spec) {
        0 => json!({}),
        replicas => json!({"replicas": replicas}),
    };
    json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata, "spec": spec, "status": status})
}

/// A label selector, or a ReplicationController's plain map of labels, as text.
fn selector_text(selector: &Value) -> Option<String> {
    let structured =
        selector.get("matchLabels").is_some() || selector.get("matchExpressions").is_some();
    let selector = if structured { selector.clone() } else { json!({"matchLabels": selector}) };
    let selector: LabelSelector = serde_json::from_value(selector).ok()?;
    selector.to_selector().ok().map(|s| s.to_string())
}

fn scaled(object: &Value, wanted: &Value, paths: &Paths) -> Result<Value, Box<Status>> {
    let replicas = wanted["spec"]["replicas"].as_i64().unwrap_or(0);
    if replicas < 0 {
        let path = Path::new("spec").child("replicas");
        let error = FieldError::invalid(&path, replicas, "must be greater than or equal to 0");
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        return Err(Box::new(Status::invalid(
            &GroupKind::new("autoscaling", "Scale"),
            name,
            &[error],
        )));
    }
    let mut object = object.clone();
    // A Scale without a resource version changes whatever is there.
    let version = wanted["metadata"]["resourceVersion"].as_str().filter(|v| !v.is_empty());
    match (version, object["metadata"].as_object_mut()) {
        (Some(version), Some(meta)) => {
            drop(meta.insert("resourceVersion".to_owned(), json!(version)))
        }
        (None, Some(meta)) => drop(meta.remove("resourceVersion")),
        (_, None) => {}
    }
    let mut at = &mut object;
    for part in paths.spec.split('/').skip(1) {
        at = &mut at[part];
    }
    *at = json!(replicas);
    Ok(object)
}
