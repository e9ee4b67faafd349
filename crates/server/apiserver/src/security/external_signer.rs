//! An external signer of service account tokens: follows its keys, and signs tokens with it.

use std::{path::Path, time::Duration};

use api_meta::GoDuration;
use auth::authn::{
    keys::{KeyError, KeyRing, VerifyingKey},
    service_account::Issue,
};
use parking_lot::Mutex;
use token_signer::{FetchedKeys, Signer, SignerError};
use tokio::{sync::Semaphore, time::Instant};

/// The pause after a failed refresh of the keys.
const RETRY: Duration = Duration::from_secs(10);
/// The shortest interval between fetches for tokens with unknown keys. Clients without credentials can send such
/// tokens.
const LOOK_UP_INTERVAL: Duration = Duration::from_secs(1);
/// The longest time that such a request waits. The signer's own timeouts are longer, so that it can restart.
const LOOK_UP: Duration = Duration::from_secs(10);
/// The maximum number of requests that wait for the key of their token.
const WAITING: usize = 64;
/// The shortest time for which a signer must be able to sign tokens, in seconds.
const MIN_EXPIRATION: i64 = 600;

/// The error of an external signer, with upstream's messages.
#[derive(Debug, thiserror::Error)]
pub enum ExternalSignerError {
    #[error(
        "while setting up external-jwt-signer: while initially filling key cache: while performing initial cache \
         fill: while fetching token verification keys: {0}; check that the signer listens on \
         --service-account-signing-endpoint"
    )]
    FirstKeys(#[source] Box<ExternalSignerError>),
    #[error("while setting up external-jwt-signer: {0}")]
    Metadata(#[source] SignerError),
    #[error(
        "max token life supported by external-jwt-signer ({0}s) is less than acceptable (min {MIN_EXPIRATION}s)"
    )]
    ShortExpiration(i64),
    #[error(
        "service-account-max-token-expiration cannot be set longer than the token expiration supported by \
         service-account-signing-endpoint: {wanted} > {supported}"
    )]
    LongExpiration { wanted: GoDuration, supported: GoDuration },
    #[error(transparent)]
    Signer(#[from] SignerError),
    #[error("while parsing external public keys: {0}")]
    Key(#[source] KeyError),
    #[error("failed to marshal: {0}")]
    Claims(#[source] KeyError),
    /// The failure of a key of a file.
    #[error(transparent)]
    Local(KeyError),
    #[error(
        "while validating header: key used for signing JWT (kid: {0}) is excluded from OIDC discovery docs"
    )]
    HiddenKey(String),
}

/// An external signer and its keys.
pub(crate) struct ExternalSigner {
    signer: Signer,
    pub(super) keys: KeyRing,
    /// The longest validity of a token, in seconds.
    pub(super) max_expiration: i64,
    /// The start of the last fetch. The lock is held during a fetch.
    fetching: tokio::sync::Mutex<Instant>,
    waiters: Semaphore,
    refresh: Mutex<Refresh>,
}

/// The time of the last successful fetch, and the interval to the next one.
#[derive(Clone, Copy)]
struct Refresh {
    at: Instant,
    interval: Duration,
}

impl ExternalSigner {
    /// Fetches the keys and the longest validity. `wanted` is the value of `--service-account-max-token-expiration`.
    pub(crate) async fn connect(
        socket: &Path,
        wanted: Option<Duration>,
    ) -> Result<Self, ExternalSignerError> {
        let signer = Signer::new(socket);
        let at = Instant::now();
        let first = async { parse(signer.fetch_keys().await?) };
        let (keys, interval) =
            first.await.map_err(|error| ExternalSignerError::FirstKeys(Box::new(error)))?;
        let supported =
            signer.max_token_expiration().await.map_err(ExternalSignerError::Metadata)?;
        if supported < MIN_EXPIRATION {
            return Err(ExternalSignerError::ShortExpiration(supported));
        }
        let max_expiration = wanted.map_or(supported, |wanted| wanted.as_secs() as i64);
        if max_expiration > supported {
            return Err(ExternalSignerError::LongExpiration {
                wanted: GoDuration::from_secs(max_expiration),
                supported: GoDuration::from_secs(supported),
            });
        }
        Ok(Self {
            signer,
            keys: KeyRing::new(keys),
            max_expiration,
            fetching: tokio::sync::Mutex::new(at),
            waiters: Semaphore::new(WAITING),
            refresh: Mutex::new(Refresh { at, interval }),
        })
    }

