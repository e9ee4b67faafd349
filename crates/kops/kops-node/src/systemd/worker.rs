//! A worker's requests to kops-controller. They are signed with the machine's key, whose public half the cluster's Host
//! object of the machine has. Protocol and paths are upstream's. Read [`Controller`] first.

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use api_meta::{Timestamp, Tree as _};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use client::{Client, HttpTransport, TlsMaterial};
use http::{Request, StatusCode, header};
use kops_core::nodeup::{Certificate, Task, Tasks};
use pki::{Key, KeyAlgorithm};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::time::timeout;

use super::{certificates::Issuer, files};
use crate::{
    controller::{API_VERSION, AUDIENCE, PATH, REQUEST_LABEL, SCHEME},
    error::Error,
    systemd_error::SystemdError,
};

/// The machine's key, which `kops toolbox enroll` or the first run creates.
const KEY: &str = "etc/kubernetes/kops/pki/machine/private.pem";
const PUBLIC_KEY: &str = "etc/kubernetes/kops/pki/machine/public.pem";
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
/// The largest answer.
const MAX_ANSWER: usize = 16 << 20;
/// The longest refusal that is shown, in characters.
const MAX_REASON: usize = 300;

/// The cluster's kops-controller, as a worker uses it.
pub(super) struct Controller<'a> {
    boot: &'a Value,
    hostname: &'a str,
    key: Key,
}

/// The configuration of a worker, and the cluster's secrets for it.
pub(super) struct NodeSettings {
    pub(super) config: String,
    pub(super) secrets: BTreeMap<String, String>,
}

/// An answer of kops-controller.
enum Answer {
    Tree(Value),
    /// The machine's Node exists and is ready.
    Registered,
}

impl<'a> Controller<'a> {
    /// Reads the machine's key, or creates it.
    pub(super) fn open(root: &Path, boot: &'a Value, hostname: &'a str) -> Result<Self, Error> {
        let (path, public) = (root.join(KEY), root.join(PUBLIC_KEY));
        files::check(&path, false)?;
        files::check(&public, false)?;
        if !path.exists() {
            pki::write_key(&path, &Key::generate(KeyAlgorithm::EcdsaP256)?)?;
        }
        let key = pki::read_key(&path)?;
        if key.algorithm() != Some(KeyAlgorithm::EcdsaP256) {
            return Err(SystemdError::MachineKey { path }.into());
        }
        pki::update_file(&public, key.public_pem()?.as_bytes(), pki::PUBLIC_MODE)?;
        Ok(Self { boot, hostname, key })
    }

    /// Requests the configuration; `None` if the machine's Node is ready, because kops-controller then answers no more.
    pub(super) async fn request_settings(&self) -> Result<Option<NodeSettings>, Error> {
        let body = json!({"apiVersion": API_VERSION, "certs": {}, "includeNodeConfig": true});
        let Answer::Tree(tree) = self.query(&body).await? else { return Ok(None) };
        let config = tree.text("nodeConfig.nodeupConfig").to_owned();
        if config.is_empty() {
            return Err(Error::ControllerResponse);
        }
        let mut secrets = BTreeMap::new();
        for (name, value) in tree.pairs("nodeConfig.nodeSecrets") {
            let content = STANDARD.decode(value.as_str().unwrap_or_default());
            let text = String::from_utf8(content.map_err(Error::NodeSecret)?);
            let text = text.map_err(|source| Error::Encoding { name: name.clone(), source })?;
            secrets.insert(name.clone(), text);
        }
        Ok(Some(NodeSettings { config, secrets }))
    }

