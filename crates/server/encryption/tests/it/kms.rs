use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use data_encoding::BASE64;
use encryption::{
    Encrypted, Encryption,
    testing::{
        DecryptRequest, DecryptResponse, EncryptRequest, EncryptResponse, KeyManagementService,
        KeyManagementServiceServer, StatusRequest, StatusResponse,
    },
};
use parking_lot::Mutex;
use store::Store as _;
use tonic::{Request, Response, Status};

use crate::harness::{Bench, SECRET, put, secrets, value};

/// A plugin whose cipher is base64.
#[derive(Clone)]
pub(crate) struct Plugin(Arc<Inner>);

struct Inner {
    key_id: Mutex<String>,
    ill: AtomicBool,
    hangs: AtomicBool,
    decrypted: AtomicUsize,
}

/// Stops the plugin on drop.
pub(crate) struct PluginServer(rt::Shutdown);

impl Drop for PluginServer {
    fn drop(&mut self) {
        self.0.stop();
    }
}

impl Plugin {
    pub(crate) fn new(key_id: &str) -> Self {
        Self(Arc::new(Inner {
            key_id: Mutex::new(key_id.to_owned()),
            ill: AtomicBool::new(false),
            hangs: AtomicBool::new(false),
            decrypted: AtomicUsize::new(0),
        }))
    }

    pub(crate) fn serve(&self, bench: &Bench, name: &str) -> PluginServer {
        let shutdown = rt::Shutdown::new();
        let service = KeyManagementServiceServer::new(self.clone());
        let tasks = rt::Tasks::new(shutdown.clone());
        grpc::serve("KMS plugin", &bench.socket(name), service, &tasks).unwrap();
        PluginServer(shutdown)
    }

    fn turn_to(&self, key_id: &str) {
        *self.0.key_id.lock() = key_id.to_owned();
    }
}

impl Bench {
    fn socket(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Configures the plugin, and writes a Secret to a store that it encrypts.
    async fn with_plain_secret(&self) -> (Arc<Encryption>, Encrypted) {
        self.configure(&secrets(&self.kms("plugin")));
        let encryption = self.load().await.unwrap();
        let store = self.wrap(encryption.clone());
        put(&store, SECRET, "plain").await.unwrap();
        (encryption, store)
    }

    pub(crate) fn kms(&self, name: &str) -> String {
        let socket = self.socket(name);
        let socket = socket.display();
        format!(
            "{{kms: {{apiVersion: v2, name: {name}, endpoint: 'unix://{socket}', timeout: 1s}}}}"
        )
    }
}

#[tonic::async_trait]
impl KeyManagementService for Plugin {
    async fn status(&self, _: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        if self.0.hangs.load(SeqCst) {
            std::future::pending::<()>().await;
        }
        let healthz = if self.0.ill.load(SeqCst) { "ill" } else { "ok" }.to_owned();
        let key_id = self.0.key_id.lock().clone();
        Ok(Response::new(StatusResponse { version: "v2".to_owned(), healthz, key_id }))
    }

    async fn decrypt(
        &self,
        request: Request<DecryptRequest>,
    ) -> Result<Response<DecryptResponse>, Status> {
        self.0.decrypted.fetch_add(1, SeqCst);
        let request = request.into_inner();
        assert!(request.annotations.contains_key("version.encryption.remote.io"));
        let plaintext = BASE64.decode(&request.ciphertext);
        let plaintext = plaintext.map_err(|e| Status::invalid_argument(e.to_string()))?;
        Ok(Response::new(DecryptResponse { plaintext }))
    }

