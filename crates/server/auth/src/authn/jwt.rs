//! JSON Web Tokens in compact form, and a bounded cache of verified tokens.

use std::{collections::HashMap, sync::Arc};

use aws_lc_rs::digest;
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD as BASE64};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::keys::{KeyError, SigningKey, VerifyingKey};

#[derive(Serialize, Deserialize)]
struct Header {
    alg: String,
    #[serde(default)]
    kid: String,
}

/// Encodes claims as the second part of a token.
pub(super) fn encode_claims(claims: &impl Serialize) -> Result<String, KeyError> {
    serde_json::to_vec(claims).map(|json| BASE64.encode(json)).map_err(|_| KeyError::Signing)
}

pub(super) fn sign(key: &SigningKey, claims: &impl Serialize) -> Result<String, KeyError> {
    let header =
        Header { alg: key.public().algorithm().name().into(), kid: key.public().id().into() };
    let mut token = format!("{}.{}", encode_claims(&header)?, encode_claims(claims)?);
    let signature = key.sign(token.as_bytes())?;
    token.push('.');
    BASE64.encode_string(signature, &mut token);
    Ok(token)
}

/// Decodes the claims without verification. Returns `None` if this is no such token.
pub(super) fn unverified<T: DeserializeOwned>(token: &str) -> Option<T> {
    let mut parts = token.split('.');
    let (Some(_), Some(claims), Some(_), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return None;
    };
    serde_json::from_slice(&BASE64.decode(claims).ok()?).ok()
}

/// The result of the verification of a token's signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signature {
    /// A known key signed the token.
    Valid,
    /// No known key signed the token.
    Invalid,
    /// The token names a key that is not known.
    UnknownKey,
}

/// Verifies the signature of a token. Only the key that the token names is tried, or all if it names none.
pub(super) fn verify(token: &str, keys: &[VerifyingKey]) -> Signature {
    let Some((message, signature)) = token.rsplit_once('.') else { return Signature::Invalid };
    let header = message.split('.').next().and_then(|part| BASE64.decode(part).ok());
    let header = header.and_then(|json| serde_json::from_slice::<Header>(&json).ok());
    let (Some(header), Ok(signature)) = (header, BASE64.decode(signature)) else {
        return Signature::Invalid;
    };
    let mut named =
        keys.iter().filter(|key| header.kid.is_empty() || key.id() == header.kid).peekable();
    if named.peek().is_none() {
        return Signature::UnknownKey;
    }
    let valid = named.any(|key| {
        key.algorithm().name() == header.alg && key.verifies(message.as_bytes(), &signature)
    });
    if valid { Signature::Valid } else { Signature::Invalid }
}

/// The SHA-256 hash of a token.
pub type Hash = [u8; 32];

/// A cache that is keyed by the SHA-256 digest of a token or of a review. Memory dumps contain no tokens, and lookup
/// times reveal nothing about them.
pub struct DigestCache<T> {
    generations: Mutex<[HashMap<Hash, Arc<T>>; 2]>,
    capacity: usize,
}

impl<T> DigestCache<T> {
    /// Creates a cache of `capacity` to twice `capacity` entries.
    pub fn new(capacity: usize) -> Self {
        Self { generations: Mutex::default(), capacity }
    }

    /// Returns the cache key of a token.
    pub fn key(token: &str) -> Hash {
        let mut hash = [0; 32];
        hash.copy_from_slice(digest::digest(&digest::SHA256, token.as_bytes()).as_ref());
        hash
    }

    /// Returns the cached value, if it was used recently.
    pub fn get(&self, key: &Hash) -> Option<Arc<T>> {
        let mut generations = self.generations.lock();
        if let Some(found) = generations[0].get(key) {
            return Some(found.clone());
        }
        let found = generations[1].remove(key)?;
        Self::put(&mut generations, self.capacity, *key, found.clone());
        Some(found)
    }

    /// Inserts a value and may evict the oldest ones.
    pub fn insert(&self, key: Hash, value: Arc<T>) {
        let mut generations = self.generations.lock();
        Self::put(&mut generations, self.capacity, key, value);
    }

    fn put(
        generations: &mut [HashMap<Hash, Arc<T>>; 2],
        capacity: usize,
        key: Hash,
        value: Arc<T>,
    ) {
        if generations[0].len() >= capacity {
            generations.swap(0, 1);
            generations[0].clear();
        }
        generations[0].insert(key, value);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::signing_key as key;

    #[test]
    fn accepts_only_signatures_of_given_keys() {
        let (ours, other) = (key(&rcgen::PKCS_ECDSA_P256_SHA256), key(&rcgen::PKCS_RSA_SHA256));
        let token = sign(&ours, &json!({"a": 1})).unwrap();
        assert_eq!(unverified::<Value>(&token), Some(json!({"a": 1})));
        let keys = [other.public().clone(), ours.public().clone()];
        assert_eq!(verify(&token, &keys), Signature::Valid);
        assert_eq!(verify(&token, &keys[..1]), Signature::UnknownKey);
        let (head, rest) = token.split_once('.').unwrap();
        let forged =
            format!("{head}.{}.{}", BASE64.encode("{\"a\":2}"), rest.split_once('.').unwrap().1);
        assert_eq!(verify(&forged, &keys), Signature::Invalid);
        let unsigned = format!("{}.{}.", BASE64.encode("{\"alg\":\"none\"}"), BASE64.encode("{}"));
        assert_eq!(verify(&unsigned, &keys), Signature::Invalid);
        for junk in ["", ".", "..", "a.b.c", "a.b.c.d"] {
            assert_eq!(verify(junk, &keys), Signature::Invalid);
            assert!(unverified::<Value>(junk).is_none());
        }
    }

    #[test]
    fn bounds_number_of_cached_tokens() {
        let checked = DigestCache::new(10);
        for i in 0..100 {
            checked.insert(DigestCache::<u32>::key(&i.to_string()), Arc::new(i));
        }
        let held = (0..100)
            .filter(|i: &u32| checked.get(&DigestCache::<u32>::key(&i.to_string())).is_some())
            .count();
        assert!((10..=20).contains(&held), "{held}");
        assert_eq!(checked.get(&DigestCache::<u32>::key("99")).as_deref(), Some(&99));
    }
}
