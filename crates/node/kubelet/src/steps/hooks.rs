//! Runs lifecycle hooks.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, LifecycleHandler, Pod};

use crate::{
    context::Context,
    requests::{HttpTarget, RequestError, http_get},
};

/// The error of a hook. The messages are upstream's, for the container's status and the log. Events have more readers
/// and must not contain a hook's output.
#[derive(Debug, thiserror::Error)]
pub(super) enum HookError {
    #[error(
        "{kind} lifecycle hook ({action}) for Container {container:?} in Pod {pod:?} failed - error: {source}"
    )]
    Failed {
        kind: &'static str,
        action: String,
        container: String,
        pod: String,
        source: Box<ActionError>,
    },
    #[error("Cannot run handler: the hook has no supported action")]
    NoAction,
}

/// The error of a hook's command or request.
#[derive(Debug, thiserror::Error)]
pub(super) enum ActionError {
    #[error("{}, message: \"\"", .0.message())]
    Exec(#[source] cri::Error),
    #[error("command '{command}' exited with {code}: {stderr}, message: {:?}", format!("{stdout}{stderr}"))]
    Exit { command: String, code: i32, stdout: String, stderr: String },
    #[error(transparent)]
    Request(#[from] RequestError),
}

/// Runs a lifecycle hook in a container. The caller sets the timeout.
pub(super) async fn run(
    ctx: &Context,
    pod: &Pod,
    pod_ip: &str,
    container: &Container,
    id: &str,
    hook: &LifecycleHandler,
) -> Result<(), HookError> {
    let failed = |kind, action: String, source| {
        let (container, pod) = (container.name.clone(), pod_core::log_name(pod));
        HookError::Failed { kind, action, container, pod, source: Box::new(source) }
    };
    if let Some(exec) = &hook.exec {
        let command = exec.command.clone().unwrap_or_default();
        let action = format!("[{}]", command.join(" "));
        return execute(ctx, id, command).await.map_err(|e| failed("Exec", action, e));
    }
    if let Some(get) = &hook.http_get {
        // Any answer of the server is a success.
        let response = async {
            let target = HttpTarget::new(get, container, pod_ip)?;
            http_get(&target, "kube-lifecycle/1.36").await
        };
        let path = get.path.clone().unwrap_or_default();
        return response.await.map(drop).map_err(|error| failed("HTTP", path, error.into()));
    }
    if let Some(sleep) = &hook.sleep {
        tokio::time::sleep(Duration::from_secs(sleep.seconds.max(0).unsigned_abs())).await;
        return Ok(());
    }
    Err(HookError::NoAction)
}

async fn execute(ctx: &Context, id: &str, command: Vec<String>) -> Result<(), ActionError> {
    let words = command.join(" ");
    // The caller's timeout ends the hook. The runtime's timeout applies only if the kubelet ends before.
    let timeout = Duration::from_secs(3600);
    let response = ctx.cri.exec_sync(id, command, timeout).await.map_err(ActionError::Exec)?;
    if response.exit_code == 0 {
        return Ok(());
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Err(ActionError::Exit {
        command: words,
        code: response.exit_code,
        stdout: text(&response.stdout),
        stderr: text(&response.stderr),
    })
}
