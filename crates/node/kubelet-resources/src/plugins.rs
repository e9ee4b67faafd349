//! The plugin watcher: registers CSI drivers, device plugins and DRA drivers whose sockets are below
//! `plugins_registry`.
//!
//! Each new socket is queried for its plugin's type and name. For a CSI driver, its node ID and topology are then
//! written to the CSINode; device plugins and DRA drivers are passed to `devices` and `claims`. When the socket
//! disappears, the plugin is removed until it registers again. Read [`PluginWatcher::run`] first.

mod csi_node;
mod limits;

use std::{
    collections::BTreeMap,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use client::Client;
use csi::{Driver, Registrar};
use futures_util::{StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use kubelet_volumes::Drivers;
use pod_core::paths::DIRECTORY_MODE;
use tokio::time::Instant;

pub use limits::VolumeLimits;

use crate::{
    claims::{Claims, ClaimsError},
    devices::{Devices, DevicesError},
};

/// The interval between two scans of the directory. A scan of a small directory takes microseconds.
const SCAN_INTERVAL: Duration = Duration::from_secs(1);
/// The first delay before a failed registration is retried. Later delays are longer.
const MIN_DELAY: Duration = Duration::from_millis(500);
const MAX_DELAY: Duration = Duration::from_secs(122);
/// The limit of sockets and directories, so that a flooded directory does not exhaust the kubelet.
const MAX_ENTRIES: usize = 256;
const MAX_NAME_LENGTH: usize = 63;

#[derive(Debug, thiserror::Error)]
enum PluginError {
    #[error("failed to get plugin info using RPC GetInfo at socket {socket}, err: {source}")]
    Info { socket: String, source: csi::Error },
    #[error("no handler registered for plugin type: {kind} at socket {socket}")]
    Kind { kind: String, socket: String },
    #[error("plugin validation failed with err: invalid driver name {0:?}")]
    Name(String),
    #[error(
        "plugin validation failed with err: validation failed for CSI Driver {name} at endpoint {endpoint}: none of \
         the versions specified {versions:?} are supported. err: at least one of 1.x is needed"
    )]
    Versions { name: String, endpoint: String, versions: Vec<String> },
    #[error("RegisterPlugin error -- failed to get node info of driver {name}: {source}")]
    NodeInfo { name: String, source: csi::Error },
    #[error("RegisterPlugin error -- {0}")]
    Node(#[from] csi_node::NodeError),
    #[error(
        "plugin validation failed with err: manager version, v1beta1, is not among plugin supported versions {0:?}"
    )]
    DeviceVersions(Vec<String>),
    #[error("RegisterPlugin error -- {0}")]
    Devices(#[from] DevicesError),
    #[error("plugin validation failed with err: {0}")]
    Claims(#[from] ClaimsError),
    #[error("another plugin at {other} has announced the driver {name}")]
    Taken { name: String, other: String },
}

/// The inode and the modification time of a socket. A different stamp at the same path is a new plugin.
type Stamp = (u64, SystemTime);

/// The plugin behind a socket.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PluginKey {
    /// A CSI driver by name.
    Driver(String),
    /// A device plugin by resource name and number of the registration.
    Devices(String, u64),
    /// A DRA driver by name and endpoint.
    Claims(String, PathBuf),
}

/// The sockets by path.
type SocketStates = BTreeMap<PathBuf, SocketState>;

#[derive(Default)]
struct SocketState {
    stamp: Option<Stamp>,
    /// The plugin, once it is registered.
    plugin: Option<PluginKey>,
    failures: u32,
    again: Option<Instant>,
    under_way: bool,
}

/// The watcher of one node's plugins, and the managers to which it passes them.
#[derive(Clone)]
pub struct PluginWatcher {
    /// The directory for the kubelet's state.
    pub root: PathBuf,
    /// The name of the Node.
    pub node_name: String,
    /// The client of the API server.
    pub client: Client,
    /// The CSI drivers.
    pub drivers: Arc<Drivers>,
    /// The device plugins.
    pub devices: Arc<Devices>,
    /// The DRA drivers.
    pub claims: Arc<Claims>,
}

