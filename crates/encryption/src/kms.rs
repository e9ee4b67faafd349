//! A KMS v2 plugin: it keeps the key, we keep seeds that it has encrypted.
//!
//! A seed is made when the plugin names another key than before, and used until it is not well for three minutes. Reads go
//! on with the seeds that the plugin has decrypted once.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::{Duration, SystemTime},
};

use api_meta::Timestamp;
use data_encoding::HEXLOWER;
use hyper_util::rt::TokioIo;
use prost::Message as _;
use sha2::{Digest as _, Sha256};
use tonic::{
    Status,
    transport::{Channel, Endpoint, Uri},
};

use crate::{
    TransformError as Error,
    cipher::{Cipher, SEED, Seed, random},
    config::Kms,
    v2::{self, EncryptedObject, key_management_service_client::KeyManagementServiceClient},
};

/// How often a plugin that is well is asked, and one that is not.
const WELL: Duration = Duration::from_secs(60);
const UNWELL: Duration = Duration::from_secs(10);
/// How long a seed may be written with after the plugin was last well.
const WRITES: Duration = Duration::from_secs(3 * 60);
/// How long the answer to a health check is good.
const ANSWER_WELL: Duration = Duration::from_secs(20);
const ANSWER_UNWELL: Duration = Duration::from_secs(3);
/// How long a decrypted seed is kept without being made anew, and how many.
const KEPT: Duration = Duration::from_secs(24 * 3600);
const MOST_KEPT: usize = 4096;

const KEY_ID_LIMIT: usize = 1 << 10;
const SOURCE_LIMIT: usize = 1 << 10;
const ANNOTATIONS_LIMIT: usize = 32 << 10;

/// How a value's key comes from what the plugin has encrypted.
const DATA_KEY: i32 = 0;
const SEED_OF_KEYS: i32 = 1;

pub(crate) struct Plugin {
    pub(crate) name: String,
    client: KeyManagementServiceClient<Channel>,
    pub(crate) timeout: Duration,
    clock: Arc<dyn rt::Clock>,
    state: RwLock<Option<Arc<State>>>,
    opened: Mutex<Opened>,
    probed: tokio::sync::Mutex<Probed>,
}

/// What the plugin has decrypted, when, by what it came from.
type Opened = HashMap<Vec<u8>, (SystemTime, Arc<DataKey>)>;

/// What values are written with.
struct State {
    seed: Arc<DataKey>,
    /// The form of what is stored, without the data.
    object: EncryptedObject,
    source: Vec<u8>,
    expires: SystemTime,
}

enum DataKey {
    Seed(Seed),
    Key(Cipher),
}

#[derive(Default)]
struct Probed {
    /// The version that the plugin first said.
    version: String,
    answer: Option<(SystemTime, Duration, Result<(), String>)>,
}

impl Plugin {
    /// Dials nothing yet. Must be called within a Tokio runtime.
    pub(crate) fn new(kms: &Kms, clock: Arc<dyn rt::Clock>) -> Self {
        let path = kms.endpoint.strip_prefix("unix://").unwrap_or(&kms.endpoint).to_owned();
        let dial = tower::service_fn(move |_: Uri| {
            let path = path.clone();
            async move { connect(&path).await.map(TokioIo::new) }
        });
        // Servers refuse an `:authority` that is a path.
        let channel = Endpoint::from_static("http://localhost").connect_with_connector_lazy(dial);
        Self {
            name: kms.name.clone(),
            client: KeyManagementServiceClient::new(channel),
            timeout: kms.timeout().to_std(),
            clock,
            state: RwLock::default(),
            opened: Mutex::default(),
            probed: tokio::sync::Mutex::default(),
        }
    }

