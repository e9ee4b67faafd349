//! The parts of the Node that the kubelet leaves to a cloud controller manager (`--cloud-provider=external`).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeAddress, Taint};
use kubelet_config::{CloudSettings, Settings};
use kubelet_objects::NodeObject;

/// The taint of a Node that the cloud controller manager has not initialized yet. Pods without a toleration wait.
const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";

/// The annotation that tells the cloud controller manager which addresses `--node-ip` names.
const PROVIDED_IP: &str = "alpha.kubernetes.io/provided-node-ip";

/// Returns the taints of a Node that is registered.
pub(super) fn taints(settings: &Settings) -> Vec<Taint> {
    let mut taints = settings.taints.clone();
    let known = taints.iter().any(|taint| taint.key == UNINITIALIZED);
    if settings.cloud.external && !known {
        taints.push(Taint {
            key: UNINITIALIZED.to_owned(),
            value: Some("true".to_owned()),
            effect: "NoSchedule".to_owned(),
            time_added: None,
        });
    }
    taints
}

/// Returns the annotation for the cloud controller manager; `None` removes one of an earlier start.
pub(super) fn provided_ip(cloud: &CloudSettings) -> BTreeMap<&'static str, Option<String>> {
    let ips = Some(cloud.provided_ips.join(",")).filter(|ips| cloud.external && !ips.is_empty());
    BTreeMap::from([(PROVIDED_IP, ips)])
}

/// Returns the addresses that the kubelet reports; `None` leaves the Node's as they are.
///
/// Addresses of the cloud win. Until there are any, those of `--node-ip` let other components reach the node, which the
/// cloud controller manager itself may need.
pub(super) fn addresses(
    settings: &Settings,
    node: Option<&NodeObject>,
) -> Option<Vec<NodeAddress>> {
    let cloud = &settings.cloud;
    if cloud.external
        && (cloud.provided_ips.is_empty() || node.is_none_or(NodeObject::has_addresses))
    {
        return None;
    }
    let ips = settings.node_ips.iter().map(|ip| ("InternalIP", ip));
    let address = |(kind, address): (&str, &String)| NodeAddress {
        type_: kind.to_owned(),
        address: address.clone(),
    };
    Some(ips.chain([("Hostname", &settings.node_name)]).map(address).collect())
}