impl PluginWatcher {
    /// Follows the directory until shutdown.
    pub async fn run(self) {
        csi_node::create_csi_node(&self.client, &self.node_name).await;
        let dir = self.root.join("plugins_registry");
        // Registrar sidecars of CSI drivers mount both directories.
        for dir in [&dir, &self.root.join("plugins")] {
            if let Err(error) = sys::make_directories(dir, DIRECTORY_MODE) {
                tracing::warn!(path = %dir.display(), %error, "create the directory of plugins");
            }
        }
        let mut states = SocketStates::new();
        let mut registering = FuturesUnordered::new();
        loop {
            let there = sockets(&dir);
            for (path, plugin) in missing(&mut states, &there) {
                tracing::info!(path = %path.display(), ?plugin, "a plugin's socket has disappeared");
                self.unregister(&plugin).await;
                // Another socket may have failed because this one held its driver's name.
                states.values_mut().for_each(|state| state.again = None);
            }
            for (path, stamp) in there {
                let registered = registered_sockets(&states);
                let state = states.entry(path.clone()).or_default();
                if state.plugin.is_some()
                    || state.under_way
                    || state.again.is_some_and(|at| at > Instant::now())
                {
                    continue;
                }
                (state.under_way, state.stamp) = (true, Some(stamp));
                let watcher = self.clone();
                let work: BoxFuture<'static, Registration> = Box::pin(async move {
                    let result = watcher.register(&path, &registered).await;
                    Registration { path, stamp, result }
                });
                registering.push(work);
            }
            let ended = async {
                match registering.next().await {
                    Some(ended) => ended,
                    None => std::future::pending().await,
                }
            };
            if let Ok(registration) = tokio::time::timeout(SCAN_INTERVAL, ended).await {
                self.record(&mut states, registration).await;
            }
        }
    }

    /// Records the result of a registration.
    async fn record(&self, states: &mut SocketStates, registration: Registration) {
        let Registration { path, stamp, result } = registration;
        let Some(state) = states.get_mut(&path).filter(|state| state.stamp == Some(stamp)) else {
            // The socket disappeared or was replaced meanwhile. A new socket registers by itself.
            let is_anew = states.contains_key(&path);
            if let Some(plugin) = result.ok().filter(|_| !is_anew) {
                self.unregister(&plugin).await;
            }
            return;
        };
        state.under_way = false;
        match result {
            Ok(plugin) => {
                tracing::info!(path = %path.display(), ?plugin, "a plugin is registered");
                state.plugin = Some(plugin);
            }
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "register a plugin");
                let wait = MIN_DELAY.saturating_mul(1 << state.failures.min(16)).min(MAX_DELAY);
                (state.failures, state.again) = (state.failures + 1, Some(Instant::now() + wait));
            }
        }
    }

    /// Registers the plugin of a socket, and notifies the plugin of the result.
    async fn register(
        &self,
        path: &Path,
        registered: &BTreeMap<PluginKey, PathBuf>,
    ) -> Result<PluginKey, PluginError> {
        let socket = path.display().to_string();
        let registrar = Registrar::new(path.to_owned());
        let info = registrar.info().await;
        let info = info.map_err(|source| PluginError::Info { socket: socket.clone(), source })?;
        let done = self.accept(&socket, &info, registered).await;
        let notified = registrar.notify(done.as_ref().map(|_| ())).await;
        if let Err(error) = notified {
            // Upstream's kubelet also keeps the plugin registered if the notification fails.
            tracing::warn!(socket, %error, "notify a plugin of the result of its registration");
        }
        done
    }

    async fn accept(
        &self,
        socket: &str,
        info: &csi::registration::PluginInfo,
        registered: &BTreeMap<PluginKey, PathBuf>,
    ) -> Result<PluginKey, PluginError> {
        let name = &info.name;
        let announced = match info.r#type.as_str() {
            "CSIPlugin" => PluginKey::Driver(name.clone()),
            "DevicePlugin" => return self.accept_devices(socket, info).await,
            "DRAPlugin" => return self.accept_claims(socket, info),
            kind => {
                let (kind, socket) = (kind.to_owned(), socket.to_owned());
                return Err(PluginError::Kind { kind, socket });
            }
        };
        if !is_driver_name(name) {
            return Err(PluginError::Name(name.clone()));
        }
        if let Some(other) = registered.get(&announced).filter(|other| other.exists()) {
            let other = other.display().to_string();
            return Err(PluginError::Taken { name: name.clone(), other });
        }
        let endpoint = if info.endpoint.is_empty() { socket } else { &info.endpoint };
        if !info.supported_versions.iter().any(|version| is_supported(version)) {
            return Err(PluginError::Versions {
                name: name.clone(),
                endpoint: endpoint.to_owned(),
                versions: info.supported_versions.clone(),
            });
        }
        let driver = Driver::new(endpoint);
        let node = driver.node_info().await;
        let node = node.map_err(|source| PluginError::NodeInfo { name: name.clone(), source })?;
        csi_node::install(&self.client, &self.node_name, name, &node).await?;
        self.drivers.set_driver(name, Some(driver));
        Ok(announced)
    }

    async fn accept_devices(
        &self,
        socket: &str,
        info: &csi::registration::PluginInfo,
    ) -> Result<PluginKey, PluginError> {
        let versions = &info.supported_versions;
        if !versions.iter().any(|version| version == deviceplugin::VERSION) {
            return Err(PluginError::DeviceVersions(versions.clone()));
        }
        // The last plugin that registers for a resource wins, as at the socket of device plugins.
        let endpoint = if info.endpoint.is_empty() { socket } else { &info.endpoint };
        let number = self.devices.connect(&info.name, PathBuf::from(endpoint)).await?;
        Ok(PluginKey::Devices(info.name.clone(), number))
    }

    fn accept_claims(
        &self,
        socket: &str,
        info: &csi::registration::PluginInfo,
    ) -> Result<PluginKey, PluginError> {
        if !is_driver_name(&info.name) {
            return Err(PluginError::Name(deviceplugin::shorten(&info.name).to_owned()));
        }
        let endpoint = if info.endpoint.is_empty() { socket } else { &info.endpoint };
        let endpoint = PathBuf::from(endpoint);
        self.claims.connect(&info.name, &endpoint, &info.supported_versions)?;
        Ok(PluginKey::Claims(info.name.clone(), endpoint))
    }

    async fn unregister(&self, plugin: &PluginKey) {
        let driver = match plugin {
            PluginKey::Driver(driver) => driver,
            PluginKey::Devices(resource, number) => {
                return self.devices.disconnect(resource, *number);
            }
            PluginKey::Claims(driver, endpoint) => return self.claims.disconnect(driver, endpoint),
        };
        self.drivers.set_driver(driver, None);
        if let Err(error) = csi_node::uninstall(&self.client, &self.node_name, driver).await {
            tracing::warn!(driver, %error, "remove a driver from the CSINode");
        }
    }
}

