//! Providers in order: the first encrypts, all of them decrypt.

use std::sync::Arc;

use crate::{
    cipher::Cipher,
    config::{self, Keys},
    error::{ConfigError, TransformError as Error},
    kms::Plugin,
};

/// The prefix of all encrypted values.
const ENCRYPTED: &[u8] = b"k8s:enc:";

/// Reports whether a value has the prefix of encrypted values.
pub(crate) fn is_encrypted(value: &[u8]) -> bool {
    value.starts_with(ENCRYPTED)
}

/// A provider: the prefix of its values, and its method.
pub(crate) struct Provider {
    prefix: Vec<u8>,
    by: Method,
}

enum Method {
    Identity,
    Keys {
        /// The keys, each with its name and a colon, which are part of the value.
        keys: Vec<(Vec<u8>, Cipher)>,
        algorithm: &'static str,
    },
    Kms(Arc<Plugin>),
}

/// A decrypted value. `None` means that it was not encrypted. `stale` is `true` if it should be stored again.
pub(crate) struct Plaintext {
    pub(crate) value: Option<Vec<u8>>,
    pub(crate) stale: bool,
}

type MakeCipher = fn(&[u8]) -> Result<Cipher, aws_lc_rs::error::Unspecified>;

impl Provider {
    pub(crate) fn identity() -> Self {
        Self { prefix: Vec::new(), by: Method::Identity }
    }

    pub(crate) fn kms(plugin: Arc<Plugin>) -> Self {
        Self { prefix: format!("k8s:enc:kms:v2:{}:", plugin.name).into(), by: Method::Kms(plugin) }
    }

    /// Returns `None` for providers without keys in the file.
    pub(crate) fn of_keys(provider: &config::Provider) -> Result<Option<Self>, ConfigError> {
        let of = Self::of_cipher;
        Ok(Some(match (&provider.aesgcm, &provider.aescbc, &provider.secretbox) {
            (Some(keys), _, _) => of(keys, Cipher::aes_gcm, "k8s:enc:aesgcm:v1:", "AES")?,
            (_, Some(keys), _) => of(keys, Cipher::aes_cbc, "k8s:enc:aescbc:v1:", "AES")?,
            (_, _, Some(keys)) => {
                of(keys, Cipher::secretbox, "k8s:enc:secretbox:v1:", "Secretbox")?
            }
            _ => return Ok(None),
        }))
    }

    fn of_cipher(
        keys: &Keys,
        make: MakeCipher,
        prefix: &str,
        algorithm: &'static str,
    ) -> Result<Self, ConfigError> {
        let keys = keys.keys.iter().map(|key| {
            let unusable = || ConfigError::Cipher { name: key.name.clone() };
            let cipher = make(&key.bytes().ok_or_else(unusable)?).map_err(|_| unusable())?;
            Ok((format!("{}:", key.name).into_bytes(), cipher))
        });
        let keys = keys.collect::<Result<_, ConfigError>>()?;
        Ok(Self { prefix: prefix.into(), by: Method::Keys { keys, algorithm } })
    }

    fn encrypt(&self, value: &[u8], place: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let (name, sealed) = match &self.by {
            Method::Identity => return Ok(None),
            Method::Keys { keys, algorithm } => {
                let (name, cipher) = keys.first().ok_or(Error::NoKey(algorithm))?;
                (&name[..], cipher.encrypt(value, place)?)
            }
            Method::Kms(plugin) => (&[][..], plugin.encrypt(value, place)?),
        };
        Ok(Some([&self.prefix, name, &sealed].concat()))
    }

    /// Decrypts a value without its prefix.
    async fn decrypt(&self, data: &[u8], place: &[u8]) -> Result<Plaintext, Error> {
        match &self.by {
            Method::Identity if is_encrypted(data) => Err(Error::Encrypted),
            Method::Identity => Ok(Plaintext { value: None, stale: false }),
            Method::Keys { keys, algorithm } => {
                let mut errors = Vec::new();
                for (i, (name, cipher)) in keys.iter().enumerate() {
                    let Some(sealed) = data.strip_prefix(&name[..]) else { continue };
                    match cipher.decrypt(sealed, place) {
                        Ok(value) => return Ok(Plaintext { value: Some(value), stale: i != 0 }),
                        Err(error) => errors.push(error),
                    }
                }
                Err(Error::of(errors).unwrap_or(Error::NoKey(algorithm)))
            }
            Method::Kms(plugin) => {
                let (value, stale) = plugin.decrypt(data, place).await?;
                Ok(Plaintext { value: Some(value), stale })
            }
        }
    }
}

/// Encrypts with the first provider; `None` if the value is stored unencrypted.
pub(crate) fn encrypt(
    providers: &[Arc<Provider>],
    value: &[u8],
    place: &[u8],
) -> Result<Option<Vec<u8>>, Error> {
    providers.first().map_or(Ok(None), |first| first.encrypt(value, place))
}

/// Tries every provider whose prefix matches. Two may share a prefix with different keys.
pub(crate) async fn decrypt(
    providers: &[Arc<Provider>],
    data: &[u8],
    place: &[u8],
) -> Result<Plaintext, Error> {
    let mut errors = Vec::new();
    for (i, provider) in providers.iter().enumerate() {
        let Some(sealed) = data.strip_prefix(&provider.prefix[..]) else { continue };
        match provider.decrypt(sealed, place).await {
            Ok(read) => return Ok(Plaintext { stale: read.stale || i != 0, ..read }),
            // Ignore the error of a provider without a prefix, which accepts every value, if another one follows.
            Err(_) if provider.prefix.is_empty() => {}
            Err(error) => errors.push(error),
        }
    }
    Err(Error::of(errors).unwrap_or(Error::NoPrefix))
}
