//! Verifies the signatures of certificates and certificate requests.

use aws_lc_rs::signature::{self, ParsedPublicKey, VerificationAlgorithm};
use x509_parser::{prelude::FromDer, public_key::PublicKey, x509::SubjectPublicKeyInfo};

use crate::{
    fault::Fault,
    key::{Curve, KeyKind},
    subject::dotted,
};

/// The identifier of ECDSA with SHA-256.
pub(crate) const ECDSA_SHA256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02];
/// The identifier of RSA-PSS.
const RSA_PSS: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0a];
/// The identifier of Ed25519, for keys and signatures.
pub(crate) const ED25519: &[u8] = &[0x2b, 0x65, 0x70];
/// The curves by their identifiers.
const CURVES: [(&[u8], Curve); 3] = [
    (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07], Curve::P256),
    (&[0x2b, 0x81, 0x04, 0x00, 0x22], Curve::P384),
    (&[0x2b, 0x81, 0x04, 0x00, 0x23], Curve::P521),
];
/// The length of an Ed25519 key in bytes.
const ED25519_LENGTH: usize = 32;

/// The algorithms of Go's crypto/x509 by their identifiers. The identifier does not contain the curve of a key or the
/// digest of an RSA-PSS signature, so all candidates are tried.
const KNOWN: [(&[u8], &[&'static dyn VerificationAlgorithm]); 9] = [
    (
        ECDSA_SHA256,
        &[
            &signature::ECDSA_P256_SHA256_ASN1,
            &signature::ECDSA_P384_SHA256_ASN1,
            &signature::ECDSA_P521_SHA256_ASN1,
        ],
    ),
    (
        &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x03],
        &[
            &signature::ECDSA_P256_SHA384_ASN1,
            &signature::ECDSA_P384_SHA384_ASN1,
            &signature::ECDSA_P521_SHA384_ASN1,
        ],
    ),
    (
        &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x04],
        &[
            &signature::ECDSA_P256_SHA512_ASN1,
            &signature::ECDSA_P384_SHA512_ASN1,
            &signature::ECDSA_P521_SHA512_ASN1,
        ],
    ),
    (
        // Go still accepts SHA-1 in requests, because only the sender signs them.
        &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x05],
        &[&signature::RSA_PKCS1_2048_8192_SHA1_FOR_LEGACY_USE_ONLY],
    ),
    (
        &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0b],
        &[&signature::RSA_PKCS1_2048_8192_SHA256],
    ),
    (
        &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0c],
        &[&signature::RSA_PKCS1_2048_8192_SHA384],
    ),
    (
        &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0d],
        &[&signature::RSA_PKCS1_2048_8192_SHA512],
    ),
    (
        RSA_PSS,
        &[
            &signature::RSA_PSS_2048_8192_SHA256,
            &signature::RSA_PSS_2048_8192_SHA384,
            &signature::RSA_PSS_2048_8192_SHA512,
        ],
    ),
    (ED25519, &[&signature::ED25519]),
];

/// Verifies a signature with a key (SubjectPublicKeyInfo). Returns `None` for an unknown algorithm.
pub(crate) fn verify(kind: &[u8], key: &[u8], message: &[u8], signature: &[u8]) -> Option<bool> {
    let (_, candidates) = KNOWN.iter().find(|(known, _)| *known == kind)?;
    Some(candidates.iter().any(|algorithm| {
        ParsedPublicKey::new(*algorithm, key)
            .is_ok_and(|key| key.verify_sig(message, signature).is_ok())
    }))
}

/// Verifies a signature by RSA-PSS with SHA-256 and a salt of its length.
pub(crate) fn verify_pss(key: &[u8], message: &[u8], signature: &[u8]) -> bool {
    ParsedPublicKey::new(&signature::RSA_PSS_2048_8192_SHA256, key)
        .is_ok_and(|key| key.verify_sig(message, signature).is_ok())
}

/// Parses the kind of a public key (SubjectPublicKeyInfo).
///
/// # Errors
///
/// Rejects malformed keys, and keys of other kinds and curves.
pub(crate) fn kind_of(key: &[u8]) -> Result<KeyKind, Fault> {
    let (rest, info) = SubjectPublicKeyInfo::from_der(key).map_err(|_| Fault::MalformedKey)?;
    if !rest.is_empty() {
        return Err(Fault::MalformedKey);
    }
    if info.algorithm.algorithm.as_bytes() == ED25519 {
        let is_whole = info.subject_public_key.data.len() == ED25519_LENGTH;
        return if is_whole { Ok(KeyKind::Ed25519) } else { Err(Fault::MalformedKey) };
    }
    match info.parsed().map_err(|_| Fault::MalformedKey)? {
        PublicKey::RSA(rsa) => Ok(KeyKind::Rsa(rsa.key_size())),
        PublicKey::EC(_) => {
            let found = info.algorithm.parameters.as_ref().and_then(|any| any.as_oid().ok());
            let found = found.ok_or(Fault::Curve)?;
            let curve = CURVES.iter().find(|(known, _)| *known == found.as_bytes());
            curve.map(|(_, curve)| KeyKind::Ecdsa(*curve)).ok_or(Fault::Curve)
        }
        _ => Err(Fault::KeyKind(dotted(info.algorithm.algorithm.as_bytes()))),
    }
}

/// Checks that this crate can verify signatures of a key (SubjectPublicKeyInfo).
///
/// # Errors
///
/// Rejects other kinds of keys, and RSA keys that are too short to be safe or too long to be verified quickly.
pub(crate) fn check_key(key: &[u8]) -> Result<(), Fault> {
    match kind_of(key)? {
        KeyKind::Rsa(bits) if !(2048..=8192).contains(&bits) => Err(Fault::RsaBits(bits)),
        _ => Ok(()),
    }
}
