//! Token issuers. Discovery runs in the background. The keys are fetched when a token arrives that no cached key has
//! signed.

use std::{sync::Arc, time::Duration};

use api_meta::{Timestamp, UserInfo};
use auth::authn::{
    TokenError,
    oidc::{IdToken, IdTokenError, JwtAuthenticator, KeySet, untrusted_issuer},
};
use parking_lot::RwLock;
use serde::Deserialize;
use tokio::{
    sync::{Mutex, Semaphore},
    time::Instant,
};

use super::metrics::SecurityMetrics;
use crate::{
    config::Network,
    outbound::{backends::Backends, error::GetError, issuer},
};

/// The interval of discovery attempts for an issuer that does not respond.
const AGAIN: Duration = Duration::from_secs(10);
/// The minimum interval of fetching keys, regardless of the tokens that arrive.
const BETWEEN: Duration = Duration::from_secs(1);
/// The maximum number of tokens that wait for an issuer's keys.
const WAITING: usize = 64;

/// The issuers of one configuration, in its order.
pub(super) struct Issuers {
    all: Vec<Issuer>,
    algorithms: Vec<String>,
    /// Stops the background task when the issuers are dropped.
    end: rt::Shutdown,
}

impl Drop for Issuers {
    fn drop(&mut self) {
        self.end.stop();
    }
}

struct Issuer {
    jwt: JwtAuthenticator,
    backends: Arc<Backends>,
    metrics: Arc<SecurityMetrics>,
    /// The name of this server in metrics.
    server: Arc<str>,
    source: RwLock<KeySource>,
    /// The time of the last fetch. Locked while keys are being fetched.
    last_fetch: Mutex<Option<Instant>>,
    waiters: Semaphore,
}

#[derive(Clone)]
enum KeySource {
    /// Discovery has not succeeded. Contains the last error.
    Unknown(Arc<str>),
    Keys {
        at: Arc<str>,
        keys: Arc<KeySet>,
    },
}

/// The reason why an issuer's keys are not available.
#[derive(Debug, thiserror::Error)]
enum IssuerError {
    #[error(transparent)]
    Get(#[from] GetError),
    #[error("oidc: failed to decode provider discovery object: {0}")]
    DiscoveryDocument(serde_json::Error),
    #[error(
        "oidc: issuer did not match the issuer returned by provider, expected {expected:?} got {got:?}"
    )]
    OtherIssuer { expected: String, got: String },
    #[error("provider did not return JWKS URL")]
    NoKeyUrl,
    #[error("oidc: too many tokens wait for the issuer's keys")]
    TooManyTokens,
    #[error("{0}")]
    NotInitialized(Arc<str>),
    #[error("oidc: failed to decode keys: {0}")]
    KeyDocument(serde_json::Error),
    #[error("oidc: authenticator not initialized")]
    NotDiscovered,
    #[error("oidc: verify token: failed to verify signature: fetching keys {0}")]
    SigningKeys(Box<Self>),
    #[error("oidc: get keys failed {0}")]
    Keys(Box<Self>),
}

#[derive(Deserialize)]
struct Discovery {
    issuer: String,
    #[serde(default)]
    jwks_uri: String,
}

impl Issuers {
    /// Creates the issuers without contacting them.
    pub(super) fn new(
        all: Vec<JwtAuthenticator>,
        algorithms: Vec<String>,
        backends: &Arc<Backends>,
        metrics: &Arc<SecurityMetrics>,
        server: &Arc<str>,
    ) -> Arc<Self> {
        let issuer = |jwt: JwtAuthenticator| {
            let words =
                format!("oidc: authenticator for issuer {:?} is not initialized", jwt.issuer().url);
            Issuer {
                jwt,
                backends: backends.clone(),
                metrics: metrics.clone(),
                server: server.clone(),
                source: RwLock::new(KeySource::Unknown(words.into())),
                last_fetch: Mutex::default(),
                waiters: Semaphore::new(WAITING),
            }
        };
        let all = all.into_iter().map(issuer).collect();
        Arc::new(Self { all, algorithms, end: rt::Shutdown::new() })
    }

    /// Starts discovery of all issuers, with retries until it succeeds.
    pub(super) fn start_discovery(self: &Arc<Self>, tasks: &rt::Tasks) {
        if self.all.is_empty() {
            return;
        }
        let (end, weak, count) = (self.end.clone(), Arc::downgrade(self), self.all.len());
        tasks.spawn_until_shutdown("issuers of tokens", async move {
            let discoveries = futures_util::future::join_all((0..count).map(|at| {
                let weak = weak.clone();
                async move {
                    // The reference is released between attempts, so that the task ends when the issuers are dropped.
                    while let Some(issuers) = weak.upgrade() {
                        if issuers.all[at].discover().await {
                            return;
                        }
                        drop(issuers);
                        tokio::time::sleep(AGAIN).await;
                    }
                }
            }));
            end.unless_stopping(discoveries).await;
        });
    }

    /// Describes the issuers whose tokens are not accepted yet. Returns `None` if there are none.
    pub(super) fn problem(&self) -> Option<String> {
        let problems: Vec<String> = self.all.iter().filter_map(Issuer::problem).collect();
        match problems.as_slice() {
            [] => None,
            [problem] => Some(problem.clone()),
            problems => Some(format!("[{}]", problems.join(", "))),
        }
    }

