//! What the node, its Pods and their containers use, as Prometheus, metrics-server and `kubectl` ask for it.
//!
//! The control groups are read when somebody asks and at most once a second, whoever and how many ask: all endpoints
//! are written from one [`Reading`], and who comes while it is made waits for it. Nothing is read when nobody asks.

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

pub(crate) use probes::{Probed, Probes};

use crate::{context::Context, pods::Pods};
use reading::{Names, Reading};
use storage::Storage;

/// How old a reading may be that is given to one more who asks.
const FRESH: Duration = Duration::from_secs(1);

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StatsError {
    #[error("ask the container runtime what there is: {0}")]
    Runtime(#[from] cri::Error),
    #[error(
        "read the control groups: the reading ended without a result; the kubelet's log says why"
    )]
    Ended,
}

/// What was read last, and what is remembered between readings.
#[derive(Default)]
struct Shared {
    reading: Option<(Instant, Arc<Reading>)>,
    /// The images of sandboxes, by the sandboxes' ids: a runtime tells them one by one only.
    sandbox_images: HashMap<String, String>,
}

/// The node's figures.
#[derive(Default)]
pub(crate) struct Stats {
    shared: Arc<Mutex<Shared>>,
    storage: Storage,
    /// What the process tells of itself.
    metrics: Metrics,
    /// What probes came to.
    pub(crate) probes: Probes,
}

/// An answer's content type and its body.
pub(crate) type Text = (&'static str, String);

impl Stats {
    /// Where the process' parts count.
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
        // The lock goes along, so that there is one reading at a time even if those who asked for it hang up.
        let read = tokio::task::spawn_blocking(move || {
            let before = shared.reading.take();
            let reading = Arc::new(Reading::make(&ctx, &names, before.as_ref().map(|(_, r)| &**r)));
            shared.reading = Some((Instant::now(), reading.clone()));
            reading
        });
        read.await.map_err(|_| StatsError::Ended)
    }

    /// `/metrics/cadvisor`.
    pub(crate) async fn cadvisor(&self, ctx: &Arc<Context>) -> Text {
        let reading = self.reading(ctx).await;
        (metrics::CONTENT_TYPE, cadvisor::text(ctx, reading.as_deref()))
    }

    /// `/metrics/resource`.
    pub(crate) async fn resource(&self, ctx: &Arc<Context>) -> Text {
        let reading = self.reading(ctx).await;
        (metrics::CONTENT_TYPE, resource::text(reading.as_deref()))
    }

    /// `/metrics/probes`.
    pub(crate) fn probes(&self) -> Text {
        (metrics::CONTENT_TYPE, self.probes.text())
    }

    /// `/metrics`.
    pub(crate) async fn own(&self, ctx: &Arc<Context>, pods: &Pods) -> Text {
        let mut text = own::text(&ctx.settings.node_name, &pods.list());
        text.push_str(&storage::text(&*self.storage.look(ctx, pods).await));
        text.push_str(&self.metrics.text());
        (metrics::CONTENT_TYPE, text)
    }

    /// `/stats/summary`; `brief` leaves out what takes long to find out, as `only_cpu_and_memory` asks.
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
