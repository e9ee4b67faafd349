//! Redfish: controls a BMC over HTTPS with JSON.

use api_meta::{Budget, Tree as _};
use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use client::{ClientTls, HttpTransport, TlsMaterial, Transport as _};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri, header};
use serde_json::{Value, json};
use std::time::Duration;

use super::{
    action::{Action, Device, PowerOperation},
    bmc::Bmc,
};

/// The deadline of a request, because controllers are slow.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_BODY: usize = 1 << 20;
const SYSTEMS: &str = "/redfish/v1/Systems";
const SESSIONS: &str = "/redfish/v1/SessionService/Sessions";
const TOKEN: &str = "x-auth-token";

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The errors of a Redfish controller.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the address must be a URL with a host: {0}")]
    Address(String),
    #[error(transparent)]
    Tls(#[from] client::TlsError),
    #[error("{what}: {source}")]
    Connection { what: String, source: BoxError },
    #[error("{0}: no answer within 30 s")]
    Silent(String),
    #[error("{what}: {status}{}", if text.is_empty() { String::new() } else { format!(": {text}") })]
    Refused { what: String, status: StatusCode, text: String },
    #[error("the controller rejects the user name or password; check them: {0}")]
    Password(String),
    #[error("{0}: the answer is not JSON or too long")]
    Malformed(String),
    #[error("the controller has {0} systems; name one of them as \"system\" in its entry: {1}")]
    Systems(usize, String),
}

fn reset_type(operation: PowerOperation) -> &'static str {
    match operation {
        PowerOperation::On => "On",
        PowerOperation::Off => "ForceOff",
        PowerOperation::Shutdown => "GracefulShutdown",
        PowerOperation::Reset => "ForceRestart",
        PowerOperation::Cycle => "PowerCycle",
    }
}

/// A Redfish controller.
struct Controller<'a> {
    bmc: &'a Bmc,
    transport: HttpTransport,
    session: Option<Session>,
}

/// A session, for controllers that do not accept the password with each request.
struct Session {
    token: HeaderValue,
    /// The path to delete the session. Some controllers support only a few sessions.
    path: Option<String>,
}

/// The controller's response to a request.
struct ControllerResponse {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl<'a> Controller<'a> {
    fn new(bmc: &'a Bmc) -> Result<Self, Error> {
        let invalid = || Error::Address(bmc.address.clone());
        let uri: Uri = bmc.address.parse().map_err(|_| invalid())?;
        let tls = match (uri.scheme_str(), uri.host()) {
            (Some("http"), Some(_)) => ClientTls::anyone(),
            (Some("https"), Some(_)) => {
                let ca = bmc.ca.as_ref().map(|pem| pem.clone().into_bytes());
                TlsMaterial { ca, insecure: bmc.insecure, ..Default::default() }
                    .client_config()?
                    .into()
            }
            _ => return Err(invalid()),
        };
        let transport = HttpTransport::http1(&bmc.address, tls).map_err(|_| invalid())?;
        Ok(Self { bmc, transport, session: None })
    }

    /// Sends a request with the password, or with a session if the controller requires one.
    async fn call(
        &mut self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Result<Value, Error> {
        let what = format!("{method} {path}");
        let mut response = self.send(method.clone(), path, body.as_ref()).await?;
        if response.status == StatusCode::UNAUTHORIZED && self.session.is_none() {
            self.session = Some(self.log_in().await?);
            response = self.send(method, path, body.as_ref()).await?;
        }
        if !response.status.is_success() {
            return Err(response.into_error(what));
        }
        if response.body.is_empty() {
            Ok(Value::Null)
        } else {
            Budget::object().json(&response.body).map_err(|_| Error::Malformed(what))
        }
    }

    async fn log_in(&self) -> Result<Session, Error> {
        let body = json!({ "UserName": self.bmc.user, "Password": self.bmc.password });
        let mut response = self.send(Method::POST, SESSIONS, Some(&body)).await?;
        let location = response.headers.remove(header::LOCATION);
        match response.headers.remove(TOKEN).filter(|_| response.status.is_success()) {
            Some(token) => {
                let path = location.and_then(|to| to.to_str().ok()?.parse::<Uri>().ok());
                Ok(Session { token, path: path.map(|uri| uri.path().to_owned()) })
            }
            None => {
                Err(Error::Password(response.into_error(format!("POST {SESSIONS}")).to_string()))
            }
        }
    }

    /// Ends the session, if any. A failure has no consequences.
    async fn log_out(&self) {
        let Some(path) = self.session.as_ref().and_then(|session| session.path.as_deref()) else {
            return;
        };
        if let Err(error) = self.send(Method::DELETE, path, None).await {
            tracing::debug!(%error, "ending a Redfish session");
        }
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<ControllerResponse, Error> {
        let what = format!("{method} {path}");
        match tokio::time::timeout(REQUEST_TIMEOUT, self.exchange(method, path, body)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(source)) => Err(Error::Connection { what, source }),
            Err(_) => Err(Error::Silent(what)),
        }
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<ControllerResponse, BoxError> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::CONTENT_TYPE, "application/json")
            .header("OData-Version", "4.0")
            .body(client::full(body.map(Value::to_string).unwrap_or_default()))?;
        let (name, value) = match &self.session {
            Some(session) => (HeaderName::from_static(TOKEN), session.token.clone()),
            None => {
                let user = STANDARD.encode(format!("{}:{}", self.bmc.user, self.bmc.password));
                (header::AUTHORIZATION, HeaderValue::try_from(format!("Basic {user}"))?)
            }
        };
        // A request for a session contains the credentials in its body.
        if path != SESSIONS {
            request.headers_mut().insert(name, value);
        }
        let (head, body) = self.transport.send(request).await?.into_parts();
        let body = client::read(path, body, MAX_BODY).await?;
        Ok(ControllerResponse { status: head.status, headers: head.headers, body })
    }

