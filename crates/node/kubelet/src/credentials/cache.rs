//! Caches the responses of providers' programs.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    matching::registry,
    program::{Auth, KeyType},
};

/// The largest number of cached responses of one provider.
const SIZE: usize = 1024;

/// The credentials of one response, by pattern.
pub(super) type Credentials = Arc<BTreeMap<String, Auth>>;

/// A response and the time until which it may be used.
pub(super) struct CachedResponse {
    pub(super) credentials: Credentials,
    pub(super) expires: Instant,
}

/// The responses of one provider's program, each until it expires.
#[derive(Default)]
pub(super) struct Cache(Mutex<HashMap<Key, CachedResponse>>);

/// The images and the service account for which a response is valid.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    /// The image, the registry, or empty for all images.
    images: String,
    /// The service account or its token; empty if the provider receives no token.
    account: String,
}

impl Key {
    fn new(key_type: KeyType, image: &str, account: &str) -> Self {
        let images = match key_type {
            KeyType::Image => format!("image {image}"),
            KeyType::Registry => format!("registry {}", registry(image)),
            KeyType::Global => String::new(),
        };
        Self { images, account: account.to_owned() }
    }
}

impl Cache {
    /// Returns a response that is valid for the image and the service account.
    pub(super) fn get(&self, image: &str, account: &str, now: Instant) -> Option<Credentials> {
        let cache = self.0.lock();
        [KeyType::Image, KeyType::Registry, KeyType::Global].into_iter().find_map(|key_type| {
            let found = cache.get(&Key::new(key_type, image, account))?;
            (now < found.expires).then(|| found.credentials.clone())
        })
    }

    /// Adds a response, which is used until it expires.
    pub(super) fn put(
        &self,
        key_type: KeyType,
        image: &str,
        account: &str,
        response: CachedResponse,
        now: Instant,
    ) {
        let mut cache = self.0.lock();
        if cache.len() >= SIZE {
            cache.retain(|_, response| now < response.expires);
        }
        if cache.len() >= SIZE {
            cache.clear();
        }
        cache.insert(Key::new(key_type, image, account), response);
    }
}
