//! The client of an external signer of service account tokens (`--service-account-signing-endpoint`, KEP-740): a gRPC
//! service on a Unix socket of this machine. Read [`Signer`] first.
//!
//! Not responsible for: parsing keys and deciding claims (crate `auth`), and when keys are fetched (`apiserver`).
//!
//! Invariants: a call ends in bounded time. A message of more than 4 MiB and a header with unknown members are errors.

mod error;
mod v1;

use std::{error::Error as _, path::Path, time::Duration};

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD as BASE64};
use serde::Deserialize;
use tonic::{Code, Response, Status, transport::Channel};

pub use self::error::{HeaderError, SignerError};
use self::v1::external_jwt_signer_client::ExternalJwtSignerClient;

/// The timeout of fetching keys and of signing, in which a signer that restarts is waited for.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The timeout of reading the signer's metadata.
const METADATA_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause between attempts to connect.
const RECONNECT: Duration = Duration::from_millis(100);
/// The longest ID of a key, in bytes.
const KEY_ID_LIMIT: usize = 1024;
/// The algorithms that the API server verifies.
const ALGORITHMS: [&str; 4] = ["RS256", "ES256", "ES384", "ES512"];
/// The end of the times of `google.protobuf.Timestamp`, 10000-01-01, and their begin, 0001-01-01, in seconds.
const TIMES: std::ops::Range<i64> = -62_135_596_800..253_402_300_800;

/// A connection to an external signer. It is made at the first call, and again after a restart of the signer.
#[derive(Clone)]
pub struct Signer {
    client: ExternalJwtSignerClient<Channel>,
}

/// The keys of a signer that verify tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchedKeys {
    /// The keys, at least one.
    pub keys: Vec<FetchedKey>,
    /// The time after which the signer wants the keys to be fetched again, at least a second.
    pub refresh: Duration,
}

/// A key that verifies tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchedKey {
    /// The ID that tokens name.
    pub id: String,
    /// The SubjectPublicKeyInfo in DER.
    pub der: Vec<u8>,
    /// `true` if the key is not published, and signs no new tokens.
    pub hidden: bool,
}

/// A signed token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedToken {
    /// The token in compact form.
    pub token: String,
    /// The ID of the key that signed it.
    pub key_id: String,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Header {
    alg: String,
    kid: String,
    typ: String,
}

impl Signer {
    /// Creates a client of the signer at a socket, without connecting. `@NAME` is a socket in the abstract namespace.
    /// Must be called within a Tokio runtime.
    pub fn new(socket: &Path) -> Self {
        let path = socket.to_string_lossy();
        let path = match path.strip_prefix('@') {
            Some(name) => format!("\0{name}").into(),
            None => socket.to_owned(),
        };
        Self { client: ExternalJwtSignerClient::new(grpc::channel(path)) }
    }

    /// Returns the longest validity of a token that the signer signs, in seconds.
    pub async fn max_token_expiration(&self) -> Result<i64, SignerError> {
        let metadata = call(METADATA_TIMEOUT, || {
            let mut client = self.client.clone();
            async move { client.metadata(v1::MetadataRequest {}).await }
        });
        Ok(metadata.await?.max_token_expiration_seconds)
    }

    /// Fetches the keys that verify tokens.
    pub async fn fetch_keys(&self) -> Result<FetchedKeys, SignerError> {
        let fetched = call(TIMEOUT, || {
            let mut client = self.client.clone();
            async move { client.fetch_keys(v1::FetchKeysRequest {}).await }
        });
        let fetched = fetched.await.map_err(|error| SignerError::Fetch(Box::new(error)))?;
        let hint = fetched.refresh_hint_seconds;
        let refresh = u64::try_from(hint).ok().filter(|seconds| *seconds > 0);
        let refresh = Duration::from_secs(refresh.ok_or(SignerError::RefreshHint(hint))?);
        if fetched.keys.is_empty() {
            return Err(SignerError::NoKeys);
        }
        let time = fetched.data_timestamp.ok_or(SignerError::DataTimestamp)?;
        if !TIMES.contains(&time.seconds) || !(0..1_000_000_000).contains(&time.nanos) {
            return Err(SignerError::DataTimestamp);
        }
        let keys = fetched.keys.into_iter().map(|key| {
            if key.key_id.is_empty() || key.key_id.len() > KEY_ID_LIMIT {
                return Err(SignerError::KeyId(key.key_id.chars().take(KEY_ID_LIMIT).collect()));
            }
            if key.key.is_empty() {
                return Err(SignerError::EmptyKey);
            }
            Ok(FetchedKey { id: key.key_id, der: key.key, hidden: key.exclude_from_oidc_discovery })
        });
        Ok(FetchedKeys { keys: keys.collect::<Result<_, _>>()?, refresh })
    }

