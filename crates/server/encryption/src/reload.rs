//! The active configuration, and its replacement after a reload.

use data_encoding::HEXLOWER;
use std::{
    collections::HashMap,
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

use api_meta::GroupResource;
use futures_util::future::join_all;
use parking_lot::{Mutex, RwLock};
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;

use crate::{
    config::{EncryptionConfiguration, ResourceConfiguration, parse_resource},
    error::{ConfigError, HealthError, TransformError},
    kms::Plugin,
    provider::{self, Plaintext, Provider},
};

/// The interval at which the file is checked for changes. A rotation of keys waits for it several times.
pub const POLL: Duration = Duration::from_secs(5);
/// The shortest time for a new configuration's plugins to become healthy.
const SHORTEST_PROBE: Duration = Duration::from_secs(10);

/// The encryption of a store, with the active configuration.
pub struct Encryption {
    tasks: rt::Tasks,
    clock: Arc<dyn rt::Clock>,
    reload: bool,
    current: RwLock<Arc<ActiveConfiguration>>,
    /// The number of reloads.
    changed: watch::Sender<u64>,
    outcomes: Mutex<ReloadOutcomes>,
}

/// The counts of reloads and the times of the last ones, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReloadOutcomes {
    /// The number of reloads.
    pub successes: u64,
    /// The number of failed reloads.
    pub failures: u64,
    /// The time of the last reload.
    pub last_success: Option<SystemTime>,
    /// The time of the last failed reload.
    pub last_failure: Option<SystemTime>,
}

struct ActiveConfiguration {
    resources: HashMap<GroupResource, Arc<Vec<Arc<Provider>>>>,
    identity: Arc<Vec<Arc<Provider>>>,
    plugins: Vec<Arc<Plugin>>,
    /// A digest of the file, to detect changes without keeping its keys.
    digest: Vec<u8>,
    end: StopGuard,
}

/// Stops the tasks that follow the plugins, when the configuration is dropped.
struct StopGuard(rt::Shutdown);

impl Drop for StopGuard {
    fn drop(&mut self) {
        self.0.stop();
    }
}

impl ActiveConfiguration {
    fn none() -> Self {
        Self {
            resources: HashMap::new(),
            identity: Arc::new(vec![Arc::new(Provider::identity())]),
            plugins: Vec::new(),
            digest: Vec::new(),
            end: StopGuard(rt::Shutdown::new()),
        }
    }

    /// Adds an entry. A resource that an earlier entry covers with a wildcard is an error.
    fn add(
        &mut self,
        entry: &ResourceConfiguration,
        building: &mut HashMap<GroupResource, Vec<Arc<Provider>>>,
        clock: &Arc<dyn rt::Clock>,
    ) -> Result<(), ConfigError> {
        let mut providers = Vec::new();
        for given in &entry.providers {
            let provider = match &given.kms {
                Some(kms) if kms.api_version() == "v1" => return Err(ConfigError::KmsV1),
                Some(kms) => {
                    let plugin = Arc::new(Plugin::new(kms, clock.clone()));
                    self.plugins.push(plugin.clone());
                    Provider::kms(plugin)
                }
                None => Provider::of_keys(given)?.unwrap_or_else(Provider::identity),
            };
            providers.push(Arc::new(provider));
        }
        for name in &entry.resources {
            let resource = parse_resource(name);
            let group = GroupResource::new(resource.group.clone(), "*");
            let masks = [group, GroupResource::new("*", "*")];
            if let Some(by) = masks.iter().find(|mask| building.contains_key(*mask)) {
                let (resource, by) = (shown(&resource), shown(by));
                return Err(ConfigError::Masked { resource, by });
            }
            building.entry(resource).or_default().extend(providers.iter().cloned());
        }
        Ok(())
    }
}

/// Returns a resource's name as in a configuration.
fn shown(resource: &GroupResource) -> String {
    match (&*resource.group, &*resource.resource) {
        ("", "*") => "*.".to_owned(),
        ("", name) => name.to_owned(),
        (group, name) => format!("{name}.{group}"),
    }
}

