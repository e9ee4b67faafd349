//! The shared state of all handlers.

use std::sync::Arc;

use rt::ComputePool;
use telemetry::metrics::{GaugeVec, HistogramVec};

use super::{image_policy::ImagePolicy, policies::Policies, steps::Steps, webhooks::Webhooks};
use crate::{
    alloc::Allocators, config::Config, outbound::backends::Backends, outbound::kubelets::Kubelets,
    registry::cel_metrics::CelMetrics, response::gzip_list::Blocks, security::Security,
    watch_cache::WatchCache,
};

/// The state that all handlers share.
pub(crate) struct State {
    pub(crate) config: Config,
    pub(crate) cache: Arc<WatchCache>,
    pub(crate) security: Security,
    pub(crate) chain: admission::Chain,
    pub(crate) steps: Steps,
    /// The deprecated APIs that clients have requested.
    pub(crate) deprecated: GaugeVec,
    /// The durations of streaming lists.
    pub(crate) watch_lists: HistogramVec,
    /// The durations of the validation rules of custom kinds.
    pub(crate) cel: CelMetrics,
    /// ImagePolicyWebhook, if enabled.
    pub(crate) image_policy: Option<ImagePolicy>,
    pub(crate) policies: Arc<Policies>,
    pub(crate) webhooks: Arc<Webhooks>,
    pub(crate) backends: Arc<Backends>,
    /// Held by one request at a time whose charge to a quota conflicted.
    pub(crate) quota_turn: tokio::sync::Mutex<()>,
    pub(crate) allocators: Arc<Allocators>,
    pub(crate) kubelets: Kubelets,
    pub(crate) blocks: Arc<Blocks>,
    /// The threads for long computations.
    pub(crate) pool: Arc<ComputePool>,
}
