//! Verifies the signatures of certificates and certificate requests.

use aws_lc_rs::signature::{self, ParsedPublicKey, VerificationAlgorithm};
use x509_parser::{prelude::FromDer, public_key::PublicKey, x509::SubjectPublicKeyInfo};

use crate::{fault::Fault, subject::dotted};

/// The algorithms of Go's crypto/x509 by their identifiers. The identifier does not contain the curve of a key or the
/// digest of an RSA-PSS signature, so all candidates are tried.
const KNOWN: [(&[u8], &[&'static dyn VerificationAlgorithm]); 9] = [
    (
        &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02],
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
        &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0a],
        &[
            &signature::RSA_PSS_2048_8192_SHA256,
            &signature::RSA_PSS_2048_8192_SHA384,
            &signature::RSA_PSS_2048_8192_SHA512,
        ],
    ),
    (&[0x2b, 0x65, 0x70], &[&signature::ED25519]),
];

/// Verifies a signature with a key (SubjectPublicKeyInfo). Returns `None` for an unknown algorithm.
pub(crate) fn verify(kind: &[u8], key: &[u8], message: &[u8], signature: &[u8]) -> Option<bool> {
    let (_, candidates) = KNOWN.iter().find(|(known, _)| *known == kind)?;
    Some(candidates.iter().any(|algorithm| {
        ParsedPublicKey::new(*algorithm, key)
            .is_ok_and(|key| key.verify_sig(message, signature).is_ok())
    }))
}

const ED25519: &[u8] = &[0x2b, 0x65, 0x70];
const CURVES: [&[u8]; 3] = [
    &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07],
    &[0x2b, 0x81, 0x04, 0x00, 0x22],
    &[0x2b, 0x81, 0x04, 0x00, 0x23],
];

/// Checks that this crate can verify signatures of a key (SubjectPublicKeyInfo).
///
/// # Errors
///
/// Rejects other kinds of keys, and RSA keys that are too short to be safe or too long to be verified quickly.
pub(crate) fn check_key(key: &[u8]) -> Result<(), Fault> {
    let (_, info) = SubjectPublicKeyInfo::from_der(key).map_err(|_| Fault::MalformedKey)?;
    if info.algorithm.algorithm.as_bytes() == ED25519 {
        return Ok(());
    }
    match info.parsed().map_err(|_| Fault::MalformedKey)? {
        PublicKey::RSA(rsa) if (2048..=8192).contains(&rsa.key_size()) => Ok(()),
        PublicKey::RSA(rsa) => Err(Fault::RsaBits(rsa.key_size())),
        PublicKey::EC(_) => {
            let curve = info.algorithm.parameters.as_ref().and_then(|any| any.as_oid().ok());
            match curve {
                Some(curve) if CURVES.contains(&curve.as_bytes()) => Ok(()),
                _ => Err(Fault::Curve),
            }
        }
        _ => Err(Fault::KeyKind(dotted(info.algorithm.algorithm.as_bytes()))),
    }
}