    /// Signs claims, which are the second part of a token in base64url.
    pub async fn sign(&self, claims: &str) -> Result<SignedToken, SignerError> {
        let signed = call(TIMEOUT, || {
            let (mut client, claims) = (self.client.clone(), claims.to_owned());
            async move { client.sign(v1::SignJwtRequest { claims }).await }
        });
        let signed = signed.await.map_err(|error| SignerError::Sign(Box::new(error)))?;
        let header = read_header(&signed.header)?;
        if signed.signature.is_empty() {
            return Err(SignerError::NoSignature);
        }
        BASE64.decode(&signed.signature).map_err(SignerError::Signature)?;
        let token = format!("{}.{claims}.{}", signed.header, signed.signature);
        Ok(SignedToken { token, key_id: header.kid })
    }
}

fn read_header(text: &str) -> Result<Header, HeaderError> {
    let json = BASE64.decode(text).map_err(HeaderError::Encoding)?;
    // An object, because a struct can be read from an array, too.
    let header: Header = serde_json::from_slice::<serde_json::Map<_, _>>(&json)
        .and_then(|members| serde_json::from_value(members.into()))
        .map_err(|error| HeaderError::Json(error.to_string()))?;
    match header {
        Header { ref typ, .. } if typ != "JWT" => Err(HeaderError::Type),
        Header { ref kid, .. } if kid.is_empty() => Err(HeaderError::NoKeyId),
        Header { ref kid, .. } if kid.len() > KEY_ID_LIMIT => Err(HeaderError::LongKeyId),
        Header { alg, .. } if !ALGORITHMS.contains(&alg.as_str()) => {
            Err(HeaderError::Algorithm(alg))
        }
        header => Ok(header),
    }
}

/// Calls the signer. While it does not listen, the call is repeated until the timeout, as upstream's client waits for
/// the connection.
async fn call<T, F: Future<Output = Result<Response<T>, Status>>>(
    timeout: Duration,
    call: impl Fn() -> F,
) -> Result<T, SignerError> {
    let mut last = None;
    let attempts = async {
        loop {
            match call().await {
                Err(status) if is_unconnected(&status) => last = Some(status),
                answered => return answered,
            }
            tokio::time::sleep(RECONNECT).await;
        }
    };
    let answered = tokio::time::timeout(timeout, attempts).await;
    match answered {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(rpc(&status)),
        Err(_) => Err(last.map_or_else(
            || SignerError::Rpc {
                code: Code::DeadlineExceeded,
                message: "context deadline exceeded".to_owned(),
            },
            |status| rpc(&status),
        )),
    }
}

/// Returns `true` if a call failed because the signer does not listen.
fn is_unconnected(status: &Status) -> bool {
    status.source().is_some_and(|cause| cause.is::<tonic::transport::Error>())
}

/// Returns a failure with its cause, which tonic does not put into the message of a failed connection.
fn rpc(status: &Status) -> SignerError {
    let mut message = status.message().to_owned();
    let mut cause = status.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !message.contains(&text) {
            message = format!("{message}: {text}");
        }
        cause = error.source();
    }
    SignerError::Rpc { code: status.code(), message }
}

#[doc(hidden)]
pub mod testing {
    //! The signer's side of the API, for tests.
    pub use crate::v1::{
        FetchKeysRequest, FetchKeysResponse, Key, MetadataRequest, MetadataResponse,
        SignJwtRequest, SignJwtResponse, Timestamp,
        external_jwt_signer_server::{ExternalJwtSigner, ExternalJwtSignerServer},
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_invalid_headers() {
        let good = r#"{"alg":"ES256","kid":"k","typ":"JWT"}"#;
        assert_eq!(read_header(&BASE64.encode(good)).unwrap().kid, "k");
        let long = good.replace("\"k\"", &format!("\"{}\"", "k".repeat(1025)));
        for (header, message) in [
            (r#"{"alg":"ES256","kid":"k","typ":"at+jwt"}"#, "bad type"),
            (r#"{"alg":"ES256","typ":"JWT"}"#, "key id missing"),
            (&long, "key id longer than 1 kb"),
            (r#"{"alg":"none","kid":"k","typ":"JWT"}"#, "bad signing algorithm \"none\""),
            (r#"{"alg":"HS256","kid":"k","typ":"JWT"}"#, "bad signing algorithm \"HS256\""),
        ] {
            let error = read_header(&BASE64.encode(header)).err().unwrap();
            assert_eq!(error.to_string(), message);
        }
        for header in [
            r#"{"alg":"ES256","kid":"k","typ":"JWT","jku":"https://evil"}"#,
            r#"["ES256","k","JWT"]"#,
            "{",
            "",
        ] {
            let error = read_header(&BASE64.encode(header)).err().unwrap();
            assert!(matches!(error, HeaderError::Json(_)), "{error}");
        }
        let encoding = read_header("a.b").err().unwrap();
        assert!(matches!(encoding, HeaderError::Encoding(_)), "{encoding}");
    }
}
