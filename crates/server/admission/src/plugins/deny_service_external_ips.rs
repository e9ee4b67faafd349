use api_meta::{GroupResource, Tree as _};
use std::collections::HashSet;

use serde_json::Value;

use crate::request::{AdmissionResult, Outcome, Plugin, Request};

/// Rejects new external IPs of Services, with which a user could intercept the traffic of others.
pub(crate) struct DenyServiceExternalIPs;

impl Plugin for DenyServiceExternalIPs {
    fn validate(&self, request: &Request<'_>, service: &Value, _: &mut Outcome) -> AdmissionResult {
        if !request.is(&GroupResource::SERVICES) || !(request.creates() || request.updates()) {
            return Ok(());
        }
        let old = request.old.map_or(&[][..], |old| old.items("spec.externalIPs"));
        let known: HashSet<&Value> = old.iter().collect();
        if service.items("spec.externalIPs").iter().all(|address| known.contains(address)) {
            return Ok(());
        }
        Err(request.forbidden(service, "Use of external IPs is denied by admission control"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{Cluster, Try};

    #[test]
    fn keeps_existing_external_ips() {
        let cluster = Cluster::default();
        let service =
            |ips: &[&str]| json!({"metadata": {"name": "s"}, "spec": {"externalIPs": ips}});
        let create = Try::create(&cluster, &GroupResource::SERVICES);
        assert!(create.refusal(&DenyServiceExternalIPs, service(&[])).starts_with("admitted"));
        assert!(
            create
                .refusal(&DenyServiceExternalIPs, service(&["1.2.3.4"]))
                .contains("Use of external IPs is denied")
        );
        let update =
            Try::update(&cluster, &GroupResource::SERVICES, service(&["1.2.3.4", "1.2.3.5"]));
        assert!(
            update.refusal(&DenyServiceExternalIPs, service(&["1.2.3.4"])).starts_with("admitted")
        );
        assert!(update.refusal(&DenyServiceExternalIPs, service(&["1.2.3.6"])).contains("denied"));
    }
}
