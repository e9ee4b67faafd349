//! The keys that sign and verify service account tokens.

use std::sync::Arc;

use api_meta::Tree as _;
use aws_lc_rs::{
    digest,
    encoding::AsDer,
    rand::SystemRandom,
    rsa, signature,
    signature::{
        EcdsaKeyPair, EcdsaSigningAlgorithm, EcdsaVerificationAlgorithm, KeyPair, ParsedPublicKey,
    },
};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD as BASE64};
use parking_lot::RwLock;
use rustls::pki_types::pem::{PemObject, SectionKind};
use serde_json::{Value, json};
use x509_parser::{
    prelude::{FromDer, SubjectPublicKeyInfo},
    public_key::PublicKey,
};

/// An unusable key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    #[error("cannot read a PEM key: {0}")]
    Pem(String),
    #[error(
        "found no {0} key; expected PEM of an RSA (2048 bits or more) or ECDSA (P-256, P-384, P-521) key"
    )]
    None(&'static str),
    #[error(
        "cannot use a key: {0}; it must be RSA of 2048 bits or more, or ECDSA on P-256, P-384 or P-521"
    )]
    Unsupported(String),
    #[error("signing failed inside the cryptographic library")]
    Signing,
}

/// The signature algorithm of a key: RSA, or ECDSA on one curve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    Rs256,
    Es256,
    Es384,
    Es512,
}

const EC: [Algorithm; 3] = [Algorithm::Es256, Algorithm::Es384, Algorithm::Es512];

impl Algorithm {
    /// Returns the algorithm's name in a token's header (`alg`, RFC 7518).
    pub fn name(self) -> &'static str {
        match self {
            Self::Rs256 => "RS256",
            Self::Es256 => "ES256",
            Self::Es384 => "ES384",
            Self::Es512 => "ES512",
        }
    }

    fn curve(self) -> &'static str {
        match self {
            Self::Rs256 => "",
            Self::Es256 => "P-256",
            Self::Es384 => "P-384",
            Self::Es512 => "P-521",
        }
    }

    fn signing(self) -> &'static EcdsaSigningAlgorithm {
        match self {
            Self::Es384 => &signature::ECDSA_P384_SHA384_FIXED_SIGNING,
            Self::Es512 => &signature::ECDSA_P521_SHA512_FIXED_SIGNING,
            Self::Rs256 | Self::Es256 => &signature::ECDSA_P256_SHA256_FIXED_SIGNING,
        }
    }

    fn verification(self) -> &'static EcdsaVerificationAlgorithm {
        match self {
            Self::Es384 => &signature::ECDSA_P384_SHA384_FIXED,
            Self::Es512 => &signature::ECDSA_P521_SHA512_FIXED,
            Self::Rs256 | Self::Es256 => &signature::ECDSA_P256_SHA256_FIXED,
        }
    }
}

enum PrivateKeyPair {
    Rsa(rsa::KeyPair),
    Ec(EcdsaKeyPair),
}

/// A private key, from `--service-account-signing-key-file`.
pub struct SigningKey {
    private: PrivateKeyPair,
    public: VerifyingKey,
}

/// A public key that verifies tokens.
#[derive(Clone)]
pub struct VerifyingKey {
    algorithm: Algorithm,
    /// The key ID in tokens: a hash of the key, or the name that an external signer gave it.
    id: String,
    /// `true` if the key is not published for OpenID Connect discovery.
    hidden: bool,
    /// The SubjectPublicKeyInfo.
    der: Vec<u8>,
    parsed: ParsedPublicKey,
}

impl SigningKey {
    /// Parses the first private key of a PEM text and ignores other sections.
    pub fn from_pem(pem: &[u8]) -> Result<Self, KeyError> {
        for section in <(SectionKind, Vec<u8>)>::pem_slice_iter(pem) {
            let (kind, der) = section.map_err(|e| KeyError::Pem(e.to_string()))?;
            if let Some(key) = Self::from_section(kind, &der) {
                return key;
            }
        }
        Err(KeyError::None("private"))
    }

    fn from_section(kind: SectionKind, der: &[u8]) -> Option<Result<Self, KeyError>> {
        let rejected = |e: aws_lc_rs::error::KeyRejected| KeyError::Unsupported(e.to_string());
        let private = match kind {
            SectionKind::RsaPrivateKey => {
                rsa::KeyPair::from_der(der).map(PrivateKeyPair::Rsa).map_err(rejected)
            }
            SectionKind::EcPrivateKey => {
                ec(|a| EcdsaKeyPair::from_private_key_der(a.signing(), der)).map_err(rejected)
            }
            SectionKind::PrivateKey => rsa::KeyPair::from_pkcs8(der)
                .map(PrivateKeyPair::Rsa)
                .or_else(|_| ec(|a| EcdsaKeyPair::from_pkcs8(a.signing(), der)))
                .map_err(rejected),
            _ => return None,
        };
        Some(private.and_then(Self::new))
    }

