//! The addresses that load balancer ranges must not contain, and the release of addresses.

use std::net::IpAddr;

use api_meta::Tree as _;
use client::{Client, ListOptions, PatchKind, PatchTarget, Resource};
use netlink::Net as _;
use serde_json::{Value, json};

use crate::{cluster::ranges, config::HostNetwork, error::Error};

/// The finalizer of Services that have addresses.
const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";

/// Reads the host's interfaces and routes. `members` are the addresses of further nodes.
pub(super) fn in_use(
    pods: &str,
    services: &str,
    members: impl Iterator<Item = IpAddr>,
) -> Result<HostNetwork, Error> {
    let net = netlink::Kernel::open()?;
    let owned = |list: &str, owner| -> Result<Vec<_>, Error> {
        Ok(ranges(list)?.into_iter().map(|range| (range, owner)).collect())
    };
    let (pods, services) = (owned(pods, "Pods")?, owned(services, "Services")?);
    // An address without a network is that of a Service, which this host announces itself.
    let own = net.addresses()?.into_iter().filter(|address| address.cidr.host_bits() > 0);
    let own = own.map(|address| (address.cidr.address, "an address of this host"));
    let gateways = net.routes()?.into_iter().filter_map(|route| route.gateway);
    let gateways = gateways.map(|gateway| (gateway, "a gateway of this host"));
    let members = members.map(|address| (address, "the address of a node"));
    Ok(HostNetwork {
        ranges: pods.into_iter().chain(services).collect(),
        addresses: own.chain(gateways).chain(members).collect(),
    })
}

/// Releases the addresses of all Services that the cluster's own controller served.
pub(crate) async fn clear(client: &Client) -> Result<(), Error> {
    let services = client.list::<Value>(&Resource::SERVICES, "", &ListOptions::default()).await?;
    for service in services.items {
        let finalizers = service.at("metadata").items("finalizers");
        let has_finalizer = finalizers.iter().any(|finalizer| finalizer == FINALIZER);
        if !has_finalizer || !service.text("spec.loadBalancerClass").is_empty() {
            continue;
        }
        let left: Vec<_> = finalizers.iter().filter(|other| *other != FINALIZER).collect();
        let patch = json!({"metadata": {"finalizers": left,
                "resourceVersion": service.text("metadata.resourceVersion")},
            "status": {"loadBalancer": {"ingress": null}}});
        let at = PatchTarget {
            namespace: service.namespace(),
            name: service.name(),
            subresource: "status",
        };
        client.patch::<Value>(&Resource::SERVICES, at, PatchKind::Merge, &patch).await?;
    }
    Ok(())
}
