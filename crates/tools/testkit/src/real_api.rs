use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

use api_meta::UserInfo;
use apiserver::{ApiServer, FeatureGates, flags::RuntimeConfig};
use client::Client;
use encryption::Encryption;
use pki::{Authority, KeyAlgorithm, LeafSpec, Subject, Usage, Validity};
use store::{
    Store,
    disk::sim::SimDisk,
    embedded::{Embedded, Options},
};

use crate::lagging_store::LaggingStore;

/// The real API server in this process, with RBAC, an embedded store and keys in a temporary directory.
pub struct RealApi {
    server: ApiServer,
    store: Arc<dyn Store>,
    tasks: rt::Tasks,
    _directory: Arc<tempfile::TempDir>,
}

/// The parts of a simulated server that outlive its process.
pub struct Machine {
    /// The disk of the store.
    pub disk: SimDisk,
    /// The limits of the store.
    pub options: Options,
    /// The interval of compaction.
    pub compaction_interval: Duration,
    /// The range of the addresses of Services.
    pub service_cidr: &'static str,
    features: FeatureGates,
    runtime_config: RuntimeConfig,
    keys: Arc<tempfile::TempDir>,
}

impl Machine {
    /// Creates a machine with an empty disk, and keys and certificates in a temporary directory.
    pub fn new() -> Result<Self, Failure> {
        let keys = Arc::new(tempfile::tempdir()?);
        write_pki(keys.path())?;
        Ok(Self {
            disk: SimDisk::default(),
            options: Options::default(),
            compaction_interval: Duration::from_secs(300),
            service_cidr: SERVICE_CIDR,
            features: FeatureGates::default(),
            runtime_config: RuntimeConfig::default(),
            keys,
        })
    }

    /// Sets feature gates of the API server, and what it serves, as `--feature-gates` and `--runtime-config` do.
    pub fn serve(&mut self, gates: &str, runtime_config: &str) -> Result<(), Failure> {
        self.features = FeatureGates::parse(gates.split(','))?;
        let pairs: Vec<String> = runtime_config.split(',').map(str::to_owned).collect();
        self.runtime_config = RuntimeConfig::parse(&pairs)?;
        Ok(())
    }
}

/// The range of the addresses of Services.
const SERVICE_CIDR: &str = "10.96.0.0/12";

type Failure = Box<dyn std::error::Error + Send + Sync>;

impl RealApi {
    /// Starts a server on a free loopback port. It is ready when this returns.
    pub async fn start() -> Result<Self, Failure> {
        let directory = tempfile::tempdir()?;
        let store = Embedded::open(&directory.path().join("store"), Options::default())?;
        let tasks = rt::Tasks::new(rt::Shutdown::new());
        write_pki(directory.path())?;
        Self::start_as(|_| {}, Arc::new(store), Arc::new(directory), tasks).await
    }

    /// Starts a server whose values are encrypted at rest. [`Self::store`] returns the store below the encryption.
    pub async fn encrypted(encryption: Arc<Encryption>) -> Result<Self, Failure> {
        let directory = tempfile::tempdir()?;
        let store = Embedded::open(&directory.path().join("store"), Options::default())?;
        let (store, tasks) = (Arc::new(store), rt::Tasks::new(rt::Shutdown::new()));
        let over = apiserver::encrypted(store.clone(), encryption.clone());
        let own = |config: &mut apiserver::Config| config.encryption = Some(encryption);
        write_pki(directory.path())?;
        let started = Self::start_as(own, over, Arc::new(directory), tasks).await?;
        Ok(Self { store, ..started })
    }

    /// Starts a server for a simulation. Its store runs in the caller's runtime.
    pub async fn simulated(machine: &Machine) -> Result<Self, Failure> {
        let options = machine.options.clone();
        let tick = options.tick;
        let store = Arc::new(Embedded::simulated(Arc::new(machine.disk.clone()), options)?);
        let tasks = rt::Tasks::new(rt::Shutdown::new());
        let ticking = store.clone();
        tasks.keep("store", move || {
            let store = ticking.clone();
            async move {
                loop {
                    tokio::time::sleep(tick).await;
                    store.tick();
                }
            }
        });
        let (interval, range) = (machine.compaction_interval, machine.service_cidr.parse()?);
        let (features, runtime_config) = (machine.features.clone(), machine.runtime_config.clone());
        let change = move |config: &mut apiserver::Config| {
            config.compaction_interval = interval;
            config.service_cidrs = vec![range];
            (config.features, config.runtime_config) = (features, runtime_config);
        };
        let lagging = Arc::new(LaggingStore(store.clone()));
        let started = Self::start_as(change, lagging, machine.keys.clone(), tasks).await?;
        Ok(Self { store, ..started })
    }

