//! The keys of workloads, for which kubelets make PodCertificateRequests.

use crate::{
    error::Error,
    fault::Fault,
    key::{Curve, Key, KeyKind},
    signature::{self, ECDSA_SHA256, ED25519},
};

/// A type of key that a Pod's certificate may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkloadKeyType {
    Rsa3072,
    Rsa4096,
    EcdsaP256,
    EcdsaP384,
    EcdsaP521,
    Ed25519,
}

/// The reason why a public key is no key of a workload, in upstream's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkloadKeyError {
    #[error("must be a valid PKIX-serialized public key")]
    Malformed,
    #[error("elliptic public keys must use curve P256, P384, or P521")]
    Curve,
    #[error("RSA keys must have modulus size 3072 or 4096")]
    RsaBits,
    #[error("unknown public key type; supported types are Ed25519, ECDSA, and RSA")]
    Kind,
}

impl WorkloadKeyType {
    /// All types, in the API's order.
    pub const ALL: [Self; 6] = [
        Self::Rsa3072,
        Self::Rsa4096,
        Self::EcdsaP256,
        Self::EcdsaP384,
        Self::EcdsaP521,
        Self::Ed25519,
    ];

    /// Returns the API's name of the type.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rsa3072 => "RSA3072",
            Self::Rsa4096 => "RSA4096",
            Self::EcdsaP256 => "ECDSAP256",
            Self::EcdsaP384 => "ECDSAP384",
            Self::EcdsaP521 => "ECDSAP521",
            Self::Ed25519 => "ED25519",
        }
    }

    /// Returns the type with this name, or `None`.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }

    /// Generates a key. RSA takes up to a second.
    pub fn generate(self) -> Result<Key, Error> {
        Key::of_kind(match self {
            Self::Rsa3072 => KeyKind::Rsa(3072),
            Self::Rsa4096 => KeyKind::Rsa(4096),
            Self::EcdsaP256 => KeyKind::Ecdsa(Curve::P256),
            Self::EcdsaP384 => KeyKind::Ecdsa(Curve::P384),
            Self::EcdsaP521 => KeyKind::Ecdsa(Curve::P521),
            Self::Ed25519 => KeyKind::Ed25519,
        })
    }

    /// Returns the type of a public key (SubjectPublicKeyInfo in DER).
    ///
    /// # Errors
    ///
    /// Rejects malformed keys, and keys of other types and sizes.
    pub fn of_public_key(der: &[u8]) -> Result<Self, WorkloadKeyError> {
        let kind = signature::kind_of(der).map_err(|fault| match fault {
            Fault::Curve => WorkloadKeyError::Curve,
            Fault::KeyKind(_) => WorkloadKeyError::Kind,
            _ => WorkloadKeyError::Malformed,
        })?;
        match kind {
            KeyKind::Rsa(3072) => Ok(Self::Rsa3072),
            KeyKind::Rsa(4096) => Ok(Self::Rsa4096),
            KeyKind::Rsa(_) => Err(WorkloadKeyError::RsaBits),
            KeyKind::Ecdsa(Curve::P256) => Ok(Self::EcdsaP256),
            KeyKind::Ecdsa(Curve::P384) => Ok(Self::EcdsaP384),
            KeyKind::Ecdsa(Curve::P521) => Ok(Self::EcdsaP521),
            KeyKind::Ed25519 => Ok(Self::Ed25519),
        }
    }
}

