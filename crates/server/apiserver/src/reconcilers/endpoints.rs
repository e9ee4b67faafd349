//! The endpoint reconciler with leases: each API server that shares the store keeps an expiring key in it, where
//! upstream's servers keep theirs. Each server writes the addresses of all as the endpoints of the Service
//! `kubernetes`. Another expiring key has the address at which the other API servers reach this one.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use api_codec::protobuf;
use api_schema::Schema;
use client::{Client, Error, NotFoundExt as _, PatchKind, PatchTarget, Resource};
use serde_json::{Value, json};
use store::{Expected, KeyRange, Op, Store, Write};

use crate::{
    config::Config,
    storage::{MASTER_LEASES, PEER_LEASES},
};

/// The seconds after which the key of a stopped server expires, as upstream.
const LIFE: u64 = 15;
const EVERY: Duration = Duration::from_secs(10);

/// The error of publishing the addresses of the API servers.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EndpointsError {
    #[error("the key in the store: {0}")]
    Store(#[from] store::Error),
    #[error("the key's value: {0}")]
    Form(#[from] protobuf::ProtobufError),
    #[error("the endpoints of the Service kubernetes: {0}")]
    Client(#[from] client::Error),
}

/// Renews this server's lease and writes the endpoints of all servers.
pub(crate) struct EndpointReconciler {
    store: Arc<dyn Store>,
    client: Client,
    shares_store: bool,
    advertise: IpAddr,
    port: u16,
    /// The key and the address for peers; `None` if the feature is off.
    for_peers: Option<(String, SocketAddr)>,
}

impl EndpointReconciler {
    pub(crate) fn new(config: &Config, store: Arc<dyn Store>, client: Client) -> Self {
        let (shares_store, advertise) = (config.shares_store, config.advertise);
        let for_peers = config.peer_address().map(|address| {
            let key = format!("{PEER_LEASES}{}", config.identity());
            (key, address)
        });
        Self { store, client, shares_store, advertise, port: config.bind.port(), for_peers }
    }

    /// Renews the lease and returns the addresses of all servers, including this one.
    pub(crate) async fn servers(&self) -> Result<BTreeSet<IpAddr>, EndpointsError> {
        let own = self.advertise;
        if !self.shares_store {
            return Ok(BTreeSet::from([own]));
        }
        self.put_lease(&format!("{MASTER_LEASES}{own}"), &lease(own)).await?;
        if let Some((key, address)) = &self.for_peers {
            self.put_lease(key, &peer_lease(key, *address)).await?;
        }
        let found = self.store.range(KeyRange::prefix(MASTER_LEASES), 0, 0).await?;
        let names = found.items.iter().filter_map(|kv| kv.key.strip_prefix(MASTER_LEASES));
        Ok(names.filter_map(|name| name.parse().ok()).chain([own]).collect())
    }

    async fn put_lease(&self, key: &str, endpoints: &Value) -> Result<(), EndpointsError> {
        // In upstream's format, because upstream's servers may share this etcd.
        let value = protobuf::to_protobuf(Schema::builtin(), "v1", "Endpoints", endpoints)?;
        let op = Op::Put { value: value.into(), ttl_seconds: Some(LIFE) };
        self.store.write(Write { key: key.into(), expected: Expected::Any, op }).await?;
        Ok(())
    }

    async fn delete_lease(&self, key: &str) -> Result<(), EndpointsError> {
        let key = key.into();
        self.store.write(Write { key, expected: Expected::Any, op: Op::Delete }).await?;
        Ok(())
    }

    /// Renews the lease until shutdown, then removes this server from the endpoints.
    pub(crate) async fn keep(&self, shutdown: rt::Shutdown) {
        while shutdown.unless_stopping(tokio::time::sleep(EVERY)).await.is_some() {
            let shown = rt::catch("endpoints of the API server", self.advertise, self.show()).await;
            if let Ok(Err(error)) = shown {
                tracing::warn!(%error, "failed to renew this API server's endpoint; retrying");
            }
        }
        if let Err(error) = self.leave().await {
            tracing::warn!(%error, "failed to remove this API server's endpoint; its lease expires soon");
        }
    }

    async fn show(&self) -> Result<(), EndpointsError> {
        let all = self.servers().await?;
        Ok(self.write(&all).await?)
    }

    async fn leave(&self) -> Result<(), EndpointsError> {
        let mut others = self.servers().await?;
        others.remove(&self.advertise);
        self.delete_lease(&format!("{MASTER_LEASES}{}", self.advertise)).await?;
        if let Some((key, _)) = &self.for_peers {
            self.delete_lease(key).await?;
        }
        // The last server keeps its address in the endpoints: an empty list would be no better.
        if !others.is_empty() {
            self.write(&others).await?;
        }
        Ok(())
    }

    /// Writes the endpoints of the Service `kubernetes` for these servers, if they have changed.
    pub(crate) async fn write(&self, servers: &BTreeSet<IpAddr>) -> Result<(), Error> {
        // The Service has a single IP family: that of this server's address.
        let same = |a: &&IpAddr| a.is_ipv4() == self.advertise.is_ipv4();
        let servers: Vec<String> = servers.iter().filter(same).map(ToString::to_string).collect();
        let family = if self.advertise.is_ipv4() { "IPv4" } else { "IPv6" };
        let port = json!([{"name": "https", "port": self.port, "protocol": "TCP"}]);
        let addresses: Vec<Value> = servers.iter().map(|ip| json!({ "ip": ip })).collect();
        let endpoints = json!({
            "apiVersion": "v1",
            "kind": "Endpoints",
            "metadata": {
                "name": "kubernetes",
                "namespace": "default",
                "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"},
            },
            "subsets": [{"addresses": addresses, "ports": port}],
        });
        self.put(&Resource::ENDPOINTS, &endpoints).await?;
        let ready = |ip: &String| json!({"addresses": [ip], "conditions": {"ready": true}});
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": "kubernetes",
                "namespace": "default",
                "labels": {"kubernetes.io/service-name": "kubernetes"},
            },
            "addressType": family,
            "endpoints": servers.iter().map(ready).collect::<Vec<_>>(),
            "ports": port,
        });
        self.put(&Resource::ENDPOINT_SLICES, &slice).await
    }

    async fn put(&self, resource: &Resource, object: &Value) -> Result<(), Error> {
        let at = PatchTarget { namespace: "default", name: "kubernetes", subresource: "" };
        let known = self.client.get::<Value>(resource, at.namespace, at.name).await.or_none()?;
        let parts = ["subsets", "addressType", "endpoints", "ports"];
        if known.is_some_and(|known| parts.iter().all(|part| known[*part] == object[*part])) {
            return Ok(());
        }
        let apply = PatchKind::Apply { manager: "kube-apiserver", force: true };
        self.client.patch::<Value>(resource, at, apply, object).await.map(drop)
    }
}

fn lease(own: IpAddr) -> Value {
    json!({
        "kind": "Endpoints", "apiVersion": "v1", "metadata": {},
        "subsets": [{"addresses": [{"ip": own.to_string()}]}],
    })
}

/// Returns the value of the key for peers. Upstream's servers read the identity from the label.
fn peer_lease(key: &str, address: SocketAddr) -> Value {
    let identity = key.trim_start_matches(PEER_LEASES);
    json!({
        "kind": "Endpoints", "apiVersion": "v1", "metadata": {"labels": {"apiserverIdentity": identity}},
        "subsets": [{
            "addresses": [{"ip": address.ip().to_string()}],
            "ports": [{"name": "https", "port": address.port(), "protocol": "TCP"}],
        }],
    })
}
