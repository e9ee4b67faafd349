//! ID tokens: parsing, validation of time and audience, and verification of the signature.

use api_meta::Timestamp;
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD as BASE64};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::jwks::KeySet;

/// The supported signature algorithms, as upstream. A configuration file allows all of them.
pub const ALGORITHMS: &[&str] =
    &["ES256", "ES384", "ES512", "PS256", "PS384", "PS512", "RS256", "RS384", "RS512"];
/// The tolerated clock skew of issuers.
const LEEWAY_SECONDS: f64 = 60.0;
const GOOGLE: &str = "https://accounts.google.com";

#[derive(Deserialize)]
struct Header {
    alg: String,
    #[serde(default)]
    kid: String,
    /// Extensions that the recipient must understand. None is supported.
    #[serde(default)]
    crit: Option<Value>,
}

/// A parsed token whose claims are not verified yet.
pub struct IdToken<'t> {
    header: Header,
    claims: Map<String, Value>,
    message: &'t str,
    signature: Vec<u8>,
}

/// The reason why an ID token is rejected, with upstream's messages.
#[derive(Debug, thiserror::Error)]
pub enum IdTokenError {
    #[error("oidc: malformed jwt")]
    Malformed,
    #[error("oidc: failed to unmarshal claims: {0}")]
    Claims(#[source] serde_json::Error),
    #[error("oidc: the token's header has the parameter crit, which is not supported")]
    Critical,
    #[error("oidc: id token signed with unsupported algorithm, expected {expected:?} got {got:?}")]
    Algorithm { expected: Vec<String>, got: String },
    #[error("oidc: expected audience in {expected:?} got {got:?}")]
    Audience { expected: Vec<String>, got: Vec<String> },
    #[error("oidc: token is expired (Token Expiry: {0})")]
    Expired(Value),
    #[error("oidc: current time before the nbf (not before) time")]
    NotYetValid,
    #[error("failed to verify signature: failed to verify id token signature")]
    Signature,
}

/// Returns the unverified issuer of a token, or `None` if it is no JWT.
pub fn untrusted_issuer(token: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Claims {
        iss: String,
    }
    let claims: Claims = crate::authn::jwt::unverified(token)?;
    // Old tokens of Google omit the scheme.
    let google = claims.iss == "accounts.google.com";
    Some(if google { GOOGLE.to_owned() } else { claims.iss })
}

impl<'t> IdToken<'t> {
    /// Parses a token.
    pub fn parse(token: &'t str) -> Result<Self, IdTokenError> {
        let malformed = || IdTokenError::Malformed;
        let (message, signature) = token.rsplit_once('.').ok_or_else(malformed)?;
        let (header, claims) = message.split_once('.').ok_or_else(malformed)?;
        let bytes = |part: &str| BASE64.decode(part).map_err(|_| malformed());
        let header: Header = serde_json::from_slice(&bytes(header)?).map_err(|_| malformed())?;
        let claims = serde_json::from_slice(&bytes(claims)?).map_err(IdTokenError::Claims)?;
        if header.crit.is_some() {
            return Err(IdTokenError::Critical);
        }
        Ok(Self { header, claims, message, signature: bytes(signature)? })
    }

    /// Validates everything that needs no key: algorithm, audience and time. It runs first, so that an invalid token
    /// does not trigger a fetch of the issuer's keys.
    pub fn check(
        &self,
        audiences: &[String],
        algorithms: &[impl AsRef<str>],
        now: Timestamp,
    ) -> Result<(), IdTokenError> {
        let alg = &self.header.alg;
        if !algorithms.iter().any(|allowed| allowed.as_ref() == alg) {
            let expected = algorithms.iter().map(|allowed| allowed.as_ref().to_owned()).collect();
            return Err(IdTokenError::Algorithm { expected, got: alg.clone() });
        }
        let given: Vec<&str> = match self.claims.get("aud") {
            Some(Value::String(one)) => vec![one],
            Some(Value::Array(many)) => many.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        if !audiences.iter().any(|audience| given.contains(&audience.as_str())) {
            let got = given.into_iter().map(str::to_owned).collect();
            return Err(IdTokenError::Audience { expected: audiences.to_vec(), got });
        }
        let (now, time) = (now.unix() as f64, |name| self.claims.get(name).and_then(Value::as_f64));
        if time("exp").is_none_or(|end| end < now) {
            return Err(IdTokenError::Expired(self.claims.get("exp").cloned().unwrap_or_default()));
        }
        if !self.claims.get("nbf").is_none_or(Value::is_null)
            && time("nbf").is_none_or(|start| now + LEEWAY_SECONDS < start)
        {
            return Err(IdTokenError::NotYetValid);
        }
        Ok(())
    }

    /// Reports whether one of the keys signed the token.
    pub fn is_signed_by(&self, keys: &KeySet) -> bool {
        let Header { alg, kid, .. } = &self.header;
        keys.verifies(alg, kid, self.message.as_bytes(), &self.signature)
    }

    /// Returns the claims. They are trustworthy only after `check` and `is_signed_by`.
    pub fn claims(&self) -> &Map<String, Value> {
        &self.claims
    }
}