    fn new(private: PrivateKeyPair) -> Result<Self, KeyError> {
        let der = match &private {
            PrivateKeyPair::Rsa(key) => key.public_key().as_der(),
            PrivateKeyPair::Ec(key) => key.public_key().as_der(),
        };
        let der =
            der.map_err(|_| KeyError::Unsupported("its public key cannot be encoded".into()))?;
        Ok(Self { public: VerifyingKey::from_spki(der.as_ref())?, private })
    }

    /// Returns the public key.
    pub fn public(&self) -> &VerifyingKey {
        &self.public
    }

    /// Signs a message in JWS form: an ECDSA signature is two concatenated numbers, not ASN.1.
    pub fn sign(&self, message: &[u8]) -> Result<Vec<u8>, KeyError> {
        let random = SystemRandom::new();
        match &self.private {
            PrivateKeyPair::Rsa(key) => {
                let mut out = vec![0; key.public_modulus_len()];
                key.sign(&signature::RSA_PKCS1_SHA256, &random, message, &mut out)
                    .map_err(|_| KeyError::Signing)?;
                Ok(out)
            }
            PrivateKeyPair::Ec(key) => {
                Ok(key.sign(&random, message).map_err(|_| KeyError::Signing)?.as_ref().to_vec())
            }
        }
    }
}

/// Parses a key of any supported curve.
fn ec<E>(mut read: impl FnMut(Algorithm) -> Result<EcdsaKeyPair, E>) -> Result<PrivateKeyPair, E> {
    let [first, rest @ ..] = EC;
    rest.into_iter()
        .fold(read(first), |found, a| found.or_else(|_| read(a)))
        .map(PrivateKeyPair::Ec)
}

impl VerifyingKey {
    /// Parses all keys of a PEM file: public keys, certificates, and the public parts of private keys.
    pub fn all_from_pem(pem: &[u8]) -> Result<Vec<Self>, KeyError> {
        let mut keys = Vec::new();
        for section in <(SectionKind, Vec<u8>)>::pem_slice_iter(pem) {
            let (kind, der) = section.map_err(|e| KeyError::Pem(e.to_string()))?;
            match kind {
                SectionKind::PublicKey => keys.push(Self::from_spki(&der)?),
                SectionKind::Certificate => {
                    let certificate = pki::Cert::from_der(der).and_then(|cert| cert.public_der());
                    let key = certificate.map_err(|e| KeyError::Pem(e.to_string()))?;
                    keys.push(Self::from_spki(&key)?);
                }
                kind => keys.extend(
                    SigningKey::from_section(kind, &der).transpose()?.map(|key| key.public),
                ),
            }
        }
        if keys.is_empty() { Err(KeyError::None("public")) } else { Ok(keys) }
    }

    /// Parses a SubjectPublicKeyInfo in DER.
    pub(crate) fn from_spki(der: &[u8]) -> Result<Self, KeyError> {
        let (_, info) = SubjectPublicKeyInfo::from_der(der)
            .map_err(|e| KeyError::Unsupported(e.to_string()))?;
        let algorithm = match info.parsed() {
            Ok(PublicKey::RSA(_)) => Algorithm::Rs256,
            Ok(PublicKey::EC(point)) => match point.key_size() {
                256 => Algorithm::Es256,
                384 => Algorithm::Es384,
                _ => Algorithm::Es512,
            },
            _ => return Err(KeyError::Unsupported("its type is unknown".into())),
        };
        let parsed = match algorithm {
            Algorithm::Rs256 => ParsedPublicKey::new(&signature::RSA_PKCS1_2048_8192_SHA256, der),
            ec => ParsedPublicKey::new(ec.verification(), der),
        };
        let parsed = parsed.map_err(|e| KeyError::Unsupported(e.to_string()))?;
        let id = BASE64.encode(digest::digest(&digest::SHA256, der));
        Ok(Self { algorithm, id, hidden: false, der: der.to_vec(), parsed })
    }

    /// Parses a key of an external signer: a SubjectPublicKeyInfo in DER with the ID that tokens name. A `hidden` key
    /// verifies tokens and is not published.
    pub fn external(id: String, der: &[u8], hidden: bool) -> Result<Self, KeyError> {
        Ok(Self { id, hidden, ..Self::from_spki(der)? })
    }

    /// Returns the algorithm that a token's header must name. The token may not choose another one.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Returns `true` if the key is not published for OpenID Connect discovery.
    pub fn is_hidden(&self) -> bool {
        self.hidden
    }

    fn is_same(&self, other: &Self) -> bool {
        (&self.id, self.hidden, &self.der) == (&other.id, other.hidden, &other.der)
    }

