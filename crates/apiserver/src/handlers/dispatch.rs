//! From a call to its handler.

use api_meta::Status;
use http::request::Parts;

use super::{
    call::{Answer, Call},
    change::Part,
    create::create,
    delete::{delete, delete_collection},
    read::{get, list},
    state::State,
    subresource,
    update::{patch, update},
    websocket,
};

pub(crate) async fn dispatch(state: &State, call: &Call, parts: Parts) -> Answer {
    if !call.path.subresource.is_empty() {
        return subresource::dispatch(state, call, parts).await;
    }
    let served = call.served();
    let definition = &call.resource.definition;
    // A collection cannot be updated as one, and who creates does not name the object in the URL.
    let misplaced = match call.info.verb {
        "create" => !call.path.name.is_empty(),
        "update" | "patch" => call.path.name.is_empty(),
        _ => false,
    };
    if misplaced || !served.has_verb(call.info.verb) {
        return Err(Box::new(Status::method_not_allowed()));
    }
    if let Some(warning) = definition.strategy.deprecation {
        call.annotate("k8s.io/deprecated", "true");
        call.warn(warning);
    }
    if let Some(answer) = subresource::virtual_resource(state, call).await {
        return answer;
    }
    if let Some(warning) = &served.warning
        && !matches!(call.info.verb, "get" | "list" | "watch")
    {
        call.warn(warning.to_string());
    }
    match call.info.verb {
        "get" => get(state, call).await,
        "list" => list(state, call).await,
        "watch" => websocket::watch(state, call, parts).await,
        "create" => create(state, call).await,
        "update" => update(state, call, Part::Main).await,
        "patch" => patch(state, call, Part::Main).await,
        "delete" => delete(state, call).await,
        "deletecollection" => delete_collection(state, call).await,
        _ => Err(Box::new(Status::method_not_allowed())),
    }
}
