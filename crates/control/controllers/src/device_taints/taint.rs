//! The effect of taints on the Pods that use a device.

use std::{sync::Arc, time::Duration};

use api_meta::Timestamp;
use sched_core::{AllocatedDevice, DeviceTaintView};

use crate::{
    shared::Watched,
    views::{Consumer, Pod, ResourceClaim},
};

/// Returns the key of a driver's pool.
pub(super) fn pool(driver: &str, name: &str) -> String {
    format!("{driver}/{name}")
}

/// Returns the time at which Pods that use the device are evicted; `None` if they may stay.
pub(super) fn end(
    device: &AllocatedDevice,
    taints: &[DeviceTaintView],
    now: Timestamp,
) -> Option<Timestamp> {
    let executing = taints.iter().filter(|taint| &*taint.effect == "NoExecute");
    let ends = executing.filter_map(|taint| {
        let since = taint.time_added.as_deref().and_then(|at| at.parse().ok()).unwrap_or(now);
        let tolerating: Vec<_> =
            device.tolerations.iter().filter(|toleration| toleration.tolerates(taint)).collect();
        // A toleration without seconds has no end.
        let seconds: Option<Vec<i64>> = tolerating.iter().map(|t| t.toleration_seconds).collect();
        match seconds {
            None => None,
            Some(seconds) => {
                let seconds = seconds.into_iter().min().unwrap_or(0);
                Some(since.plus(Duration::from_secs(u64::try_from(seconds).unwrap_or(0))))
            }
        }
    });
    ends.min()
}

/// Returns the Pods that use a claim and have not ended.
pub(super) fn active_pods(claim: &ResourceClaim, pods: &Watched<Pod>) -> Vec<Arc<Pod>> {
    let users = claim.status.reserved_for.iter().filter(|user| user.is_pod());
    let pod = |user: &Consumer| {
        let pod = pods.get(&format!("{}/{}", claim.metadata.namespace, user.name));
        pod.filter(|pod| pod.metadata.uid == user.uid && pod.is_active())
    };
    users.filter_map(pod).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn evicts_when_claim_toleration_ends() {
        let now = Timestamp::from_unix(1000, 0);
        let tainted = |effect: &str| -> Vec<DeviceTaintView> {
            serde_json::from_value(json!([{"key": "sick", "value": "very", "effect": effect,
                "timeAdded": Timestamp::from_unix(900, 0)}]))
            .unwrap()
        };
        for (tolerations, effect, wanted) in [
            (json!([]), "NoExecute", Some(900)),
            (json!([]), "NoSchedule", None),
            (json!([{"operator": "Exists"}]), "NoExecute", None),
            (json!([{"operator": "Exists", "tolerationSeconds": 300}]), "NoExecute", Some(1200)),
            (json!([{"key": "other", "operator": "Exists"}]), "NoExecute", Some(900)),
            (
                json!([{"key": "sick", "value": "very", "tolerationSeconds": 50},
                {"operator": "Exists", "tolerationSeconds": 10}]),
                "NoExecute",
                Some(910),
            ),
            (
                json!([{"operator": "Exists", "tolerationSeconds": 10}, {"operator": "Exists"}]),
                "NoExecute",
                None,
            ),
        ] {
            let device: AllocatedDevice =
                serde_json::from_value(json!({"tolerations": tolerations})).unwrap();
            let end = end(&device, &tainted(effect), now).map(|at| at.unix());
            assert_eq!(end, wanted, "{tolerations} {effect}");
        }
    }
}