    async fn call<T>(
        &self,
        call: impl Future<Output = Result<tonic::Response<T>, Status>>,
    ) -> Result<T, String> {
        match tokio::time::timeout(self.timeout, call).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => {
                Err(format!("rpc error: code = {:?} desc = {}", status.code(), status.message()))
            }
            Err(_) => {
                Err("rpc error: code = DeadlineExceeded desc = context deadline exceeded".into())
            }
        }
    }

    fn state(&self) -> Option<Arc<State>> {
        self.state.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn encrypt(&self, value: &[u8], place: &[u8]) -> Result<Vec<u8>, Error> {
        let state = self.state().ok_or_else(no_state)?;
        let now = self.clock.now();
        if now > state.expires {
            return Err(Error::Kms(format!(
                "encryptedDEKSource with keyID hash {:?} expired at {} (current time is {})",
                hash(&state.object.key_id),
                Timestamp::from(state.expires),
                Timestamp::from(now)
            )));
        }
        let object = EncryptedObject {
            encrypted_data: state.seed.encrypt(value, place)?,
            ..state.object.clone()
        };
        Ok(object.encode_to_vec())
    }

    /// The value, and whether it was written with another key than the plugin's now.
    pub(crate) async fn decrypt(
        &self,
        data: &[u8],
        place: &[u8],
    ) -> Result<(Vec<u8>, bool), Error> {
        let object = EncryptedObject::decode(data)
            .map_err(|e| Error::Kms(format!("proto: cannot parse: {e}")))?;
        check(&object).map_err(Error::Kms)?;
        let state = self.state().ok_or_else(no_state)?;
        let source = source(&object);
        let known = self.known(&source);
        let key = match known {
            Some(key) => key,
            None => self.open(&object, source).await?,
        };
        let value = key.decrypt(&object.encrypted_data, place)?;
        let stale = object.key_id != state.object.key_id
            || object.encrypted_dek_source_type != state.object.encrypted_dek_source_type;
        Ok((value, stale))
    }

    fn known(&self, source: &[u8]) -> Option<Arc<DataKey>> {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh =
            |at: &SystemTime| self.clock.now().duration_since(*at).is_ok_and(|age| age < KEPT);
        opened.get(source).filter(|(at, _)| fresh(at)).map(|(_, key)| key.clone())
    }

    fn keep(&self, source: Vec<u8>, key: Arc<DataKey>) {
        let now = self.clock.now();
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        opened.retain(|_, (at, _)| now.duration_since(*at).is_ok_and(|age| age < KEPT));
        if opened.len() >= MOST_KEPT {
            let oldest = opened.iter().min_by_key(|(_, (at, _))| *at).map(|(s, _)| s.clone());
            oldest.and_then(|source| opened.remove(&source));
        }
        opened.insert(source, (now, key));
    }

    /// Has the plugin decrypt what a value's key comes from.
    async fn open(&self, object: &EncryptedObject, source: Vec<u8>) -> Result<Arc<DataKey>, Error> {
        let request = v2::DecryptRequest {
            ciphertext: object.encrypted_dek_source.clone(),
            uid: rt::id(),
            key_id: object.key_id.clone(),
            annotations: object.annotations.clone(),
        };
        let mut client = self.client.clone();
        let answer = self.call(client.decrypt(request)).await;
        let plaintext =
            answer.map_err(|e| Error::Kms(format!("failed to decrypt DEK, error: {e}")))?.plaintext;
        let key = match object.encrypted_dek_source_type {
            SEED_OF_KEYS => DataKey::Seed(Seed::new(&plaintext)?),
            _ => DataKey::Key(Cipher::aes_gcm(&plaintext).map_err(|_| {
                Error::Kms(format!("crypto/aes: invalid key size {}", plaintext.len()))
            })?),
        };
        let key = Arc::new(key);
        self.keep(source, key.clone());
        Ok(key)
    }

    /// Whether the plugin is well, for a health check: its last answer, if that is fresh.
    pub(crate) async fn health(&self) -> Result<(), String> {
        let mut probed = self.probed.lock().await;
        if let Some((at, good, answer)) = &probed.answer
            && self.clock.now().duration_since(*at).is_ok_and(|age| age < *good)
        {
            return answer.clone();
        }
        let answer = self.probe(&mut probed.version).await;
        let good = if answer.is_ok() { ANSWER_WELL } else { ANSWER_UNWELL };
        probed.answer = Some((self.clock.now(), good, answer.clone()));
        answer
    }

    /// Asks how the plugin is and follows its key; the first answer matters most, as nothing is written before it.
    pub(crate) async fn follow(self: Arc<Self>) {
        loop {
            let health = self.health().await;
            if let Err(error) = &health {
                tracing::warn!(name = %self.name, %error, "kms plugin failed health check probe");
            }
            tokio::time::sleep(if health.is_ok() { WELL } else { UNWELL }).await;
        }
    }

    async fn probe(&self, first: &mut String) -> Result<(), String> {
        let mut client = self.client.clone();
        let status = self.call(client.status(v2::StatusRequest {})).await.map_err(|e| {
            let name = &self.name;
            format!("failed to perform status section of the healthz check for KMS Provider {name}, error: {e}")
        })?;
        let mut problems = Vec::new();
        if status.healthz != "ok" {
            problems.push(format!("got unexpected healthz status: {}", status.healthz));
        }
        if !matches!(&*status.version, "v2" | "v2beta1") {
            problems.push(format!("expected KMSv2 API version v2, got {}", status.version));
        } else if first.is_empty() {
            first.clone_from(&status.version);
        } else if *first != status.version {
            problems.push(format!(
                "KMSv2 API version should not change after the initial status response version {first}, got {}",
                status.version
            ));
        }
        match check_key_id(&status.key_id) {
            Err(error) => problems
                .push(format!("got invalid KMSv2 KeyID hash {:?}: {error}", hash(&status.key_id))),
            Ok(()) => problems.extend(self.rotate(&status.key_id).await.err()),
        }
        let told = match problems.len() {
            0 => return Ok(()),
            1 => problems.remove(0),
            _ => format!("[{}]", problems.join(", ")),
        };
        Err(format!("kmsv2 Provider {} is not healthy, error: {told}", self.name))
    }

    /// Makes a seed if the plugin's key is another one; the old one serves on if that fails, until it expires.
    async fn rotate(&self, key_id: &str) -> Result<(), String> {
        // Reckoned from before the plugin is asked, so that it is an upper bound.
        let expires = self.clock.now() + WRITES;
        let old = self.state();
        let new = match &old {
            Some(old) if old.object.key_id == key_id => State {
                seed: old.seed.clone(),
                object: old.object.clone(),
                source: old.source.clone(),
                expires,
            },
            _ => {
                let made = self.make(expires).await;
                let made = made.and_then(|made| match made.object.key_id == key_id {
                    true => Ok(made),
                    false => Err("the key of Encrypt is not that of Status".to_owned()),
                });
                made.map_err(|e| {
                    let old = old.as_deref().map_or("", |old| &old.object.key_id);
                    format!(
                        "failed to rotate DEK, errGen={e}, statusKeyIDHash={:?}, stateKeyIDHash={:?}",
                        hash(key_id),
                        hash(old)
                    )
                })?
            }
        };
        self.keep(new.source.clone(), new.seed.clone());
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(new));
        Ok(())
    }

    async fn make(&self, expires: SystemTime) -> Result<State, String> {
        let seed = random::<SEED>().map_err(|_| "making a seed failed".to_owned())?;
        let uid = rt::id();
        let request = v2::EncryptRequest { plaintext: seed.to_vec(), uid };
        let mut client = self.client.clone();
        let answer = self.call(client.encrypt(request)).await;
        let answer = answer.map_err(|e| format!("failed to encrypt DEK, error: {e}"))?;
        let object = EncryptedObject {
            // Not empty, so that it is an object like others.
            encrypted_data: vec![0],
            key_id: answer.key_id,
            encrypted_dek_source: answer.ciphertext,
            annotations: answer.annotations,
            encrypted_dek_source_type: SEED_OF_KEYS,
        };
        check(&object)?;
        let seed = Arc::new(DataKey::Seed(Seed::new(&seed).map_err(|e| e.to_string())?));
        Ok(State { seed, source: source(&object), object, expires })
    }
}

