//! Executes the steps of a Pod's plan.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Probe};
use pod_core::{KillReason, Step, Timestamp, members, namespaced_name, resources::pod_level};

use super::{Worker, error::StepError, resized::Resized};
use crate::steps;

impl Worker {
    /// Executes a plan's steps in order. Stops at the first error.
    pub(super) async fn execute(&mut self, pod: &Pod, steps: Vec<Step>) {
        if steps.contains(&Step::ResizePod)
            && let Err(error) = steps::allow_both(&self.ctx, pod, &self.observed)
        {
            tracing::warn!(pod = %namespaced_name(pod), %error, "raise the limits of a Pod's cgroup; trying again");
            self.resize_error = Some(error.to_string());
            return;
        }
        for step in steps {
            let done = match step {
                Step::StopSandbox { id } => {
                    steps::stop_sandbox(&self.ctx, &id).await.map_err(StepError::from)
                }
                Step::CreateSandbox { attempt } => self.create_sandbox(pod, attempt).await,
                Step::Kill { id, name, why } => {
                    self.kill(pod, &id, &name, why).await;
                    Ok(())
                }
                Step::Resize { id, name } => self.resize(pod, &id, &name).await,
                Step::ResizePod => self.resize_pod(pod),
                Step::RestartAll { id, name, exited } => {
                    let removed = self.ctx.cri.remove_container(&id).await;
                    if removed.is_ok() {
                        self.memory.record_restart(&name, exited, self.ctx.now());
                    }
                    removed.map_err(StepError::from)
                }
                Step::Remove { id } => {
                    self.ctx.cri.remove_container(&id).await.map_err(StepError::from)
                }
                Step::RemoveSandbox { id } => {
                    self.ctx.cri.remove_pod_sandbox(&id).await.map_err(StepError::from)
                }
                Step::Start { name, sandbox, attempt, exited, .. } => {
                    self.start(pod, &name, &sandbox, attempt, exited).await;
                    Ok(())
                }
            };
            if let Err(error) = done {
                tracing::warn!(pod = %namespaced_name(pod), %error, "execute a step of a Pod's plan; trying again");
                return;
            }
        }
    }

    async fn create_sandbox(&mut self, pod: &Pod, attempt: u32) -> Result<(), StepError> {
        if self.mounted.is_none() {
            return Ok(());
        }
        if let Err(error) = self.prepare_claims(pod).await {
            self.memory.record_sandbox_failure(self.ctx.now());
            return Err(error);
        }
        if attempt > 0 {
            let text = "Pod sandbox changed, it will be killed and re-created.".to_owned();
            self.ctx.events.normal(pod, "SandboxChanged", text);
        }
        match Box::pin(steps::create_sandbox(&self.ctx, pod, attempt)).await {
            Ok(_) => {
                self.memory.record_sandbox();
                self.shared_resources = pod_level(pod).cloned();
                Ok(())
            }
            Err(error) => {
                self.memory.record_sandbox_failure(self.ctx.now());
                self.ctx.events.warn(pod, "FailedCreatePodSandBox", error.to_string());
                Err(error.into())
            }
        }
    }

    /// Has DRA drivers prepare the Pod's claims, before anything else of the Pod is created.
    async fn prepare_claims(&self, pod: &Pod) -> Result<(), StepError> {
        let done = self.ctx.claims.prepare(self.ctx.client.as_ref(), pod).await;
        done.map_err(|error| {
            let error = StepError::from(error);
            self.ctx.events.warn(pod, "FailedPrepareDynamicResources", error.to_string());
            error
        })
    }

    async fn start(
        &mut self,
        pod: &Pod,
        name: &str,
        sandbox: &str,
        attempt: u32,
        exited: Option<Timestamp>,
    ) {
        let Some(mounted) = self.mounted.clone() else { return };
        let members = members(pod);
        let Some(member) = members.iter().find(|m| m.container.name == name) else { return };
        if exited.is_some()
            && let Err(error) = steps::follow_resources(&self.ctx, pod, &self.observed)
        {
            tracing::warn!(pod = %namespaced_name(pod), %error, "update the limits of a Pod's cgroup");
        }
        // If the claims' checkpoint was lost, prepare them again.
        if !self.ctx.claims.has_all(pod)
            && let Err(error) = self.prepare_claims(pod).await
        {
            let (reason, message) = ("CreateContainerConfigError", error.to_string());
            return self.memory.record_start_failure(name, reason, message, self.ctx.now());
        }
        let start = steps::Start {
            ctx: &self.ctx,
            pod,
            member,
            sandbox,
            attempt,
            observed: &self.observed,
            volumes: &mounted,
            lock: &self.start_lock,
        };
        let started = Box::pin(start.run()).await;
        // A failed image pull does not count as a restart; it has a back-off of its own.
        if let Some(exited) = exited.filter(|_| !started.as_ref().is_err_and(|e| e.of_image)) {
            self.memory.record_restart(name, exited, self.ctx.now());
        }
        match started {
            Ok(()) => self.memory.record_start(name),
            Err(error) if error.of_image => {
                self.memory.record_pull_failure(name, error.reason, error.message, self.ctx.now());
            }
            Err(error) => {
                self.memory.record_start_failure(name, error.reason, error.message, self.ctx.now())
            }
        }
    }

    async fn resize(&mut self, pod: &Pod, id: &str, name: &str) -> Result<(), StepError> {
        let members = members(pod);
        let Some(member) = members.iter().find(|m| m.container.name == name) else { return Ok(()) };
        let done = steps::resize(&self.ctx, pod, member, id, &self.observed).await;
        self.resize_error = done.as_ref().err().map(ToString::to_string);
        done?;
        let (own, shared) = (member.container.resources.clone(), pod_level(pod).cloned());
        self.resized.insert(id.to_owned(), Resized { own, shared });
        let observed = self.observed.clone();
        self.take(observed);
        Ok(())
    }

    fn resize_pod(&mut self, pod: &Pod) -> Result<(), StepError> {
        let done = steps::resize_pod(&self.ctx, pod, &self.observed);
        self.resize_error = done.as_ref().err().map(ToString::to_string);
        done?;
        self.shared_resources = pod_level(pod).cloned();
        self.observed.shared.clone_from(&self.shared_resources);
        Ok(())
    }

    async fn kill(&self, pod: &Pod, id: &str, name: &str, why: KillReason) {
        let members = members(pod);
        let Some(member) = members.iter().find(|m| m.container.name == name) else { return };
        let mut grace = pod_core::grace_period(pod);
        let own = |probe: &Option<Probe>| {
            probe
                .as_ref()
                .and_then(|p| p.termination_grace_period_seconds)
                .map(|s| Duration::from_secs(s.max(0).unsigned_abs()))
        };
        let text = match why {
            KillReason::LivenessFailed => {
                grace = own(&member.container.liveness_probe).unwrap_or(grace);
                format!("Container {name} failed liveness probe, will be restarted")
            }
            KillReason::StartupFailed => {
                grace = own(&member.container.startup_probe).unwrap_or(grace);
                format!("Container {name} failed startup probe, will be restarted")
            }
            KillReason::SpecChanged => {
                format!("Container {name} definition changed, will be restarted")
            }
            KillReason::Resized => format!("Container {name} resize requires restart"),
            KillReason::RestartAll => {
                // The containers start again soon, so they get no time to end.
                grace = Duration::ZERO;
                String::new()
            }
            KillReason::NotNeeded | KillReason::SandboxLost => String::new(),
        };
        steps::kill(&self.ctx, pod, member, id, &text, grace, true).await;
    }
}
