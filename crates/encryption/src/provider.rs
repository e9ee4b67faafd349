//! Providers in their order: the first writes, all read.

use std::sync::Arc;

use crate::{
    ConfigError, TransformError as Error,
    cipher::Cipher,
    config::{self, Keys},
    kms::Plugin,
};

/// What all encrypted values begin with.
const ENCRYPTED: &[u8] = b"k8s:enc:";

/// Whether a value says of itself that it is encrypted.
pub(crate) fn is_encrypted(value: &[u8]) -> bool {
    value.starts_with(ENCRYPTED)
}

pub(crate) struct Provider {
    prefix: Vec<u8>,
    by: By,
}

enum By {
    Identity,
    Keys {
        /// Each behind its name and a colon, which values carry.
        keys: Vec<(Vec<u8>, Cipher)>,
        what: &'static str,
    },
    Kms(Arc<Plugin>),
}

/// A value as it was before it was encrypted, and whether it should be stored anew.
pub(crate) struct Read {
    pub(crate) value: Option<Vec<u8>>,
    pub(crate) stale: bool,
}

type Make = fn(&[u8]) -> Result<Cipher, aws_lc_rs::error::Unspecified>;

impl Provider {
    pub(crate) fn identity() -> Self {
        Self { prefix: Vec::new(), by: By::Identity }
    }

    pub(crate) fn kms(plugin: Arc<Plugin>) -> Self {
        Self { prefix: format!("k8s:enc:kms:v2:{}:", plugin.name).into(), by: By::Kms(plugin) }
    }

    /// None for those that are not a matter of keys in the file.
    pub(crate) fn of_keys(given: &config::Provider) -> Result<Option<Self>, ConfigError> {
        let (keys, make, prefix, what): (&Keys, Make, &[u8], _) =
            match (&given.aesgcm, &given.aescbc, &given.secretbox) {
                (Some(keys), _, _) => (keys, Cipher::aes_gcm, b"k8s:enc:aesgcm:v1:", "AES"),
                (_, Some(keys), _) => (keys, Cipher::aes_cbc, b"k8s:enc:aescbc:v1:", "AES"),
                (_, _, Some(keys)) => {
                    (keys, Cipher::secretbox, b"k8s:enc:secretbox:v1:", "Secretbox")
                }
                _ => return Ok(None),
            };
        let keys = keys.keys.iter().map(|key| {
            let unusable = || ConfigError::Cipher { name: key.name.clone() };
            let cipher = make(&key.bytes().ok_or_else(unusable)?).map_err(|_| unusable())?;
            Ok((format!("{}:", key.name).into_bytes(), cipher))
        });
        let keys = keys.collect::<Result<_, ConfigError>>()?;
        Ok(Some(Self { prefix: prefix.to_vec(), by: By::Keys { keys, what } }))
    }

    fn encrypt(&self, value: &[u8], place: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let (name, sealed) = match &self.by {
            By::Identity => return Ok(None),
            By::Keys { keys, what } => {
                let (name, cipher) = keys.first().ok_or(Error::NoKey(what))?;
                (&name[..], cipher.encrypt(value, place)?)
            }
            By::Kms(plugin) => (&[][..], plugin.encrypt(value, place)?),
        };
        Ok(Some([&self.prefix, name, &sealed].concat()))
    }

    /// `data` is without the prefix.
    async fn decrypt(&self, data: &[u8], place: &[u8]) -> Result<Read, Error> {
        match &self.by {
            By::Identity if is_encrypted(data) => Err(Error::Encrypted),
            By::Identity => Ok(Read { value: None, stale: false }),
            By::Keys { keys, what } => {
                let mut errors = Vec::new();
                for (i, (name, cipher)) in keys.iter().enumerate() {
                    let Some(sealed) = data.strip_prefix(&name[..]) else { continue };
                    match cipher.decrypt(sealed, place) {
                        Ok(value) => return Ok(Read { value: Some(value), stale: i != 0 }),
                        Err(error) => errors.push(error),
                    }
                }
                Err(Error::of(errors).unwrap_or(Error::NoKey(what)))
            }
            By::Kms(plugin) => {
                let (value, stale) = plugin.decrypt(data, place).await?;
                Ok(Read { value: Some(value), stale })
            }
        }
    }
}

/// Encrypts as the first of them; None: the value is stored as it is.
pub(crate) fn encrypt(
    providers: &[Arc<Provider>],
    value: &[u8],
    place: &[u8],
) -> Result<Option<Vec<u8>>, Error> {
    providers.first().map_or(Ok(None), |first| first.encrypt(value, place))
}

/// Tries each whose prefix the value has: two may share one, with different keys.
pub(crate) async fn decrypt(
    providers: &[Arc<Provider>],
    data: &[u8],
    place: &[u8],
) -> Result<Read, Error> {
    let mut errors = Vec::new();
    for (i, provider) in providers.iter().enumerate() {
        let Some(sealed) = data.strip_prefix(&provider.prefix[..]) else { continue };
        match provider.decrypt(sealed, place).await {
            Ok(read) => return Ok(Read { stale: read.stale || i != 0, ..read }),
            // Who decrypts everything gives way to who comes behind.
            Err(_) if provider.prefix.is_empty() => {}
            Err(error) => errors.push(error),
        }
    }
    Err(Error::of(errors).unwrap_or(Error::NoPrefix))
}
