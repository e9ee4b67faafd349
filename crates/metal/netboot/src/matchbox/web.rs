//! The HTTP layer of [`Matchbox`]: status codes, signatures and client identification.

use std::{net::IpAddr, sync::Arc};

use futures_util::{FutureExt, future::BoxFuture};
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, StatusCode,
    header::{AUTHORIZATION, WWW_AUTHENTICATE},
};
use serve::{Body, answer};

use super::{
    assets::{self, Content},
    blocking,
    handler::{Failure, HttpContent, HttpRequest, Matchbox, TEXT},
    report, tpm,
};
use crate::{
    machines::Stage,
    openpgp::{self, Signer},
};

/// The path prefix of static files.
pub(super) const ASSETS: &str = "/assets/";

/// Returns a response that demands a signature by the machine's TPM.
fn challenge_response(challenge: &str, reason: String) -> Response<Body> {
    let mut response = answer(StatusCode::UNAUTHORIZED, TEXT, reason + "\n");
    if let Ok(value) = HeaderValue::try_from(format!("{}{challenge}", tpm::SCHEME)) {
        response.headers_mut().insert(WWW_AUTHENTICATE, value);
    }
    response
}

/// Replaces a body by its signature. Error texts are signed too and keep their status.
type Sign = fn(&Signer, &[u8], u32) -> Result<HttpContent, openpgp::Error>;

fn sign(signer: &Signer, body: &[u8], now: u32) -> Result<HttpContent, openpgp::Error> {
    let body = signer.sign(body, now)?;
    Ok(HttpContent { content_type: "application/octet-stream", body })
}

fn sign_armored(signer: &Signer, body: &[u8], now: u32) -> Result<HttpContent, openpgp::Error> {
    let body = signer.sign_armored(body, now)?.into_bytes();
    Ok(HttpContent { content_type: TEXT, body })
}

impl Matchbox {
    /// Answers a request for anything but assets and reports.
    fn respond(&self, mut request: HttpRequest) -> Response<Body> {
        if request.path == "/healthz" {
            return match self.health() {
                Ok(()) => answer(StatusCode::OK, TEXT, "ok\n"),
                Err(error) => answer(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{error}\n")),
            };
        }
        let mut signature = None::<(&Signer, Sign)>;
        if let Some(signer) = &self.settings.signer {
            for (suffix, make) in [(".sig", sign as Sign), (".asc", sign_armored as Sign)] {
                if let Some(path) = request.path.strip_suffix(suffix).filter(|path| path.len() > 1)
                {
                    request.path = path.to_owned();
                    signature = Some((signer, make));
                    break;
                }
            }
        }
        let (status, content) = match self.serve(&request) {
            Some(Ok(content)) => (StatusCode::OK, content),
            Some(Err(Failure::Challenge { challenge, reason })) => {
                return challenge_response(&challenge, reason);
            }
            Some(Err(error @ Failure::Forbidden)) => {
                return answer(StatusCode::FORBIDDEN, TEXT, format!("{error}\n"));
            }
            Some(Err(error)) => {
                let body = format!("{error}\n").into();
                (StatusCode::NOT_FOUND, HttpContent { content_type: TEXT, body })
            }
            None => return answer(StatusCode::NOT_FOUND, TEXT, "404 page not found\n"),
        };
        let Some((signer, make)) = signature else {
            return answer(status, content.content_type, content.body);
        };
        let seconds = u32::try_from(self.settings.inventory.now() / 1000).unwrap_or(u32::MAX);
        match make(signer, &content.body, seconds) {
            Ok(content) => answer(status, content.content_type, content.body),
            Err(error) => answer(StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("{error}\n")),
        }
    }

    /// Answers a request for a file below [`ASSETS`]; `None` for another path.
    pub(super) async fn asset(
        &self,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
        peer: Option<IpAddr>,
    ) -> Option<Response<Content>> {
        let name = path.strip_prefix(ASSETS)?;
        let response = assets::respond(self.settings.assets.as_ref()?, name, method, headers).await;
        let listing = name.is_empty() || name.ends_with('/');
        let sent = response.status() == StatusCode::OK && !listing;
        if let Some(peer) = peer.filter(|_| sent) {
            // UEFI firmware can fetch its boot loader by HTTP.
            let stage = if name.ends_with(".efi") { Stage::Firmware } else { Stage::Kernel };
            self.settings.inventory.record_fetch(peer, stage, name);
        }
        Some(response)
    }
}

impl serve::Handler for WebHandler {
    fn handle(&self, request: Request<Body>) -> BoxFuture<'_, Response<Body>> {
        let (matchbox, tls) = (self.matchbox.clone(), self.tls);
        let (parts, body) = request.into_parts();
        let connection = parts.extensions.get::<Arc<serve::Connection>>();
        let peer = connection.and_then(|connection| connection.peer).map(|peer| peer.ip());
        async move {
            let path = parts.uri.path().to_owned();
            let settings = &matchbox.settings;
            if let Some(response) = matchbox.asset(&parts.method, &path, &parts.headers, peer).await
            {
                return assets::body(response, &matchbox.transfers);
            }
            let query = parts.uri.query().unwrap_or_default().to_owned();
            let authorization = parts.headers.get(AUTHORIZATION);
            let authorization =
                authorization.and_then(|value| value.to_str().ok()).map(str::to_owned);
            let request = HttpRequest { path, query, peer, tls, authorization };
            if request.path == "/report" {
                return report::take(&settings.inventory, &request, &parts.method, body).await;
            }
            // Reading files and rendering templates may block.
            match blocking::run(move || matchbox.respond(request)).await {
                Ok(response) => response,
                Err(error) => answer(StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("{error}\n")),
            }
        }
        .boxed()
    }
}

/// The HTTP handler of a [`Matchbox`].
pub struct WebHandler {
    /// The service.
    pub matchbox: Arc<Matchbox>,
    /// `true` if the connections are encrypted.
    pub tls: bool,
}