    async fn start_as(
        change: impl FnOnce(&mut apiserver::Config),
        store: Arc<dyn Store>,
        directory: Arc<tempfile::TempDir>,
        tasks: rt::Tasks,
    ) -> Result<Self, Failure> {
        // The server publishes its port, so the port must be known before the start.
        let bind = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let mut config = config(bind, directory.path());
        change(&mut config);
        let server = apiserver::start(config, store.clone(), &tasks).await?;
        Ok(Self { server, store, tasks, _directory: directory })
    }

    /// Returns the store of the server, for tests that observe every change.
    pub fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    /// Returns an owner for the tasks of a test. They end before the server.
    pub fn tasks(&self) -> rt::Tasks {
        rt::Tasks::new(self.tasks.shutdown().child())
    }

    /// Returns the server, for tests that choose the user of each request.
    pub fn server(&self) -> ApiServer {
        self.server.clone()
    }

    /// Returns a client in the group `system:masters`.
    pub fn admin(&self) -> Client {
        self.server
            .client(UserInfo::new("admin", &["system:masters", "system:authenticated"]), "test")
    }

    /// Returns a client without any permissions.
    pub fn user(&self, name: &str) -> Client {
        self.server.client(UserInfo::new(name, &["system:authenticated"]), name)
    }

    /// Stops the server and names the tasks that did not end.
    pub async fn stop(self) -> rt::DrainResult {
        self.tasks.drain(Duration::from_secs(5)).await
    }
}

fn write_pki(directory: &Path) -> Result<(), pki::Error> {
    let validity = Validity::starting(rt::now(), Duration::from_secs(3600));
    let ca = Authority::create("kubernetes", KeyAlgorithm::EcdsaP256, validity)?;
    pki::write_cert(&directory.join("ca.crt"), ca.cert())?;
    for name in ["apiserver", "sa"] {
        let spec =
            LeafSpec { subject: Subject::new(name), alt_names: vec![], usage: Usage::Server };
        let (cert, key) = ca.issue_new(&spec, KeyAlgorithm::EcdsaP256, validity)?;
        pki::write_cert(&directory.join(format!("{name}.crt")), &cert)?;
        pki::write_key(&directory.join(format!("{name}.key")), &key)?;
        pki::write_public_key(&directory.join(format!("{name}.pub")), &key)?;
    }
    Ok(())
}

/// Returns the configuration of a test's API server. Its certificates and keys are in one directory.
pub fn config(bind: SocketAddr, directory: &Path) -> apiserver::Config {
    let file = |name: &str| directory.join(name);
    apiserver::Config {
        bind,
        advertise: std::net::Ipv4Addr::new(192, 0, 2, 1).into(),
        shares_store: false,
        service_cidrs: vec![SERVICE_CIDR.parse().expect("a range of addresses")],
        node_ports: (30_000, 32_767),
        allow_privileged: true,
        event_ttl: Duration::from_secs(3600),
        compaction_interval: Duration::from_secs(300),
        tls_certificate: file("apiserver.crt"),
        tls_key: file("apiserver.key"),
        self_signed: false,
        client_ca: Some(file("ca.crt")),
        token_keys: apiserver::TokenKeys::Files {
            signing: file("sa.key"),
            verifying: vec![file("sa.pub")],
        },
        service_account_issuers: vec!["https://kubernetes.default.svc".into()],
        extend_token_expiration: true,
        jwks_uri: None,
        max_token_expiration: None,
        egress: apiserver::Egress::default(),
        serving: apiserver::ServingOptions::default(),
        features: FeatureGates::default(),
        runtime_config: RuntimeConfig::default(),
        api_audiences: vec![],
        kubelet_client: Some((file("apiserver.crt"), file("apiserver.key"))),
        kubelet_address_types: Vec::new(),
        kubelet_ca: None,
        front_proxy: None,
        proxy_client: None,
        peers: apiserver::PeerOptions::default(),
        audit: apiserver::AuditOptions::default(),
        encryption: None,
        authentication: apiserver::AuthenticationOptions::default(),
        authorization: apiserver::AuthorizationOptions::default(),
        anonymous: true,
        bootstrap_tokens: false,
        token_auth_file: None,
        enable_admission: vec![],
        disable_admission: vec![],
        admission_file: None,
        default_tolerations: Default::default(),
        components: Default::default(),
        seats: apiserver::Config::SEATS,
        in_flight: None,
        garbage_collection: true,
        request_timeout: apiserver::Config::REQUEST_TIMEOUT,
        // Tests run without optimization, which takes many times as long.
        processor_time: apiserver::Config::PROCESSOR_TIME * 20,
        election_lease: apiserver::Config::election_lease(),
        tracing: None,
    }
}
