//! The quality of service class of a Pod.

use k8s_openapi::api::core::v1::Pod;

use crate::{
    amounts::Amounts,
    spec::{Role, members},
};

/// The quality of service class of a Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QosClass {
    /// Limits equal requests, for CPU and memory of every container.
    Guaranteed,
    /// Some requests or limits.
    Burstable,
    /// No requests or limits.
    BestEffort,
}

impl QosClass {
    /// Returns the class's name in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        }
    }
}

/// Returns a Pod's class. It is Guaranteed if every container limits CPU and memory and requests as much, and
/// BestEffort if none sets either. Resources of the whole Pod take precedence over those of its containers.
pub fn qos_class(pod: &Pod) -> QosClass {
    let whole = pod.spec.as_ref().and_then(|s| s.resources.as_ref()).map(Amounts::of);
    let all: Vec<Amounts> = match whole {
        Some(amounts) if !amounts.is_empty() => vec![amounts],
        _ => members(pod)
            .iter()
            .filter(|m| m.role != Role::Ephemeral)
            .map(|m| m.container.resources.as_ref().map(Amounts::of).unwrap_or_default())
            .collect(),
    };
    if all.iter().all(Amounts::is_empty) {
        return QosClass::BestEffort;
    }
    if all.iter().all(Amounts::is_guaranteed) { QosClass::Guaranteed } else { QosClass::Burstable }
}
