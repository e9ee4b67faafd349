//! The HTTP endpoints.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use futures_util::{FutureExt, future::BoxFuture};
use http::{HeaderValue, Request, Response, StatusCode, header::CONTENT_TYPE};
use http_body_util::{BodyExt, Full};
use serde_json::Value;
use serve::Body;

use super::{Group, Kind, Labels, Profile, Store, StoreError, assets, labels, render};

const TEXT: &str = "text/plain; charset=utf-8";
/// Matchbox has it this way round.
const METADATA: &str = "plain/text";

/// Why there is no answer: it names group, profile and template, so that nobody has to guess from a 404.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error(transparent)]
    Store(Box<StoreError>),
    #[error("group {group:?}: {source}")]
    Profile { group: String, source: Box<StoreError> },
    #[error("group {group:?}, profile {profile:?}: no {what} template is named; set {what}_id")]
    NoTemplate { group: String, profile: String, what: &'static str },
    #[error("group {group:?}, profile {profile:?}: {source}")]
    Template { group: String, profile: String, source: Box<StoreError> },
    #[error("group {group:?}, profile {profile:?}, {what} template {name:?}: {reason}")]
    Render { group: String, profile: String, what: &'static str, name: String, reason: String },
}

pub struct Matchbox {
    store: Store,
    assets: Option<PathBuf>,
    counts: BTreeMap<&'static str, Count>,
}

#[derive(Default)]
struct Count {
    answered: AtomicU64,
    failed: AtomicU64,
}

const ENDPOINTS: [&str; 7] =
    ["boot.ipxe", "ipxe", "grub", "ignition", "cloud", "generic", "metadata"];

type Answer = Result<(&'static str, String), Failure>;

impl Matchbox {
    pub fn new(store: Store, assets: Option<PathBuf>) -> Self {
        let counts = ENDPOINTS.into_iter().map(|name| (name, Count::default())).collect();
        Self { store, assets, counts }
    }

    /// Answers one request but for assets; `None` for paths that are no endpoint.
    pub fn answer(&self, path: &str, query: &str) -> Option<Answer> {
        let endpoint = match path {
            "/" => return Some(Ok((TEXT, "matchbox\n".into()))),
            "/healthz" => return Some(Ok((TEXT, "ok\n".into()))),
            "/metrics" => return Some(Ok((TEXT, self.metrics()))),
            // The name that a signed iPXE asks for by itself.
            "/boot.ipxe" | "/boot.ipxe.0" | "/autoexec.ipxe" => "boot.ipxe",
            path => ENDPOINTS.into_iter().find(|name| path.strip_prefix('/') == Some(name))?,
        };
        let labels = labels::from_query(query);
        let answer = self.endpoint(endpoint, &labels, query);
        if let Some(count) = self.counts.get(endpoint) {
            let counter = if answer.is_ok() { &count.answered } else { &count.failed };
            counter.fetch_add(1, Ordering::Relaxed);
        }
        match &answer {
            Ok(_) => tracing::info!(endpoint, ?labels, "answered"),
            Err(error) => tracing::warn!(endpoint, %error, "no answer"),
        }
        Some(answer)
    }

    fn endpoint(&self, endpoint: &str, labels: &Labels, query: &str) -> Answer {
        if endpoint == "boot.ipxe" {
            return Ok((TEXT, render::BOOT_IPXE.into()));
        }
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
            script => {
                let boot = render::boot(&profile.boot, &profile.id, &data).map_err(|error| {
                    Failure::Render {
                        group: group.id.clone(),
                        profile: profile.id.clone(),
                        what: "boot",
                        name: profile.id.clone(),
                        reason: error.to_string(),
                    }
                })?;
                let make = if script == "grub" { render::grub } else { render::ipxe };
                return Ok((TEXT, make(&boot)));
            }
        };
        self.rendered(kind, &group, &profile, &data)
    }

    /// A template of the profile's, rendered.
    pub(crate) fn rendered(
        &self,
        kind: Kind,
        group: &Group,
        profile: &Profile,
        data: &serde_json::Map<String, Value>,
    ) -> Answer {
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
        let text = match plain {
            true => text,
            false => match render::template(name, &text, data) {
                Ok(text) => text,
                Err(error) => return Err(failed(error.to_string())),
            },
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

    fn metrics(&self) -> String {
        let mut out = String::from(
            "# HELP netboot_requests_total Requests by endpoint and outcome.\n\
             # TYPE netboot_requests_total counter\n",
        );
        for (name, count) in &self.counts {
            for (outcome, counter) in [("answered", &count.answered), ("failed", &count.failed)] {
                let value = counter.load(Ordering::Relaxed);
                out.push_str(&format!(
                    "netboot_requests_total{{endpoint=\"{name}\",outcome=\"{outcome}\"}} {value}\n"
                ));
            }
        }
        out
    }
}

/// An Ignition config as compact JSON: as it stands, or translated from Butane. Warnings are logged.
fn ignition(text: &str, plain: bool) -> Result<String, String> {
    let config = match plain {
        true => ignition::parse(text),
        false => {
            let translation = ignition::butane::translate(text, None)
                .map_err(|error| format!("once rendered, {error}"))?;
            for warning in &translation.warnings {
                tracing::warn!(%warning, "Butane");
            }
            ignition::parse(&translation.config.to_string())
        }
    };
    config.map(|config| config.to_string()).map_err(|error| error.to_string())
}

fn text(status: StatusCode, kind: &'static str, body: String) -> Response<Body> {
    let body = Full::new(Bytes::from(body)).map_err(|never| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

impl serve::Handler for Shared {
    fn handle(&self, request: Request<Body>) -> BoxFuture<'_, Response<Body>> {
        let matchbox = self.0.clone();
        let (request, _body) = request.into_parts();
        async move {
            let path = request.uri.path().to_owned();
            if let (Some(root), Some(name)) = (&matchbox.assets, path.strip_prefix("/assets/")) {
                return assets::serve(root, name, &request).await;
            }
            let query = request.uri.query().unwrap_or_default().to_owned();
            // Files are read and templates rendered on a thread that may block.
            let answer = tokio::task::spawn_blocking(move || matchbox.answer(&path, &query)).await;
            match answer {
                Ok(Some(Ok((kind, body)))) => text(StatusCode::OK, kind, body),
                Ok(Some(Err(error))) => text(StatusCode::NOT_FOUND, TEXT, format!("{error}\n")),
                Ok(None) => text(StatusCode::NOT_FOUND, TEXT, "404 page not found\n".into()),
                Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("{error}\n")),
            }
        }
        .boxed()
    }
}

/// The handler that serves a [`Matchbox`].
pub struct Shared(pub Arc<Matchbox>);