/// Verifies the proof that a sender holds the private key of a public key: the signature of a message. RSA and ECDSA
/// use SHA-256, and RSA uses PSS with a salt of the digest's length.
///
/// # Errors
///
/// Returns the error of a key that is no key of a workload. `Ok(false)` means that the signature is wrong.
pub fn verify_possession(
    public_key: &[u8],
    message: &[u8],
    signature: &[u8],
) -> Result<bool, WorkloadKeyError> {
    let algorithm = match WorkloadKeyType::of_public_key(public_key)? {
        WorkloadKeyType::Ed25519 => ED25519,
        WorkloadKeyType::Rsa3072 | WorkloadKeyType::Rsa4096 => {
            return Ok(signature::verify_pss(public_key, message, signature));
        }
        WorkloadKeyType::EcdsaP256 | WorkloadKeyType::EcdsaP384 | WorkloadKeyType::EcdsaP521 => {
            ECDSA_SHA256
        }
    };
    Ok(signature::verify(algorithm, public_key, message, signature).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::{
        rand::SystemRandom,
        signature::{RSA_PSS_SHA256, RSA_PSS_SHA384, RSA_PSS_SHA512, RsaKeyPair},
    };

    use super::*;
    use crate::{KeyAlgorithm, SigningRequest, Subject, pem};

    #[test]
    fn signs_requests_with_keys_of_all_types() {
        for kind in WorkloadKeyType::ALL {
            assert_eq!(WorkloadKeyType::named(kind.as_str()), Some(kind));
            let key = kind.generate().unwrap();
            let public = key.public_der().unwrap();
            assert_eq!(WorkloadKeyType::of_public_key(&public), Ok(kind));
            let request = SigningRequest::create(&Subject::default(), &[], &key).unwrap();
            let read = SigningRequest::from_der(request.der().to_vec()).unwrap();
            assert_eq!(read.public_key().unwrap(), public);
            let pem = key.to_pkcs8_pem().unwrap();
            assert!(pem.starts_with("-----BEGIN PRIVATE KEY-----\n"), "{pem}");
        }
    }

    #[test]
    fn rejects_other_keys_and_foreign_proofs() {
        let public = |algorithm| Key::generate(algorithm).unwrap().public_der().unwrap();
        let small = public(KeyAlgorithm::Rsa2048);
        assert_eq!(WorkloadKeyType::of_public_key(&small), Err(WorkloadKeyError::RsaBits));
        let mut longer = public(KeyAlgorithm::EcdsaP256);
        longer.push(0);
        // An Ed25519 key of 31 bytes.
        let start: [u8; 12] =
            [0x30, 0x29, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x20, 0x00];
        let short = [&start[..], &[7; 31]].concat();
        for garbage in [&[][..], b"garbage", &longer, &short, &[0x30; 10_000]] {
            let found = WorkloadKeyType::of_public_key(garbage);
            assert_eq!(found, Err(WorkloadKeyError::Malformed));
        }
        let key = WorkloadKeyType::Ed25519.generate().unwrap();
        let (public, proof) = (key.public_der().unwrap(), key.sign(b"uid").unwrap());
        assert_eq!(verify_possession(&public, b"uid", &proof), Ok(true));
        assert_eq!(verify_possession(&public, b"other", &proof), Ok(false));
        let other = WorkloadKeyType::EcdsaP256.generate().unwrap();
        let (public, foreign) = (other.public_der().unwrap(), proof);
        assert_eq!(verify_possession(&public, b"uid", &foreign), Ok(false));
        let own = other.sign(b"uid").unwrap();
        assert_eq!(verify_possession(&public, b"uid", &own), Ok(true));
    }

    #[test]
    fn verifies_proofs_of_rsa_keys_by_pss_only() {
        let key = WorkloadKeyType::Rsa3072.generate().unwrap();
        let public = key.public_der().unwrap();
        let text = key.to_pkcs8_pem().unwrap();
        let (_, der) = &pem::blocks_of(&text, "PRIVATE KEY", &["PRIVATE KEY"]).unwrap()[0];
        let pair = RsaKeyPair::from_pkcs8(der).unwrap();
        let mut proof = vec![0; pair.public_modulus_len()];
        pair.sign(&RSA_PSS_SHA256, &SystemRandom::new(), b"uid", &mut proof).unwrap();
        assert_eq!(verify_possession(&public, b"uid", &proof), Ok(true));
        assert_eq!(verify_possession(&public, b"other", &proof), Ok(false));
        for digest in [&RSA_PSS_SHA384, &RSA_PSS_SHA512] {
            pair.sign(digest, &SystemRandom::new(), b"uid", &mut proof).unwrap();
            assert_eq!(verify_possession(&public, b"uid", &proof), Ok(false));
        }
        let other_scheme = key.sign(b"uid").unwrap();
        assert_eq!(verify_possession(&public, b"uid", &other_scheme), Ok(false));
    }
}
