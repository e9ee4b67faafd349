//! Proof of a machine's identity by its TPM, which signs a challenge with a key that the store has.
//!
//! The server answers 401 with `WWW-Authenticate: TPM CHALLENGE`. The machine repeats the request with `Authorization:
//! TPM CHALLENGE.SIGNATURE`, a signature of the challenge's text in URL-safe Base64. The server does not store
//! challenges, so that clients cannot fill its memory: a challenge contains its time and an HMAC.

use aws_lc_rs::{
    hmac,
    rand::SystemRandom,
    signature::{self, UnparsedPublicKey, VerificationAlgorithm},
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use rustls_pki_types::{
    SubjectPublicKeyInfoDer,
    pem::{self, PemObject},
};

pub(crate) const SCHEME: &str = "TPM ";

/// The validity of a challenge in milliseconds. A TPM needs a second or two to sign.
const VALIDITY: u64 = 60_000;

/// The signature algorithms of TPM keys.
static ALGORITHMS: [&dyn VerificationAlgorithm; 2] =
    [&signature::ECDSA_P256_SHA256_ASN1, &signature::RSA_PKCS1_2048_8192_SHA256];

/// The reasons to reject a proof.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProofError {
    /// The request has no proof for a valid challenge. The machine must sign this one.
    #[error("the machine's TPM must sign the challenge {0}")]
    Challenge(String),
    #[error("making a challenge failed: no random numbers")]
    Random,
    #[error("the signature is not Base64 for URLs")]
    Encoding,
    #[error("the signature is not by the machine's key")]
    Signature,
    #[error(transparent)]
    Key(#[from] KeyError),
}

/// The error for a TPM key that cannot be parsed.
#[derive(Debug, thiserror::Error)]
#[error("the TPM key is not a public key in PEM: {0}")]
pub(crate) struct KeyError(#[from] pem::Error);

/// Makes and verifies challenges.
pub(crate) struct Challenges(Option<hmac::Key>);

impl Challenges {
    pub(crate) fn new() -> Self {
        // Key generation fails only without random numbers in the kernel. Then every proof fails.
        Self(hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).ok())
    }

    fn make(&self, machine: &str, now: u64) -> Option<String> {
        let code = hmac::sign(self.0.as_ref()?, format!("{now} {machine}").as_bytes());
        Some(format!("{now}-{}", URL_SAFE_NO_PAD.encode(code)))
    }

    /// Returns `true` if `challenge` was made for this machine and has not expired.
    fn knows(&self, challenge: &str, machine: &str, now: u64) -> bool {
        let Some((time, code)) = challenge.split_once('-') else { return false };
        let (Ok(time), Ok(code)) = (time.parse::<u64>(), URL_SAFE_NO_PAD.decode(code)) else {
            return false;
        };
        let signed = format!("{time} {machine}");
        let ours = self.0.as_ref().map(|key| hmac::verify(key, signed.as_bytes(), &code));
        ours.is_some_and(|ours| ours.is_ok())
            && (time..=time.saturating_add(VALIDITY)).contains(&now)
    }

    /// Verifies a request's `Authorization` header for a machine with the key `pem`.
    pub(crate) fn verify(
        &self,
        pem: &str,
        machine: &str,
        authorization: Option<&str>,
        now: u64,
    ) -> Result<(), ProofError> {
        let proof = authorization.and_then(|text| text.strip_prefix(SCHEME)?.split_once('.'));
        let valid = proof.filter(|(challenge, _)| self.knows(challenge, machine, now));
        let Some((challenge, signature)) = valid else {
            let challenge = self.make(machine, now);
            return Err(challenge.map_or(ProofError::Random, ProofError::Challenge));
        };
        let signature = URL_SAFE_NO_PAD
            .decode(signature.trim_end_matches('='))
            .map_err(|_| ProofError::Encoding)?;
        if is_signed(pem, challenge.as_bytes(), &signature)? {
            Ok(())
        } else {
            Err(ProofError::Signature)
        }
    }
}

fn is_signed(pem: &str, text: &[u8], signature: &[u8]) -> Result<bool, KeyError> {
    let key = public_key(pem)?;
    let fits = |algorithm: &&'static dyn VerificationAlgorithm| {
        UnparsedPublicKey::new(*algorithm, key.as_ref()).verify(text, signature).is_ok()
    };
    Ok(ALGORITHMS.iter().any(fits))
}

/// Parses a public key in PEM. The store check uses it too.
pub(crate) fn public_key(pem: &str) -> Result<SubjectPublicKeyInfoDer<'static>, KeyError> {
    Ok(SubjectPublicKeyInfoDer::from_pem_slice(pem.as_bytes())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Signatures of a challenge by openssl, one per algorithm.
    const PROOFS: &str = include_str!("../../tests/tpm-proofs.txt");

    #[test]
    fn challenge_is_bound_to_machine_and_expires() {
        let ours = Challenges::new();
        let challenge = ours.make("m", 1000).unwrap();
        for (text, machine, now, known) in [
            (challenge.as_str(), "m", 1000, true),
            (&challenge, "m", 1000 + VALIDITY, true),
            (&challenge, "m", 1001 + VALIDITY, false),
            (&challenge, "m", 999, false),
            (&challenge, "n", 1000, false),
            (&challenge.replacen("1000", "1001", 1), "m", 1001, false),
            ("1000-", "m", 1000, false),
            ("", "m", 1000, false),
        ] {
            assert_eq!(ours.knows(text, machine, now), known, "{text} {machine} {now}");
        }
        assert!(!Challenges::new().knows(&challenge, "m", 1000), "another server's");
    }

    #[test]
    fn verifies_rsa_and_ecdsa_signatures() {
        let mut kinds = 0;
        for proof in PROOFS.split("\n\n") {
            let (signature, pem) = proof.trim().split_once('\n').unwrap();
            let (kind, signature) = signature.split_once(' ').unwrap();
            let signature = URL_SAFE_NO_PAD.decode(signature).unwrap();
            assert!(is_signed(pem, b"challenge", &signature).unwrap(), "{kind}");
            assert!(!is_signed(pem, b"another", &signature).unwrap(), "{kind}");
            kinds += 1;
        }
        assert_eq!(kinds, 2);
        assert!(is_signed("-----", b"challenge", b"").is_err());
    }
}
