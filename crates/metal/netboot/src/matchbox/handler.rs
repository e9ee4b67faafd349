//! Answers requests to the HTTP endpoints.

use std::{io, net::IpAddr, path::PathBuf, sync::Arc};

use api_meta::{Cidr, Tree as _, query_decode};
use data_encoding::HEXLOWER;
use serde_json::Value;

use super::{
    assets, render,
    secrets::{SecretRequest, Secrets, TokenMaker},
    store::{Boot, Group, Kind, Profile, Store, StoreError},
    tpm::Challenges,
};
use crate::{
    labels::{self, Labels},
    machines::{Event, Facts, Inventory, Outcome, Stage, page},
    openpgp::Signer,
};

pub(super) const TEXT: &str = "text/plain; charset=utf-8";
/// The content type of metadata, which Matchbox spells this way.
const METADATA: &str = "plain/text";

/// The reasons for a missing answer. Each names group, profile and template, because Matchbox's 404 does not.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error(transparent)]
    Store(Box<StoreError>),
    #[error("group {group:?}: {source}")]
    Profile { group: String, source: Box<StoreError> },
    #[error("group {group:?}, profile {profile:?}: no {what} template is named; set {what}_id")]
    NoTemplate { group: String, profile: String, what: &'static str },
    #[error(
        "the pages of machines are shown to this machine only; run windlass metal status, come by \
         ssh -L, or start the server with --machines-from NETWORK"
    )]
    Forbidden,
    #[error("group {group:?}, profile {profile:?}: {source}")]
    Template { group: String, profile: String, source: Box<StoreError> },
    #[error("group {group:?}, profile {profile:?}, boot setting {setting}: {reason}")]
    Boot { group: String, profile: String, setting: String, reason: String },
    #[error("{reason}")]
    Challenge { challenge: String, reason: String },
    #[error("reading {}: {source}", path.display())]
    Groups { path: PathBuf, source: io::Error },
    #[error("group {group:?}, profile {profile:?}, {what} template {name:?}: {reason}")]
    Render { group: String, profile: String, what: &'static str, name: String, reason: String },
}

/// The configuration of [`Matchbox`] besides the store.
#[derive(Default)]
pub struct Settings {
    /// The directory of `/assets/`; `None` serves none.
    pub assets: Option<PathBuf>,
    /// The signer of requests with the suffix `.sig` or `.asc`.
    pub signer: Option<Signer>,
    /// `true` to serve secrets to every client, repeatedly and without TLS.
    pub insecure_secrets: bool,
    /// Makes bootstrap tokens for machines that join a cluster.
    pub token_maker: Option<TokenMaker>,
    /// The networks that may read the pages of machines, besides this machine itself.
    pub page_readers: Vec<Cidr>,
    /// The records of machines.
    pub inventory: Arc<Inventory>,
}

/// Matchbox's HTTP service: identifies the machine, selects its group and renders the templates of its profile.
pub struct Matchbox {
    store: Arc<Store>,
    pub(crate) settings: Settings,
    pub(super) transfers: assets::Transfers,
    challenges: Challenges,
}

const ENDPOINTS: [&str; 7] =
    ["boot.ipxe", "ipxe", "grub", "ignition", "cloud", "generic", "metadata"];

/// The parts of a request that affect the answer.
#[derive(Clone, Debug, Default)]
pub struct HttpRequest {
    /// The path of the URL.
    pub path: String,
    /// The query of the URL, still encoded.
    pub query: String,
    /// The client's address, if known.
    pub peer: Option<IpAddr>,
    /// `true` if the connection is encrypted.
    pub tls: bool,
    /// The value of the `Authorization` header.
    pub authorization: Option<String>,
}

/// A request to an endpoint, with the labels of its query.
struct Call<'a> {
    request: &'a HttpRequest,
    labels: Labels,
    /// The machine's id in the inventory.
    machine: Option<String>,
}

/// The content of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpContent {
    /// The value of the `Content-Type` header.
    pub content_type: &'static str,
    /// The body.
    pub body: Vec<u8>,
}

impl HttpContent {
    fn new(content_type: &'static str, text: impl Into<Vec<u8>>) -> Self {
        Self { content_type, body: text.into() }
    }

