//! Which API servers there are. Each that shares its store keeps a key there that ends soon after it does, at the place
//! where upstream's keep theirs, and all of them write every server's address as the endpoints of the Service
//! `kubernetes`.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc, time::Duration};

use api_codec::protobuf;
use api_schema::Schema;
use client::Client;
use serde_json::json;
use store::{Expected, KeyRange, Op, Write};

use super::startup;
use crate::server::Server;

pub(crate) const PLACE: &str = "/registry/masterleases/";
/// Upstream's: a server that is gone is no endpoint after so many seconds.
const LIFE: u64 = 15;
const EVERY: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub(crate) enum PresenceError {
    #[error("the key in the store: {0}")]
    Store(#[from] store::Error),
    #[error("the key's value: {0}")]
    Form(#[from] protobuf::ProtobufError),
    #[error("the endpoints of the Service kubernetes: {0}")]
    Endpoints(#[from] client::Error),
}

/// The addresses of all servers, this one's among them.
pub(crate) async fn servers(server: &Server) -> Result<BTreeSet<IpAddr>, PresenceError> {
    let own = server.config.advertise;
    if !server.config.shares_store {
        return Ok(BTreeSet::from([own]));
    }
    let put = Op::Put { value: lease(own)?.into(), ttl_seconds: Some(LIFE) };
    let key = format!("{PLACE}{own}").into();
    server.hub.store.write(Write { key, expected: Expected::Any, op: put }).await?;
    let found = server.hub.store.range(KeyRange::prefix(PLACE), 0, 0).await?;
    let names = found.items.iter().filter_map(|kv| kv.key.strip_prefix(PLACE));
    Ok(names.filter_map(|name| name.parse().ok()).chain([own]).collect())
}

/// Keeps this server among the others until it stops, and takes it out then.
pub(crate) async fn keep(server: Arc<Server>, client: Client, shutdown: rt::Shutdown) {
    while shutdown.unless_stopping(tokio::time::sleep(EVERY)).await.is_some() {
        let shown = rt::catch("presence", server.config.advertise, show(&server, &client)).await;
        if let Ok(Err(error)) = shown {
            tracing::warn!(%error, "keeping this server among the cluster's API servers; trying again");
        }
    }
    if let Err(error) = leave(&server, &client).await {
        tracing::warn!(%error, "taking this server out of the cluster's API servers; it ends by itself soon");
    }
}

async fn show(server: &Server, client: &Client) -> Result<(), PresenceError> {
    let all = servers(server).await?;
    Ok(startup::endpoints(server, client, &all).await?)
}

async fn leave(server: &Server, client: &Client) -> Result<(), PresenceError> {
    let mut others = servers(server).await?;
    others.remove(&server.config.advertise);
    let key = format!("{PLACE}{}", server.config.advertise).into();
    server.hub.store.write(Write { key, expected: Expected::Any, op: Op::Delete }).await?;
    // The last one leaves its address: there is none better.
    if !others.is_empty() {
        startup::endpoints(server, client, &others).await?;
    }
    Ok(())
}

/// What upstream's servers, which may share this etcd, expect to read, in the form that they write.
fn lease(own: IpAddr) -> Result<Vec<u8>, protobuf::ProtobufError> {
    let endpoints = json!({
        "kind": "Endpoints", "apiVersion": "v1", "metadata": {},
        "subsets": [{"addresses": [{"ip": own.to_string()}]}],
    });
    protobuf::to_protobuf(Schema::builtin(), "v1", "Endpoints", &endpoints)
}
