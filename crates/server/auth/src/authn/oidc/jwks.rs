//! The public keys of an issuer (RFC 7517).

use aws_lc_rs::signature::{self, RsaPublicKeyComponents, UnparsedPublicKey};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD as BASE64};
use serde::Deserialize;

/// The maximum number of keys of an issuer. Further keys are ignored.
const MAX_KEYS: usize = 256;

/// The public keys of an issuer.
#[derive(Clone, Debug, Default)]
pub struct KeySet(Vec<Key>);

#[derive(Clone, Debug)]
struct Key {
    id: String,
    public: PublicKey,
}

#[derive(Clone, Debug)]
enum PublicKey {
    Rsa {
        modulus: Vec<u8>,
        exponent: Vec<u8>,
    },
    /// A key on the named curve, as an uncompressed point.
    Ec {
        curve: String,
        point: Vec<u8>,
    },
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Jwk {
    kty: String,
    kid: String,
    n: String,
    e: String,
    crv: String,
    x: String,
    y: String,
}

#[derive(Deserialize)]
struct Document {
    keys: Vec<serde_json::Value>,
}

impl KeySet {
    /// Parses a JWKS document. Keys other than RSA and ECDSA are ignored, because their algorithms are not supported.
    pub fn parse(json: &[u8]) -> serde_json::Result<Self> {
        let document: Document = serde_json::from_slice(json)?;
        let keys = document.keys.into_iter().take(MAX_KEYS);
        let keys = keys.filter_map(|key| serde_json::from_value::<Jwk>(key).ok()?.key());
        Ok(Self(keys.collect()))
    }

    /// Reports whether a key signed the message: the key that the token names, or any key if it names none.
    pub(super) fn verifies(&self, alg: &str, kid: &str, message: &[u8], signature: &[u8]) -> bool {
        self.0
            .iter()
            .filter(|key| kid.is_empty() || key.id == kid)
            .any(|key| key.public.verifies(alg, message, signature))
    }
}

impl Jwk {
    fn key(self) -> Option<Key> {
        let bytes =
            |text: &str| BASE64.decode(text.trim_end_matches('=')).ok().filter(|b| !b.is_empty());
        let public = match self.kty.as_str() {
            "RSA" => PublicKey::Rsa { modulus: bytes(&self.n)?, exponent: bytes(&self.e)? },
            "EC" => {
                let length: usize = match self.crv.as_str() {
                    "P-256" => 32,
                    "P-384" => 48,
                    "P-521" => 66,
                    _ => return None,
                };
                let mut point = vec![4];
                for coordinate in [bytes(&self.x)?, bytes(&self.y)?] {
                    // Some issuers omit leading zeros.
                    let missing = length.checked_sub(coordinate.len())?;
                    point.resize(point.len() + missing, 0);
                    point.extend(coordinate);
                }
                PublicKey::Ec { curve: self.crv, point }
            }
            _ => return None,
        };
        Some(Key { id: self.kid, public })
    }
}

impl PublicKey {
    /// Verifies a signature. The token may select only algorithms of this key type, never `none` or an HMAC.
    fn verifies(&self, alg: &str, message: &[u8], signed: &[u8]) -> bool {
        match self {
            Self::Rsa { modulus, exponent } => {
                let how = match alg {
                    "RS256" => &signature::RSA_PKCS1_2048_8192_SHA256,
                    "RS384" => &signature::RSA_PKCS1_2048_8192_SHA384,
                    "RS512" => &signature::RSA_PKCS1_2048_8192_SHA512,
                    "PS256" => &signature::RSA_PSS_2048_8192_SHA256,
                    "PS384" => &signature::RSA_PSS_2048_8192_SHA384,
                    "PS512" => &signature::RSA_PSS_2048_8192_SHA512,
                    _ => return false,
                };
                let key = RsaPublicKeyComponents { n: modulus, e: exponent };
                key.verify(how, message, signed).is_ok()
            }
            Self::Ec { curve, point } => {
                let how = match (alg, curve.as_str()) {
                    ("ES256", "P-256") => &signature::ECDSA_P256_SHA256_FIXED,
                    ("ES384", "P-384") => &signature::ECDSA_P384_SHA384_FIXED,
                    ("ES512", "P-521") => &signature::ECDSA_P521_SHA512_FIXED,
                    _ => return false,
                };
                UnparsedPublicKey::new(how, point).verify(message, signed).is_ok()
            }
        }
    }
}
