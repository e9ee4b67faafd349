//! Answers requests to the HTTP endpoints.

use std::{net::IpAddr, path::PathBuf, sync::Arc};

use api_meta::{Cidr, query_decode};
use data_encoding::HEXLOWER;
use serde_json::Value;

use super::{
    Boot, Group, Kind, Labels, Profile, Store, StoreError, TokenMaker, assets, labels, render,
    secrets::{SecretRequest, Secrets},
    tpm::Challenges,
};
use crate::{
    machines::{Book, Facts, Note, Outcome, Stage, page},
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
    #[error("{source}")]
    Challenge { challenge: String, source: Box<Failure> },
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
    pub book: Arc<Book>,
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
    asked: &'a HttpRequest,
    labels: Labels,
    /// The machine's id in the book.
    machine: Option<String>,
}

/// A content type and a body.
pub type Answer = (&'static str, Vec<u8>);

impl Matchbox {
    /// Creates a service for a store, with counters at zero.
    pub fn new(store: Arc<Store>, settings: Settings) -> Self {
        let challenges = Challenges::new();
        Self { store, settings, transfers: Default::default(), challenges }
    }

    /// Answers a request for anything but assets; `None` for paths that are not endpoints.
    pub fn answer(&self, asked: &HttpRequest) -> Option<Result<Answer, Failure>> {
        let text = |text: String| Some(Ok((TEXT, text.into_bytes())));
        match asked.path.as_str() {
            "/" => return text("matchbox\n".into()),
            "/metrics" => return text(self.metrics()),
            "/machines" | "/machines/" | "/machines.json" => return self.machines(asked),
            path if path.starts_with("/machines/") => return self.machines(asked),
            _ => {}
        }
        let name = asked.path.strip_prefix('/')?;
        let endpoint = match name {
            // A signed iPXE requests one of these names by default.
            "boot.ipxe" | "boot.ipxe.0" | "autoexec.ipxe" => "boot.ipxe",
            name => ENDPOINTS.into_iter().find(|endpoint| *endpoint == name)?,
        };
        let labels = labels::from_query(&asked.query);
        let machine = self.settings.book.id(&labels, asked.peer);
        let call = Call { asked, labels, machine };
        let answer = self.endpoint(endpoint, &call);
        let requests = &self.settings.book.metrics.requests;
        match &answer {
            Ok(_) => requests.with_label_values(&[endpoint, "answered"]).inc(),
            // The machine repeats the request, which is counted then.
            Err(Failure::Challenge { .. }) => {}
            Err(_) => requests.with_label_values(&[endpoint, "failed"]).inc(),
        }
        match &answer {
            Err(Failure::Challenge { .. }) => {
                tracing::info!(endpoint, labels = ?call.shown(), "challenged")
            }
            Ok(_) => tracing::info!(endpoint, labels = ?call.shown(), "answered"),
            Err(error) => tracing::warn!(endpoint, %error, "no answer"),
        }
        self.record(endpoint, &call, answer.as_ref().err());
        Some(answer.map(|(kind, text)| (kind, text.into_bytes())))
    }

    /// Records the answer in the book. Boot scripts have been recorded by [`Self::script`].
    fn record(&self, endpoint: &str, call: &Call<'_>, error: Option<&Failure>) {
        let Some(id) = &call.machine else { return };
        let script = matches!(endpoint, "boot.ipxe" | "ipxe" | "grub");
        let stage = if script { Stage::Ipxe } else { Stage::Config };
        let note = match (endpoint, error) {
            (_, Some(Failure::Challenge { .. })) => {
                Note::new(stage, Outcome::Started).detail("waiting for a TPM signature")
            }
            (_, Some(error)) => Note::new(stage, Outcome::Failed).detail(error.to_string()),
            ("boot.ipxe" | "ignition" | "cloud", None) => {
                Note::new(stage, Outcome::Succeeded).detail(endpoint)
            }
            _ => return,
        };
        self.settings.book.note(id, note.facts(call.facts()));
    }

    fn endpoint(&self, endpoint: &str, call: &Call<'_>) -> Result<(&'static str, String), Failure> {
        if endpoint == "boot.ipxe" {
            return Ok((TEXT, render::BOOT_IPXE.into()));
        }
        let (labels, query) = (&call.labels, call.asked.query.as_str());
        let group = self.store.select(labels).map_err(|error| Failure::Store(error.into()))?;
        let data = render::data(&group, labels, query);
        if endpoint == "metadata" {
            return Ok((METADATA, render::metadata(&data)));
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
        let presented = SecretRequest {
            labels,
            machine: call.machine.as_deref(),
            tls: call.asked.tls,
            insecure: self.settings.insecure_secrets,
            authorization: call.asked.authorization.as_deref(),
            challenges: &self.challenges,
        };
        let root = self.store.root().to_owned();
        let maker = self.settings.token_maker.as_ref();
        let secrets = Secrets::new(root, &group, &self.settings.book, &presented, maker);
        let answer = self.rendered(kind, &group, &profile, &data, &secrets);
        let Err(error) = answer else { return answer };
        secrets.give_back();
        Err(match secrets.challenge() {
            Some(challenge) => {
                Failure::Challenge { challenge: challenge.to_owned(), source: error.into() }
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
    ) -> Result<(&'static str, String), Failure> {
        let book = &self.settings.book;
        let facts = Facts {
            group: Some(group.id.clone()),
            profile: Some(profile.id.clone()),
            ..call.facts()
        };
        if let Some(id) = &call.machine
            && profile.install_once
            && !call.labels.contains_key(render::NO_DISK)
            && book.is_installed(id)
        {
            book.note(id, Note::new(Stage::LocalDisk, Outcome::Succeeded).facts(facts));
            let make = if script == "grub" { render::grub_disk } else { render::ipxe_disk };
            return Ok((TEXT, make(&call.asked.query)));
        }
        let nonce = nonce();
        if let Some(request) = data.get_mut("request").and_then(Value::as_object_mut) {
            request.insert("nonce".into(), nonce.clone().into());
        }
        let boot = self.boot(group, profile, &data)?;
        let make = if script == "grub" { render::grub } else { render::ipxe };
        let text = make(&boot);
        if let Some(id) = &call.machine {
            let note = Note::new(Stage::Ipxe, Outcome::Succeeded).detail(script);
            book.note(id, note.facts(facts));
            book.new_nonce(id, &nonce, text.contains(&nonce));
        }
        Ok((TEXT, text))
    }

    /// Renders the profile's boot settings.
    pub(crate) fn boot(
        &self,
        group: &Group,
        profile: &Profile,
        data: &serde_json::Map<String, Value>,
    ) -> Result<Boot, Failure> {
        let none = Secrets::none(&self.settings.book);
        render::boot(&profile.boot, &profile.id, data, &none).map_err(|(setting, error)| {
            Failure::Boot {
                group: group.id.clone(),
                profile: profile.id.clone(),
                setting,
                reason: error.to_string(),
            }
        })
    }

    /// Renders a template of the profile.
    pub(crate) fn rendered(
        &self,
        kind: Kind,
        group: &Group,
        profile: &Profile,
        data: &serde_json::Map<String, Value>,
        secrets: &Arc<Secrets>,
    ) -> Result<(&'static str, String), Failure> {
        let (what, name) = (kind.directory(), kind.name(profile));
        let (group, profile) = (group.id.clone(), profile.id.clone());
        if name.is_empty() {
            return Err(Failure::NoTemplate { group, profile, what });
        }
        let text = match self.store.template(kind, name) {
            Ok(text) => text,
            Err(error) => {
                return Err(Failure::Template { group, profile, source: error.into() });
            }
        };
        let failed =
            |reason| Failure::Render { group, profile, what, name: name.to_owned(), reason };
        let plain =
            kind == Kind::Ignition && (name.ends_with(".ign") || name.ends_with(".ignition"));
        let text = if plain {
            text
        } else {
            match render::template(name, &text, data, secrets) {
                Ok(text) => text,
                Err(error) => return Err(failed(error.to_string())),
            }
        };
        match kind {
            Kind::Ignition => match ignition(&text, plain) {
                Ok(json) => Ok(("application/json", json)),
                Err(reason) => Err(failed(reason)),
            },
            Kind::Cloud if !text.starts_with("#cloud-config") && !text.starts_with("#!") => {
                Err(failed("begins neither with #cloud-config nor with #!".into()))
            }
            Kind::Cloud | Kind::Generic => Ok((TEXT, text)),
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
    fn machines(&self, asked: &HttpRequest) -> Option<Result<Answer, Failure>> {
        let (book, html) = (&self.settings.book, "text/html; charset=utf-8");
        // The machines of a rack must not read each other's serial numbers, addresses and errors.
        if !self.may_read_machines(asked.peer) {
            return Some(Err(Failure::Forbidden));
        }
        if asked.path == "/machines.json" {
            let json = serde_json::to_vec(&book.machines()).unwrap_or_default();
            return Some(Ok(("application/json", json)));
        }
        let page = match asked.path.strip_prefix("/machines/").filter(|id| !id.is_empty()) {
            None => page::all(&book.machines(), book.now()),
            Some(id) => page::one(&book.machine(&query_decode(id)?)?, book.now()),
        };
        Some(Ok((html, page.into_bytes())))
    }

    /// Checks that the store's groups can be read.
    pub(super) fn health(&self) -> Result<(), String> {
        let groups = self.store.root().join("groups");
        match groups.read_dir() {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(format!("reading {}: {error}", groups.display())),
        }
    }

    fn metrics(&self) -> String {
        let metrics = &self.settings.book.metrics;
        metrics.transfers.with_label_values(&["assets"]).set(self.transfers.open() as f64);
        let machines = self.settings.book.machines();
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
            address: self.asked.peer.filter(|_| self.labels.contains_key("mac")),
            ..Facts::default()
        }
    }

    /// Returns the labels without the nonce, for logs.
    fn shown(&self) -> Labels {
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

/// Returns an Ignition config as compact JSON, translated from Butane or Container Linux Config unless `plain`. Logs
/// warnings.
fn ignition(text: &str, plain: bool) -> Result<String, String> {
    if plain {
        return ignition::parse(text)
            .map(|config| config.to_string())
            .map_err(|error| error.to_string());
    }
    let translation =
        ignition::translate(text, None).map_err(|error| format!("once rendered, {error}"))?;
    for warning in &translation.warnings {
        tracing::warn!(%warning, "an Ignition template");
    }
    let config = translation.config.to_string();
    match translation.config["ignition"]["version"].as_str() {
        // A machine with a config of version 2 runs an Ignition that supports no newer version.
        Some(version) if version.starts_with("2.") => Ok(config),
        _ => ignition::parse(&config)
            .map(|config| config.to_string())
            .map_err(|error| error.to_string()),
    }
}
