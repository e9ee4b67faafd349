use api_meta::{GroupResource, Tree as _};
use serde_json::Value;

use crate::request::{AdmissionResult, Outcome, Plugin, Request};

/// Rejects required anti-affinity over a topology wider than a node, with which one Pod could block a zone.
pub(crate) struct LimitPodHardAntiAffinityTopology;

const HOSTNAME: &str = "kubernetes.io/hostname";
const TERMS: &str = "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution";

impl Plugin for LimitPodHardAntiAffinityTopology {
    fn validate(&self, request: &Request<'_>, pod: &Value, _: &mut Outcome) -> AdmissionResult {
        if !request.is(&GroupResource::PODS) || !request.creates() {
            return Ok(());
        }
        let mut keys = pod.items(TERMS).iter().map(|term| term.text("topologyKey"));
        match keys.find(|key| *key != HOSTNAME) {
            None => Ok(()),
            Some(key) => Err(request.forbidden(
                pod,
                format!(
                    "affinity.PodAntiAffinity.RequiredDuringScheduling has TopologyKey {key} but \
                    only key {HOSTNAME} is allowed"
                ),
            )),
        }
    }
}
