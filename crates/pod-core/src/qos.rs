use k8s_openapi::api::core::v1::Pod;

use crate::{Role, members, resources::Amounts};

/// How a Pod is treated when its node runs short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QosClass {
    Guaranteed,
    Burstable,
    BestEffort,
}

impl QosClass {
    /// The API's word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        }
    }
}

/// Guaranteed if every container limits CPU and memory and requests no less; BestEffort if none asks for either.
/// Resources set for the whole Pod decide alone.
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
