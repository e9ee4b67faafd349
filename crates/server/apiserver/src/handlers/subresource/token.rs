//! TokenRequest: issues bound tokens for service accounts.

use api_meta::{FieldError, GroupKind, GroupResource, Objects as _, Path, Status, Tree as _};
use http::StatusCode;
use serde_json::{Value, json};

use crate::{
    clock,
    handlers::{
        admission,
        attributes::Attributes,
        body::read_body,
        call::{Answer, Call},
        decode,
        read::current,
        state::State,
    },
    response,
    watch_cache::store_status,
};

pub(super) async fn create(state: &State, call: &Call) -> Answer {
    let api = "authentication.k8s.io/v1";
    let expected =
        decode::ExpectedType::builtin("authentication.k8s.io", "v1", api, "TokenRequest")?;
    let mut request = decode::decode(call, &read_body(state, call).await?, expected)?;
    check_names(call, &request)?;
    // The object that the token is bound to may have been written just before.
    let bound = match request.text("spec.boundObjectRef.kind") {
        "Pod" => GroupResource::PODS,
        "Secret" => GroupResource::SECRETS,
        "Node" => GroupResource::NODES,
        _ => GroupResource::SERVICE_ACCOUNTS,
    };
    let read = [GroupResource::SERVICE_ACCOUNTS, bound];
    state.cache.consistent(&read).await.map_err(store_status)?;
    current(call, Some("0")).await?;
    check_uid(state, call, &request)?;
    // NodeRestriction allows a kubelet to request only tokens of its own Pods.
    let attributes = Attributes::create(call);
    admission::admit(state, &attributes, &mut request).await?;
    request.put(&["metadata", "name"], json!(call.path.name));
    request.put(&["metadata", "namespace"], json!(call.path.namespace));
    admission::validate(state, &attributes, &request).await?;
    let id = rt::id();
    let owner = (call.path.namespace.as_str(), call.path.name.as_str());
    let objects = &*state.security.objects;
    let requested = request["spec"]["expirationSeconds"].as_i64().unwrap_or_default();
    let tokens = &state.security.tokens;
    let issue = tokens
        .issue(&request, owner, objects, clock::now(), id)
        .map_err(|status: Status| Box::new(status))?;
    let token = state.security.sign(&issue).await?;
    issue.answer(&mut request, &token);
    let allowed = request["spec"]["expirationSeconds"].as_i64().unwrap_or_default();
    if allowed < requested {
        call.warn(format!(
            "requested expiration of {requested} seconds shortened to {allowed} seconds"
        ));
    }
    Ok(response::value(call.accepted, StatusCode::CREATED, &request))
}

/// Rejects a name or namespace in the body that differs from the URL.
fn check_names(call: &Call, request: &Value) -> Result<(), Box<Status>> {
    let (name, namespace) = (&call.path.name, &call.path.namespace);
    for (field, actual) in [("name", name), ("namespace", namespace)] {
        let requested = request["metadata"][field].as_str().unwrap_or_default();
        if !requested.is_empty() && requested != actual {
            let detail = format!("must match the service account {field} if specified");
            let error = FieldError::invalid(&Path::new("metadata").child(field), requested, detail);
            let kind = GroupKind::new("authentication.k8s.io", "TokenRequest");
            return Err(Box::new(Status::invalid(&kind, name, &[error])));
        }
    }
    Ok(())
}

/// Rejects a request with the UID of a former service account of the same name.
fn check_uid(state: &State, call: &Call, request: &Value) -> Result<(), Box<Status>> {
    let path = &call.path;
    let objects = &*state.security.objects;
    let account = objects.get(&GroupResource::SERVICE_ACCOUNTS, &path.namespace, &path.name);
    let actual = account.as_ref().and_then(|a| a["metadata"]["uid"].as_str()).unwrap_or_default();
    match request["metadata"]["uid"]
        .as_str()
        .filter(|requested| !requested.is_empty() && *requested != actual)
    {
        None => Ok(()),
        Some(requested) => {
            let kind = GroupResource::new("authentication.k8s.io", "TokenRequest");
            let cause = format!(
                "the UID in the token request ({requested}) does not match the UID of the service account ({actual})"
            );
            Err(Box::new(Status::conflict(&kind, &path.name, cause)))
        }
    }
}
