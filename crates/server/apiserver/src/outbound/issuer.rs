//! Fetches documents of token issuers: discovery documents and key sets.
//!
//! Responses are limited in size and time, and redirects are not followed.

use std::{sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use client::Transport as _;
use http::{Request, Uri, header};

use super::backends::{Backends, Destination, Location, Trust};

/// Upstream's timeout of a request to an issuer.
const TIME: Duration = Duration::from_secs(30);
/// The maximum size of a document. Those of large issuers have some ten thousand bytes.
const LONGEST: usize = 1 << 20;

/// Fetches a document from an `https` URL. `authorities` verify the server's certificate, as PEM; if empty, the
/// system's.
pub(crate) async fn get(
    backends: &Backends,
    url: &str,
    authorities: &str,
) -> Result<Bytes, String> {
    let failed = |cause: String| format!("Get \"{url}\": {cause}");
    match tokio::time::timeout(TIME, fetch(backends, url, authorities)).await {
        Ok(Ok((200, body))) => Ok(body),
        Ok(Ok((code, _))) => {
            Err(failed(format!("the issuer answered with the status code {code}")))
        }
        Ok(Err(cause)) => Err(failed(cause)),
        Err(_) => Err(failed(format!("no answer within {TIME:?}"))),
    }
}

async fn fetch(backends: &Backends, url: &str, authorities: &str) -> Result<(u16, Bytes), String> {
    let uri: Uri = url.parse().map_err(|e: http::uri::InvalidUri| e.to_string())?;
    if uri.scheme_str() != Some("https") {
        return Err("the URL is not an https URL".to_owned());
    }
    let authority = uri.authority().ok_or("the URL has no host")?;
    let bundle: Arc<str> = match authorities {
        "" => "".into(),
        pem => STANDARD.encode(pem).into(),
    };
    let destination = Destination {
        at: Location::Server(format!("https://{authority}")),
        name: authority.host().trim_matches(['[', ']']).to_owned(),
        port: uri.port_u16().unwrap_or(443),
        trust: Trust::bundle(bundle),
    };
    let path = uri.path_and_query().map_or("/", |p| p.as_str());
    let request = Request::get(path)
        .header(header::ACCEPT, "application/json")
        .header(header::USER_AGENT, "kube-apiserver")
        .body(client::empty())
        .map_err(|e| e.to_string())?;
    let transport = backends.pooled_transport(&destination)?;
    let response = transport.send(request).await.map_err(|e| destination.cause(&e))?;
    let code = response.status().as_u16();
    let body =
        client::read(path, response.into_body(), LONGEST).await.map_err(|e| e.to_string())?;
    Ok((code, body))
}
