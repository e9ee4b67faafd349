//! The ciphers, in upstream's stored format.

use aws_lc_rs::{
    aead::{self, Aad, LessSafeKey, Nonce, UnboundKey},
    cipher::{self, DecryptingKey, DecryptionContext, EncryptingKey, EncryptionContext},
    error::Unspecified,
    hkdf, rand,
};
use crypto_secretbox::{KeyInit as _, XSalsa20Poly1305, aead::Aead as _};

use crate::error::{KmsError, TransformError as Error};

const GCM_NONCE: usize = 12;
const BLOCK: usize = 16;
const SECRETBOX_NONCE: usize = 24;
const SECRETBOX_TAG: usize = 16;
/// The length of the random input from which a value's key is derived.
const INFO: usize = 32;
/// The shortest seed, in bytes.
pub(crate) const SEED: usize = 32;

/// A cipher with its key.
pub(crate) enum Cipher {
    AesGcm(LessSafeKey),
    AesCbc(Box<(EncryptingKey, DecryptingKey)>),
    Secretbox(Box<XSalsa20Poly1305>),
}

impl Cipher {
    /// Creates a cipher from a key of 16, 24 or 32 bytes.
    pub(crate) fn aes_gcm(key: &[u8]) -> Result<Self, Unspecified> {
        let algorithm = match key.len() {
            16 => &aead::AES_128_GCM,
            24 => &aead::AES_192_GCM,
            32 => &aead::AES_256_GCM,
            _ => return Err(Unspecified),
        };
        Ok(Self::AesGcm(LessSafeKey::new(UnboundKey::new(algorithm, key)?)))
    }

    /// Creates a cipher from a key of 16, 24 or 32 bytes.
    pub(crate) fn aes_cbc(key: &[u8]) -> Result<Self, Unspecified> {
        let algorithm = match key.len() {
            16 => &cipher::AES_128,
            24 => &cipher::AES_192,
            32 => &cipher::AES_256,
            _ => return Err(Unspecified),
        };
        let key = || cipher::UnboundCipherKey::new(algorithm, key);
        Ok(Self::AesCbc(Box::new((EncryptingKey::cbc(key()?)?, DecryptingKey::cbc(key()?)?))))
    }

    /// Creates a cipher from a key of 32 bytes.
    pub(crate) fn secretbox(key: &[u8]) -> Result<Self, Unspecified> {
        let cipher = XSalsa20Poly1305::new_from_slice(key).map_err(|_| Unspecified)?;
        Ok(Self::Secretbox(Box::new(cipher)))
    }

    /// Encrypts a value. `place` is the storage key of the value; an authenticated cipher decrypts the value only
    /// there.
    pub(crate) fn encrypt(&self, value: &[u8], place: &[u8]) -> Result<Vec<u8>, Error> {
        let sealed = match self {
            Self::AesGcm(key) => seal_gcm(key, value, place),
            Self::AesCbc(keys) => seal_cbc(&keys.0, value),
            Self::Secretbox(key) => random::<SECRETBOX_NONCE>().and_then(|nonce| {
                let sealed = key.encrypt(&nonce.into(), value).map_err(|_| Unspecified)?;
                Ok([&nonce[..], &sealed].concat())
            }),
        };
        sealed.map_err(|Unspecified| Error::Seal)
    }

    pub(crate) fn decrypt(&self, data: &[u8], place: &[u8]) -> Result<Vec<u8>, Error> {
        match self {
            Self::AesGcm(key) => open_gcm(key, data, place),
            Self::AesCbc(keys) => open_cbc(&keys.1, data),
            Self::Secretbox(key) => {
                let (nonce, sealed) =
                    data.split_first_chunk::<SECRETBOX_NONCE>().ok_or(Error::TooShort)?;
                if sealed.len() < SECRETBOX_TAG {
                    return Err(Error::TooShort);
                }
                key.decrypt(&(*nonce).into(), sealed).map_err(|_| Error::Secretbox)
            }
        }
    }
}

pub(crate) fn random<const N: usize>() -> Result<[u8; N], Unspecified> {
    let mut bytes = [0; N];
    rand::fill(&mut bytes)?;
    Ok(bytes)
}

