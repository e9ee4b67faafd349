//! Which API servers there are: the endpoint reconciler, by leases. Each that shares its store keeps a key there that ends soon after it does, at the place
//! where upstream's keep theirs, and all of them write every server's address as the endpoints of the Service
//! `kubernetes`.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc, time::Duration};

use api_codec::protobuf;
use api_schema::Schema;
use client::{Client, Error, IfThere as _, PatchKind, Patched, Resource};
use serde_json::{Value, json};
use store::{Expected, KeyRange, Op, Store, Write};

use crate::{config::Config, storage::MASTER_LEASES};

/// Upstream's: a server that is gone is no endpoint after so many seconds.
const LIFE: u64 = 15;
const EVERY: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub(crate) enum EndpointsError {
    #[error("the key in the store: {0}")]
    Store(#[from] store::Error),
    #[error("the key's value: {0}")]
    Form(#[from] protobuf::ProtobufError),
    #[error("the endpoints of the Service kubernetes: {0}")]
    Client(#[from] client::Error),
}

/// Keeps this server's lease among those of all, and all of them in the endpoints.
pub(crate) struct EndpointReconciler {
    store: Arc<dyn Store>,
    client: Client,
    shares_store: bool,
    advertise: IpAddr,
    port: u16,
}

impl EndpointReconciler {
    pub(crate) fn new(config: &Config, store: Arc<dyn Store>, client: Client) -> Self {
        let (shares_store, advertise) = (config.shares_store, config.advertise);
        Self { store, client, shares_store, advertise, port: config.bind.port() }
    }

    /// The addresses of all servers, this one's among them.
    pub(crate) async fn servers(&self) -> Result<BTreeSet<IpAddr>, EndpointsError> {
        let own = self.advertise;
        if !self.shares_store {
            return Ok(BTreeSet::from([own]));
        }
        let put = Op::Put { value: lease(own)?.into(), ttl_seconds: Some(LIFE) };
        let key = format!("{MASTER_LEASES}{own}").into();
        self.store.write(Write { key, expected: Expected::Any, op: put }).await?;
        let found = self.store.range(KeyRange::prefix(MASTER_LEASES), 0, 0).await?;
        let names = found.items.iter().filter_map(|kv| kv.key.strip_prefix(MASTER_LEASES));
        Ok(names.filter_map(|name| name.parse().ok()).chain([own]).collect())
    }

    /// Keeps this server among the others until it stops, and takes it out then.
    pub(crate) async fn keep(&self, shutdown: rt::Shutdown) {
        while shutdown.unless_stopping(tokio::time::sleep(EVERY)).await.is_some() {
            let shown = rt::catch("endpoints of the API server", self.advertise, self.show()).await;
            if let Ok(Err(error)) = shown {
                tracing::warn!(%error, "keeping this server among the cluster's API servers; trying again");
            }
        }
        if let Err(error) = self.leave().await {
            tracing::warn!(%error, "taking this server out of the cluster's API servers; it ends by itself soon");
        }
    }

    async fn show(&self) -> Result<(), EndpointsError> {
        let all = self.servers().await?;
        Ok(self.write(&all).await?)
    }

    async fn leave(&self) -> Result<(), EndpointsError> {
        let mut others = self.servers().await?;
        others.remove(&self.advertise);
        let key = format!("{MASTER_LEASES}{}", self.advertise).into();
        self.store.write(Write { key, expected: Expected::Any, op: Op::Delete }).await?;
        // The last one leaves its address: there is none better.
        if !others.is_empty() {
            self.write(&others).await?;
        }
        Ok(())
    }

    /// Makes these servers the endpoints of the Service `kubernetes`. What is so already is not written.
    pub(crate) async fn write(&self, servers: &BTreeSet<IpAddr>) -> Result<(), Error> {
        // One Service has one family: that of this server's address.
        let same = |a: &&IpAddr| a.is_ipv4() == self.advertise.is_ipv4();
        let servers: Vec<String> = servers.iter().filter(same).map(ToString::to_string).collect();
        let family = if self.advertise.is_ipv4() { "IPv4" } else { "IPv6" };
        let port = json!([{"name": "https", "port": self.port, "protocol": "TCP"}]);
        let addresses: Vec<Value> = servers.iter().map(|ip| json!({ "ip": ip })).collect();
        let endpoints = json!({
            "apiVersion": "v1",
            "kind": "Endpoints",
            "metadata": {"name": "kubernetes", "namespace": "default", "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}},
            "subsets": [{"addresses": addresses, "ports": port}],
        });
        self.put(&Resource::ENDPOINTS, &endpoints).await?;
        let ready = |ip: &String| json!({"addresses": [ip], "conditions": {"ready": true}});
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": "kubernetes", "namespace": "default", "labels": {"kubernetes.io/service-name": "kubernetes"}},
            "addressType": family,
            "endpoints": servers.iter().map(ready).collect::<Vec<_>>(),
            "ports": port,
        });
        self.put(&Resource::ENDPOINT_SLICES, &slice).await
    }

    async fn put(&self, resource: &Resource, object: &Value) -> Result<(), Error> {
        let at = Patched { namespace: "default", name: "kubernetes", subresource: "" };
        let known = self.client.get::<Value>(resource, at.namespace, at.name).await.if_there()?;
        let parts = ["subsets", "addressType", "endpoints", "ports"];
        if known.is_some_and(|known| parts.iter().all(|part| known[*part] == object[*part])) {
            return Ok(());
        }
        let apply = PatchKind::Apply { manager: "kube-apiserver", force: true };
        self.client.patch::<Value>(resource, at, apply, object).await.map(drop)
    }
}

/// What upstream's servers, which may share this etcd, expect to read, in the form that they write.
fn lease(own: IpAddr) -> Result<Vec<u8>, protobuf::ProtobufError> {
    let endpoints = json!({
        "kind": "Endpoints", "apiVersion": "v1", "metadata": {},
        "subsets": [{"addresses": [{"ip": own.to_string()}]}],
    });
    protobuf::to_protobuf(Schema::builtin(), "v1", "Endpoints", &endpoints)
}
