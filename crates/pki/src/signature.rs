//! Checks the signature by which the sender of a request proves to have its key.

use aws_lc_rs::signature::{self, ParsedPublicKey, VerificationAlgorithm};

/// The algorithms that Go's crypto/x509 knows, by their identifiers. On which curve a key is, or by which digest an RSA-PSS
/// signature is made, only the key and the parameters say: all that may be meant are tried.
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
        // Go believes SHA-1 in requests still: nobody but the sender has signed them.
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

/// Whether the holder of the key (SubjectPublicKeyInfo) has signed the message; `None` where the algorithm is unknown.
pub(crate) fn verify(kind: &[u8], key: &[u8], message: &[u8], signature: &[u8]) -> Option<bool> {
    let (_, candidates) = KNOWN.iter().find(|(known, _)| *known == kind)?;
    Some(candidates.iter().any(|algorithm| {
        ParsedPublicKey::new(*algorithm, key)
            .is_ok_and(|key| key.verify_sig(message, signature).is_ok())
    }))
}