    /// Fetches the keys again at the interval that the signer wants. If that fails, the present keys stay in use.
    pub(super) async fn follow(&self) {
        let mut pause = self.refresh().interval;
        loop {
            tokio::time::sleep(pause).await;
            let mut last = self.fetching.lock().await;
            pause = match self.fetch(&mut last).await {
                Ok(()) => self.refresh().interval,
                Err(error) => {
                    tracing::error!(%error, "when syncing supported public keys; the present ones stay in use");
                    RETRY
                }
            };
        }
    }

    /// Fetches the keys because the token of a request names an unknown one. Returns `false` if too many requests wait.
    pub(super) async fn look_up_key(&self) -> bool {
        let Ok(_waiting) = self.waiters.try_acquire() else { return false };
        if tokio::time::timeout(LOOK_UP, self.fetch_again()).await.is_err() {
            tracing::warn!(
                "the signer sent no keys within {LOOK_UP:?} for a token that names an unknown one"
            );
        }
        true
    }

    /// Fetches the keys unless a fetch begins while this call waits, whose result it then shares.
    async fn fetch_again(&self) {
        let asked = Instant::now();
        let mut last = self.fetching.lock().await;
        if *last > asked {
            return;
        }
        tokio::time::sleep_until(*last + LOOK_UP_INTERVAL).await;
        if let Err(error) = self.fetch(&mut last).await {
            tracing::warn!(%error, "cannot fetch the keys for a token that names an unknown one");
        }
    }

    async fn fetch(&self, last: &mut Instant) -> Result<(), ExternalSignerError> {
        *last = Instant::now();
        let (keys, interval) = parse(self.signer.fetch_keys().await?)?;
        self.keys.replace(keys);
        *self.refresh.lock() = Refresh { at: *last, interval };
        Ok(())
    }

    fn refresh(&self) -> Refresh {
        *self.refresh.lock()
    }

    /// Returns the time for which clients may cache the keys.
    pub(super) fn max_age(&self) -> Duration {
        let Refresh { at, interval } = self.refresh();
        interval.saturating_sub(at.elapsed())
    }

    /// Signs a token. The key must not be excluded from discovery.
    pub(super) async fn sign(&self, issue: &Issue) -> Result<String, ExternalSignerError> {
        let claims = issue.claims().map_err(ExternalSignerError::Claims)?;
        let signed = self.signer.sign(&claims).await?;
        if !self.keys.current().iter().any(|key| key.id() == signed.key_id) {
            self.fetch_again().await;
        }
        let keys = self.keys.current();
        if keys.iter().any(|key| key.id() == signed.key_id && key.is_hidden()) {
            return Err(ExternalSignerError::HiddenKey(signed.key_id));
        }
        Ok(signed.token)
    }
}

fn parse(fetched: FetchedKeys) -> Result<(Vec<VerifyingKey>, Duration), ExternalSignerError> {
    let keys = fetched
        .keys
        .into_iter()
        .map(|key| VerifyingKey::external(key.id, &key.der, key.hidden))
        .collect::<Result<_, _>>()
        .map_err(ExternalSignerError::Key)?;
    Ok((keys, fetched.refresh))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clients without credentials can name any key.
    #[tokio::test(start_paused = true)]
    async fn bounds_waiting_for_silent_signer() {
        let at = Instant::now();
        let silent = ExternalSigner {
            signer: Signer::new(Path::new("/nonexistent/signer.sock")),
            keys: KeyRing::new(Vec::new()),
            max_expiration: MIN_EXPIRATION,
            fetching: tokio::sync::Mutex::new(at),
            waiters: Semaphore::new(WAITING),
            refresh: Mutex::new(Refresh { at, interval: RETRY }),
        };
        let looks = (0..WAITING + 1).map(|_| silent.look_up_key());
        let waited = futures_util::future::join_all(looks).await;
        assert_eq!(waited.iter().filter(|waited| !**waited).count(), 1, "one more than may wait");
        assert!(at.elapsed() < LOOK_UP + Duration::from_secs(1), "{:?}", at.elapsed());
        assert!(silent.look_up_key().await, "the next request may wait again");
    }
}