/// The result of a registration.
struct Registration {
    /// The path of the socket.
    path: PathBuf,
    stamp: Stamp,
    result: Result<PluginKey, PluginError>,
}

/// Returns the socket of each registered plugin.
fn registered_sockets(states: &SocketStates) -> BTreeMap<PluginKey, PathBuf> {
    let announced =
        |(path, state): (&PathBuf, &SocketState)| Some((state.plugin.clone()?, path.clone()));
    states.iter().filter_map(announced).collect()
}

/// Forgets sockets that have disappeared or were replaced, and returns those of registered plugins.
fn missing(
    states: &mut SocketStates,
    there: &BTreeMap<PathBuf, Stamp>,
) -> Vec<(PathBuf, PluginKey)> {
    let mut gone = Vec::new();
    states.retain(|path, state| {
        let stays = state.stamp.is_none() || there.get(path).copied() == state.stamp;
        if !stays && let Some(plugin) = state.plugin.take() {
            gone.push((path.clone(), plugin));
        }
        stays
    });
    gone
}

/// Returns the sockets in a directory and in those below it, without entries whose names start with a dot.
fn sockets(dir: &Path) -> BTreeMap<PathBuf, Stamp> {
    let mut sockets = BTreeMap::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        let entries = std::fs::read_dir(&dir).into_iter().flatten().flatten();
        for entry in entries.filter(|e| !e.file_name().to_string_lossy().starts_with('.')) {
            let (Ok(kind), Ok(meta)) = (entry.file_type(), entry.metadata()) else { continue };
            if sockets.len() + dirs.len() >= MAX_ENTRIES {
                return sockets;
            }
            if kind.is_dir() {
                dirs.push(entry.path());
            } else if kind.is_socket() {
                let changed = meta.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                sockets.insert(entry.path(), (meta.ino(), changed));
            }
        }
    }
    sockets
}

/// Reports whether a name is valid. Names become parts of paths and annotations.
fn is_driver_name(name: &str) -> bool {
    let ends = |c: char| c.is_ascii_alphanumeric();
    name.len() <= MAX_NAME_LENGTH
        && name.starts_with(ends)
        && name.ends_with(ends)
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '.')
}

/// Reports whether a version is a CSI 1.x version.
fn is_supported(version: &str) -> bool {
    let mut parts = version.strip_prefix('v').unwrap_or(version).split('.');
    parts.next() == Some("1") && parts.all(|part| part.parse::<u32>().is_ok())
}

#[cfg(test)]
mod tests;