/// A socket in the file system, or behind `/@` one of the network namespace's.
async fn connect(path: &str) -> std::io::Result<tokio::net::UnixStream> {
    match path.strip_prefix("/@") {
        // Tokio takes a leading zero byte for an abstract name.
        Some(name) => tokio::net::UnixStream::connect(format!("\0{name}")).await,
        None => tokio::net::UnixStream::connect(path).await,
    }
}

impl DataKey {
    fn encrypt(&self, value: &[u8], place: &[u8]) -> Result<Vec<u8>, Error> {
        match self {
            Self::Seed(seed) => seed.encrypt(value, place),
            Self::Key(cipher) => cipher.encrypt(value, place),
        }
    }

    fn decrypt(&self, data: &[u8], place: &[u8]) -> Result<Vec<u8>, Error> {
        match self {
            Self::Seed(seed) => seed.decrypt(data, place),
            Self::Key(cipher) => cipher.decrypt(data, place),
        }
    }
}

/// What upstream says before the plugin has first answered.
fn no_state() -> Error {
    Error::Kms("got unexpected nil transformer".to_owned())
}

fn check_key_id(key_id: &str) -> Result<(), String> {
    match key_id.len() {
        0 => Err("keyID is empty".to_owned()),
        length if length > KEY_ID_LIMIT => {
            Err(format!("keyID is {length} bytes, which exceeds the max size of {KEY_ID_LIMIT}"))
        }
        _ => Ok(()),
    }
}

