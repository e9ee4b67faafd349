//! Token issuers. Discovery runs in the background. The keys are fetched when a token arrives that no cached key has
//! signed.

use std::{
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use api_meta::{Timestamp, UserInfo};
use auth::authn::{
    TokenError,
    oidc::{IdToken, JwtAuthenticator, KeySet, untrusted_issuer},
};
use serde::Deserialize;
use tokio::{
    sync::{Mutex, Semaphore},
    time::Instant,
};

use super::figures::Figures;
use crate::outbound::{backends::Backends, issuer};

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
    figures: Arc<Figures>,
    /// The name of this server in metrics.
    server: Arc<str>,
    known: RwLock<KeySource>,
    /// The time of the last fetch. Locked while keys are being fetched.
    fetching: Mutex<Option<Instant>>,
    waiting: Semaphore,
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
        (backends, figures): (&Arc<Backends>, &Arc<Figures>),
        server: &Arc<str>,
    ) -> Arc<Self> {
        let issuer = |jwt: JwtAuthenticator| {
            let words =
                format!("oidc: authenticator for issuer {:?} is not initialized", jwt.issuer().url);
            Issuer {
                jwt,
                backends: backends.clone(),
                figures: figures.clone(),
                server: server.clone(),
                known: RwLock::new(KeySource::Unknown(words.into())),
                fetching: Mutex::default(),
                waiting: Semaphore::new(WAITING),
            }
        };
        let all = all.into_iter().map(issuer).collect();
        Arc::new(Self { all, algorithms, end: rt::Shutdown::new() })
    }

    /// Starts discovery of all issuers, with retries until it succeeds.
    pub(super) fn find_out(self: &Arc<Self>, tasks: &rt::Tasks) {
        if self.all.is_empty() {
            return;
        }
        let (end, weak, count) = (self.end.clone(), Arc::downgrade(self), self.all.len());
        tasks.spawn_until_shutdown("issuers of tokens", async move {
            let asked = futures_util::future::join_all((0..count).map(|at| {
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
            end.unless_stopping(asked).await;
        });
    }

    /// Returns the errors of issuers whose tokens are not accepted yet.
    pub(super) fn health(&self) -> Result<(), String> {
        let bad: Vec<String> = self.all.iter().filter_map(|issuer| issuer.health().err()).collect();
        match bad.len() {
            0 => Ok(()),
            1 => Err(bad.join("")),
            _ => Err(format!("[{}]", bad.join(", "))),
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
        issuer.figures.record_validation(&named, result, began.elapsed());
        found.map(Some)
    }
}

impl Issuer {
    fn known(&self) -> KeySource {
        self.known.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn know(&self, known: KeySource) {
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = known;
    }

    fn health(&self) -> Result<(), String> {
        match self.known() {
            KeySource::Keys { .. } => Ok(()),
            KeySource::Unknown(why) => {
                let url = &self.jwt.issuer().url;
                Err(format!("oidc: authenticator for issuer {url:?} is not healthy: {why}"))
            }
        }
    }

    async fn get(&self, url: &str) -> Result<bytes::Bytes, String> {
        issuer::get(&self.backends, url, &self.jwt.issuer().certificate_authority).await
    }

    /// Runs discovery. Returns `false` if it must be retried.
    async fn discover(&self) -> bool {
        match self.discovered().await {
            Ok(at) => {
                self.know(KeySource::Keys { at: at.into(), keys: Arc::default() });
                true
            }
            Err(error) => {
                let issuer = self.jwt.issuer().url.as_str();
                tracing::error!(issuer, error, "oidc authenticator: initializing plugin");
                self.know(KeySource::Unknown(error.into()));
                false
            }
        }
    }

    async fn discovered(&self) -> Result<String, String> {
        let issuer = self.jwt.issuer();
        let url = match issuer.discovery_url.as_str() {
            "" => format!("{}/.well-known/openid-configuration", issuer.url.trim_end_matches('/')),
            url => url.to_owned(),
        };
        let found: Discovery = serde_json::from_slice(&self.get(&url).await?)
            .map_err(|e| format!("oidc: failed to decode provider discovery object: {e}"))?;
        if found.issuer != issuer.url {
            return Err(format!(
                "oidc: issuer did not match the issuer returned by provider, expected {:?} got {:?}",
                issuer.url, found.issuer
            ));
        }
        if found.jwks_uri.is_empty() {
            return Err("provider did not return JWKS URL".to_owned());
        }
        Ok(found.jwks_uri)
    }

    async fn verify(&self, token: &str, algorithms: &[String]) -> Result<UserInfo, TokenError> {
        let KeySource::Keys { at, keys } = self.known() else {
            return Err(TokenError("oidc: authenticator not initialized".to_owned()));
        };
        let token = IdToken::parse(token)?;
        let now = Timestamp::from(rt::now());
        token.check(&self.jwt.issuer().audiences, algorithms, now)?;
        if !token.is_signed_by(&keys) {
            let fresh = self.fresh_keys(&at).await.map_err(|error| {
                let words = "oidc: verify token: failed to verify signature: fetching keys";
                TokenError(format!("{words} {error}"))
            })?;
            if !token.is_signed_by(&fresh) {
                let words = "oidc: verify token: failed to verify signature: failed to verify id \
                             token signature";
                return Err(TokenError(words.to_owned()));
            }
        }
        self.jwt.user(token.claims())
    }

    /// Returns keys that were fetched after this call. Concurrent calls share one fetch.
    async fn fresh_keys(&self, at: &Arc<str>) -> Result<Arc<KeySet>, String> {
        let came = Instant::now();
        let Ok(_waiting) = self.waiting.try_acquire() else {
            return Err("oidc: too many tokens wait for the issuer's keys".to_owned());
        };
        let mut fetched = self.fetching.lock().await;
        // Another call has fetched the keys meanwhile or a moment ago: neither contains the key of this signature.
        if fetched.is_some_and(|last| came < last || last.elapsed() < BETWEEN) {
            return match self.known() {
                KeySource::Keys { keys, .. } => Ok(keys),
                KeySource::Unknown(why) => Err(why.to_string()),
            };
        }
        let found = self.get(at).await.and_then(|json| {
            KeySet::parse(&json).map_err(|e| format!("oidc: failed to decode keys: {e}"))
        });
        *fetched = Some(Instant::now());
        let issuer = self.jwt.issuer().url.as_str();
        let result = if found.is_ok() { "success" } else { "failure" };
        self.figures.fetched(issuer, &self.server, result);
        match found {
            Ok(keys) => {
                let keys = Arc::new(keys);
                self.know(KeySource::Keys { at: at.clone(), keys: keys.clone() });
                Ok(keys)
            }
            Err(error) => {
                tracing::warn!(
                    issuer,
                    error,
                    "failed to fetch the keys of an issuer; the previous keys stay in use"
                );
                Err(format!("oidc: get keys failed {error}"))
            }
        }
    }
}
