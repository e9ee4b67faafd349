//! An issuer's keys (RFC 7517), and whether one of them signed.

use aws_lc_rs::signature::{self, RsaPublicKeyComponents, UnparsedPublicKey};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD as BASE64};
use serde::Deserialize;

/// As many keys as an issuer may show; more are passed over.
const MAX_KEYS: usize = 256;

/// The public keys of an issuer.
#[derive(Clone, Debug, Default)]
pub struct KeySet(Vec<Key>);

#[derive(Clone, Debug)]
struct Key {
    id: String,
    public: Public,
}

#[derive(Clone, Debug)]
enum Public {
    Rsa {
        modulus: Vec<u8>,
        exponent: Vec<u8>,
    },
    /// On the curve of this name; an uncompressed point.
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
    /// Reads a JWKS document. Keys of other kinds than RSA and ECDSA are passed over, as nothing that they sign is
    /// accepted.
    pub fn parse(json: &[u8]) -> Result<Self, String> {
        let document: Document = serde_json::from_slice(json).map_err(|e| e.to_string())?;
        let keys = document.keys.into_iter().take(MAX_KEYS);
        let keys = keys.filter_map(|key| serde_json::from_value::<Jwk>(key).ok()?.key());
        Ok(Self(keys.collect()))
    }

    /// Whether a key signed the message: the one that the token names, or any if it names none.
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
            "RSA" => Public::Rsa { modulus: bytes(&self.n)?, exponent: bytes(&self.e)? },
            "EC" => {
                let length: usize = match self.crv.as_str() {
                    "P-256" => 32,
                    "P-384" => 48,
                    "P-521" => 66,
                    _ => return None,
                };
                let mut point = vec![4];
                for coordinate in [bytes(&self.x)?, bytes(&self.y)?] {
                    // Some leave out the zeros that a number begins with.
                    let missing = length.checked_sub(coordinate.len())?;
                    point.resize(point.len() + missing, 0);
                    point.extend(coordinate);
                }
                Public::Ec { curve: self.crv, point }
            }
            _ => return None,
        };
        Some(Key { id: self.kid, public })
    }
}

impl Public {
    /// The token chooses among the ways that are this key's; `none` and keyed hashes are nobody's.
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