    /// Returns the path of the machine's system.
    async fn system(&mut self) -> Result<String, Error> {
        if let Some(system) = &self.bmc.system {
            return Ok(system.clone());
        }
        only_system(&self.call(Method::GET, SYSTEMS, None).await?)
    }

    async fn is_on(&mut self, system: &str) -> Result<bool, Error> {
        let state = self.call(Method::GET, system, None).await?;
        power_state(&state).ok_or_else(|| Error::Malformed(format!("GET {system}")))
    }

    async fn set_power(&mut self, system: &str, operation: PowerOperation) -> Result<(), Error> {
        let state = self.call(Method::GET, system, None).await?;
        let body = json!({ "ResetType": reset_type(operation) });
        self.call(Method::POST, &reset_target(&state, system), Some(body)).await.map(drop)
    }

    async fn set_next_boot(&mut self, system: &str, device: Device) -> Result<(), Error> {
        let target = match device {
            Device::Network => "Pxe",
            Device::Disk => "Hdd",
        };
        let mut boot = json!({
            "BootSourceOverrideEnabled": "Once", "BootSourceOverrideTarget": target,
        });
        if self.bmc.uefi {
            boot.put(&["BootSourceOverrideMode"], "UEFI");
        }
        self.call(Method::PATCH, system, Some(json!({ "Boot": boot }))).await.map(drop)
    }
}

/// Returns the path of a controller's only system.
fn only_system(systems: &Value) -> Result<String, Error> {
    let members = systems.items("Members").iter();
    let paths: Vec<&str> = members.filter_map(|member| member["@odata.id"].as_str()).collect();
    match paths[..] {
        [one] => Ok(one.to_owned()),
        _ => Err(Error::Systems(paths.len(), paths.join(", "))),
    }
}

/// Returns whether a system is on, if it reports that.
fn power_state(state: &Value) -> Option<bool> {
    state["PowerState"].as_str().map(|state| matches!(state, "On" | "PoweringOn"))
}

/// Returns the path of a system's reset action.
fn reset_target(state: &Value, system: &str) -> String {
    let target = state.at(&["Actions", "#ComputerSystem.Reset", "target"]).as_str();
    target.map_or_else(|| format!("{system}/Actions/ComputerSystem.Reset"), str::to_owned)
}

impl ControllerResponse {
    fn into_error(self, what: String) -> Error {
        let text = String::from_utf8_lossy(&self.body).chars().take(500).collect();
        Error::Refused { what, status: self.status, text }
    }
}

pub(super) async fn perform(bmc: &Bmc, action: Action) -> Result<&'static str, Error> {
    let mut controller = Controller::new(bmc)?;
    let result = act(&mut controller, action).await;
    controller.log_out().await;
    result
}

async fn act(controller: &mut Controller<'_>, action: Action) -> Result<&'static str, Error> {
    let system = controller.system().await?;
    match action {
        Action::Status => {
            return Ok(if controller.is_on(&system).await? { "on" } else { "off" });
        }
        Action::On => controller.set_power(&system, PowerOperation::On).await?,
        Action::Off => controller.set_power(&system, PowerOperation::Off).await?,
        Action::Shutdown => controller.set_power(&system, PowerOperation::Shutdown).await?,
        Action::Reset => controller.set_power(&system, PowerOperation::Reset).await?,
        Action::Cycle => controller.set_power(&system, PowerOperation::Cycle).await?,
        Action::NextBootNetwork => controller.set_next_boot(&system, Device::Network).await?,
        Action::NextBootDisk => controller.set_next_boot(&system, Device::Disk).await?,
        Action::BootNetwork => {
            controller.set_next_boot(&system, Device::Network).await?;
            let on = controller.is_on(&system).await?;
            controller
                .set_power(&system, if on { PowerOperation::Reset } else { PowerOperation::On })
                .await?;
        }
    }
    Ok(action.message())
}

#[cfg(test)]
mod tests;
