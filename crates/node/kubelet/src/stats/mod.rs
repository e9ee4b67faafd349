//! Resource usage of the node, its Pods and their containers, for Prometheus, metrics-server and `kubectl`. Read
//! [`Stats`] first.
//!
//! Cgroups are read on request and at most once a second. All endpoints use the same [`Reading`], and concurrent
//! requests wait for one that is in progress.

mod cadvisor;
mod host;
mod own;
mod probes;
mod reading;
mod resource;
mod storage;
mod summary;

use std::{collections::HashMap, sync::Arc, time::Duration};

use telemetry::metrics::{self, Metrics};
use tokio::{sync::Mutex, time::Instant};

pub(crate) use probes::{ProbeLabels, Probes};

use crate::{context::Context, pods::Pods};
use reading::{Names, Reading};
use storage::Storage;

/// The age up to which a reading is reused.
const FRESH: Duration = Duration::from_secs(1);

/// The error of collecting statistics.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StatsError {
    #[error("list the container runtime's sandboxes and containers: {0}")]
    Runtime(#[from] cri::Error),
    #[error("read the control groups: the reading panicked; see the kubelet's log")]
    Ended,
}

/// The last reading, and data that is kept between readings.
#[derive(Default)]
struct Shared {
    reading: Option<(Instant, Arc<Reading>)>,
    /// The images of sandboxes by sandbox ID. The runtime reports each in a call of its own.
    sandbox_images: HashMap<String, String>,
}

/// The statistics of the node.
#[derive(Default)]
pub(crate) struct Stats {
    shared: Arc<Mutex<Shared>>,
    storage: Storage,
    /// The kubelet's own metrics.
    metrics: Metrics,
    /// The results of probes.
    pub(crate) probes: Probes,
}

/// An answer's content type and its body.
pub(crate) type Text = (&'static str, String);

impl Stats {
    /// Returns the registry of the kubelet's own metrics.
    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    async fn reading(&self, ctx: &Arc<Context>) -> Result<Arc<Reading>, StatsError> {
        let mut shared = self.shared.clone().lock_owned().await;
        if let Some((at, reading)) = &shared.reading
            && at.elapsed() < FRESH
        {
            return Ok(reading.clone());
        }
        let names = Names::ask(ctx, &mut shared.sandbox_images).await?;
        let ctx = ctx.clone();
        // The task holds the lock, so that only one reading runs at a time even if its clients disconnect.
        let read = tokio::task::spawn_blocking(move || {
            let before = shared.reading.take();
            let reading = Arc::new(Reading::make(&ctx, &names, before.as_ref().map(|(_, r)| &**r)));
            shared.reading = Some((Instant::now(), reading.clone()));
            reading
        });
        read.await.map_err(|_| StatsError::Ended)
    }

    /// Returns the body of `/metrics/cadvisor`.
    pub(crate) async fn cadvisor(&self, ctx: &Arc<Context>) -> Text {
        let reading = self.reading(ctx).await;
        (metrics::CONTENT_TYPE, cadvisor::text(ctx, reading.as_deref()))
    }

    /// Returns the body of `/metrics/resource`.
    pub(crate) async fn resource(&self, ctx: &Arc<Context>) -> Text {
        let reading = self.reading(ctx).await;
        (metrics::CONTENT_TYPE, resource::text(reading.as_deref()))
    }

    /// Returns the body of `/metrics/probes`.
    pub(crate) fn probes(&self) -> Text {
        (metrics::CONTENT_TYPE, self.probes.text())
    }

    /// Returns the body of `/metrics`.
    pub(crate) async fn kubelet_metrics(&self, ctx: &Arc<Context>, pods: &Pods) -> Text {
        let mut text = own::text(&ctx.settings.node_name, &pods.list());
        text.push_str(&storage::text(&*self.storage.look(ctx, pods).await));
        text.push_str(&self.metrics.text());
        (metrics::CONTENT_TYPE, text)
    }

    /// Returns the body of `/stats/summary`. `brief` omits everything but CPU and memory (`only_cpu_and_memory`).
    pub(crate) async fn summary(
        &self,
        ctx: &Arc<Context>,
        pods: &Pods,
        brief: bool,
    ) -> Result<serde_json::Value, StatsError> {
        let reading = self.reading(ctx).await?;
        if brief {
            return Ok(summary::brief(ctx, &reading));
        }
        let stored = self.storage.look(ctx, pods).await;
        let layers = ctx.cri.list_container_stats().await?;
        let images = ctx.cri.image_fs_info().await?;
        Ok(summary::whole(
            ctx,
            &reading,
            &summary::Disks { stored: &stored, layers: &layers, images: &images },
        ))
    }
}