    fn text(text: impl Into<Vec<u8>>) -> Self {
        Self::new(TEXT, text)
    }
}

impl Matchbox {
    /// Creates a service for a store, with counters at zero.
    pub fn new(store: Arc<Store>, settings: Settings) -> Self {
        let challenges = Challenges::new();
        Self { store, settings, transfers: Default::default(), challenges }
    }

    /// Answers a request for anything but assets; `None` for paths that are not endpoints.
    pub fn serve(&self, request: &HttpRequest) -> Option<Result<HttpContent, Failure>> {
        let text = |text: String| Some(Ok(HttpContent::text(text)));
        match request.path.as_str() {
            "/" => return text("matchbox\n".into()),
            "/metrics" => return text(self.metrics()),
            "/machines" | "/machines/" | "/machines.json" => return self.machines(request),
            path if path.starts_with("/machines/") => return self.machines(request),
            _ => {}
        }
        let name = request.path.strip_prefix('/')?;
        let endpoint = match name {
            // A signed iPXE requests one of these names by default.
            "boot.ipxe" | "boot.ipxe.0" | "autoexec.ipxe" => "boot.ipxe",
            name => ENDPOINTS.into_iter().find(|endpoint| *endpoint == name)?,
        };
        let labels = labels::from_query(&request.query);
        let machine = self.settings.inventory.id(&labels, request.peer);
        let call = Call { request, labels, machine };
        let result = self.endpoint(endpoint, &call);
        let requests = &self.settings.inventory.metrics.requests;
        match &result {
            Ok(_) => {
                requests.with_label_values(&[endpoint, "answered"]).inc();
                tracing::info!(endpoint, labels = ?call.logged_labels(), "answered");
            }
            // The machine repeats the request, which is counted then.
            Err(Failure::Challenge { .. }) => {
                tracing::info!(endpoint, labels = ?call.logged_labels(), "challenged")
            }
            Err(error) => {
                requests.with_label_values(&[endpoint, "failed"]).inc();
                tracing::warn!(endpoint, %error, "no answer");
            }
        }
        self.record(endpoint, &call, result.as_ref().err());
        Some(result)
    }

    /// Records the answer in the inventory. Boot scripts have been recorded by [`Self::script`].
    fn record(&self, endpoint: &str, call: &Call<'_>, error: Option<&Failure>) {
        let Some(id) = &call.machine else { return };
        let script = matches!(endpoint, "boot.ipxe" | "ipxe" | "grub");
        let stage = if script { Stage::Ipxe } else { Stage::Config };
        let event = match (endpoint, error) {
            (_, Some(Failure::Challenge { .. })) => {
                Event::new(stage, Outcome::Started).detail("waiting for a TPM signature")
            }
            (_, Some(error)) => Event::new(stage, Outcome::Failed).detail(error.to_string()),
            ("boot.ipxe" | "ignition" | "cloud", None) => {
                Event::new(stage, Outcome::Succeeded).detail(endpoint)
            }
            _ => return,
        };
        self.settings.inventory.record(id, event.facts(call.facts()));
    }

    fn endpoint(&self, endpoint: &str, call: &Call<'_>) -> Result<HttpContent, Failure> {
        if endpoint == "boot.ipxe" {
            return Ok(HttpContent::text(render::BOOT_IPXE));
        }
        let (labels, query) = (&call.labels, call.request.query.as_str());
        let group = self.store.select(labels).map_err(|error| Failure::Store(error.into()))?;
        let data = render::data(&group, labels, query);
        if endpoint == "metadata" {
            return Ok(HttpContent::new(METADATA, render::metadata(&data)));
        }
        let profile = self.store.profile(&group.profile).map_err(|source| Failure::Profile {
            group: group.id.clone(),
            source: source.into(),
        })?;
        let kind = match endpoint {
            "ignition" => Kind::Ignition,
            "cloud" => Kind::Cloud,
            "generic" => Kind::Generic,
            script => return self.script(script, call, &group, &profile, data),
        };
        let secret_request = SecretRequest {
            labels,
            machine: call.machine.as_deref(),
            tls: call.request.tls,
            insecure: self.settings.insecure_secrets,
            authorization: call.request.authorization.as_deref(),
            challenges: &self.challenges,
        };
        let root = self.store.root().to_owned();
        let maker = self.settings.token_maker.as_ref();
        let secrets = Secrets::new(root, &group, &self.settings.inventory, &secret_request, maker);
        let rendered = self.render(kind, &group, &profile, &data, &secrets);
        let Err(error) = rendered else { return rendered };
        secrets.release_claims();
        Err(match secrets.challenge() {
            Some(challenge) => {
                Failure::Challenge { challenge: challenge.to_owned(), reason: error.to_string() }
            }
            None => error,
        })
    }

