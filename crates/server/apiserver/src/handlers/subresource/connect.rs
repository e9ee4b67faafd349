//! Admission of connections: exec, attach, port-forward and proxy. The admitted object is built from the query.

use api_meta::{Status, Tree as _};
use serde_json::{Value, json};

use crate::{
    handlers::{admission, attributes::Attributes, call::Call, state::State},
    watch_cache::store_status,
};

pub(super) async fn admit(state: &State, call: &Call) -> Result<(), Box<Status>> {
    if call.info.query.get("dryRun").is_some() {
        return Err(Box::new(Status::bad_request("dryRun is not supported")));
    }
    // Objects that admission reads may have been written just before.
    let fresh = state.cache.wait_for_own_writes().await;
    fresh.map_err(store_status)?;
    let mut options = options(call)?;
    let attributes = Attributes::connect(call);
    admission::admit(state, &attributes, &mut options).await?;
    admission::validate(state, &attributes, &options).await
}

/// Builds `PodExecOptions` and similar objects from the query. Fields that are not set are omitted.
fn options(call: &Call) -> Result<Value, Box<Status>> {
    let Some(subresource) = call.served().subresource(&call.path.subresource) else {
        return Err(Box::new(Status::no_such_resource()));
    };
    let mut options = json!({"kind": *subresource.kind, "apiVersion": *call.served().api_version});
    let query = &call.info.query;
    match &*subresource.kind {
        "PodExecOptions" | "PodAttachOptions" => {
            for flag in ["stdin", "stdout", "stderr", "tty"].into_iter().filter(|f| query.flag(f)) {
                options.put(&[flag], json!(true));
            }
            if let Some(container) = query.get("container").filter(|c| !c.is_empty()) {
                options.put(&["container"], json!(container));
            }
            let command: Vec<&str> = query.all("command").collect();
            if &*subresource.kind == "PodExecOptions" && !command.is_empty() {
                options.put(&["command"], json!(command));
            }
        }
        "PodPortForwardOptions" => {
            let ports = query.all("ports").flat_map(|list| list.split(','));
            let ports: Result<Vec<u16>, _> = ports.map(str::parse).collect();
            let ports = ports.map_err(|e| {
                Box::new(Status::bad_request(format!("cannot convert to []int32: {e}")))
            })?;
            if !ports.is_empty() {
                options.put(&["ports"], json!(ports));
            }
        }
        _ => {
            let path = proxied_path(call);
            if !path.is_empty() {
                options.put(&["path"], json!(path));
            }
        }
    }
    Ok(options)
}

/// Returns the path at the backend of a proxy, with a trailing slash if the request has one.
fn proxied_path(call: &Call) -> String {
    let mut path = match call.path.rest.as_str() {
        "" => String::new(),
        rest => format!("/{}", rest.trim_start_matches('/')),
    };
    if call.info.path.ends_with('/') && !path.ends_with('/') {
        path.push('/');
    }
    path
}
