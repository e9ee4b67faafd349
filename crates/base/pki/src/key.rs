use std::{fmt, str::FromStr};

use aws_lc_rs::{
    encoding::{AsDer, EcPrivateKeyRfc5915Der, Pkcs8V1Der, PublicKeyX509Der},
    rand::SystemRandom,
    rsa::KeySize,
    signature::{
        ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P384_SHA384_ASN1_SIGNING,
        ECDSA_P521_SHA512_ASN1_SIGNING, EcdsaKeyPair, EcdsaSigningAlgorithm, Ed25519KeyPair,
        KeyPair, RSA_PKCS1_SHA256, RsaKeyPair,
    },
};

use crate::{error::Error, pem};

/// The key algorithms of a cluster (kubeadm's `encryptionAlgorithm`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyAlgorithm {
    Rsa2048,
    Rsa3072,
    Rsa4096,
    EcdsaP256,
    EcdsaP384,
}

impl KeyAlgorithm {
    /// All algorithms, in kubeadm's order.
    pub const ALL: [Self; 5] =
        [Self::Rsa2048, Self::Rsa3072, Self::Rsa4096, Self::EcdsaP256, Self::EcdsaP384];

    /// Returns kubeadm's name of the algorithm.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rsa2048 => "RSA-2048",
            Self::Rsa3072 => "RSA-3072",
            Self::Rsa4096 => "RSA-4096",
            Self::EcdsaP256 => "ECDSA-P256",
            Self::EcdsaP384 => "ECDSA-P384",
        }
    }
}

impl fmt::Display for KeyAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for KeyAlgorithm {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::ALL
            .into_iter()
            .find(|a| a.as_str() == text)
            .ok_or_else(|| Error::UnknownAlgorithm(text.to_owned()))
    }
}

enum Pair {
    Ecdsa(EcdsaKeyPair, Curve),
    /// Only workloads have such keys.
    Ed25519(Ed25519KeyPair),
    Rsa(RsaKeyPair),
}

/// The kind of a private or public key.
#[derive(Clone, Copy)]
pub(crate) enum KeyKind {
    Ecdsa(Curve),
    Ed25519,
    /// RSA with this number of bits.
    Rsa(usize),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Curve {
    P256,
    P384,
    /// Generated only for workloads, but an existing CA may use it.
    P521,
}

impl Curve {
    fn signing(self) -> &'static EcdsaSigningAlgorithm {
        match self {
            Self::P256 => &ECDSA_P256_SHA256_ASN1_SIGNING,
            Self::P384 => &ECDSA_P384_SHA384_ASN1_SIGNING,
            Self::P521 => &ECDSA_P521_SHA512_ASN1_SIGNING,
        }
    }
}

/// A private key.
pub struct Key(Pair);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
            Pair::Ecdsa(..) => "Key(ECDSA)",
            Pair::Ed25519(_) => "Key(Ed25519)",
            Pair::Rsa(_) => "Key(RSA)",
        })
    }
}

impl Key {
    /// Generates a key from the system's random source. RSA takes up to a second.
    pub fn generate(algorithm: KeyAlgorithm) -> Result<Self, Error> {
        Self::of_kind(match algorithm {
            KeyAlgorithm::Rsa2048 => KeyKind::Rsa(2048),
            KeyAlgorithm::Rsa3072 => KeyKind::Rsa(3072),
            KeyAlgorithm::Rsa4096 => KeyKind::Rsa(4096),
            KeyAlgorithm::EcdsaP256 => KeyKind::Ecdsa(Curve::P256),
            KeyAlgorithm::EcdsaP384 => KeyKind::Ecdsa(Curve::P384),
        })
    }

    /// Generates a key. RSA keys have 2048, 3072 or 4096 bits.
    pub(crate) fn of_kind(kind: KeyKind) -> Result<Self, Error> {
        let pair = match kind {
            KeyKind::Ecdsa(curve) => {
                EcdsaKeyPair::generate(curve.signing()).map(|pair| Pair::Ecdsa(pair, curve))
            }
            KeyKind::Ed25519 => Ed25519KeyPair::generate().map(Pair::Ed25519),
            KeyKind::Rsa(bits) => {
                let size = match bits {
                    2048 => KeySize::Rsa2048,
                    3072 => KeySize::Rsa3072,
                    4096 => KeySize::Rsa4096,
                    _ => return Err(Error::UnsupportedKey),
                };
                RsaKeyPair::generate(size).map(Pair::Rsa)
            }
        };
        pair.map(Self).map_err(key_error("generate"))
    }

    /// Parses the first private key of a PEM text: PKCS#8, PKCS#1 or SEC 1.
    pub fn from_pem(text: &str) -> Result<Self, Error> {
        let blocks = pem::blocks_of(
            text,
            "PRIVATE KEY",
            &["PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY"],
        )?;
        let (label, der) = &blocks[0];
        let rsa = || match label.as_str() {
            "RSA PRIVATE KEY" => RsaKeyPair::from_der(der).ok(),
            "PRIVATE KEY" => RsaKeyPair::from_pkcs8(der).ok(),
            _ => None,
        };
        [Curve::P256, Curve::P384, Curve::P521]
            .into_iter()
            .find_map(|curve| {
                EcdsaKeyPair::from_private_key_der(curve.signing(), der)
                    .ok()
                    .map(|pair| Pair::Ecdsa(pair, curve))
            })
            .or_else(|| rsa().map(Pair::Rsa))
            .map(Self)
            .ok_or(Error::UnsupportedKey)
    }

