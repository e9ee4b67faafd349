//! The allocated addresses and ports in the store.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use api_meta::Tree as _;
use client::Client;
use store::Revision;

use super::{
    address::{self, AddressRevision, ServiceName},
    ports::Ports,
};
use crate::{config::Config, watch_cache::WatchCache};

/// The addresses and node ports that Services allocate from.
pub(crate) struct Pool {
    pub(super) cache: Arc<WatchCache>,
    /// The client that writes IPAddresses.
    pub(crate) client: Client,
    pub(crate) ports: Ports,
}

impl Pool {
    pub(crate) fn new(config: &Config, cache: Arc<WatchCache>, client: Client) -> Self {
        Self { ports: Ports::new(cache.clone(), config.node_ports), cache, client }
    }

    /// Returns the IPAddresses of a Service that are older than the write at `written`. A newer one belongs to a later
    /// Service of the same name.
    pub(super) async fn unchanged_addresses(
        &self,
        place: &ServiceName,
        addresses: &[IpAddr],
        written: Revision,
    ) -> Vec<AddressRevision> {
        let mut known = Vec::new();
        for address in addresses {
            match address::get(&self.client, *address).await {
                Ok(Some(object)) => {
                    let version = object.at("metadata.resourceVersion").as_str();
                    let revision: Revision = version.and_then(|v| v.parse().ok()).unwrap_or(0);
                    if revision < written && ServiceName::parent(&object).as_ref() == Some(place) {
                        known.push(AddressRevision::of(*address, &object));
                    }
                }
                Ok(None) => {}
                Err(error) => warn(&error),
            }
        }
        known
    }

    /// Releases addresses and ports. If this fails, the repair releases them later.
    pub(super) async fn release(&self, addresses: &[AddressRevision], ports: &BTreeSet<u16>) {
        for known in addresses {
            if let Err(error) = address::delete(&self.client, known).await {
                warn(&error);
            }
        }
        if ports.is_empty() {
            return;
        }
        let released = self.ports.change(|map| {
            ports.iter().for_each(|port| map.release(*port));
            Ok::<(), std::convert::Infallible>(())
        });
        if let Err(error) = released.await {
            warn(&error);
        }
    }
}

fn warn(error: &dyn std::error::Error) {
    tracing::warn!(%error, "failed to release addresses or ports of a Service; the repair releases them later");
}
