//! The addresses that load balancer ranges must not contain, and the release of addresses.

use std::net::IpAddr;

use api_meta::Tree as _;
use client::{Client, ListOptions, PatchKind, PatchTarget, Resource};
use net_core::Cidr;
use netlink::Net;
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
    // An address without a network is that of a Service, which this host announces itself.
    let own = net.addresses()?.into_iter().filter(|address| address.cidr.host_bits() > 0);
    let own = own.map(|address| (address.cidr.address, "an address of this host"));
    let members = members.map(|address| (address, "the address of a node"));
    Ok(HostNetwork {
        ranges: cluster_ranges(pods, services)?,
        addresses: own.chain(gateways(&net)?).chain(members).collect(),
    })
}

/// Returns the ranges of a cluster with their owners. A list may be empty.
pub(crate) fn cluster_ranges(
    pods: &str,
    services: &str,
) -> Result<Vec<(Cidr, &'static str)>, Error> {
    let mut owned = Vec::new();
    for (list, owner) in [(pods, "Pods"), (services, "Services")] {
        if !list.is_empty() {
            owned.extend(ranges(list)?.into_iter().map(|range| (range, owner)));
        }
    }
    Ok(owned)
}

/// Returns the gateways of this host with their owner.
pub(crate) fn gateways(
    net: &dyn Net,
) -> Result<impl Iterator<Item = (IpAddr, &'static str)> + use<>, Error> {
    let gateways = net.routes()?.into_iter().filter_map(|route| route.gateway);
    Ok(gateways.map(|gateway| (gateway, "a gateway of this host")))
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
