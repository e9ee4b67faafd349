use api_meta::{GroupResource, Status, Tree as _};
use serde_json::Value;

use crate::{Outcome, Plugin, Request};

/// Refuses required anti-affinity over anything wider than a node, by which one Pod could close a zone to others.
pub(crate) struct LimitPodHardAntiAffinityTopology;

const HOSTNAME: &str = "kubernetes.io/hostname";
const TERMS: &str = "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution";

impl Plugin for LimitPodHardAntiAffinityTopology {
    fn validate(&self, request: &Request<'_>, pod: &Value, _: &mut Outcome) -> Result<(), Status> {
        if !request.is(&GroupResource::PODS) || !request.creates() {
            return Ok(());
        }
        let mut keys = pod.items(TERMS).iter().map(|term| term.text("topologyKey"));
        match keys.find(|key| *key != HOSTNAME) {
            None => Ok(()),
            Some(key) => Err(request.forbidden(
                pod,
                format!(
                    "affinity.PodAntiAffinity.RequiredDuringScheduling has TopologyKey {key} but only key {HOSTNAME} is allowed"
                ),
            )),
        }
    }
}