    async fn encrypt(
        &self,
        request: Request<EncryptRequest>,
    ) -> Result<Response<EncryptResponse>, Status> {
        let ciphertext = BASE64.encode(&request.into_inner().plaintext).into_bytes();
        let key_id = self.0.key_id.lock().clone();
        let annotations = [("version.encryption.remote.io".to_owned(), b"1".to_vec())].into();
        Ok(Response::new(EncryptResponse { ciphertext, key_id, annotations }))
    }
}

/// A pause after which the result of a health check is no longer reused.
const LATER: Duration = Duration::from_secs(30);

#[tokio::test]
async fn decrypts_each_seed_once_and_follows_key_changes() {
    let (bench, plugin) = (Bench::new(), Plugin::new("1"));
    let _served = plugin.serve(&bench, "plugin");
    let (encryption, store) = bench.with_plain_secret().await;
    assert!(value(&*bench.raw, SECRET).await.unwrap().starts_with(b"k8s:enc:kms:v2:plugin:"));
    assert_eq!(value(&store, SECRET).await.unwrap(), b"plain");
    assert_eq!(plugin.0.decrypted.load(SeqCst), 0, "its own seed is known");
    // A new server sends it to the plugin for decryption, once.
    let again = bench.wrap(bench.load().await.unwrap());
    for _ in 0..3 {
        assert_eq!(value(&again, SECRET).await.unwrap(), b"plain");
    }
    assert_eq!(plugin.0.decrypted.load(SeqCst), 1);
    assert!(!store.is_stale(SECRET).await.unwrap());
    plugin.turn_to("2");
    bench.clock.advance(LATER);
    encryption.health().await.unwrap();
    assert_eq!(value(&store, SECRET).await.unwrap(), b"plain");
    assert!(store.is_stale(SECRET).await.unwrap(), "the key is another one");
    put(&store, SECRET, "plain").await.unwrap();
    assert!(!store.is_stale(SECRET).await.unwrap());
}

/// Writes fail after the plugin has been unhealthy for three minutes; existing values can be read.
#[tokio::test]
async fn unhealthy_plugin_blocks_writes_but_not_reads() {
    let (bench, plugin) = (Bench::new(), Plugin::new("1"));
    let _served = plugin.serve(&bench, "plugin");
    let (encryption, store) = bench.with_plain_secret().await;
    plugin.0.hangs.store(true, SeqCst);
    bench.clock.advance(LATER);
    let error = encryption.health().await.unwrap_err().to_string();
    assert!(error.starts_with("kms-provider-0: failed to perform status section of the healthz check for KMS Provider plugin, error: "), "{error}");
    put(&store, SECRET, "still").await.unwrap();
    bench.clock.advance(Duration::from_secs(181));
    let error = put(&store, SECRET, "late").await.unwrap_err().to_string();
    assert!(error.contains("encryptedDEKSource with keyID hash \"sha256:"), "{error}");
    assert!(error.contains("expired at"), "{error}");
    assert_eq!(value(&store, SECRET).await.unwrap(), b"still");
    plugin.0.hangs.store(false, SeqCst);
    bench.clock.advance(LATER);
    encryption.health().await.unwrap();
    put(&store, SECRET, "well").await.unwrap();
    assert_eq!(value(&store, SECRET).await.unwrap(), b"well");
}

#[tokio::test]
async fn missing_plugin_affects_only_its_resources() {
    let bench = Bench::new();
    let both = format!("{}, {{identity: {{}}}}", bench.kms("plugin"));
    bench.configure(&format!(
        "[{{resources: [secrets], providers: [{both}]}}, {{resources: ['*.*'], providers: [{{identity: {{}}}}]}}]"
    ));
    let encryption = bench.load().await.unwrap();
    let store = bench.wrap(encryption.clone());
    let error = put(&store, SECRET, "plain").await.unwrap_err().to_string();
    assert!(error.ends_with("got unexpected nil transformer"), "{error}");
    put(&*bench.raw, SECRET, "before").await.unwrap();
    assert_eq!(value(&store, SECRET).await.unwrap(), b"before");
    put(&store, "/registry/configmaps/default/one", "open").await.unwrap();
    // The plugin starts late, and everything works.
    let _served = Plugin::new("1").serve(&bench, "plugin");
    bench.clock.advance(LATER);
    encryption.health().await.unwrap();
    put(&store, SECRET, "plain").await.unwrap();
    assert_eq!(value(&store, SECRET).await.unwrap(), b"plain");
}

#[tokio::test]
async fn rejects_invalid_answers_of_a_plugin() {
    let bench = Bench::new();
    for (key_id, ill, wanted) in [
        ("", false, "keyID is empty"),
        (&*"x".repeat(1025), false, "keyID is 1025 bytes, which exceeds the max size of 1024"),
        ("1", true, "got unexpected healthz status: ill"),
    ] {
        let plugin = Plugin::new(key_id);
        plugin.0.ill.store(ill, SeqCst);
        let _served = plugin.serve(&bench, "plugin");
        bench.configure(&secrets(&bench.kms("plugin")));
        let encryption = bench.load().await.unwrap();
        let error = encryption.health().await.unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
}