/// Hides the keys.
impl std::fmt::Debug for Encryption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Encryption").field("reload", &self.reload).finish_non_exhaustive()
    }
}

impl Encryption {
    /// Creates a layer that encrypts nothing, and refuses to read encrypted values.
    pub fn none() -> Self {
        let tasks = rt::Tasks::new(rt::Shutdown::new());
        Self::of(ActiveConfiguration::none(), false, tasks, Arc::new(rt::SystemClock))
    }

    fn of(
        loaded: ActiveConfiguration,
        reload: bool,
        tasks: rt::Tasks,
        clock: Arc<dyn rt::Clock>,
    ) -> Self {
        let current = RwLock::new(Arc::new(loaded));
        Self {
            tasks,
            clock,
            reload,
            current,
            changed: watch::Sender::new(0),
            outcomes: Mutex::default(),
        }
    }

    /// Reads a file. Plugins that do not answer are not an error: their values cannot be read until they do.
    pub async fn load(
        path: PathBuf,
        reload: bool,
        tasks: rt::Tasks,
        clock: Arc<dyn rt::Clock>,
    ) -> Result<Self, ConfigError> {
        let (loaded, _) = read(&path, reload, &tasks, &clock).await?;
        Ok(Self::of(loaded, reload, tasks, clock))
    }

    /// Checks the file periodically, and activates a new configuration if it is valid and its plugins are healthy.
    pub async fn follow(self: Arc<Self>, path: PathBuf, poll: Duration) {
        let mut backoff = rt::Backoff::new(Duration::from_secs(1), poll);
        let mut wait = poll;
        loop {
            tokio::time::sleep(wait).await;
            wait = poll;
            let reloaded = self.reload(&path).await;
            self.record(&reloaded);
            match reloaded {
                Ok(changed) => {
                    backoff.reset();
                    if changed {
                        tracing::info!(path = %path.display(), "reloaded the encryption configuration");
                    }
                }
                Err(error) => {
                    tracing::error!(
                        path = %path.display(), %error,
                        "error processing encryption config file; keeping the last good configuration"
                    );
                    wait = backoff.next(0.1).min(poll);
                }
            }
        }
    }

    fn record(&self, reloaded: &Result<bool, ConfigError>) {
        let mut outcomes = self.outcomes.lock();
        match reloaded {
            Ok(false) => {}
            Ok(true) => {
                outcomes.successes += 1;
                outcomes.last_success = Some(rt::now());
            }
            Err(_) => {
                outcomes.failures += 1;
                outcomes.last_failure = Some(rt::now());
            }
        }
    }

    /// Returns the outcomes of the reloads; `None` if the file is not reloaded.
    pub fn outcomes(&self) -> Option<ReloadOutcomes> {
        self.reload.then(|| *self.outcomes.lock())
    }

    /// Returns the SHA-256 digest of the file in use, such as `sha256:9f86…`; `None` without a file.
    pub fn digest(&self) -> Option<String> {
        let current = self.current();
        let hex = HEXLOWER.encode(&current.digest);
        (!hex.is_empty()).then(|| format!("sha256:{hex}"))
    }

    /// Reads the file again. Returns whether its content has changed.
    pub async fn reload(&self, path: &std::path::Path) -> Result<bool, ConfigError> {
        let text = text(path)?;
        if digest(&text) == self.current().digest {
            return Ok(false);
        }
        let (new, patience) = read(path, true, &self.tasks, &self.clock).await?;
        let proof = async {
            loop {
                match health(&new.plugins).await {
                    Ok(()) => return,
                    Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                }
            }
        };
        if tokio::time::timeout(patience.max(SHORTEST_PROBE), proof).await.is_err() {
            health(&new.plugins).await?;
        }
        // Requests in progress keep the old configuration, whose plugins are followed until it is dropped.
        *self.current.write() = Arc::new(new);
        self.changed.send_modify(|count| *count += 1);
        Ok(true)
    }

