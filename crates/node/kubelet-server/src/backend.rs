//! The parts of the kubelet that the server shows.

use std::{path::PathBuf, sync::Arc};

use client::Client;
use kubelet_config::Settings;
use kubelet_stats::Stats;
use pod_core::{PodRegistry, Timestamp};
use tokio::sync::watch;

/// The settings, clients and managers of the kubelet that the server uses.
pub struct Backend {
    /// The settings of the kubelet.
    pub settings: Arc<Settings>,
    /// The serving certificate that the cluster issues, if the kubelet requests one (`serverTLSBootstrap`).
    pub issued_certificate: Option<PathBuf>,
    /// The client of the API server. Without it, only certificates authenticate.
    pub client: Option<Client>,
    /// The container runtime.
    pub cri: cri::Client,
    /// The Pods of the node.
    pub pods: Arc<dyn PodRegistry>,
    /// The statistics of the node.
    pub stats: Arc<Stats>,
    /// The error of the container runtime, if it fails.
    pub health: watch::Receiver<Option<String>>,
    /// The tracer of requests.
    pub tracer: otlp::Tracer,
    /// The clock.
    pub clock: Arc<dyn rt::Clock>,
    /// The tasks of the kubelet.
    pub tasks: rt::Tasks,
}

impl Backend {
    pub(crate) fn now(&self) -> Timestamp {
        pod_core::timestamp(self.clock.now())
    }
}
