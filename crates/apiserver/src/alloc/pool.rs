//! Addresses and ports as they stand in the store.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use client::Client;
use store::Revision;

use super::{
    address::{self, Known, Place},
    ports::Ports,
};
use crate::{config::Config, watch_cache::WatchCache};

pub(crate) struct Pool {
    pub(super) cache: Arc<WatchCache>,
    /// Through which IPAddresses are written.
    pub(crate) client: Client,
    pub(crate) ports: Ports,
}

impl Pool {
    pub(crate) fn new(config: &Config, cache: Arc<WatchCache>, client: Client) -> Self {
        Self { ports: Ports::new(cache.clone(), config.node_ports), cache, client }
    }

    /// The objects of a Service's addresses from before a write of it: one that was made since belongs to a Service that
    /// came later, if of the same name.
    pub(super) async fn still_there(
        &self,
        place: &Place,
        addresses: &[IpAddr],
        written: Revision,
    ) -> Vec<Known> {
        let mut known = Vec::new();
        for address in addresses {
            match address::get(&self.client, *address).await {
                Ok(Some(object)) => {
                    let version = object["metadata"]["resourceVersion"].as_str();
                    let revision: Revision = version.and_then(|v| v.parse().ok()).unwrap_or(0);
                    if revision < written && Place::parent(&object).as_ref() == Some(place) {
                        known.push(Known::of(*address, &object));
                    }
                }
                Ok(None) => {}
                Err(error) => warn(&error),
            }
        }
        known
    }

    /// Gives back addresses and ports. What cannot be given back now is found by the repair.
    pub(super) async fn release(&self, addresses: &[Known], ports: &BTreeSet<u16>) {
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
    tracing::warn!(%error, "giving back what a Service had; the repair does so later");
}
