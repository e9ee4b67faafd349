//! Redfish: a controller's resources over HTTPS, as JSON.

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

use super::{Action, Bmc, Device, Press, done};

/// Controllers are slow.
const PATIENCE: Duration = Duration::from_secs(30);
const MAX_BODY: usize = 1 << 20;
const SYSTEMS: &str = "/redfish/v1/Systems";

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the address is no URL with a host: {0}")]
    Address(String),
    #[error("{0}")]
    Tls(#[from] client::TlsError),
    #[error("{what}: {source}")]
    Connection { what: String, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("{0}: no answer within 30 s")]
    Silent(String),
    #[error("{what}: {status}{}", if text.is_empty() { String::new() } else { format!(": {text}") })]
    Refused { what: String, status: StatusCode, text: String },
    #[error("{0}: the answer is no JSON or too long")]
    Malformed(String),
    #[error("the controller has {0} systems; name one of them as \"system\" in its entry: {1}")]
    Systems(usize, String),
}

fn reset_type(press: Press) -> &'static str {
    match press {
        Press::On => "On",
        Press::Off => "ForceOff",
        Press::Shutdown => "GracefulShutdown",
        Press::Reset => "ForceRestart",
        Press::Cycle => "PowerCycle",
    }
}

/// One controller.
struct Controller<'a> {
    bmc: &'a Bmc,
    host: String,
    port: u16,
    tls: Option<TlsConnector>,
}

impl<'a> Controller<'a> {
    fn new(bmc: &'a Bmc) -> Result<Self, Error> {
        let wrong = || Error::Address(bmc.address.clone());
        let uri: Uri = bmc.address.parse().map_err(|_| wrong())?;
        let host = uri.host().ok_or_else(wrong)?.trim_matches(['[', ']']).to_owned();
        let encrypted = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(wrong()),
        };
        let tls = match encrypted {
            false => None,
            true => {
                let ca = bmc.ca.as_ref().map(|pem| pem.clone().into_bytes());
                let material =
                    client::TlsMaterial { ca, insecure: bmc.insecure, ..Default::default() };
                Some(TlsConnector::from(Arc::new(material.client_config()?)))
            }
        };
        let port = uri.port_u16().unwrap_or(if encrypted { 443 } else { 80 });
        Ok(Self { bmc, host, port, tls })
    }

    async fn call(&self, method: Method, path: &str, body: Option<Value>) -> Result<Value, Error> {
        let what = format!("{method} {path}");
        match tokio::time::timeout(PATIENCE, self.exchange(&what, method, path, body)).await {
            Ok(result) => result,
            Err(_) => Err(Error::Silent(what)),
        }
    }

    async fn exchange(
        &self,
        what: &str,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Result<Value, Error> {
        let broken = |source: Box<dyn std::error::Error + Send + Sync>| Error::Connection {
            what: what.to_owned(),
            source,
        };
        let user = STANDARD.encode(format!("{}:{}", self.bmc.user, self.bmc.password));
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, format!("{}:{}", self.host, self.port))
            .header(header::AUTHORIZATION, format!("Basic {user}"))
            .header(header::CONTENT_TYPE, "application/json")
            .header("OData-Version", "4.0")
            .body(Full::from(body.map(|body| body.to_string()).unwrap_or_default()))
            .map_err(|error| broken(error.into()))?;
        let stream = TcpStream::connect((self.host.as_str(), self.port))
            .await
            .map_err(|error| broken(error.into()))?;
        let (status, bytes) = match &self.tls {
            None => send(stream, request).await.map_err(broken)?,
            Some(tls) => {
                let name = rustls_pki_types::ServerName::try_from(self.host.clone())
                    .map_err(|error| broken(error.into()))?;
                let stream =
                    tls.connect(name, stream).await.map_err(|error| broken(error.into()))?;
                send(stream, request).await.map_err(broken)?
            }
        };
        if !status.is_success() {
            let text = String::from_utf8_lossy(&bytes).chars().take(500).collect();
            return Err(Error::Refused { what: what.to_owned(), status, text });
        }
        match bytes.is_empty() {
            true => Ok(Value::Null),
            false => serde_json::from_slice(&bytes).map_err(|_| Error::Malformed(what.to_owned())),
        }
    }

    /// The path of the machine's system.
    async fn system(&self) -> Result<String, Error> {
        if let Some(system) = &self.bmc.system {
            return Ok(system.clone());
        }
        let systems = self.call(Method::GET, SYSTEMS, None).await?;
        let members = systems["Members"].as_array().cloned().unwrap_or_default();
        let paths: Vec<&str> =
            members.iter().filter_map(|member| member["@odata.id"].as_str()).collect();
        match paths[..] {
            [one] => Ok(one.to_owned()),
            _ => Err(Error::Systems(paths.len(), paths.join(", "))),
        }
    }

    async fn is_on(&self, system: &str) -> Result<bool, Error> {
        let state = self.call(Method::GET, system, None).await?;
        match state["PowerState"].as_str() {
            Some(state) => Ok(matches!(state, "On" | "PoweringOn")),
            None => Err(Error::Malformed(format!("GET {system}"))),
        }
    }

    async fn press(&self, system: &str, press: Press) -> Result<(), Error> {
        let state = self.call(Method::GET, system, None).await?;
        let told = state.pointer("/Actions/#ComputerSystem.Reset/target").and_then(Value::as_str);
        let usual = format!("{system}/Actions/ComputerSystem.Reset");
        let target = told.unwrap_or(&usual);
        let body = json!({ "ResetType": reset_type(press) });
        self.call(Method::POST, target, Some(body)).await.map(drop)
    }

    async fn next(&self, system: &str, device: Device) -> Result<(), Error> {
        let target = match device {
            Device::Network => "Pxe",
            Device::Disk => "Hdd",
        };
        let boot = json!({
            "BootSourceOverrideEnabled": "Once", "BootSourceOverrideTarget": target,
        });
        self.call(Method::PATCH, system, Some(json!({ "Boot": boot }))).await.map(drop)
    }
}