    /// Requests the certificates of the tasks that the machine does not have yet.
    pub(super) async fn request_certificates(
        &self,
        issuer: &Issuer<'_>,
        tasks: &Tasks,
    ) -> Result<(), Error> {
        let wanted = tasks.iter().filter_map(|task| match task {
            Task::Certificate(certificate) if !issuer.has(certificate) => Some(certificate),
            _ => None,
        });
        let wanted: Vec<(&Certificate, Key)> = wanted
            .map(|task| Ok::<_, Error>((task, Key::generate(KeyAlgorithm::EcdsaP256)?)))
            .collect::<Result<_, _>>()?;
        if wanted.is_empty() {
            return Ok(());
        }
        let (mut certs, mut ids) = (json!({}), json!({}));
        for (task, key) in &wanted {
            certs[&task.name] = pki::encode(REQUEST_LABEL, &key.public_der()?).into();
            ids[&task.signer] = task.keypair.clone().into();
        }
        let body = json!({
            "apiVersion": API_VERSION, "certs": certs, "keypairIDs": ids, "includeNodeConfig": false,
        });
        let tree = match self.query(&body).await? {
            Answer::Tree(tree) => tree,
            Answer::Registered => return Err(SystemdError::Registered.into()),
        };
        for (task, key) in &wanted {
            // Upstream's name has a capital letter.
            let pem =
                ["Certs", "certs"].map(|part| tree.text([part, task.name.as_str()].as_slice()));
            let pem = pem.into_iter().find(|pem| !pem.is_empty()).unwrap_or_default();
            issuer.keep(task, pem, key)?;
        }
        Ok(())
    }

    /// Asks each server in turn until one answers.
    async fn query(&self, body: &Value) -> Result<Answer, Error> {
        let body = body.to_string();
        let mut last = Error::ConfigServer;
        for server in self.boot.texts("ConfigServer.servers") {
            let asked = timeout(ANSWER_TIMEOUT, self.ask(server, &body)).await;
            let silent = || SystemdError::Silent {
                server: server.to_owned(),
                seconds: ANSWER_TIMEOUT.as_secs(),
            };
            match asked.unwrap_or_else(|_| Err(silent().into())) {
                Ok(answer) => return Ok(answer),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn ask(&self, server: &str, body: &str) -> Result<Answer, Error> {
        let authorities = self.boot.text("ConfigServer.CACertificates").as_bytes().to_vec();
        let tls = TlsMaterial { ca: Some(authorities), ..TlsMaterial::default() };
        let mut transport = HttpTransport::new(server, tls.client_config()?, None)?;
        let name = self.boot.text("ConfigServer.tlsServerName");
        if !name.is_empty() {
            transport = transport.with_server_name(name);
        }
        let client = Client::new(Arc::new(transport), &version::user_agent("nodeup"));
        let request = Request::post(PATH)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::AUTHORIZATION, self.authorization(body, rt::now())?)
            .body(client::full(body.to_owned()));
        let answer = client.request(request.map_err(SystemdError::Request)?).await?;
        let status = answer.status();
        let content = client::read(PATH, answer.into_body(), MAX_ANSWER).await?;
        match status {
            StatusCode::OK => {
                serde_json::from_slice(&content).map(Answer::Tree).map_err(Error::ControllerJson)
            }
            StatusCode::CONFLICT => Ok(Answer::Registered),
            _ => Err(self.refusal(server, status, &content).into()),
        }
    }

    fn refusal(&self, server: &str, status: StatusCode, content: &[u8]) -> SystemdError {
        let reason = String::from_utf8_lossy(content);
        let reason = reason.lines().next().unwrap_or_default();
        SystemdError::Refused {
            server: server.to_owned(),
            status: status.as_u16(),
            reason: reason.chars().filter(|c| !c.is_control()).take(MAX_REASON).collect(),
            host: self.hostname.to_owned(),
            group: self.boot.text("InstanceGroupName").to_owned(),
        }
    }

    /// Returns the proof that this machine sends a request: a signature of the request's hash.
    fn authorization(&self, body: &str, now: SystemTime) -> Result<String, Error> {
        let data = json!({
            "instance": self.hostname, "keyID": self.key.public_pem()?,
            "requestHash": STANDARD.encode(Sha256::digest(body)),
            "timestamp": Timestamp::from(now).unix(), "audience": AUDIENCE,
        });
        let data = data.to_string();
        let signature = STANDARD.encode(self.key.sign(data.as_bytes())?);
        let token = json!({"signature": signature, "data": STANDARD.encode(data)});
        Ok(format!("{SCHEME} {}", STANDARD.encode(token.to_string())))
    }
}
