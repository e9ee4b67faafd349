//! The context that all parts of the kubelet share.

use std::sync::Arc;

use kubelet_config::{ImageSettings, Rate, Settings};
use kubelet_objects::{Events, NodeInformer, Objects, RateLimit};
use kubelet_resources::{Claims, Devices, Placement};
use kubelet_stats::{Machine, Stats};
use kubelet_volumes::Volumes;
use pod_core::Timestamp;
use tokio::sync::{Semaphore, watch};

use crate::{
    credentials::Providers, metrics::KubeletMetrics, mirrors::Mirrors, pressures::Pressures,
    pulls::PullRecords, startups::Startups, user_namespaces::UserNamespaces,
};

/// The settings, clients and managers of one kubelet.
pub(crate) struct Context {
    pub(crate) settings: Arc<Settings>,
    pub(crate) machine: Machine,
    pub(crate) cri: cri::Client,
    /// The user and group IDs of Pods with user namespaces.
    pub(crate) user_namespaces: UserNamespaces,
    /// The runtime's name, which prefixes container IDs in statuses.
    pub(crate) runtime_name: String,
    pub(crate) client: Option<client::Client>,
    pub(crate) mirrors: Mirrors,
    pub(crate) objects: Arc<Objects>,
    /// The Node object of this node, as last seen at the API server.
    pub(crate) node: Arc<NodeInformer>,
    pub(crate) events: Events,
    pub(crate) cgroups: Arc<dyn sys::cgroup::Cgroups>,
    pub(crate) volumes: Arc<Volumes>,
    /// The devices of device plugins, and their allocation to Pods.
    pub(crate) devices: Arc<Devices>,
    /// The ResourceClaims of this node's Pods, and their drivers.
    pub(crate) claims: Arc<Claims>,
    /// The CPU, memory and topology managers.
    pub(crate) placement: Arc<Placement>,
    /// Records of the credentials with which images were pulled.
    pub(crate) pull_records: PullRecords,
    /// The image credential providers of the node.
    pub(crate) credential_providers: Providers,
    pub(crate) pulls: PullLimits,
    /// `true` while the node shuts down.
    pub(crate) shutting_down: watch::Sender<bool>,
    pub(crate) clock: Arc<dyn rt::Clock>,
    pub(crate) pressures: Pressures,
    pub(crate) stats: Arc<Stats>,
    pub(crate) metrics: KubeletMetrics,
    pub(crate) tracer: otlp::Tracer,
    pub(crate) startups: Startups,
    pub(crate) tasks: rt::Tasks,
}

/// The limits of image pulls.
pub(crate) struct PullLimits {
    /// Limits the number of concurrent pulls.
    pub(crate) slots: Semaphore,
    /// Limits the rate of pulls. A pull beyond it fails and is tried again later.
    pub(crate) rate: RateLimit,
}

impl PullLimits {
    pub(crate) fn new(settings: &ImageSettings) -> Self {
        let slots = settings.parallel_pulls.unwrap_or(Semaphore::MAX_PERMITS);
        Self { slots: Semaphore::new(slots), rate: rate_limit(settings.pull_rate) }
    }
}

/// Returns the limit for a configured rate.
pub(crate) fn rate_limit(rate: Option<Rate>) -> RateLimit {
    rate.map_or_else(RateLimit::unlimited, |rate| RateLimit::new(rate.per_second, rate.burst))
}

impl Context {
    pub(crate) fn now(&self) -> Timestamp {
        pod_core::timestamp(self.clock.now())
    }
}
