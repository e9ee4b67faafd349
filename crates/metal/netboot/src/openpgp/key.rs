//! Parses the secret keys of a keyring.

use aws_lc_rs::digest;
use data_encoding::HEXUPPER;

use super::{
    error::Error,
    packet::{self, Reader},
};

const KEY_FLAGS: u8 = 27;
const MAY_SIGN: u8 = 2;
pub(super) const ED25519: u8 = 27;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Algorithm {
    Rsa,
    /// Ed25519 in GnuPG's older format: MPIs with a prefix.
    EdDsa,
    /// Ed25519 in the format of RFC 9580: plain bytes.
    Ed25519,
    Other(u8),
}

impl Algorithm {
    pub(super) fn number(self) -> u8 {
        match self {
            Self::Rsa => 1,
            Self::EdDsa => 22,
            Self::Ed25519 => ED25519,
            Self::Other(number) => number,
        }
    }
}

/// A secret key as stored in the keyring.
pub(super) struct SecretKey {
    pub(super) algorithm: Algorithm,
    pub(super) fingerprint: [u8; 20],
    pub(super) subkey: bool,
    /// `true` if a binding signature allows signing.
    pub(super) signs: bool,
    /// `true` for a stub whose secret is stored elsewhere.
    pub(super) absent: bool,
    /// The public values.
    pub(super) public: Vec<Vec<u8>>,
    /// The secret part, starting with the octet for its protection.
    pub(super) secret: Vec<u8>,
}

impl SecretKey {
    pub(super) fn id(&self) -> String {
        id(&self.fingerprint)
    }
}

pub(super) fn id(fingerprint: &[u8; 20]) -> String {
    HEXUPPER.encode(&fingerprint[12..])
}

/// Parses the secret keys and subkeys of a keyring, in order.
pub(super) fn keys(bytes: &[u8]) -> Result<Vec<SecretKey>, Error> {
    let (mut reader, mut keys) = (Reader(bytes), Vec::<SecretKey>::new());
    while !reader.0.is_empty() {
        let (tag, body) = reader
            .packet()
            .ok_or(Error::Malformed("a packet is truncated or of an unknown format"))?;
        match tag {
            packet::SECRET_KEY | packet::SECRET_SUBKEY => {
                let key = secret_key(body, tag == packet::SECRET_SUBKEY);
                keys.push(key.ok_or(Error::Malformed("a secret key is not of version 4"))?);
            }
            packet::SIGNATURE => {
                if let Some(key) = keys.last_mut() {
                    key.signs |= key_flags(body).is_some_and(|flags| flags & MAY_SIGN != 0);
                }
            }
            _ => {}
        }
    }
    Ok(keys)
}

fn secret_key(body: &[u8], subkey: bool) -> Option<SecretKey> {
    let mut reader = Reader(body);
    if reader.byte()? != 4 {
        return None;
    }
    reader.take(4)?;
    let algorithm = match reader.byte()? {
        1 | 3 => Algorithm::Rsa,
        22 => Algorithm::EdDsa,
        ED25519 => Algorithm::Ed25519,
        number => Algorithm::Other(number),
    };
    let public = match algorithm {
        Algorithm::Rsa => vec![reader.number()?.to_vec(), reader.number()?.to_vec()],
        Algorithm::EdDsa => {
            let length = usize::from(reader.byte()?);
            vec![reader.take(length)?.to_vec(), reader.number()?.to_vec()]
        }
        Algorithm::Ed25519 => vec![reader.take(32)?.to_vec()],
        // The start of the secret part is unknown, and callers reject these keys before using it.
        Algorithm::Other(_) => Vec::new(),
    };
    let length = body.len() - reader.0.len();
    let mut hashed = vec![0x99];
    packet::counted(&mut hashed, &body[..length]);
    let digest = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, &hashed);
    // GnuPG's stub: S2K 101 with the letters GNU.
    let absent = matches!(reader.0, [254 | 255, _, 101, ..]);
    Some(SecretKey {
        algorithm,
        fingerprint: digest.as_ref().try_into().ok()?,
        subkey,
        signs: false,
        absent,
        public,
        secret: reader.0.to_vec(),
    })
}

/// Returns the key flags of a signature.
fn key_flags(body: &[u8]) -> Option<u8> {
    let mut reader = Reader(body);
    if reader.take(4)?[0] != 4 {
        return None;
    }
    let length = reader.short()?;
    let mut subpackets = Reader(reader.take(length)?);
    while let Some((kind, body)) = subpackets.subpacket() {
        if kind == KEY_FLAGS {
            return body.first().copied();
        }
    }
    None
}
