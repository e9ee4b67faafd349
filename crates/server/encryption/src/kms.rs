//! A KMS v2 plugin, which holds a key encryption key and encrypts seeds with it.
//!
//! A seed is created when the plugin's key changes. It encrypts values until the plugin has been unhealthy for three
//! minutes. Reads continue with seeds that the plugin has decrypted before.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

use data_encoding::HEXLOWER;
use parking_lot::{Mutex, RwLock};
use prost::Message as _;
use sha2::{Digest as _, Sha256};
use tonic::{Status, transport::Channel};

use crate::{
    cipher::{Cipher, SEED, Seed, random},
    config::Kms,
    error::{KmsError, TransformError as Error},
    v2::{self, EncryptedObject, key_management_service_client::KeyManagementServiceClient},
};

/// The interval of health checks of a healthy plugin, and of an unhealthy one.
const HEALTHY_INTERVAL: Duration = Duration::from_secs(60);
const UNHEALTHY_INTERVAL: Duration = Duration::from_secs(10);
/// The time for which a seed may encrypt after the last successful health check.
const SEED_EXPIRY: Duration = Duration::from_secs(3 * 60);
/// The time for which the result of a health check is reused.
const HEALTHY_CACHE: Duration = Duration::from_secs(20);
const UNHEALTHY_CACHE: Duration = Duration::from_secs(3);
/// The lifetime and the number of cached seeds.
const CACHE_PERIOD: Duration = Duration::from_secs(24 * 3600);
const CACHE_SIZE: usize = 4096;

const KEY_ID_LIMIT: usize = 1 << 10;
const SOURCE_LIMIT: usize = 1 << 10;
const ANNOTATIONS_LIMIT: usize = 32 << 10;

/// The ways in which a value's key is derived from the plugin's plaintext.
const DATA_KEY: i32 = 0;
const SEED_OF_KEYS: i32 = 1;

/// A KMS v2 plugin.
pub(crate) struct Plugin {
    pub(crate) name: String,
    client: KeyManagementServiceClient<Channel>,
    pub(crate) timeout: Duration,
    clock: Arc<dyn rt::Clock>,
    state: RwLock<Option<Arc<State>>>,
    keys: Mutex<KeyCache>,
    probe: tokio::sync::Mutex<ProbeState>,
}

/// Decrypted keys with their time, by a hash of their source.
type KeyCache = HashMap<Vec<u8>, (SystemTime, Arc<DataKey>)>;

/// The state for encrypting values.
struct State {
    seed: Arc<DataKey>,
    /// The stored form, without the data.
    object: EncryptedObject,
    source: Vec<u8>,
    expires: SystemTime,
}

enum DataKey {
    Seed(Seed),
    Key(Cipher),
}

#[derive(Default)]
struct ProbeState {
    /// The API version in the plugin's first status.
    version: String,
    last: Option<ProbeResult>,
}

/// The result of a health check, with its time and the time for which it is reused.
struct ProbeResult {
    at: SystemTime,
    lifetime: Duration,
    health: Result<(), KmsError>,
}

impl Plugin {
    /// Creates a client without connecting. Must be called within a Tokio runtime.
    pub(crate) fn new(kms: &Kms, clock: Arc<dyn rt::Clock>) -> Self {
        Self {
            name: kms.name.clone(),
            client: KeyManagementServiceClient::new(grpc::channel(socket(&kms.endpoint))),
            timeout: kms.timeout().to_std(),
            clock,
            state: RwLock::default(),
            keys: Mutex::default(),
            probe: tokio::sync::Mutex::default(),
        }
    }

