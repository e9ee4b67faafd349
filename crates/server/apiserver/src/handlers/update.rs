//! Handles update and patch.

use std::sync::Arc;

use api_meta::{Status, Tree as _};
use http::{Response, StatusCode};
use serde_json::{Value, json};
use serve::Body;

use super::{
    body::read_body,
    call::Call,
    change::{self, Part, Update},
    create::insert,
    decode, options,
    patch::Patch,
    read::answer_object,
    state::State,
};
use crate::registry::Object;

pub(crate) async fn update(
    state: &State,
    call: &Call,
    part: Part,
) -> Result<Response<Body>, Box<Status>> {
    options::check(call, false)?;
    let body = read_body(state, call).await?;
    let mut object = decode::decode_object(call, body.clone())?;
    if decode::forgets_owners(call, &body) {
        object.put(&["metadata", "managedFields"], json!([{}]));
    }
    let name = object.name();
    if name != call.path.name {
        return Err(call.wrong_name(name));
    }
    let change = |_: Option<&Value>| Ok(object.clone());
    let strategy = call.resource.definition.strategy;
    let create_if_absent = part == Part::Main && strategy.create_on_update;
    let update = Update { part, change: &change, view: None, track: true, admission: Some(state) };
    change_or_create(state, call, &update, create_if_absent).await
}

/// Updates an object, or creates it if allowed, and returns it to the client.
async fn change_or_create(
    state: &State,
    call: &Call,
    update: &Update<'_>,
    create_if_absent: bool,
) -> Result<Response<Body>, Box<Status>> {
    let (object, code) = match change::mutate(state, call, update).await? {
        Some(object) => (object, StatusCode::OK),
        None if create_if_absent => {
            (create_absent(state, call, update).await?, StatusCode::CREATED)
        }
        None => return Err(call.not_found()),
    };
    answer_object(call, code, object).await
}

/// Creates the object of an update or apply that does not exist.
async fn create_absent(
    state: &State,
    call: &Call,
    update: &Update<'_>,
) -> Result<Arc<Object>, Box<Status>> {
    let resource = || call.resource.definition.group_resource();
    let mut object = (update.change)(None)?;
    object.put(&["metadata", "name"], json!(call.path.name));
    if let Some(meta) = object.at_mut(&["metadata"]).and_then(Value::as_object_mut) {
        meta.remove("resourceVersion");
        if let Some(uid) = meta.get("uid").and_then(Value::as_str).filter(|u| !u.is_empty()) {
            let cause = match call.info.verb {
                "patch" => format!(
                    "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
                ),
                _ => {
                    format!("Precondition failed: UID in precondition: {uid}, UID in object meta: ")
                }
            };
            return Err(Box::new(Status::conflict(&resource(), &call.path.name, cause)));
        }
    }
    insert(state, call, object, update.track).await
}

pub(crate) async fn patch(
    state: &State,
    call: &Call,
    part: Part,
) -> Result<Response<Body>, Box<Status>> {
    let body = read_body(state, call).await?;
    let expected = decode::ExpectedType::of(&call.resource.definition, call.served());
    let patch = Patch::parse(call, expected, &body)?;
    let apply = patch.is_apply();
    let change = |current: Option<&Value>| patch.apply(call, expected, current);
    let update =
        Update { part, change: &change, view: None, track: !apply, admission: Some(state) };
    change_or_create(state, call, &update, apply && part == Part::Main).await
}
