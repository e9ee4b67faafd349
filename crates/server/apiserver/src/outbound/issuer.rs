//! Fetches documents of token issuers: discovery documents and key sets.
//!
//! Responses are limited in size and time, and redirects are not followed.

use std::{sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use client::Transport as _;
use http::{Request, Uri, header};

use super::{
    backends::{Backends, Destination, Location, Trust},
    error::{BackendError, GetError},
};
use crate::config::Network;

/// Upstream's timeout of a request to an issuer.
const TIME: Duration = Duration::from_secs(30);
/// The maximum size of a document. Those of large issuers have some ten thousand bytes.
const LONGEST: usize = 1 << 20;

/// Fetches a document from an `https` URL. `authorities` verify the server's certificate, as PEM; if empty, the
/// system's. `network` is that of the issuer.
pub(crate) async fn get(
    backends: &Backends,
    url: &str,
    authorities: &str,
    network: Network,
) -> Result<Bytes, GetError> {
    let fetched = tokio::time::timeout(TIME, fetch(backends, url, authorities, network)).await;
    let fetched = fetched.unwrap_or(Err(BackendError::NoAnswer(TIME)));
    fetched.map_err(|source| GetError { url: url.to_owned(), source })
}

async fn fetch(
    backends: &Backends,
    url: &str,
    authorities: &str,
    network: Network,
) -> Result<Bytes, BackendError> {
    let uri: Uri = url.parse()?;
    if uri.scheme_str() != Some("https") {
        return Err(BackendError::NotHttps);
    }
    let authority = uri.authority().ok_or(BackendError::NoHost)?;
    let bundle: Arc<str> = match authorities {
        "" => "".into(),
        pem => STANDARD.encode(pem).into(),
    };
    let destination = Destination {
        at: Location::Server(format!("https://{authority}")),
        name: authority.host().trim_matches(['[', ']']).to_owned(),
        port: uri.port_u16().unwrap_or(443),
        trust: Trust::bundle(bundle),
        network,
    };
    let path = uri.path_and_query().map_or("/", |p| p.as_str());
    let request = Request::get(path)
        .header(header::ACCEPT, "application/json")
        .header(header::USER_AGENT, "kube-apiserver")
        .body(client::empty())?;
    let transport = backends.pooled_transport(&destination)?;
    let response = transport.send(request).await.map_err(|e| destination.connection_error(&e))?;
    let code = response.status().as_u16();
    let body = client::read(path, response.into_body(), LONGEST).await?;
    if code == 200 { Ok(body) } else { Err(BackendError::IssuerStatus(code)) }
}