    /// Returns a boot script: for the profile's kernel, or for the disk of an installed machine.
    fn script(
        &self,
        script: &str,
        call: &Call<'_>,
        group: &Group,
        profile: &Profile,
        mut data: serde_json::Map<String, Value>,
    ) -> Result<HttpContent, Failure> {
        let inventory = &self.settings.inventory;
        let facts = Facts {
            group: Some(group.id.clone()),
            profile: Some(profile.id.clone()),
            ..call.facts()
        };
        if let Some(id) = &call.machine
            && profile.install_once
            && !call.labels.contains_key(render::NO_DISK)
            && inventory.is_installed(id)
        {
            inventory.record(id, Event::new(Stage::LocalDisk, Outcome::Succeeded).facts(facts));
            let make = if script == "grub" { render::grub_disk } else { render::ipxe_disk };
            return Ok(HttpContent::text(make(&call.request.query)));
        }
        let nonce = nonce();
        if let Some(request) = data.get_mut("request").and_then(Value::as_object_mut) {
            request.insert("nonce".into(), nonce.clone().into());
        }
        let boot = self.boot(group, profile, &data)?;
        let make = if script == "grub" { render::grub } else { render::ipxe };
        let text = make(&boot);
        if let Some(id) = &call.machine {
            let event = Event::new(Stage::Ipxe, Outcome::Succeeded).detail(script);
            inventory.record(id, event.facts(facts));
            inventory.set_nonce(id, &nonce, text.contains(&nonce));
        }
        Ok(HttpContent::text(text))
    }

    /// Renders the profile's boot settings.
    pub(crate) fn boot(
        &self,
        group: &Group,
        profile: &Profile,
        data: &serde_json::Map<String, Value>,
    ) -> Result<Boot, Failure> {
        let none = Secrets::none(&self.settings.inventory);
        render::boot(&profile.boot, &profile.id, data, &none).map_err(|error| Failure::Boot {
            group: group.id.clone(),
            profile: profile.id.clone(),
            setting: error.setting,
            reason: error.source.to_string(),
        })
    }

