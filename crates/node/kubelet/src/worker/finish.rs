//! The passes of a Pod that must end, or has ended: stops its containers, releases everything, and confirms the end.

use k8s_openapi::api::core::v1::Pod;
use pod_core::{namespaced_name, paths};
use tokio::time::Instant;

use super::{Next, PAUSE, Worker};
use crate::{
    pod_state::{Desired, Stop},
    report, steps,
};

impl Worker {
    /// Runs one pass of a Pod that must end, or has ended.
    pub(super) async fn finish(&mut self, desired: &Desired) -> Next {
        let pod = &desired.pod;
        let grace = desired.grace();
        if self.observed.running().next().is_some() {
            self.report_status(pod, true).await;
            let current = self.with_status(pod);
            let by = Instant::now() + grace.min(rt::FAR);
            let by = self.stop_by.map_or(by, |earlier| earlier.min(by));
            self.stop_by = Some(by);
            let left = by.saturating_duration_since(Instant::now());
            let mut change = self.desired.clone();
            tokio::select! {
                () = steps::stop_all(&self.ctx, &current, &self.observed, left, &self.hooks_run) => {}
                // The grace period was shortened: start again with the containers that are still running.
                _ = change.wait_for(|now| now.grace() < grace) => {}
            }
            return Next::Now;
        }
        let standing: Vec<String> =
            self.observed.sandboxes.iter().filter(|s| s.ready).map(|s| s.id.clone()).collect();
        for id in &standing {
            if let Err(error) = steps::stop_sandbox(&self.ctx, id).await {
                tracing::warn!(pod = %namespaced_name(pod), %error, "stop a sandbox");
                return Next::At(Some(pod_core::after(self.ctx.now(), PAUSE)));
            }
        }
        if !standing.is_empty() {
            return Next::Now;
        }
        // Devices may be allocated to other Pods as soon as the final status is reported.
        if !self.unprepare_claims(pod).await {
            return self.later();
        }
        // A Pod without a source must end even if its status cannot be reported: it may be the API server itself, whose
        // successor waits for it.
        let reported = self.report_status(pod, true).await || desired.stop == Some(Stop::Gone);
        if !self.tear_down(pod).await || !reported {
            return self.later();
        }
        match desired.stop {
            None => Next::At(None),
            Some(stop) => self.remove(pod, stop).await,
        }
    }

    /// Returns the time of the next attempt to clean up. The delay grows, because a driver may be away for long.
    fn later(&self) -> Next {
        let wait = PAUSE * (1 << self.tear_down_failures.min(5));
        Next::At(Some(pod_core::after(self.ctx.now(), wait)))
    }

    /// Removes the Pod's volumes and cgroup and releases its allocations. Keeps logs and termination messages.
    async fn tear_down(&mut self, pod: &Pod) -> bool {
        if *self.shared.torn_down.borrow() {
            return true;
        }
        self.ctx.objects.follow(&self.uid, self.shared.clone(), None);
        let volumes = self.ctx.volumes.unmount(&self.uid).await.map_err(|e| e.to_string());
        let group = steps::remove_group(&self.ctx, &self.uid).map_err(|e| e.to_string());
        match volumes.and(group) {
            Ok(()) => {
                self.ctx.placement.release(&self.uid).await;
                self.shared.torn_down.send_replace(true);
                true
            }
            Err(message) => {
                self.tear_down_failures += 1;
                tracing::warn!(pod = %namespaced_name(pod), message, "clean up after a Pod; trying again");
                self.ctx.events.warn(pod, "FailedUnMount", message);
                false
            }
        }
    }

    /// Removes containers, sandboxes and logs, then confirms the deletion at the API server.
    async fn remove(&mut self, pod: &Pod, stop: Stop) -> Next {
        let later = Next::At(Some(pod_core::after(self.ctx.now(), PAUSE)));
        for container in &self.observed.containers {
            if self.ctx.cri.remove_container(&container.id).await.is_err_and(|e| !e.is_not_found())
            {
                return later;
            }
        }
        for sandbox in &self.observed.sandboxes {
            if self.ctx.cri.remove_pod_sandbox(&sandbox.id).await.is_err_and(|e| !e.is_not_found())
            {
                return later;
            }
        }
        let logs = paths::log_dir(&self.ctx.settings.logs, pod);
        if std::fs::remove_dir_all(&logs).is_err_and(|e| e.kind() != std::io::ErrorKind::NotFound) {
            tracing::warn!(path = %logs.display(), "remove a Pod's logs");
        }
        if stop == Stop::Deleted && !report::confirm_deletion(&self.ctx, pod).await {
            return later;
        }
        Next::Done
    }

    /// Has DRA drivers unprepare the Pod's claims. Returns `true` if no claim is left.
    async fn unprepare_claims(&mut self, pod: &Pod) -> bool {
        let done = self.ctx.claims.unprepare(&self.uid).await;
        let Err(error) = &done else { return true };
        self.tear_down_failures += 1;
        let text = format!("Failed to unprepare dynamic resources: {error}");
        tracing::warn!(pod = %namespaced_name(pod), text, "unprepare a Pod's claims; trying again");
        self.ctx.events.warn(pod, "FailedUnprepareDynamicResources", text);
        false
    }
}
