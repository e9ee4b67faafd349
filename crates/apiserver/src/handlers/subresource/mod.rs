//! What is not plain storage: subresources, and resources that are only asked (reviews).

mod binding;
mod connect;
mod eviction;
pub(crate) mod kubelet;
mod reviews;
mod rewrite;
mod scale;
mod token;

use api_meta::Status;
use http::{Response, request::Parts};
use serve::Body;

use super::{
    call::Call,
    write::{Part, Update},
};
use crate::server::Server;

type Answer = Result<Response<Body>, Box<Status>>;

/// Answers a call on a subresource.
pub(crate) async fn dispatch(server: &Server, call: &Call, parts: Parts) -> Answer {
    let definition = &call.resource.definition;
    let (name, verb) = (call.path.subresource.as_str(), call.info.verb);
    let Some(subresource) = call.served().subresource(name) else {
        return Err(Box::new(Status::no_such_resource()));
    };
    // A backend behind a proxy knows itself which methods it takes, OPTIONS too, which is no verb of ours.
    if name != "proxy" && !subresource.verbs.iter().any(|v| &**v == verb) {
        return Err(Box::new(Status::method_not_allowed()));
    }
    match (&*definition.plural, name) {
        ("pods", "log") => kubelet::proxy(server, call, parts).await,
        ("pods", "exec" | "attach" | "portforward" | "proxy")
        | ("nodes", "proxy")
        | ("services", "proxy") => {
            connect::admit(server, call).await?;
            kubelet::proxy(server, call, parts).await
        }
        ("pods", "binding") => binding::create(server, call).await,
        ("pods", "eviction") => eviction::create(server, call).await,
        ("serviceaccounts", "token") => token::create(server, call).await,
        (_, "scale") => scale::answer(server, call).await,
        (_, "status") => part(server, call, Part::Status).await,
        _ => part(server, call, Part::Sub).await,
    }
}

/// A subresource that is a part of its object.
async fn part(server: &Server, call: &Call, part: Part) -> Answer {
    match call.info.verb {
        "get" => server.get(call).await,
        "update" => server.update(call, part).await,
        _ => server.patch(call, part).await,
    }
}

/// Answers a call on a resource that has no storage; `None` if this one has.
pub(crate) async fn virtual_resource(server: &Server, call: &Call) -> Option<Answer> {
    let definition = &call.resource.definition;
    match (&*definition.group, &*definition.plural) {
        ("authentication.k8s.io" | "authorization.k8s.io", _) => {
            Some(reviews::create(server, call).await)
        }
        ("", "bindings") => Some(binding::create(server, call).await),
        ("", "componentstatuses") => Some(reviews::component_statuses(server, call)),
        _ => None,
    }
}

/// Changes one object as the effect of a request that was admitted, tracked under the caller.
async fn change(
    server: &Server,
    call: &Call,
    change: &crate::handlers::write::Change<'_>,
) -> Result<(), Box<Status>> {
    let update =
        Update { part: Part::Effect, change, view: None, create_if_absent: false, track: true };
    server.mutate(call, update).await.map(drop)
}
