//! The statistics of one node.

use std::{collections::HashMap, sync::Arc, time::Duration};

use pod_core::PodRegistry;
use telemetry::metrics::{self, Metrics};
use tokio::{sync::Mutex, time::Instant};

use crate::{
    cadvisor,
    error::StatsError,
    kubelet,
    probes::Probes,
    reading::{Names, Reading},
    resource,
    sources::StatsSources,
    storage::{self, Storage},
    summary,
};

/// The age up to which a reading is reused.
const MAX_AGE: Duration = Duration::from_secs(1);

/// The last reading, and data that is kept between readings.
#[derive(Default)]
struct Shared {
    reading: Option<(Instant, Arc<Reading>)>,
    /// The images of sandboxes by sandbox ID. The runtime reports each in a call of its own.
    sandbox_images: HashMap<String, String>,
}

/// The statistics of the node.
pub struct Stats {
    sources: Arc<StatsSources>,
    shared: Arc<Mutex<Shared>>,
    storage: Storage,
    /// The kubelet's own metrics.
    metrics: Metrics,
    /// The results of probes.
    pub probes: Probes,
}

/// The body of a response and its content type.
pub struct Page {
    /// The content type.
    pub content_type: &'static str,
    /// The body.
    pub body: String,
}

impl Page {
    fn metrics(body: String) -> Self {
        Self { content_type: metrics::CONTENT_TYPE, body }
    }
}

impl Stats {
    /// Creates the statistics. `metrics` is the registry of the kubelet's own metrics.
    pub fn new(sources: StatsSources, metrics: Metrics) -> Self {
        Self {
            sources: Arc::new(sources),
            shared: Arc::default(),
            storage: Storage::default(),
            metrics,
            probes: Probes::default(),
        }
    }

    async fn reading(&self) -> Result<Arc<Reading>, StatsError> {
        let mut shared = self.shared.clone().lock_owned().await;
        if let Some((at, reading)) = &shared.reading
            && at.elapsed() < MAX_AGE
        {
            return Ok(reading.clone());
        }
        let names = Names::list(&self.sources.cri, &mut shared.sandbox_images).await?;
        let sources = self.sources.clone();
        // The task holds the lock, so that only one reading runs at a time even if its clients disconnect.
        let read = tokio::task::spawn_blocking(move || {
            let before = shared.reading.take();
            let before = before.as_ref().map(|(_, reading)| &**reading);
            let reading = Arc::new(Reading::take(&sources, &names, before));
            shared.reading = Some((Instant::now(), reading.clone()));
            reading
        });
        read.await.map_err(|_| StatsError::Panicked)
    }

    /// Returns the body of `/metrics/cadvisor`.
    pub async fn cadvisor(&self) -> Page {
        let reading = self.reading().await;
        Page::metrics(cadvisor::text(&self.sources.machine, reading.as_deref()))
    }

    /// Returns the body of `/metrics/resource`.
    pub async fn resource(&self) -> Page {
        let reading = self.reading().await;
        Page::metrics(resource::text(reading.as_deref()))
    }

    /// Returns the body of `/metrics/probes`.
    pub fn probe_metrics(&self) -> Page {
        Page::metrics(self.probes.text())
    }

    /// Returns the body of `/metrics`.
    pub async fn kubelet_metrics(&self, pods: &dyn PodRegistry) -> Page {
        let mut text = kubelet::text(&self.sources.node_name, &pods.list());
        text.push_str(&storage::text(&*self.storage.measure(&self.sources, pods).await));
        text.push_str(&self.metrics.text());
        Page::metrics(text)
    }

    /// Returns the body of `/stats/summary`. `brief` omits everything but CPU and memory (`only_cpu_and_memory`).
    pub async fn summary(
        &self,
        pods: &dyn PodRegistry,
        brief: bool,
    ) -> Result<serde_json::Value, StatsError> {
        let reading = self.reading().await?;
        if brief {
            return Ok(summary::brief(&self.sources, &reading));
        }
        let stored = self.storage.measure(&self.sources, pods).await;
        let layers = self.sources.cri.list_container_stats().await?;
        let images = self.sources.cri.image_fs_info().await?;
        let disks = summary::Disks { stored: &stored, layers: &layers, images: &images };
        Ok(summary::whole(&self.sources, &reading, &disks))
    }
}
