//! Answers the deprecated ComponentStatus: the state of this process's stores, and that of the scheduler and the
//! controller manager on this machine.

use api_meta::{GroupResource, Status};
use serde_json::{Value, json};

use crate::{
    handlers::{
        call::{Answer, Call},
        state::State,
    },
    outbound::components::probe,
    response,
};

pub(super) async fn read(state: &State, call: &Call) -> Answer {
    let name = call.path.name.as_str();
    let is_wanted = |one: &str| name.is_empty() || one == name;
    let addresses = state.config.components;
    let healths = async |name, address| {
        if !is_wanted(name) {
            return None;
        }
        Some(status(name, probe(&state.backends, address).await))
    };
    let (manager, scheduler) = tokio::join!(
        healths("controller-manager", addresses.controller_manager),
        healths("scheduler", addresses.scheduler)
    );
    let mut found = Vec::from_iter(manager);
    for (index, feed) in state.cache.feeds().iter().enumerate() {
        let health = if feed.is_following() {
            Ok("ok".to_owned())
        } else {
            Err("the watch cache does not follow the store".to_owned())
        };
        let name = format!("etcd-{index}");
        found.extend(is_wanted(&name).then(|| status(&name, health)));
    }
    found.extend(scheduler);
    if found.is_empty() {
        let resource = GroupResource::new("", "componentstatus");
        return Err(Box::new(Status::not_found(&resource, name)));
    }
    let (definition, served) = (&call.resource.definition, call.served());
    Ok(response::computed(definition, served, call.accepted, found, name.is_empty()))
}

fn status(name: &str, health: Result<String, String>) -> Value {
    let (status, message) = match health {
        Ok(message) => ("True", message),
        Err(message) => ("False", message),
    };
    json!({
        "kind": "ComponentStatus",
        "apiVersion": "v1",
        "metadata": {"name": name},
        "conditions": [{"type": "Healthy", "status": status, "message": message}],
    })
}
