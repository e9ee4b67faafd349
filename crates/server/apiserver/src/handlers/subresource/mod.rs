//! Subresources, and resources that are not stored (reviews). Start with [`dispatch`]. Subresources that are parts of
//! their object, such as `status`, use the handlers of updates.

mod binding;
mod body;
mod component_statuses;
mod connect;
mod eviction;
pub(crate) mod kubelet;
mod reviews;
mod rewrite;
mod scale;
mod token;

use api_meta::Status;

use super::{
    call::{Answer, Call},
    change::Part,
    read::get,
    state::State,
    update::{patch, update},
};

/// Dispatches a call of a subresource.
pub(crate) async fn dispatch(state: &State, call: &Call) -> Answer {
    let definition = &call.resource.definition;
    let (name, verb) = (call.path.subresource.as_str(), call.info.verb);
    let Some(subresource) = call.served().subresource(name) else {
        return Err(Box::new(Status::no_such_resource()));
    };
    // The backend of a proxy decides which methods it accepts, including OPTIONS, for which there is no verb.
    if name != "proxy" && !subresource.verbs.iter().any(|v| &**v == verb) {
        return Err(Box::new(Status::method_not_allowed()));
    }
    match (&*definition.plural, name) {
        ("pods", "log") => kubelet::proxy(state, call).await,
        ("pods", "exec" | "attach" | "portforward" | "proxy")
        | ("nodes", "proxy")
        | ("services", "proxy") => {
            connect::admit(state, call).await?;
            kubelet::proxy(state, call).await
        }
        ("pods", "binding") => binding::create(state, call).await,
        ("pods", "eviction") => eviction::create(state, call).await,
        ("serviceaccounts", "token") => token::create(state, call).await,
        (_, "scale") => scale::answer(state, call).await,
        (_, "status") => part(state, call, Part::Status).await,
        _ => part(state, call, Part::Sub).await,
    }
}

/// Handles a subresource that is a part of its object.
async fn part(state: &State, call: &Call, part: Part) -> Answer {
    match call.info.verb {
        "get" => get(call).await,
        "update" => update(state, call, part).await,
        _ => patch(state, call, part).await,
    }
}

/// Handles a call of a resource without storage.
pub(crate) async fn virtual_resource(state: &State, call: &Call) -> Answer {
    let definition = &call.resource.definition;
    match (&*definition.group, &*definition.plural) {
        ("authentication.k8s.io" | "authorization.k8s.io", _) => reviews::create(state, call).await,
        ("", "bindings") => binding::create(state, call).await,
        ("", "componentstatuses") => component_statuses::read(state, call).await,
        _ => Err(Box::new(Status::method_not_allowed())),
    }
}