    async fn call<T>(
        &self,
        call: impl Future<Output = Result<tonic::Response<T>, Status>>,
    ) -> Result<T, KmsError> {
        match tokio::time::timeout(self.timeout, call).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => {
                Err(KmsError::Rpc { code: status.code(), message: status.message().to_owned() })
            }
            Err(_) => Err(KmsError::Rpc {
                code: tonic::Code::DeadlineExceeded,
                message: "context deadline exceeded".to_owned(),
            }),
        }
    }

    fn state(&self) -> Option<Arc<State>> {
        self.state.read().clone()
    }

    pub(crate) fn encrypt(&self, value: &[u8], place: &[u8]) -> Result<Vec<u8>, Error> {
        let state = self.state().ok_or(KmsError::NoSeed)?;
        let now = self.clock.now();
        if now > state.expires {
            return Err(Error::Kms(KmsError::ExpiredSeed {
                key_id_hash: hash(&state.object.key_id),
                expires: state.expires.into(),
                now: now.into(),
            }));
        }
        let object = EncryptedObject {
            encrypted_data: state.seed.encrypt(value, place)?,
            ..state.object.clone()
        };
        Ok(object.encode_to_vec())
    }

    /// Decrypts a value, and returns whether it was written with another key than the plugin's present one.
    pub(crate) async fn decrypt(
        &self,
        data: &[u8],
        place: &[u8],
    ) -> Result<(Vec<u8>, bool), Error> {
        let object = EncryptedObject::decode(data).map_err(KmsError::Decode)?;
        validate(&object)?;
        let state = self.state().ok_or(KmsError::NoSeed)?;
        let source = source(&object);
        let known = self.cached_key(&source);
        let key = match known {
            Some(key) => key,
            None => self.decrypt_source(&object, source).await?,
        };
        let value = key.decrypt(&object.encrypted_data, place)?;
        let stale = object.key_id != state.object.key_id
            || object.encrypted_dek_source_type != state.object.encrypted_dek_source_type;
        Ok((value, stale))
    }

    fn cached_key(&self, source: &[u8]) -> Option<Arc<DataKey>> {
        let keys = self.keys.lock();
        let fresh = |at: &SystemTime| {
            self.clock.now().duration_since(*at).is_ok_and(|age| age < CACHE_PERIOD)
        };
        keys.get(source).filter(|(at, _)| fresh(at)).map(|(_, key)| key.clone())
    }

    fn cache_key(&self, source: Vec<u8>, key: Arc<DataKey>) {
        let now = self.clock.now();
        let mut keys = self.keys.lock();
        keys.retain(|_, (at, _)| now.duration_since(*at).is_ok_and(|age| age < CACHE_PERIOD));
        if keys.len() >= CACHE_SIZE {
            let oldest = keys.iter().min_by_key(|(_, (at, _))| *at).map(|(s, _)| s.clone());
            oldest.and_then(|source| keys.remove(&source));
        }
        keys.insert(source, (now, key));
    }

    /// Asks the plugin to decrypt the source of a value's key.
    async fn decrypt_source(
        &self,
        object: &EncryptedObject,
        source: Vec<u8>,
    ) -> Result<Arc<DataKey>, Error> {
        let request = v2::DecryptRequest {
            ciphertext: object.encrypted_dek_source.clone(),
            uid: rt::id(),
            key_id: object.key_id.clone(),
            annotations: object.annotations.clone(),
        };
        let mut client = self.client.clone();
        let response = self.call(client.decrypt(request)).await.map_err(failed("decrypt DEK"))?;
        let plaintext = response.plaintext;
        let key = match object.encrypted_dek_source_type {
            SEED_OF_KEYS => DataKey::Seed(Seed::new(&plaintext)?),
            _ => DataKey::Key(
                Cipher::aes_gcm(&plaintext).map_err(|_| KmsError::KeySize(plaintext.len()))?,
            ),
        };
        let key = Arc::new(key);
        self.cache_key(source, key.clone());
        Ok(key)
    }

    /// Reports whether the plugin is healthy, from the last check if that is recent.
    pub(crate) async fn health(&self) -> Result<(), KmsError> {
        let mut probe = self.probe.lock().await;
        if let Some(last) = &probe.last
            && self.clock.now().duration_since(last.at).is_ok_and(|age| age < last.lifetime)
        {
            return last.health.clone();
        }
        let health = self.check_health(&mut probe.version).await;
        let lifetime = if health.is_ok() { HEALTHY_CACHE } else { UNHEALTHY_CACHE };
        probe.last = Some(ProbeResult { at: self.clock.now(), lifetime, health: health.clone() });
        health
    }

    /// Checks the plugin's health periodically and follows its key. Nothing is written before the first check.
    pub(crate) async fn follow(self: Arc<Self>) {
        loop {
            let health = self.health().await;
            if let Err(error) = &health {
                tracing::warn!(name = %self.name, %error, "kms plugin failed health check probe");
            }
            tokio::time::sleep(if health.is_ok() { HEALTHY_INTERVAL } else { UNHEALTHY_INTERVAL })
                .await;
        }
    }

    /// Checks the plugin's status and follows its key. `first` is the API version of the plugin's first status.
    async fn check_health(&self, first: &mut String) -> Result<(), KmsError> {
        let mut client = self.client.clone();
        let operation =
            format!("perform status section of the healthz check for KMS Provider {}", self.name);
        let status =
            self.call(client.status(v2::StatusRequest {})).await.map_err(failed(operation))?;
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
        match validate_key_id(&status.key_id) {
            Err(error) => problems
                .push(format!("got invalid KMSv2 KeyID hash {:?}: {error}", hash(&status.key_id))),
            Ok(()) => {
                let error = self.rotate(&status.key_id).await.err();
                problems.extend(error.map(|error| error.to_string()));
            }
        }
        let problems = match problems.len() {
            0 => return Ok(()),
            1 => problems.remove(0),
            _ => format!("[{}]", problems.join(", ")),
        };
        Err(KmsError::Unhealthy { plugin: self.name.clone(), problems })
    }

    /// Creates a seed if the plugin's key has changed. If that fails, the old seed is used until it expires.
    async fn rotate(&self, key_id: &str) -> Result<(), KmsError> {
        // Compute the expiry before calling the plugin, so that it is an upper bound.
        let expires = self.clock.now() + SEED_EXPIRY;
        let old = self.state();
        let new = match &old {
            Some(old) if old.object.key_id == key_id => State {
                seed: old.seed.clone(),
                object: old.object.clone(),
                source: old.source.clone(),
                expires,
            },
            _ => {
                let created = self.create_state(expires).await.and_then(|state| {
                    let fits = state.object.key_id == key_id;
                    if fits { Ok(state) } else { Err(KmsError::KeyIdsDiffer) }
                });
                created.map_err(|error| KmsError::Rotation {
                    source: Box::new(error),
                    status_hash: hash(key_id),
                    state_hash: hash(old.as_deref().map_or("", |old| &old.object.key_id)),
                })?
            }
        };
        self.cache_key(new.source.clone(), new.seed.clone());
        *self.state.write() = Some(Arc::new(new));
        Ok(())
    }

    async fn create_state(&self, expires: SystemTime) -> Result<State, KmsError> {
        let seed = random::<SEED>().map_err(|_| KmsError::RandomSeed)?;
        let uid = rt::id();
        let request = v2::EncryptRequest { plaintext: seed.to_vec(), uid };
        let mut client = self.client.clone();
        let response = self.call(client.encrypt(request)).await.map_err(failed("encrypt DEK"))?;
        let object = EncryptedObject {
            // Not empty, so that it validates like other objects.
            encrypted_data: vec![0],
            key_id: response.key_id,
            encrypted_dek_source: response.ciphertext,
            annotations: response.annotations,
            encrypted_dek_source_type: SEED_OF_KEYS,
        };
        validate(&object)?;
        let seed = Arc::new(DataKey::Seed(Seed::new(&seed)?));
        Ok(State { seed, source: source(&object), object, expires })
    }
}

