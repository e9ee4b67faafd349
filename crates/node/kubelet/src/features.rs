//! Reads the optional features of the container runtime, and refuses Pods that require more.

use std::time::Duration;

use api_meta::Tree as _;
use cri::v1;
use k8s_openapi::api::core::v1::{Container, NodeFeatures, Pod};
use pod_core::{
    admit::Refusal,
    features::{self, Features},
    user_namespaces::has_user_namespace,
};

use crate::{context::Context, runtime_version::RuntimeVersion};

/// The delay before a runtime that did not answer is queried again.
const PAUSE: Duration = Duration::from_secs(1);

/// The reason why the features of a Pod's runtime are not known.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FeaturesError {
    #[error("read the features of the container runtime: {0}")]
    Runtime(#[from] cri::Error),
    #[error("read the Pod's RuntimeClass: {0}")]
    RuntimeClass(#[from] client::Error),
}

/// Returns the runtime's name for the Pod's RuntimeClass; empty is its default.
pub(crate) async fn handler(ctx: &Context, pod: &Pod) -> Result<String, client::Error> {
    let name = pod.spec.as_ref().and_then(|s| s.runtime_class_name.as_deref()).unwrap_or_default();
    let Some(client) = ctx.client.as_ref().filter(|_| !name.is_empty()) else {
        return Ok(String::new());
    };
    let class: serde_json::Value = client.get(&client::Resource::RUNTIME_CLASSES, "", name).await?;
    Ok(class.text("handler").to_owned())
}

/// Returns the features that a runtime reports for one of its handlers. A runtime that reports nothing has none.
fn of_handler(status: &v1::StatusResponse, handler: &str) -> Features {
    let runtime_handler = status.runtime_handlers.iter().find(|h| h.name == handler);
    let handler = runtime_handler.and_then(|h| h.features.as_ref());
    Features {
        supplemental_groups_policy: status
            .features
            .as_ref()
            .is_some_and(|features| features.supplemental_groups_policy),
        recursive_read_only_mounts: handler.is_some_and(|f| f.recursive_read_only_mounts),
        user_namespaces: handler.is_some_and(|f| f.user_namespaces),
    }
}

/// Returns the features as the Node shows them; `None` if the runtime reports none.
pub(crate) fn of_node(status: &v1::StatusResponse) -> Option<NodeFeatures> {
    let features = status.features.as_ref()?;
    Some(NodeFeatures { supplemental_groups_policy: Some(features.supplemental_groups_policy) })
}

/// Returns the features that a container is started with. The runtime is only asked if the container needs to know.
pub(crate) async fn of_container(
    ctx: &Context,
    pod: &Pod,
    container: &Container,
) -> Result<Features, FeaturesError> {
    if !features::needs_features(pod, container) {
        return Ok(Features::default());
    }
    let handler = handler(ctx, pod).await?;
    Ok(of_handler(&ctx.cri.status(false).await?, &handler))
}

/// The error of a Pod that requests a user namespace which its runtime cannot make.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UserNamespaceSupportError {
    #[error(
        "can't set `spec.hostUsers: false`, {} not support user namespaces ({runtime})",
        doer(handler)
    )]
    Lacking { handler: String, runtime: RuntimeVersion },
    #[error(transparent)]
    Runtime(#[from] cri::Error),
}

/// Returns the subject of upstream's message: the runtime, or the handler of the Pod's RuntimeClass.
fn doer(handler: &str) -> String {
    if handler.is_empty() {
        return "runtime does".to_owned();
    }
    format!("RuntimeClass handler {} does", api_meta::go_quote(handler))
}

/// Returns an error if the Pod requests a user namespace and its runtime handler has none.
pub(crate) async fn check_user_namespace(
    ctx: &Context,
    pod: &Pod,
    handler: &str,
) -> Result<(), UserNamespaceSupportError> {
    if !has_user_namespace(pod)
        || of_handler(&ctx.cri.status(false).await?, handler).user_namespaces
    {
        return Ok(());
    }
    let (handler, runtime) = (handler.to_owned(), ctx.cri.version().await?.into());
    Err(UserNamespaceSupportError::Lacking { handler, runtime })
}

/// Admits a Pod if the runtime has the features that it requires. Waits for a runtime that is away.
pub(crate) async fn admit(ctx: &Context, pod: &Pod) -> Result<(), Refusal> {
    if !features::has_strict_groups(pod) {
        return Ok(());
    }
    let status = rt::retry(rt::FAR, PAUSE, |_| true, || ctx.cri.status(false)).await;
    match status {
        Ok(status) => features::check_groups(pod, of_handler(&status, "")),
        Err(error) => Err(Refusal {
            reason: "UnexpectedAdmissionError".to_owned(),
            message: format!("read the features of the container runtime: {error}"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_features_of_runtime_and_handler() {
        let old = v1::StatusResponse::default();
        assert_eq!(of_handler(&old, ""), Features::default());
        assert_eq!(of_node(&old), None);
        let handler = |name: &str, recursive_read_only_mounts| v1::RuntimeHandler {
            name: name.to_owned(),
            features: Some(v1::RuntimeHandlerFeatures {
                recursive_read_only_mounts,
                user_namespaces: recursive_read_only_mounts,
            }),
        };
        let new = v1::StatusResponse {
            runtime_handlers: vec![handler("", true), handler("gvisor", false)],
            features: Some(v1::RuntimeFeatures { supplemental_groups_policy: true }),
            ..Default::default()
        };
        let features = |recursive_read_only_mounts| Features {
            supplemental_groups_policy: true,
            recursive_read_only_mounts,
            user_namespaces: recursive_read_only_mounts,
        };
        assert_eq!(of_handler(&new, ""), features(true));
        assert_eq!(of_handler(&new, "gvisor"), features(false));
        assert_eq!(of_handler(&new, "unknown"), features(false));
        assert_eq!(of_node(&new), Some(NodeFeatures { supplemental_groups_policy: Some(true) }));
    }
}