fn check(object: &EncryptedObject) -> Result<(), String> {
    if !matches!(object.encrypted_dek_source_type, DATA_KEY | SEED_OF_KEYS) {
        let found = object.encrypted_dek_source_type;
        return Err(format!("unknown encryptedDEKSourceType: {found}"));
    }
    if object.encrypted_data.is_empty() {
        return Err("encrypted data is empty".to_owned());
    }
    match object.encrypted_dek_source.len() {
        0 => {
            return Err(
                "failed to validate encrypted DEK source: encrypted DEK source is empty".to_owned()
            );
        }
        length if length > SOURCE_LIMIT => {
            return Err(format!(
                "failed to validate encrypted DEK source: encrypted DEK source is {length} bytes, which exceeds the max size of {SOURCE_LIMIT}"
            ));
        }
        _ => {}
    }
    check_key_id(&object.key_id).map_err(|e| format!("failed to validate key id: {e}"))?;
    let size: usize = object.annotations.iter().map(|(k, v)| k.len() + v.len()).sum();
    if size > ANNOTATIONS_LIMIT {
        return Err(format!(
            "failed to validate annotations: total size of annotations is {size}, which exceeds the max size of {ANNOTATIONS_LIMIT}"
        ));
    }
    match object.annotations.keys().find(|name| !is_domain(name)) {
        Some(name) => Err(format!(
            "failed to validate annotations: annotations: Invalid value: {name:?}: should be a domain with at least two segments separated by dots"
        )),
        None => Ok(()),
    }
}

fn is_domain(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    api_meta::validation::dns1123_subdomain(name).is_empty()
        && name.contains('.')
        && name.split('.').all(|label| api_meta::validation::dns1123_label(label).is_empty())
}

/// All that decides which key a value has: two sources that differ in any of it never meet.
fn source(object: &EncryptedObject) -> Vec<u8> {
    let mut annotations: Vec<_> = object.annotations.iter().collect();
    annotations.sort();
    let mut hash = Sha256::new();
    hash.update(object.encrypted_dek_source_type.to_be_bytes());
    let texts = [&object.encrypted_dek_source[..], object.key_id.as_bytes()];
    let annotations = annotations.iter().flat_map(|(k, v)| [k.as_bytes(), v.as_slice()]);
    for part in texts.into_iter().chain(annotations) {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().to_vec()
}

/// Key ids are not told as they are.
fn hash(key_id: &str) -> String {
    if key_id.is_empty() {
        return String::new();
    }
    format!("sha256:{}", HEXLOWER.encode(&Sha256::digest(key_id)))
}