    /// Returns the key ID (`kid`). Without an external signer it is computed from the public key as upstream does.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Verifies a signature in JWS form.
    pub fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        self.parsed.verify_sig(message, signature).is_ok()
    }

    /// Returns the key as a JWK.
    pub fn jwk(&self) -> Value {
        let mut jwk = json!({"use": "sig", "kid": self.id, "alg": self.algorithm.name()});
        let Ok((_, info)) = SubjectPublicKeyInfo::from_der(&self.der) else { return jwk };
        match info.parsed() {
            Ok(PublicKey::RSA(key)) => {
                // DER prefixes a zero to numbers whose first bit is set; JWK does not.
                let number = |bytes: &[u8]| {
                    BASE64.encode(&bytes[bytes.iter().take_while(|b| **b == 0).count()..])
                };
                jwk.put(&["kty"], "RSA");
                jwk.put(&["n"], number(key.modulus));
                jwk.put(&["e"], number(key.exponent));
            }
            Ok(PublicKey::EC(point)) => {
                // An uncompressed point is a byte 4 and both coordinates.
                let coordinates = point.data().get(1..).unwrap_or_default();
                let (x, y) = coordinates.split_at(coordinates.len() / 2);
                jwk.put(&["kty"], "EC");
                jwk.put(&["crv"], self.algorithm.curve());
                jwk.put(&["x"], BASE64.encode(x));
                jwk.put(&["y"], BASE64.encode(y));
            }
            _ => {}
        }
        jwk
    }
}

/// The keys that verify tokens, shared by all that read them. An external signer replaces them.
#[derive(Clone)]
pub struct KeyRing(Arc<RwLock<Arc<[VerifyingKey]>>>);

impl KeyRing {
    /// Creates a ring with its first keys.
    pub fn new(keys: Vec<VerifyingKey>) -> Self {
        Self(Arc::new(RwLock::new(keys.into())))
    }

    /// Returns the present keys. The slice is the same one until a key changes.
    pub fn current(&self) -> Arc<[VerifyingKey]> {
        self.0.read().clone()
    }

    /// Replaces the keys. Tokens of keys that are not among the new ones become invalid.
    pub fn replace(&self, keys: Vec<VerifyingKey>) {
        let old = self.current();
        let unchanged =
            old.len() == keys.len() && old.iter().zip(&keys).all(|(old, new)| old.is_same(new));
        if !unchanged {
            *self.0.write() = keys.into();
        }
    }
}

fn published(keys: &[VerifyingKey]) -> impl Iterator<Item = &VerifyingKey> {
    keys.iter().filter(|key| !key.hidden)
}

/// Returns the `/openid/v1/jwks` document.
pub fn jwks(keys: &[VerifyingKey]) -> Value {
    json!({"keys": published(keys).map(VerifyingKey::jwk).collect::<Vec<_>>()})
}

/// Returns the `/.well-known/openid-configuration` document.
pub fn openid_configuration(issuer: &str, jwks_uri: &str, keys: &[VerifyingKey]) -> Value {
    let mut algorithms: Vec<&str> = published(keys).map(|key| key.algorithm.name()).collect();
    algorithms.sort_unstable();
    algorithms.dedup();
    json!({
        "issuer": issuer,
        "jwks_uri": jwks_uri,
        "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": algorithms
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::signing_key;

    #[test]
    fn signs_and_verifies_with_every_kind_of_key() {
        for kind in [
            &rcgen::PKCS_ECDSA_P256_SHA256,
            &rcgen::PKCS_ECDSA_P384_SHA384,
            &rcgen::PKCS_RSA_SHA256,
        ] {
            let (ours, other) = (signing_key(kind), signing_key(kind));
            let mut signature = ours.sign(b"message").unwrap();
            assert!(ours.public().verifies(b"message", &signature));
            assert!(!ours.public().verifies(b"other", &signature));
            assert!(!other.public().verifies(b"message", &signature));
            signature[7] ^= 1;
            assert!(!ours.public().verifies(b"message", &signature));
            let jwk = ours.public().jwk();
            assert_eq!(jwk["kid"], ours.public().id());
            assert!(jwk["n"].is_string() || jwk["x"].is_string() && jwk["y"].is_string(), "{jwk}");
        }
    }

    #[test]
    fn hides_excluded_keys_from_discovery() {
        let der = |kind| signing_key(kind).public().der.clone();
        let (shown, hidden) =
            (der(&rcgen::PKCS_ECDSA_P256_SHA256), der(&rcgen::PKCS_ECDSA_P384_SHA384));
        let keys = [
            VerifyingKey::external("a".into(), &shown, false).unwrap(),
            VerifyingKey::external("b".into(), &hidden, true).unwrap(),
        ];
        let listed = &jwks(&keys)["keys"];
        assert_eq!((listed.as_array().unwrap().len(), &listed[0]["kid"]), (1, &json!("a")));
        let document = openid_configuration("https://a", "https://a/keys", &keys);
        assert_eq!(document["id_token_signing_alg_values_supported"], json!(["ES256"]));
    }

    #[test]
    fn reads_public_keys_from_each_kind_of_file() {
        let pair = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::default().self_signed(&pair).unwrap();
        let private = SigningKey::from_pem(pair.serialize_pem().as_bytes()).unwrap();
        for pem in [pair.serialize_pem(), pair.public_key_pem(), certificate.pem()] {
            let keys = VerifyingKey::all_from_pem(pem.as_bytes()).unwrap();
            assert_eq!(
                keys.iter().map(VerifyingKey::id).collect::<Vec<_>>(),
                [private.public().id()]
            );
        }
        assert!(VerifyingKey::all_from_pem(b"").is_err());
        assert!(SigningKey::from_pem(pair.public_key_pem().as_bytes()).is_err());
    }
}
