//! Issuers of tokens: where their keys are is found out in the background, and the keys are fetched when a token comes
//! that none of those at hand has signed.

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

/// How long it is until an issuer that did not answer is asked again.
const AGAIN: Duration = Duration::from_secs(10);
/// Keys are fetched no more often, whoever brings tokens that nobody has signed.
const BETWEEN: Duration = Duration::from_secs(1);
/// As many tokens may wait for an issuer's keys.
const WAITING: usize = 64;

/// Issuers of one configuration, in its order.
pub(super) struct Issuers {
    all: Vec<Issuer>,
    algorithms: Vec<String>,
    /// Ends what is done for them, when nobody uses them any longer.
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
    /// What metrics call this server.
    server: Arc<str>,
    known: RwLock<Known>,
    /// Held by who fetches keys; when that was done last.
    fetching: Mutex<Option<Instant>>,
    waiting: Semaphore,
}

#[derive(Clone)]
enum Known {
    /// Why it is not known where its keys are.
    Nothing(Arc<str>),
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
    /// Nothing is asked of them yet.
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
                known: RwLock::new(Known::Nothing(words.into())),
                fetching: Mutex::default(),
                waiting: Semaphore::new(WAITING),
            }
        };
        let all = all.into_iter().map(issuer).collect();
        Arc::new(Self { all, algorithms, end: rt::Shutdown::new() })
    }

    /// Asks all of them where their keys are, again and again those that do not say.
    pub(super) fn find_out(self: &Arc<Self>, tasks: &rt::Tasks) {
        if self.all.is_empty() {
            return;
        }
        let (end, weak, count) = (self.end.clone(), Arc::downgrade(self), self.all.len());
        tasks.spawn_until_shutdown("issuers of tokens", async move {
            let asked = futures_util::future::join_all((0..count).map(|at| {
                let weak = weak.clone();
                async move {
                    // Held no longer than for a question: they end when nobody else holds them.
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

    /// Why tokens of some of them are not accepted yet.
    pub(super) fn health(&self) -> Result<(), String> {
        let bad: Vec<String> = self.all.iter().filter_map(|issuer| issuer.health().err()).collect();
        match bad.len() {
            0 => Ok(()),
            1 => Err(bad.join("")),
            _ => Err(format!("[{}]", bad.join(", "))),
        }
    }

    /// Whose token it is. An issuer that refuses a token of its own settles it.
    pub(super) async fn user(&self, token: &str) -> Result<Option<UserInfo>, TokenError> {
        let Some(named) = untrusted_issuer(token) else { return Ok(None) };
        let Some(issuer) = self.all.iter().find(|issuer| issuer.jwt.issuer().url == named) else {
            return Ok(None);
        };
        let began = Instant::now();
        let found = issuer.judge(token, &self.algorithms).await;
        let result = if found.is_ok() { "success" } else { "failure" };
        issuer.figures.judged(&named, result, began.elapsed());
        found.map(Some)
    }
}

impl Issuer {
    fn known(&self) -> Known {
        self.known.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn know(&self, known: Known) {
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = known;
    }

    fn health(&self) -> Result<(), String> {
        match self.known() {
            Known::Keys { .. } => Ok(()),
            Known::Nothing(why) => {
                let url = &self.jwt.issuer().url;
                Err(format!("oidc: authenticator for issuer {url:?} is not healthy: {why}"))
            }
        }
    }

    async fn get(&self, url: &str) -> Result<bytes::Bytes, String> {
        issuer::get(&self.backends, url, &self.jwt.issuer().certificate_authority).await
    }

    /// Finds out where the keys are. False: that must be tried again.
    async fn discover(&self) -> bool {
        match self.discovered().await {
            Ok(at) => {
                self.know(Known::Keys { at: at.into(), keys: Arc::default() });
                true
            }
            Err(error) => {
                let issuer = self.jwt.issuer().url.as_str();
                tracing::error!(issuer, error, "oidc authenticator: initializing plugin");
                self.know(Known::Nothing(error.into()));
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
        match found.jwks_uri.is_empty() {
            true => Err("provider did not return JWKS URL".to_owned()),
            false => Ok(found.jwks_uri),
        }
    }

    async fn judge(&self, token: &str, algorithms: &[String]) -> Result<UserInfo, TokenError> {
        let Known::Keys { at, keys } = self.known() else {
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
                let words = "oidc: verify token: failed to verify signature: failed to verify id token signature";
                return Err(TokenError(words.to_owned()));
            }
        }
        self.jwt.user(token.claims())
    }

    /// The keys, fetched since this was called. Those who come together fetch them once.
    async fn fresh_keys(&self, at: &Arc<str>) -> Result<Arc<KeySet>, String> {
        let came = Instant::now();
        let Ok(_waiting) = self.waiting.try_acquire() else {
            return Err("oidc: too many tokens wait for the issuer's keys".to_owned());
        };
        let mut fetched = self.fetching.lock().await;
        // Whoever was before has fetched them for all, or a moment ago: the signature is of neither.
        if fetched.is_some_and(|last| came < last || last.elapsed() < BETWEEN) {
            return match self.known() {
                Known::Keys { keys, .. } => Ok(keys),
                Known::Nothing(why) => Err(why.to_string()),
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
                self.know(Known::Keys { at: at.clone(), keys: keys.clone() });
                Ok(keys)
            }
            Err(error) => {
                tracing::warn!(
                    issuer,
                    error,
                    "fetching an issuer's keys; those at hand stay in use"
                );
                Err(format!("oidc: get keys failed {error}"))
            }
        }
    }
}
