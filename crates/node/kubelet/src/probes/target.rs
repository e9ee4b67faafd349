//! The target of a probe.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod};
use kubelet_stats::ProbeLabels;
use pod_core::{Timestamp, probe::ProbeKind};

/// A probe of one running container.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) id: String,
    pub(super) kind: ProbeKind,
    pub(super) pod: Arc<Pod>,
    pub(super) container: Container,
    pub(super) pod_ip: String,
    pub(super) started: Timestamp,
}

impl Target {
    /// Returns the labels under which results are counted.
    pub(super) fn labels(&self) -> ProbeLabels {
        let of = |text: &Option<String>| text.clone().unwrap_or_default();
        let meta = &self.pod.metadata;
        ProbeLabels {
            kind: self.kind.as_str(),
            namespace: of(&meta.namespace),
            pod: of(&meta.name),
            uid: of(&meta.uid),
            container: self.container.name.clone(),
        }
    }
}
