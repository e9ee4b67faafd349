//! Checkpoints of containers: the runtime writes a container's state to an archive on the node.

use http::{Response, StatusCode};
use pod_core::KnownPod;
use serde_json::json;
use serve::Body;

use crate::{
    backend::Backend,
    query::Query,
    response::{json as json_response, text},
};

/// Has the runtime checkpoint a running container, and returns the path of the archive.
pub(crate) async fn serve(
    backend: &Backend,
    namespace: &str,
    pod: &str,
    container: &str,
    query: &Query,
) -> Response<Body> {
    let missing = |message: String| text(StatusCode::NOT_FOUND, message);
    let timeout = match query.get("timeout").map(str::parse::<u32>).transpose() {
        Ok(seconds) => i64::from(seconds.unwrap_or(0)),
        Err(_) => return text(StatusCode::BAD_REQUEST, "timeout must be a number of seconds\n"),
    };
    let Some(KnownPod { observed, .. }) = backend.pods.find(namespace, pod, None) else {
        return missing("pod does not exist\n".to_owned());
    };
    let running = observed.running().find(|running| running.name == container);
    let Some(id) = running.map(|running| running.id.clone()) else {
        return missing(format!("container {container} does not exist\n"));
    };
    let directory = backend.settings.root.join("checkpoints");
    let name = format!("checkpoint-{pod}_{namespace}-{container}-{}.tar", backend.now());
    let (location, failed) = (directory.join(name), |error: &dyn std::fmt::Display| {
        format!("checkpointing of {namespace}/{pod}/{container} failed ({error})\n")
    });
    // The archive has the memory of the container.
    if let Err(error) = sys::make_directories(&directory, 0o700) {
        return text(StatusCode::INTERNAL_SERVER_ERROR, failed(&error));
    }
    let location = location.display().to_string();
    match backend.cri.checkpoint_container(&id, &location, timeout).await {
        Ok(()) => json_response(&json!({ "items": [location] })),
        Err(error) if error.is_unimplemented() => missing(failed(&error)),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, failed(&error)),
    }
}
