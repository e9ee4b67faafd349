//! Detached OpenPGP signatures (RFC 4880, version 4) by the first signing key of a secret keyring.
//!
//! Read [`Signer`] first. Supported are RSA keys (2048 bits or more) and Ed25519 keys, unprotected or protected by a
//! passphrase with AES, and SHA-256 signatures of text. Nothing is verified or encrypted. Time is an argument.

mod armor;
mod error;
mod key;
mod packet;
mod unlock;

#[cfg(test)]
mod tests;

use aws_lc_rs::{digest, rand::SystemRandom, rsa::KeyPair as RsaKeyPair, signature};

pub use self::error::Error;
use self::key::{Algorithm, SecretKey};

enum Key {
    Rsa(RsaKeyPair),
    Ed25519(Box<signature::Ed25519KeyPair>),
}

/// A signing key.
pub struct Signer {
    key: Key,
    algorithm: u8,
    fingerprint: [u8; 20],
}

const TEXT_SIGNATURE: u8 = 1;
const SHA256: u8 = 8;
/// Signature subpacket types.
const CREATED: u8 = 2;
const ISSUER: u8 = 16;
const ISSUER_FINGERPRINT: u8 = 33;

impl Signer {
    /// Opens the key of a keyring that `gpg --export-secret-keys` wrote, armored or not: the first signing subkey, or
    /// else the first key.
    pub fn open(keyring: &[u8], passphrase: &str) -> Result<Self, Error> {
        let bytes = armor::decode(keyring).ok_or(Error::Malformed("its armor is broken"))?;
        let keys = key::keys(&bytes)?;
        let subkey = keys.iter().find(|key| key.subkey && key.signs && !key.absent);
        let key = subkey.or_else(|| keys.iter().find(|key| !key.absent)).ok_or(Error::NoKey)?;
        Self::of(key, passphrase)
    }

    fn of(secret: &SecretKey, passphrase: &str) -> Result<Self, Error> {
        let id = secret.id();
        let unusable = |reason: String| Error::Unusable { id: id.clone(), reason };
        let parts = unlock::unlock(secret, passphrase)?;
        let key = match secret.algorithm {
            Algorithm::Rsa => {
                let der = parts.rsa_der(&secret.public)?;
                let key = RsaKeyPair::from_der(&der);
                Key::Rsa(key.map_err(|error| unusable(format!("RSA: {error}")))?)
            }
            Algorithm::EdDsa | Algorithm::Ed25519 => {
                let seed = parts.seed(secret.algorithm)?;
                let key = signature::Ed25519KeyPair::from_seed_unchecked(&seed);
                Key::Ed25519(Box::new(key.map_err(|error| unusable(error.to_string()))?))
            }
            Algorithm::Other(number) => {
                return Err(unusable(format!("algorithm {number} is not supported")));
            }
        };
        Ok(Self { key, algorithm: secret.algorithm.number(), fingerprint: secret.fingerprint })
    }

    /// Returns the key id in the form that `gpg` shows.
    pub fn key_id(&self) -> String {
        key::id(&self.fingerprint)
    }

    /// Returns the signature packet for a text. `now` is in seconds since the epoch.
    pub fn sign(&self, text: &[u8], now: u32) -> Result<Vec<u8>, Error> {
        let mut hashed = Vec::new();
        packet::subpacket(&mut hashed, CREATED, &now.to_be_bytes());
        packet::subpacket(&mut hashed, ISSUER_FINGERPRINT, &[&[4], &self.fingerprint[..]].concat());
        let mut body = vec![4, TEXT_SIGNATURE, self.algorithm, SHA256];
        packet::counted(&mut body, &hashed);
        let trailer = u32::try_from(body.len()).map_err(|_| Error::Sign)?.to_be_bytes();
        let signed = [&canonical(text), &body[..], &[4, 0xff], &trailer].concat();
        let digest = digest::digest(&digest::SHA256, &signed);
        let mut unhashed = Vec::new();
        packet::subpacket(&mut unhashed, ISSUER, &self.fingerprint[12..]);
        packet::counted(&mut body, &unhashed);
        body.extend(&digest.as_ref()[..2]);
        match &self.key {
            Key::Rsa(key) => {
                let mut signature_bytes = vec![0; key.public_modulus_len()];
                let (padding, random) = (&signature::RSA_PKCS1_SHA256, SystemRandom::new());
                key.sign(padding, &random, &signed, &mut signature_bytes)
                    .map_err(|_| Error::Sign)?;
                packet::number(&mut body, &signature_bytes);
            }
            Key::Ed25519(key) => {
                let signature = key.sign(digest.as_ref());
                match self.algorithm {
                    key::ED25519 => body.extend(signature.as_ref()),
                    _ => signature
                        .as_ref()
                        .chunks(32)
                        .for_each(|part| packet::number(&mut body, part)),
                }
            }
        }
        Ok(packet::packet(packet::SIGNATURE, &body))
    }

    /// Returns the signature in ASCII armor.
    pub(crate) fn sign_armored(&self, text: &[u8], now: u32) -> Result<String, Error> {
        Ok(armor::encode("PGP SIGNATURE", &self.sign(text, now)?))
    }
}

/// Converts line ends to CR LF, as text signatures require.
fn canonical(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + text.len() / 16);
    let mut last = 0;
    for byte in text {
        if *byte == b'\n' && last != b'\r' {
            out.push(b'\r');
        }
        out.push(*byte);
        last = *byte;
    }
    out
}