/// Returns the path of a socket in the file system or, after `/@`, the name of one in the abstract namespace.
fn socket(endpoint: &str) -> PathBuf {
    let path = endpoint.strip_prefix("unix://").unwrap_or(endpoint);
    path.strip_prefix("/@").map_or_else(|| path.into(), |name| format!("\0{name}").into())
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

/// Returns a function that names the failed operation of a call.
fn failed(operation: impl Into<String>) -> impl FnOnce(KmsError) -> KmsError {
    |error| KmsError::Call { operation: operation.into(), source: Box::new(error) }
}

fn validate_key_id(key_id: &str) -> Result<(), KmsError> {
    match key_id.len() {
        0 => Err(KmsError::NoKeyId),
        length if length > KEY_ID_LIMIT => Err(KmsError::LongKeyId { length, limit: KEY_ID_LIMIT }),
        _ => Ok(()),
    }
}

fn validate(object: &EncryptedObject) -> Result<(), KmsError> {
    let invalid = |field, problem| Err(KmsError::Invalid { field, problem });
    if !matches!(object.encrypted_dek_source_type, DATA_KEY | SEED_OF_KEYS) {
        return Err(KmsError::SourceType(object.encrypted_dek_source_type));
    }
    if object.encrypted_data.is_empty() {
        return Err(KmsError::NoData);
    }
    match object.encrypted_dek_source.len() {
        0 => return invalid("encrypted DEK source", "encrypted DEK source is empty".to_owned()),
        length if length > SOURCE_LIMIT => {
            let problem = format!(
                "encrypted DEK source is {length} bytes, which exceeds the max size of {SOURCE_LIMIT}"
            );
            return invalid("encrypted DEK source", problem);
        }
        _ => {}
    }
    if let Err(error) = validate_key_id(&object.key_id) {
        return invalid("key id", error.to_string());
    }
    let size: usize = object.annotations.iter().map(|(k, v)| k.len() + v.len()).sum();
    if size > ANNOTATIONS_LIMIT {
        let problem = format!(
            "total size of annotations is {size}, which exceeds the max size of {ANNOTATIONS_LIMIT}"
        );
        return invalid("annotations", problem);
    }
    let Some(name) = object.annotations.keys().find(|name| !is_domain(name)) else {
        return Ok(());
    };
    let problem = format!(
        "annotations: Invalid value: {name:?}: should be a domain with at least two segments separated by dots"
    );
    invalid("annotations", problem)
}

fn is_domain(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    api_meta::validation::dns1123_subdomain(name).is_empty()
        && name.contains('.')
        && name.split('.').all(|label| api_meta::validation::dns1123_label(label).is_empty())
}

/// Returns a hash of everything that determines a value's key. Sources that differ in any part have different hashes.
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

/// Returns the hash by which messages name a key ID.
fn hash(key_id: &str) -> String {
    if key_id.is_empty() {
        return String::new();
    }
    format!("sha256:{}", HEXLOWER.encode(&Sha256::digest(key_id)))
}
