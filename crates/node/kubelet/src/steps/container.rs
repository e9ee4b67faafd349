//! Starts a container.

use k8s_openapi::api::core::v1::Pod;
use pod_core::{Member, Observed};

use super::{config, hooks, image, sandbox};
use crate::{context::Context, volumes::MountedVolumes};

/// The error of a container that did not start, for its status.
#[derive(Debug)]
pub(crate) struct StartError {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    pub(crate) of_image: bool,
}

/// Pulls, creates and starts a container, and runs its postStart hook.
pub(crate) async fn start(
    ctx: &Context,
    pod: &Pod,
    member: &Member<'_>,
    (sandbox_id, attempt): (&str, u32),
    observed: &Observed,
    volumes: &MountedVolumes,
) -> Result<(), StartError> {
    let container = member.container.as_ref();
    let present = image::ensure(ctx, pod, container).await.map_err(|e| StartError {
        reason: e.reason,
        message: e.message,
        of_image: true,
    })?;
    let failed = |reason, message: String| {
        ctx.events.of_container(
            pod,
            &container.name,
            "Warning",
            "Failed",
            format!("Error: {message}"),
        );
        StartError { reason, message, of_image: false }
    };
    let mut devices = ctx
        .devices
        .for_start(pod, container)
        .await
        .map_err(|e| failed("CreateContainerConfigError", e.to_string()))?;
    let claimed = ctx.claims.for_start(pod, container);
    devices.add_cdi(claimed.map_err(|e| failed("CreateContainerConfigError", e.to_string()))?);
    if !devices.cdi.is_empty() {
        let runtime = ctx.cri.version().await;
        let runtime = runtime.map_err(|e| failed("CreateContainerConfigError", e.message()))?;
        if !knows_cdi(&runtime.runtime_name, &runtime.runtime_version) {
            let text = format!(
                "{} {} does not support CDI devices and would start the container without them; \
                 use containerd 1.7 or later",
                runtime.runtime_name, runtime.runtime_version
            );
            return Err(failed("CreateContainerConfigError", text));
        }
    }
    let request = config::Request {
        pod,
        container,
        role: member.role,
        attempt,
        image: &present.reference,
        image_user: &present.user,
        volumes,
        devices: &devices,
        observed,
    };
    let config = config::of_container(ctx, &request)
        .await
        .map_err(|e| failed("CreateContainerConfigError", e.to_string()))?;
    let sandbox = sandbox::config(ctx, pod, observed.ready_sandbox().map_or(0, |s| s.attempt))
        .map_err(|e| failed("CreateContainerConfigError", e.to_string()))?;
    let id = ctx
        .cri
        .create_container(sandbox_id, config, sandbox)
        .await
        .map_err(|e| failed("CreateContainerError", e.message()))?;
    let name = &container.name;
    ctx.events.of_container(pod, name, "Normal", "Created", "Container created".to_owned());
    ctx.cri.start_container(&id).await.map_err(|e| failed("RunContainerError", e.message()))?;
    ctx.events.of_container(pod, name, "Normal", "Started", "Container started".to_owned());
    let Some(hook) = container.lifecycle.as_ref().and_then(|l| l.post_start.as_ref()) else {
        return Ok(());
    };
    let ip = observed.ready_sandbox().and_then(|s| s.ips.first()).or(ctx.settings.node_ips.first());
    let ip = ip.cloned().unwrap_or_default();
    if let Err(message) = hooks::run(ctx, pod, &ip, container, &id, hook).await {
        let text = "PostStartHook failed".to_owned();
        ctx.events.of_container(pod, name, "Warning", "FailedPostStartHook", text);
        super::kill(
            ctx,
            pod,
            member,
            &id,
            "FailedPostStartHook",
            pod_core::grace_period(pod),
            false,
        )
        .await;
        return Err(StartError { reason: "PostStartHookError", message, of_image: false });
    }
    Ok(())
}

/// Reports whether a container runtime supports CDI devices. Other runtimes silently ignore them.
fn knows_cdi(name: &str, version: &str) -> bool {
    let digits = |part: &str| {
        let end = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        part.get(..end).and_then(|digits| digits.parse::<u32>().ok())
    };
    let mut parts = version.trim_start_matches('v').split('.').map(digits);
    match (name, parts.next().flatten(), parts.next().flatten()) {
        ("containerd", Some(major), Some(minor)) => (major, minor) >= (1, 7),
        // Assume support if the runtime or version is unknown.
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detects_containerd_without_cdi() {
        for (name, version, knows) in [
            ("containerd", "1.6.20~ds1", false),
            ("containerd", "v1.6.36", false),
            ("containerd", "1.7.0-rc.1", true),
            ("containerd", "2.3.4", true),
            ("containerd", "v10.0.0", true),
            ("containerd", "devel", true),
            ("cri-o", "1.2.3", true),
        ] {
            assert_eq!(knows_cdi(name, version), knows, "{name} {version}");
        }
    }
}