    /// Encodes the key like kubeadm: PKCS#1 for RSA and SEC 1 for ECDSA. Ed25519 has only PKCS#8.
    pub fn to_pem(&self) -> Result<String, Error> {
        match &self.0 {
            Pair::Ecdsa(pair, _) => {
                let der: EcPrivateKeyRfc5915Der<'_> =
                    pair.private_key().as_der().map_err(key_error("encode"))?;
                Ok(pem::encode("EC PRIVATE KEY", der.as_ref()))
            }
            Pair::Ed25519(_) => self.to_pkcs8_pem(),
            Pair::Rsa(_) => Ok(pem::encode("RSA PRIVATE KEY", &inner_of_pkcs8(&self.to_pkcs8()?)?)),
        }
    }

    /// Encodes the key in PKCS#8 as PEM.
    pub fn to_pkcs8_pem(&self) -> Result<String, Error> {
        Ok(pem::encode("PRIVATE KEY", &self.to_pkcs8()?))
    }

    /// Encodes the key in PKCS#8, which every TLS and JWT library reads.
    pub(crate) fn to_pkcs8(&self) -> Result<Vec<u8>, Error> {
        match &self.0 {
            Pair::Ecdsa(pair, _) => {
                Ok(pair.to_pkcs8v1().map_err(key_error("encode"))?.as_ref().to_vec())
            }
            Pair::Ed25519(pair) => {
                Ok(pair.to_pkcs8v1().map_err(key_error("encode"))?.as_ref().to_vec())
            }
            Pair::Rsa(pair) => {
                let der: Pkcs8V1Der<'_> = pair.as_der().map_err(key_error("encode"))?;
                Ok(der.as_ref().to_vec())
            }
        }
    }

    /// Returns the SubjectPublicKeyInfo in DER.
    pub fn public_der(&self) -> Result<Vec<u8>, Error> {
        let der: PublicKeyX509Der<'_> = match &self.0 {
            Pair::Ecdsa(pair, _) => pair.public_key().as_der(),
            Pair::Ed25519(pair) => pair.public_key().as_der(),
            Pair::Rsa(pair) => pair.public_key().as_der(),
        }
        .map_err(key_error("encode the public half of"))?;
        Ok(der.as_ref().to_vec())
    }

    /// Returns the public key in PEM, as in `sa.pub`.
    pub fn public_pem(&self) -> Result<String, Error> {
        Ok(pem::encode("PUBLIC KEY", &self.public_der()?))
    }

    /// Returns the algorithm that generates keys like this one; `None` for existing keys of other sizes.
    pub fn algorithm(&self) -> Option<KeyAlgorithm> {
        match self.kind() {
            KeyKind::Ecdsa(Curve::P256) => Some(KeyAlgorithm::EcdsaP256),
            KeyKind::Ecdsa(Curve::P384) => Some(KeyAlgorithm::EcdsaP384),
            KeyKind::Rsa(2048) => Some(KeyAlgorithm::Rsa2048),
            KeyKind::Rsa(3072) => Some(KeyAlgorithm::Rsa3072),
            KeyKind::Rsa(4096) => Some(KeyAlgorithm::Rsa4096),
            KeyKind::Ecdsa(Curve::P521) | KeyKind::Ed25519 | KeyKind::Rsa(_) => None,
        }
    }

    /// Converts the key for rustls.
    pub fn to_rustls(&self) -> Result<rustls_pki_types::PrivateKeyDer<'static>, Error> {
        Ok(rustls_pki_types::PrivatePkcs8KeyDer::from(self.to_pkcs8()?).into())
    }

    pub(crate) fn kind(&self) -> KeyKind {
        match &self.0 {
            Pair::Ecdsa(_, curve) => KeyKind::Ecdsa(*curve),
            Pair::Ed25519(_) => KeyKind::Ed25519,
            Pair::Rsa(pair) => KeyKind::Rsa(pair.public_modulus_len() * 8),
        }
    }

    /// Signs with SHA-256 (RSA, P-256), SHA-384 (P-384), SHA-512 (P-521) or Ed25519, like Go.
    pub fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        let random = SystemRandom::new();
        match &self.0 {
            Pair::Ecdsa(pair, _) => pair
                .sign(&random, message)
                .map(|s| s.as_ref().to_vec())
                .map_err(key_error("sign with")),
            Pair::Ed25519(pair) => Ok(pair.sign(message).as_ref().to_vec()),
            Pair::Rsa(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature)
                    .map_err(key_error("sign with"))?;
                Ok(signature)
            }
        }
    }
}

fn key_error<E: fmt::Display>(operation: &'static str) -> impl Fn(E) -> Error {
    move |e| Error::Key { operation, reason: e.to_string() }
}

/// Returns the algorithm-specific key structure in a PKCS#8 wrapper.
fn inner_of_pkcs8(der: &[u8]) -> Result<Vec<u8>, Error> {
    yasna::parse_der(der, |reader| {
        reader.read_sequence(|fields| {
            fields.next().read_u8()?;
            fields.next().read_der()?;
            fields.next().read_bytes()
        })
    })
    .map_err(|e| Error::Key { operation: "encode", reason: format!("{e:?}") })
}