    /// Returns a receiver that is notified when a new configuration is activated.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Checks that all plugins are healthy, for `/healthz/kms-providers`.
    pub async fn health(&self) -> Result<(), HealthError> {
        health(&self.current().plugins).await
    }

    /// Reports whether there is a health check: as in upstream, if there are plugins or the file may be reloaded.
    pub fn is_checked(&self) -> bool {
        self.reload || !self.current().plugins.is_empty()
    }

    fn current(&self) -> Arc<ActiveConfiguration> {
        self.current.read().clone()
    }

    /// Returns the providers of a resource: those of its name, else of its group, else of all resources.
    fn providers(&self, of: &GroupResource) -> Arc<Vec<Arc<Provider>>> {
        let current = self.current();
        let named = current.resources.get(of);
        let found = named
            .or_else(|| current.resources.get(&GroupResource::new(of.group.clone(), "*")))
            .or_else(|| current.resources.get(&GroupResource::new("*", "*")));
        found.unwrap_or(&current.identity).clone()
    }

    /// Reports whether nothing is encrypted. Unencrypted values then pass unchanged.
    pub(crate) fn is_off(&self) -> bool {
        self.current().resources.is_empty()
    }

    /// Reports whether the configuration covers a resource.
    pub(crate) fn covers(&self, of: &GroupResource) -> bool {
        !Arc::ptr_eq(&self.providers(of), &self.current().identity)
    }

    pub(crate) fn encrypt(
        &self,
        of: &GroupResource,
        value: &[u8],
        place: &str,
    ) -> Result<Option<Vec<u8>>, TransformError> {
        provider::encrypt(&self.providers(of), value, place.as_bytes())
    }

    pub(crate) async fn decrypt(
        &self,
        of: &GroupResource,
        data: &[u8],
        place: &str,
    ) -> Result<Plaintext, TransformError> {
        provider::decrypt(&self.providers(of), data, place.as_bytes()).await
    }
}

async fn health(plugins: &[Arc<Plugin>]) -> Result<(), HealthError> {
    let results = join_all(plugins.iter().map(|plugin| plugin.health())).await;
    let mut errors: Vec<_> = results
        .into_iter()
        .enumerate()
        .filter_map(|(index, health)| Some(HealthError::Plugin { index, source: health.err()? }))
        .collect();
    match errors.len() {
        0 => Ok(()),
        1 => Err(errors.swap_remove(0)),
        _ => Err(HealthError::Several(errors)),
    }
}

fn text(path: &std::path::Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(path)
        .map_err(|source| ConfigError::Read { path: path.to_owned(), source })
}

fn digest(text: &str) -> Vec<u8> {
    Sha256::digest(text).to_vec()
}

/// Reads and builds a configuration, and checks each plugin once. Also returns the sum of its plugins' time limits.
async fn read(
    path: &std::path::Path,
    reload: bool,
    tasks: &rt::Tasks,
    clock: &Arc<dyn rt::Clock>,
) -> Result<(ActiveConfiguration, Duration), ConfigError> {
    let text = text(path)?;
    let config = EncryptionConfiguration::parse(path, &text)?;
    let errors = config.errors(reload);
    if !errors.is_empty() {
        return Err(ConfigError::Invalid(api_meta::field::aggregate(&errors)));
    }
    let end = StopGuard(tasks.shutdown().child());
    let mut loaded =
        ActiveConfiguration { digest: digest(&text), end, ..ActiveConfiguration::none() };
    let mut building = HashMap::new();
    for entry in &config.resources {
        loaded.add(entry, &mut building, clock)?;
    }
    loaded.resources = building.into_iter().map(|(of, list)| (of, Arc::new(list))).collect();
    // Check now, so that a server with healthy plugins can write at once.
    let _ = health(&loaded.plugins).await;
    for plugin in &loaded.plugins {
        let (end, work) = (loaded.end.0.clone(), plugin.clone().follow());
        tasks.spawn("following a KMS plugin", async move {
            let _ended = end.unless_stopping(work).await;
        });
    }
    let patience = loaded.plugins.iter().map(|plugin| plugin.timeout * 2).sum();
    Ok((loaded, patience))
}