fn seal_gcm(key: &LessSafeKey, value: &[u8], place: &[u8]) -> Result<Vec<u8>, Unspecified> {
    let nonce = random::<GCM_NONCE>()?;
    let mut sealed = Vec::with_capacity(GCM_NONCE + value.len() + aead::MAX_TAG_LEN);
    sealed.extend_from_slice(&nonce);
    sealed.extend_from_slice(value);
    let body = &mut sealed[GCM_NONCE..];
    let nonce = Nonce::assume_unique_for_key(nonce);
    let tag = key.seal_in_place_separate_tag(nonce, Aad::from(place), body)?;
    sealed.extend_from_slice(tag.as_ref());
    Ok(sealed)
}

fn open_gcm(key: &LessSafeKey, data: &[u8], place: &[u8]) -> Result<Vec<u8>, Error> {
    let (nonce, sealed) = data.split_first_chunk::<GCM_NONCE>().ok_or(Error::TooShort)?;
    let mut sealed = sealed.to_vec();
    let nonce = Nonce::assume_unique_for_key(*nonce);
    let opened = key.open_in_place(nonce, Aad::from(place), &mut sealed);
    let length = opened.map_err(|Unspecified| Error::Authentication)?.len();
    sealed.truncate(length);
    Ok(sealed)
}

fn seal_cbc(key: &EncryptingKey, value: &[u8]) -> Result<Vec<u8>, Unspecified> {
    let iv = random::<BLOCK>()?;
    let padding = BLOCK - value.len() % BLOCK;
    let mut sealed = Vec::with_capacity(BLOCK + value.len() + padding);
    sealed.extend_from_slice(&iv);
    sealed.extend_from_slice(value);
    // PKCS#7: each byte of the padding is the padding's length.
    sealed.resize(sealed.len() + padding, padding as u8);
    let context = EncryptionContext::Iv128((&iv).into());
    key.less_safe_encrypt(&mut sealed[BLOCK..], context)?;
    Ok(sealed)
}

fn open_cbc(key: &DecryptingKey, data: &[u8]) -> Result<Vec<u8>, Error> {
    let (iv, sealed) = data.split_first_chunk::<BLOCK>().ok_or(Error::TooShort)?;
    if sealed.len() % BLOCK != 0 {
        return Err(Error::BlockSize);
    }
    let mut opened = sealed.to_vec();
    let context = DecryptionContext::Iv128(iv.into());
    key.decrypt(&mut opened, context).map_err(|Unspecified| Error::Padding)?;
    let padding = opened.last().copied().unwrap_or(0);
    let length = opened.len().checked_sub(usize::from(padding)).filter(|_| padding > 0);
    let length = length.ok_or(Error::NotPadded)?;
    if opened[length..].iter().any(|byte| *byte != padding) {
        return Err(Error::Padding);
    }
    opened.truncate(length);
    Ok(opened)
}

/// The seed from which each value's own AES-GCM key is derived (HKDF-SHA256, expand only). A KMS plugin encrypts the
/// seed, and no derived key is used twice.
pub(crate) struct Seed(hkdf::Prk);

struct KeyLength;

impl hkdf::KeyType for KeyLength {
    fn len(&self) -> usize {
        32
    }
}

impl Seed {
    pub(crate) fn new(seed: &[u8]) -> Result<Self, KmsError> {
        match seed.len() {
            SEED.. => Ok(Self(hkdf::Prk::new_less_safe(hkdf::HKDF_SHA256, seed))),
            length => Err(KmsError::SeedLength(length)),
        }
    }

    fn key(&self, info: &[u8]) -> Result<LessSafeKey, Unspecified> {
        let mut key = [0; 32];
        self.0.expand(&[info], KeyLength)?.fill(&mut key)?;
        Ok(LessSafeKey::new(UnboundKey::new(&aead::AES_256_GCM, &key)?))
    }

    pub(crate) fn encrypt(&self, value: &[u8], place: &[u8]) -> Result<Vec<u8>, Error> {
        let sealed = || {
            let info = random::<INFO>()?;
            Ok([&info[..], &seal_gcm(&self.key(&info)?, value, place)?].concat())
        };
        sealed().map_err(|Unspecified| Error::Seal)
    }

    pub(crate) fn decrypt(&self, data: &[u8], place: &[u8]) -> Result<Vec<u8>, Error> {
        let (info, sealed) = data.split_first_chunk::<INFO>().ok_or(Error::TooShort)?;
        let key = self.key(info).map_err(|Unspecified| Error::Authentication)?;
        open_gcm(&key, sealed, place)
    }
}
