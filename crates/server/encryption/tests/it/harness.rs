use std::{path::PathBuf, sync::Arc};

use api_meta::GroupResource;
use encryption::{ConfigError, Encrypted, Encryption};
use store::{Expected, KeyValue, Op, Outcome, Store, Write, embedded::Embedded};

pub(crate) const SECRET: &str = "/registry/secrets/default/one";

/// A store, with the file of a configuration.
pub(crate) struct Bench {
    pub(crate) directory: tempfile::TempDir,
    /// The store without the encryption layer.
    pub(crate) raw: Arc<dyn Store>,
    pub(crate) tasks: rt::Tasks,
    pub(crate) clock: Arc<rt::ManualClock>,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Embedded::open(&directory.path().join("store"), Default::default()).unwrap();
        let now = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_800_000_000);
        Self {
            directory,
            raw: Arc::new(store),
            tasks: rt::Tasks::new(rt::Shutdown::new()),
            clock: Arc::new(rt::ManualClock::new(now)),
        }
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.directory.path().join("encryption.yaml")
    }

    /// Writes a configuration with these entries, in YAML's flow form.
    pub(crate) fn configure(&self, entries: &str) {
        let head = "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\n";
        std::fs::write(self.file(), format!("{head}resources: {entries}\n")).unwrap();
    }

    pub(crate) async fn load(&self) -> Result<Arc<Encryption>, ConfigError> {
        let (tasks, clock) = (self.tasks.clone(), self.clock.clone());
        Encryption::load(self.file(), true, tasks, clock).await.map(Arc::new)
    }

    pub(crate) fn wrap(&self, encryption: Arc<Encryption>) -> Encrypted {
        Encrypted::new(self.raw.clone(), encryption, Arc::new(kind))
    }

    pub(crate) async fn encrypted(&self, entries: &str) -> Encrypted {
        self.configure(entries);
        self.wrap(self.load().await.unwrap())
    }
}

/// Parses `/registry/<resource>/…` of the core group, and `/registry/<group>/<resource>/…` of others.
fn kind(key: &str) -> Option<GroupResource> {
    let mut parts = key.strip_prefix("/registry/")?.split('/');
    let first = parts.next()?.to_owned();
    if first.contains('.') {
        Some(GroupResource::new(first, parts.next()?.to_owned()))
    } else {
        Some(GroupResource::new("", first))
    }
}

pub(crate) async fn put(
    store: &dyn Store,
    key: &str,
    value: impl Into<Vec<u8>>,
) -> store::Result<u64> {
    let op = Op::Put { value: value.into().into(), ttl_seconds: None };
    match store.write(Write { key: key.into(), expected: Expected::Any, op }).await? {
        Outcome::Done { revision, .. } => Ok(revision),
        Outcome::Conflict { .. } => unreachable!("nothing was expected"),
    }
}

pub(crate) async fn get(store: &dyn Store, key: &str) -> KeyValue {
    store.get(key).await.unwrap().0.expect("the key is there")
}

pub(crate) async fn value(store: &dyn Store, key: &str) -> Result<Vec<u8>, String> {
    let value = get(store, key).await.value;
    store::why_unreadable(&value).map_or(Ok(value.to_vec()), Err)
}

/// Returns 32 equal bytes in base64.
pub(crate) fn key(of: u8) -> String {
    data_encoding::BASE64.encode(&[of; 32])
}

/// Returns one entry for all Secrets.
pub(crate) fn secrets(providers: &str) -> String {
    format!("[{{resources: [secrets], providers: [{providers}]}}]")
}

pub(crate) fn of_keys(provider: &str, keys: &[(&str, u8)]) -> String {
    let keys: Vec<_> =
        keys.iter().map(|(name, of)| format!("{{name: {name}, secret: {}}}", key(*of))).collect();
    format!("{{{provider}: {{keys: [{}]}}}}", keys.join(", "))
}