    /// Renders a template of the profile.
    pub(crate) fn render(
        &self,
        kind: Kind,
        group: &Group,
        profile: &Profile,
        data: &serde_json::Map<String, Value>,
        secrets: &Arc<Secrets>,
    ) -> Result<HttpContent, Failure> {
        let (what, name) = (kind.directory(), kind.name(profile));
        let ids = || (group.id.clone(), profile.id.clone());
        if name.is_empty() {
            let (group, profile) = ids();
            return Err(Failure::NoTemplate { group, profile, what });
        }
        let mut text = self.store.template(kind, name).map_err(|error| {
            let (group, profile) = ids();
            Failure::Template { group, profile, source: error.into() }
        })?;
        let failed = |reason| {
            let (group, profile) = ids();
            Failure::Render { group, profile, what, name: name.to_owned(), reason }
        };
        let plain =
            kind == Kind::Ignition && (name.ends_with(".ign") || name.ends_with(".ignition"));
        if !plain {
            text = render::template(name, &text, data, secrets)
                .map_err(|error| failed(error.to_string()))?;
        }
        match kind {
            Kind::Ignition => ignition(&text, plain)
                .map(|json| HttpContent::new("application/json", json))
                .map_err(|error| failed(error.to_string())),
            Kind::Cloud if !text.starts_with("#cloud-config") && !text.starts_with("#!") => {
                Err(failed("begins neither with #cloud-config nor with #!".into()))
            }
            Kind::Cloud | Kind::Generic => Ok(HttpContent::text(text)),
        }
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    fn may_read_machines(&self, peer: Option<IpAddr>) -> bool {
        let Some(peer) = peer.map(|peer| peer.to_canonical()) else { return false };
        let readers = &self.settings.page_readers;
        peer.is_loopback() || readers.iter().any(|network| network.contains(peer))
    }

    /// Answers with the page of all machines, the page of one, or all as JSON.
    fn machines(&self, request: &HttpRequest) -> Option<Result<HttpContent, Failure>> {
        let (inventory, html) = (&self.settings.inventory, "text/html; charset=utf-8");
        // The machines of a rack must not read each other's serial numbers, addresses and errors.
        if !self.may_read_machines(request.peer) {
            return Some(Err(Failure::Forbidden));
        }
        if request.path == "/machines.json" {
            let json = serde_json::to_vec(&inventory.machines()).unwrap_or_default();
            return Some(Ok(HttpContent::new("application/json", json)));
        }
        let page = match request.path.strip_prefix("/machines/").filter(|id| !id.is_empty()) {
            None => page::all(&inventory.machines(), inventory.now()),
            Some(id) => page::one(&inventory.machine(&query_decode(id)?)?, inventory.now()),
        };
        Some(Ok(HttpContent::new(html, page)))
    }

    /// Checks that the store's groups can be read.
    pub(super) fn health(&self) -> Result<(), Failure> {
        let groups = self.store.root().join("groups");
        match groups.read_dir() {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(source) => Err(Failure::Groups { path: groups, source }),
        }
    }

    fn metrics(&self) -> String {
        let metrics = &self.settings.inventory.metrics;
        metrics.transfers.with_label_values(&["assets"]).set(self.transfers.open() as f64);
        let machines = self.settings.inventory.machines();
        for stage in Stage::ALL {
            let here = machines.iter().filter(|m| m.last().is_some_and(|e| e.stage == stage));
            metrics.machines.with_label_values(&[stage.name()]).set(here.count() as f64);
        }
        metrics.all.text()
    }
}

impl Call<'_> {
    /// Returns the facts that the labels contain.
    fn facts(&self) -> Facts {
        let label = |name: &str| self.labels.get(name).cloned();
        Facts {
            uuid: label("uuid"),
            hostname: label("hostname"),
            serial: label("serial"),
            arch: label("arch"),
            address: self.request.peer.filter(|_| self.labels.contains_key("mac")),
            ..Facts::default()
        }
    }

    /// Returns the labels without the nonce, for logs.
    fn logged_labels(&self) -> Labels {
        let mut labels = self.labels.clone();
        labels.retain(|name, _| name != "nonce");
        labels
    }
}

/// Returns 128 random bits in hexadecimal.
fn nonce() -> String {
    let mut bytes = [0; 16];
    // Random numbers fail only without kernel support. An empty nonce never proves anything.
    if aws_lc_rs::rand::fill(&mut bytes).is_err() {
        return String::new();
    }
    HEXLOWER.encode(&bytes)
}

/// The errors of an Ignition template after it is rendered.
#[derive(Debug, thiserror::Error)]
enum IgnitionError {
    #[error(transparent)]
    Config(#[from] ignition::ConfigError),
    #[error("once rendered, {0}")]
    Translation(#[from] ignition::butane::Error),
}

/// Returns an Ignition config as compact JSON, translated from Butane or Container Linux Config unless `plain`. Logs
/// warnings.
fn ignition(text: &str, plain: bool) -> Result<String, IgnitionError> {
    if plain {
        return Ok(ignition::parse(text)?.to_string());
    }
    let translation = ignition::translate(text, None)?;
    for warning in &translation.warnings {
        tracing::warn!(%warning, "an Ignition template");
    }
    let config = translation.config.to_string();
    match translation.config.at("ignition.version").as_str() {
        // A machine with a config of version 2 runs an Ignition that supports no newer version.
        Some(version) if version.starts_with("2.") => Ok(config),
        _ => Ok(ignition::parse(&config)?.to_string()),
    }
}
