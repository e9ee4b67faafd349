//! TokenRequest: a bound token for a service account.

use api_meta::Status;
use http::StatusCode;
use serde_json::json;

use super::Answer;
use crate::{admit::Attributes, answer, call::Call, codec, server::Server};

pub(super) async fn create(server: &Server, call: &Call) -> Answer {
    let api = "authentication.k8s.io/v1";
    let expected = codec::Expected::builtin("authentication.k8s.io", "v1", api, "TokenRequest")?;
    let mut request = codec::decode(call, &server.read_body(call).await?, expected)?;
    server.current(call, None).await?;
    // A kubelet may ask only for tokens of its own Pods: NodeRestriction sees to that.
    let attributes = Attributes::create(call);
    server.admit(&attributes, &mut request).await?;
    request["metadata"]["name"] = json!(call.path.name);
    request["metadata"]["namespace"] = json!(call.path.namespace);
    server.validate_admission(&attributes, &request).await?;
    let id = uuid::Uuid::new_v4().to_string();
    let owner = (call.path.namespace.as_str(), call.path.name.as_str());
    let objects = &server.security.objects;
    server
        .security
        .tokens
        .answer(&mut request, owner, objects, crate::now(), id)
        .map_err(|status: Status| Box::new(status))?;
    Ok(answer::value(call.accepted, StatusCode::CREATED, &request))
}
