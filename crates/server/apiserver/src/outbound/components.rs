//! Probes the scheduler and the controller manager of this machine for ComponentStatuses.

use std::{net::SocketAddr, time::Duration};

use client::Transport as _;
use http::{Request, header};

use super::{
    backends::{Backends, Credentials, Destination, Location, Trust},
    error::BackendError,
};
use crate::config::Network;

/// Upstream's timeout of a probe.
const TIME: Duration = Duration::from_secs(20);
/// The longest answer that is shown.
const LONGEST: usize = 10 << 10;

/// Requests `/healthz` of a component. Its certificate is not verified, as it gets no credentials. Returns the answer,
/// or the error in upstream's words.
pub(crate) async fn probe(backends: &Backends, address: SocketAddr) -> Result<String, String> {
    match tokio::time::timeout(TIME, request(backends, address)).await {
        Ok(Ok(answered)) => answered,
        Ok(Err(error)) => Err(format!("Get \"https://{address}/healthz\": {error}")),
        Err(_) => Err(format!("Get \"https://{address}/healthz\": {}", BackendError::Deadline)),
    }
}

async fn request(
    backends: &Backends,
    address: SocketAddr,
) -> Result<Result<String, String>, BackendError> {
    let destination = Destination {
        at: Location::Address(address),
        name: address.ip().to_string(),
        port: address.port(),
        trust: Trust { bundle: "".into(), insecure: true, credentials: Credentials::Anonymous },
        network: Network::Direct,
    };
    let request = Request::get("/healthz")
        .header(header::USER_AGENT, "kube-probe/1.36")
        .body(client::empty())?;
    let transport = backends.pooled_transport(&destination)?;
    let response = transport.send(request).await.map_err(|e| destination.connection_error(&e))?;
    let code = response.status().as_u16();
    if !(200..400).contains(&code) {
        return Ok(Err(format!("HTTP probe failed with statuscode: {code}")));
    }
    let body = client::read("/healthz", response.into_body(), LONGEST).await;
    let body = body.map_err(|error| BackendError::body(&error))?;
    Ok(Ok(String::from_utf8_lossy(&body).into_owned()))
}
