//! Dispatches calls to their handlers.
//!
//! A future is as large as the largest one that it awaits, and every request moves its own. Reads are the most frequent
//! and the smallest, so they are awaited directly. All others are boxed.

use api_meta::Status;

use super::{
    call::{Answer, Call},
    change::Part,
    create::create,
    delete::{delete, delete_collection},
    read::{get, list},
    spans::call_span,
    state::State,
    subresource,
    update::{patch, update},
    websocket,
};

/// Records the use of a deprecated kind or version that is served. No release is known that removes one.
fn count_deprecated(state: &State, call: &Call) {
    let path = &call.path;
    let of = [path.group.as_str(), &path.version, &path.resource, &path.subresource, ""];
    state.deprecated.with_label_values(&of).set(1.0);
}

/// Calls the handler of a call, as a part of the trace of the request.
pub(crate) async fn dispatch(state: &State, call: &Call) -> Answer {
    call_span(call).within(handle(state, call)).await
}

async fn handle(state: &State, call: &Call) -> Answer {
    if !call.path.subresource.is_empty() {
        return Box::pin(subresource::dispatch(state, call)).await;
    }
    let served = call.served();
    let definition = &call.resource.definition;
    // A collection cannot be updated, and the URL of a create has no name.
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
        count_deprecated(state, call);
    }
    if call.resource.cache.is_none() {
        return Box::pin(subresource::virtual_resource(state, call)).await;
    }
    if let Some(warning) = &served.warning {
        call.warn(warning.to_string());
        count_deprecated(state, call);
    }
    match call.info.verb {
        "get" => get(call).await,
        "list" => list(state, call).await,
        "watch" => Box::pin(websocket::watch(state, call)).await,
        "create" => Box::pin(create(state, call)).await,
        "update" => Box::pin(update(state, call, Part::Main)).await,
        "patch" => Box::pin(patch(state, call, Part::Main)).await,
        "delete" => Box::pin(delete(state, call)).await,
        "deletecollection" => Box::pin(delete_collection(state, call)).await,
        _ => Err(Box::new(Status::method_not_allowed())),
    }
}
