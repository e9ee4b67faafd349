//! Starts a container.

use k8s_openapi::api::core::v1::Pod;
use kubelet_resources::DeviceSettings;
use kubelet_volumes::MountedVolumes;
use pod_core::{Member, Observed};

use super::{
    config, hooks,
    image::{self, ImageRequest, LocalImage, PullError},
    image_volumes::{self, ImageVolumeError, VolumeImages},
    sandbox, stop,
};
use crate::{context::Context, log_links, runtime_version::RuntimeVersion};

/// The error of a container that did not start, for its status.
#[derive(Debug)]
pub(crate) struct StartError {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    pub(crate) of_image: bool,
}

/// The start of a container in the Pod's sandbox.
pub(crate) struct Start<'a> {
    pub(crate) ctx: &'a Context,
    pub(crate) pod: &'a Pod,
    pub(crate) member: &'a Member<'a>,
    pub(crate) sandbox: &'a str,
    pub(crate) attempt: u32,
    pub(crate) observed: &'a Observed,
    pub(crate) volumes: &'a MountedVolumes,
    /// Locked while the start must not be cancelled.
    pub(crate) lock: &'a tokio::sync::Mutex<()>,
}

impl Start<'_> {
    /// Pulls, creates and starts the container, and runs its postStart hook.
    pub(crate) async fn run(&self) -> Result<(), StartError> {
        let request = ImageRequest::of_container(&self.member.container);
        let image = image::ensure(self.ctx, self.pod, request).await.map_err(image_failure)?;
        let volumes = image_volumes::ensure(self.ctx, self.pod, &self.member.container).await;
        let volumes = volumes.map_err(|error| match error {
            ImageVolumeError::Pull { error, .. } => image_failure(error),
            other => self.config_failure(other),
        })?;
        let lock = self.lock.lock().await;
        let id = self.create(&image, &volumes).await?;
        self.record("Normal", "Created", "Container created".to_owned());
        let started = self.ctx.cri.start_container(&id).await;
        started.map_err(|e| self.failure("RunContainerError", e.message()))?;
        self.record("Normal", "Started", "Container started".to_owned());
        self.link_log(&id);
        drop(lock);
        self.run_hook(&id).await
    }

    /// Creates the container and returns its ID.
    async fn create(
        &self,
        image: &LocalImage,
        image_volumes: &VolumeImages,
    ) -> Result<String, StartError> {
        let Self { ctx, pod, observed, .. } = *self;
        let devices = self.devices().await?;
        let request = config::Request {
            pod,
            container: &self.member.container,
            role: self.member.role,
            attempt: self.attempt,
            image: &image.reference,
            image_user: &image.user,
            volumes: self.volumes,
            image_volumes,
            devices: &devices,
            observed,
        };
        let config =
            config::of_container(ctx, &request).await.map_err(|e| self.config_failure(e))?;
        let sandbox = sandbox::config(ctx, pod, observed.ready_sandbox().map_or(0, |s| s.attempt))
            .map_err(|e| self.config_failure(e))?;
        let created = ctx.cri.create_container(self.sandbox, config, sandbox).await;
        ctx.metrics.image_volumes.mounted(image_volumes.len(), created.as_ref().err());
        created.map_err(|e| self.failure("CreateContainerError", e.message()))
    }

    /// Returns the devices of the container, including those of its claims.
    async fn devices(&self) -> Result<DeviceSettings, StartError> {
        let Self { ctx, pod, .. } = *self;
        let container = self.member.container.as_ref();
        let devices = ctx.devices.for_start(pod, container).await;
        let mut devices = devices.map_err(|e| self.config_failure(e))?;
        let claimed = ctx.claims.for_start(pod, container);
        devices.add_cdi(claimed.map_err(|e| self.config_failure(e))?);
        if !devices.cdi.is_empty() {
            let runtime = ctx.cri.version().await;
            let runtime =
                RuntimeVersion::from(runtime.map_err(|e| self.config_failure(e.message()))?);
            if !runtime.has_cdi() {
                return Err(self.config_failure(format!(
                    "{runtime} does not support CDI devices and would start the container without them; use containerd \
                     1.7 or later"
                )));
            }
        }
        Ok(devices)
    }

    /// Links the container's log for log collectors. A failure is only logged, because the container runs.
    fn link_log(&self, id: &str) {
        let logs = &self.ctx.settings.logs;
        let container = &self.member.container.name;
        if let Err(error) = log_links::link(logs, self.pod, container, self.attempt, id) {
            tracing::warn!(%error, container, "link a container's log below /var/log/containers");
        }
    }

    /// Runs the postStart hook. Stops the container if the hook fails.
    async fn run_hook(&self, id: &str) -> Result<(), StartError> {
        let Self { ctx, pod, member, .. } = *self;
        let container = member.container.as_ref();
        let Some(hook) = container.lifecycle.as_ref().and_then(|l| l.post_start.as_ref()) else {
            return Ok(());
        };
        let ip = self.observed.ready_sandbox().and_then(|s| s.ips.first());
        let ip = ip.or(ctx.settings.node_ips.first()).cloned().unwrap_or_default();
        let Err(error) = hooks::run(ctx, pod, &ip, container, id, hook).await else {
            return Ok(());
        };
        let reason = "FailedPostStartHook";
        self.record("Warning", reason, "PostStartHook failed".to_owned());
        stop::kill(ctx, pod, member, id, reason, pod_core::grace_period(pod), false).await;
        let message = error.to_string();
        Err(StartError { reason: "PostStartHookError", message, of_image: false })
    }

    fn config_failure(&self, error: impl std::fmt::Display) -> StartError {
        self.failure("CreateContainerConfigError", error.to_string())
    }

    /// Records the Event of a failed start and returns its error.
    fn failure(&self, reason: &'static str, message: String) -> StartError {
        self.record("Warning", "Failed", format!("Error: {message}"));
        StartError { reason, message, of_image: false }
    }

    fn record(&self, kind: &'static str, reason: &'static str, text: String) {
        self.ctx.events.of_container(self.pod, &self.member.container.name, kind, reason, text);
    }
}

/// Returns the error of a container whose own image, or that of a volume, is not available.
fn image_failure(error: PullError) -> StartError {
    StartError { reason: error.reason, message: error.message, of_image: true }
}