/// One request on a connection of its own.
async fn send(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
) -> Result<(StatusCode, Vec<u8>), Box<dyn std::error::Error + Send + Sync>> {
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let exchange = async move {
        // The connection ends with its sender.
        let response = sender.send_request(request).await?;
        let (status, mut body) = (response.status(), response.into_body());
        let mut bytes = Vec::new();
        while let Some(frame) = body.frame().await {
            if let Ok(data) = frame?.into_data() {
                bytes.extend(data);
                if bytes.len() > MAX_BODY {
                    return Err("the answer is longer than 1 MiB".into());
                }
            }
        }
        Ok((status, bytes))
    };
    let (exchanged, _) = tokio::join!(exchange, async {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a Redfish connection ended");
        }
    });
    exchanged
}

pub(super) async fn perform(bmc: &Bmc, action: Action) -> Result<&'static str, Error> {
    let controller = Controller::new(bmc)?;
    let system = controller.system().await?;
    match action {
        Action::Status => {
            return Ok(if controller.is_on(&system).await? { "on" } else { "off" });
        }
        Action::On => controller.press(&system, Press::On).await?,
        Action::Off => controller.press(&system, Press::Off).await?,
        Action::Shutdown => controller.press(&system, Press::Shutdown).await?,
        Action::Reset => controller.press(&system, Press::Reset).await?,
        Action::Cycle => controller.press(&system, Press::Cycle).await?,
        Action::NextBootNetwork => controller.next(&system, Device::Network).await?,
        Action::NextBootDisk => controller.next(&system, Device::Disk).await?,
        Action::BootNetwork => {
            controller.next(&system, Device::Network).await?;
            let on = controller.is_on(&system).await?;
            controller.press(&system, if on { Press::Reset } else { Press::On }).await?;
        }
    }
    Ok(done(action))
}

#[cfg(test)]
mod tests;