    /// Authenticates a token. Returns `None` if no issuer matches; an error of the matching issuer is final.
    pub(super) async fn user(&self, token: &str) -> Result<Option<UserInfo>, TokenError> {
        let Some(named) = untrusted_issuer(token) else { return Ok(None) };
        let Some(issuer) = self.all.iter().find(|issuer| issuer.jwt.issuer().url == named) else {
            return Ok(None);
        };
        let began = Instant::now();
        let found = issuer.verify(token, &self.algorithms).await;
        let result = if found.is_ok() { "success" } else { "failure" };
        issuer.metrics.record_validation(&named, result, began.elapsed());
        found.map(Some)
    }
}

impl Issuer {
    fn source(&self) -> KeySource {
        self.source.read().clone()
    }

    fn set_source(&self, source: KeySource) {
        *self.source.write() = source;
    }

    fn problem(&self) -> Option<String> {
        match self.source() {
            KeySource::Keys { .. } => None,
            KeySource::Unknown(why) => {
                let url = &self.jwt.issuer().url;
                Some(format!("oidc: authenticator for issuer {url:?} is not healthy: {why}"))
            }
        }
    }

    async fn get(&self, url: &str) -> Result<bytes::Bytes, GetError> {
        let issuer = self.jwt.issuer();
        let network = match issuer.egress_selector_type.as_str() {
            "cluster" => Network::Cluster,
            "controlplane" => Network::ControlPlane,
            _ => Network::Direct,
        };
        issuer::get(&self.backends, url, &issuer.certificate_authority, network).await
    }

    /// Runs discovery. Returns `false` if it must be retried.
    async fn discover(&self) -> bool {
        match self.key_url().await {
            Ok(at) => {
                self.set_source(KeySource::Keys { at: at.into(), keys: Arc::default() });
                true
            }
            Err(error) => {
                let issuer = self.jwt.issuer().url.as_str();
                tracing::error!(issuer, %error, "oidc authenticator: initializing plugin");
                self.set_source(KeySource::Unknown(error.to_string().into()));
                false
            }
        }
    }

    /// Returns the URL of the keys from the discovery document.
    async fn key_url(&self) -> Result<String, IssuerError> {
        let issuer = self.jwt.issuer();
        let url = match issuer.discovery_url.as_str() {
            "" => format!("{}/.well-known/openid-configuration", issuer.url.trim_end_matches('/')),
            url => url.to_owned(),
        };
        let document: Discovery = serde_json::from_slice(&self.get(&url).await?)
            .map_err(IssuerError::DiscoveryDocument)?;
        if document.issuer != issuer.url {
            let expected = issuer.url.clone();
            return Err(IssuerError::OtherIssuer { expected, got: document.issuer });
        }
        if document.jwks_uri.is_empty() {
            return Err(IssuerError::NoKeyUrl);
        }
        Ok(document.jwks_uri)
    }

    async fn verify(&self, token: &str, algorithms: &[String]) -> Result<UserInfo, TokenError> {
        let KeySource::Keys { at, keys } = self.source() else {
            return Err(TokenError::Remote(IssuerError::NotDiscovered.into()));
        };
        let token = IdToken::parse(token)?;
        let now = Timestamp::from(rt::now());
        token.check(&self.jwt.issuer().audiences, algorithms, now)?;
        if !token.is_signed_by(&keys) {
            let fresh = self.fresh_keys(&at).await.map_err(|error| {
                TokenError::Remote(IssuerError::SigningKeys(Box::new(error)).into())
            })?;
            if !token.is_signed_by(&fresh) {
                return Err(IdTokenError::Signature.into());
            }
        }
        Ok(self.jwt.user(token.claims())?)
    }

    /// Returns keys that were fetched after this call. Concurrent calls share one fetch.
    async fn fresh_keys(&self, at: &Arc<str>) -> Result<Arc<KeySet>, IssuerError> {
        let came = Instant::now();
        let Ok(_waiting) = self.waiters.try_acquire() else {
            return Err(IssuerError::TooManyTokens);
        };
        let mut fetched = self.last_fetch.lock().await;
        // Another call has fetched the keys meanwhile or a moment ago: neither contains the key of this signature.
        if fetched.is_some_and(|last| came < last || last.elapsed() < BETWEEN) {
            return match self.source() {
                KeySource::Keys { keys, .. } => Ok(keys),
                KeySource::Unknown(why) => Err(IssuerError::NotInitialized(why)),
            };
        }
        let found = self.fetch_keys(at).await;
        *fetched = Some(Instant::now());
        let issuer = self.jwt.issuer().url.as_str();
        let result = if found.is_ok() { "success" } else { "failure" };
        self.metrics.record_fetch(issuer, &self.server, result);
        match found {
            Ok(keys) => {
                let keys = Arc::new(keys);
                self.set_source(KeySource::Keys { at: at.clone(), keys: keys.clone() });
                Ok(keys)
            }
            Err(error) => {
                tracing::warn!(
                    issuer,
                    %error,
                    "failed to fetch the keys of an issuer; the previous keys stay in use"
                );
                Err(IssuerError::Keys(Box::new(error)))
            }
        }
    }

    async fn fetch_keys(&self, url: &str) -> Result<KeySet, IssuerError> {
        KeySet::parse(&self.get(url).await?).map_err(IssuerError::KeyDocument)
    }
}
