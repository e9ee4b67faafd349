//! Starts the kubelet.

use std::{path::Path, sync::Arc, time::Duration};

use rt::Tasks;
use sys::mount::{HostMounts, Mounts};
use tokio::sync::{Semaphore, watch};

use crate::{
    args::Args,
    claims::{self, Claims, ClaimsStateError},
    config::{self, ConfigError, HostSettings, Settings},
    context::Context,
    devices::{self, Devices},
    events::Events,
    eviction, housekeeping,
    machine::{self, Machine},
    node::{self, Heartbeats},
    objects::Objects,
    placement::{self, Placement, PlacementError, Topology},
    pleg, plugins, pod_resources,
    pods::Pods,
    pulls::PullRecords,
    server::{self, ServerError},
    sources::{api, files, mirror},
    stats::Stats,
    volumes::{self, DIRECTORY_MODE},
};

/// The error that prevents the kubelet's start or ends it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("this machine has no address besides loopback's; give one with --node-ip")]
    NoAddress,
    #[error("create the kubelet's directory {}: {source}", path.display())]
    Root { path: std::path::PathBuf, source: std::io::Error },
    #[error(transparent)]
    Mount(#[from] sys::Error),
    #[error(transparent)]
    Kubeconfig(#[from] client::KubeconfigError),
    #[error(transparent)]
    Enroll(#[from] crate::EnrollError),
    #[error(transparent)]
    Server(#[from] ServerError),
    #[error("start the thread of heartbeats: {0}")]
    Thread(std::io::Error),
    #[error(
        "Failed to start ContainerManager: {0}; set them with sysctl, or protectKernelDefaults to false"
    )]
    Kernel(String),
    #[error("Failed to start ContainerManager: {0}")]
    Placement(#[from] PlacementError),
    #[error("Failed to start ContainerManager: {0}")]
    Claims(#[from] ClaimsStateError),
    #[error("the container runtime does not answer: {0}")]
    Runtime(#[from] cri::Error),
}

/// The configuration of one kubelet.
#[derive(Clone)]
pub struct Config {
    /// The checked settings.
    pub settings: Settings,
    /// A separate client for heartbeats. `None` uses the kubelet's client.
    pub heartbeats: Option<client::Client>,
    /// `true` if the kubelet renews its client certificate; see [`crate::keep_enrolled`].
    pub rotate_certificates: bool,
}

impl Config {
    /// Assembles the configuration from flags, the configuration file and facts about the machine.
    pub fn from_args(args: &Args) -> Result<Self, Error> {
        args.ignored.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
        let file = config::load(args)?;
        let node_name = args.node_name();
        let node_ips = if args.node_ip.is_empty() {
            vec![machine::default_address().ok_or(Error::NoAddress)?.to_string()]
        } else {
            args.node_ip.clone()
        };
        let place = HostSettings {
            node_name,
            node_ips,
            root: args.root_dir.clone(),
            cert_dir: args.cert_dir(),
            labels: args.labels(),
        };
        // Heartbeats have a connection of their own, so that other requests cannot delay them.
        let heartbeats = match &args.kubeconfig {
            Some(path) if path.exists() => {
                Some(client::Client::from_kubeconfig_file(path, "kubelet-heartbeats")?)
            }
            _ => None,
        };
        let rotate_certificates = file.rotate_certificates;
        Ok(Self { settings: Settings::new(&file, place)?, heartbeats, rotate_certificates })
    }
}

/// The time to wait for a container runtime that is also starting.
const RUNTIME_PATIENCE: Duration = Duration::from_secs(60);

/// Runs a kubelet until shutdown. Without a client, only static Pods run.
pub async fn run(
    config: Config,
    client: Option<client::Client>,
    tasks: &Tasks,
) -> Result<(), Error> {
    let settings = config.settings;
    if settings.protect_kernel {
        crate::kernel::check(Path::new("/proc/sys")).map_err(Error::Kernel)?;
    }
    make_root(&settings.root)
        .map_err(|source| Error::Root { path: settings.root.clone(), source })?;
    let machine = Machine::read();
    let clock: Arc<dyn rt::Clock> = Arc::new(rt::SystemClock);
    let stats = Stats::default();
    let devices = Arc::new(Devices::new(&settings.root, clock.clone(), tasks));
    let topology = Topology::wanted(Path::new("/sys"), machine.memory, &settings.placement)
        .map_err(PlacementError::from)?;
    let claims = Arc::new(Claims::new(&settings.root, stats.metrics(), tasks)?);
    let placement = Placement::new(&settings, topology, devices.clone(), stats.metrics())?;
    // Upstream's kubelet makes its root shared, too. If it took over later, it would otherwise hide our mounts below
    // its own.
    HostMounts.make_shared(&settings.root)?;
    let cri = cri::Client::new(&settings.runtime_endpoint, settings.request_timeout);
    let Some(version) = tasks.shutdown().unless_stopping(await_runtime(&cri)).await else {
        return Ok(());
    };
    let version = version?;
    tracing::info!(
        runtime = version.runtime_name,
        version = version.runtime_version,
        "the container runtime answers"
    );
    if !settings.pod_cidr.is_empty() {
        cri.set_pod_cidr(&settings.pod_cidr).await?;
    }
    let ctx = Arc::new(Context {
        machine,
        runtime_name: version.runtime_name,
        objects: Objects::new(client.clone(), tasks),
        node: node::OwnNode::new(client.as_ref(), &settings.node_name, tasks),
        events: Events::new(client.clone(), &settings.node_name, clock.clone(), tasks),
        cgroups: sys::cgroup::detect(),
        mounts: Arc::new(HostMounts),
        operations: Default::default(),
        csi: Default::default(),
        devices,
        claims,
        placement: Arc::new(placement),
        pulls: Semaphore::new(if settings.serialize_pulls { 1 } else { Semaphore::MAX_PERMITS }),
        mirrors: Default::default(),
        pressures: Default::default(),
        stats,
        pull_records: PullRecords::new(&settings.root, settings.verification.clone()),
        client: client.clone(),
        clock,
        cri,
        tasks: tasks.clone(),
        settings,
    });
    if let Err(error) = volumes::csi::reconstruct(&ctx).await {
        tracing::warn!(%error, "reconstruct the CSI volumes mounted by an earlier kubelet");
    }
    let pods = Pods::new(ctx.clone());
    if let Some(client) = config.heartbeats.or_else(|| client.clone()) {
        let (node, duration) = (ctx.settings.node_name.clone(), ctx.settings.lease_duration);
        let heartbeats = Heartbeats { client, node, duration, clock: ctx.clock.clone() };
        heartbeats.start(tasks.shutdown().clone()).map_err(Error::Thread)?;
    }
    let (healthy, health) = watch::channel(None);
    if ctx.settings.serve {
        server::start(&ctx, &pods, health.clone()).await?;
    }
    if let Err(error) = pod_resources::serve(&ctx, pods.clone()) {
        tracing::warn!(%error, "serve the Pod resources API; monitoring agents see no devices");
    }
    start(&ctx, &pods, client, (healthy, health));
    tasks.shutdown().stopping().await;
    Ok(())
}

/// Creates the kubelet's directory. The directory of Pods contains Secrets, so it is closed to other users of the
/// machine, whatever mode it had.
fn make_root(root: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let pods = root.join("pods");
    sys::make_directories(&pods, DIRECTORY_MODE)?;
    std::fs::set_permissions(&pods, std::fs::Permissions::from_mode(DIRECTORY_MODE))
}

async fn await_runtime(cri: &cri::Client) -> Result<cri::v1::VersionResponse, cri::Error> {
    let ask = || async {
        let version = cri.version().await;
        version.inspect_err(|error| tracing::debug!(%error, "waiting for the container runtime"))
    };
    rt::retry(RUNTIME_PATIENCE, Duration::from_millis(100), |_| true, ask).await
}

/// Starts the tasks that follow the sources and the runtime.
fn start(
    ctx: &Arc<Context>,
    pods: &Pods,
    client: Option<client::Client>,
    (healthy, health): (watch::Sender<Option<String>>, watch::Receiver<Option<String>>),
) {
    let tasks = &ctx.tasks;
    let (statics, current) = watch::channel(Vec::new());
    let (files_read, files_ready) = watch::channel(ctx.settings.static_pods.is_none());
    let (sources_read, sources_ready) = watch::channel(false);
    if let Some(dir) = ctx.settings.static_pods.clone() {
        let (own, pods) = (ctx.clone(), pods.clone());
        tasks.keep("kubelet static pods", move || {
            files::run(own.clone(), dir.clone(), pods.clone(), statics.clone(), files_read.clone())
        });
    }
    let informer = client.as_ref().map(|client| api::start(client, ctx, pods));
    if let Some(client) = client {
        let (own, api) = (ctx.clone(), client.clone());
        tasks.keep("kubelet node status", move || {
            node::run(own.clone(), api.clone(), health.clone())
        });
        let own = ctx.clone();
        let api = client.clone();
        tasks.keep("kubelet mirror pods", move || {
            mirror::run(own.clone(), api.clone(), current.clone())
        });
        let own = ctx.clone();
        let api = client.clone();
        tasks.keep("kubelet plugins", move || plugins::run(own.clone(), api.clone()));
        let own = ctx.clone();
        tasks.keep("kubelet resource slices", move || {
            claims::remove_slices(own.clone(), client.clone())
        });
    }
    let own = (ctx.clone(), pods.clone());
    tasks.keep("kubelet devices", move || devices::run(own.0.clone(), own.1.clone()));
    let (own, ready) = ((ctx.clone(), pods.clone()), sources_ready.clone());
    tasks.keep("kubelet claims", move || claims::run(own.0.clone(), own.1.clone(), ready.clone()));
    let own = (ctx.clone(), pods.clone());
    tasks.keep("kubelet placement", move || placement::run(own.0.clone(), own.1.clone()));
    let own = ctx.clone();
    tasks.keep("kubelet unused volumes", move || volumes::csi::unstage_unused(own.clone()));
    tasks.spawn_until_shutdown("kubelet sources", async move {
        let mut files_ready = files_ready;
        let _ = files_ready.wait_for(|read| *read).await;
        if let Some(informer) = &informer {
            informer.synced().await;
        }
        sources_read.send_replace(true);
        // This task owns the informer and keeps it running.
        std::future::pending::<()>().await;
    });
    let own = (ctx.clone(), pods.clone());
    tasks.keep("kubelet eviction", move || eviction::run(own.0.clone(), own.1.clone()));
    let (own, ready) = ((ctx.clone(), pods.clone()), sources_ready.clone());
    tasks.keep("kubelet housekeeping", move || {
        housekeeping::run(own.0.clone(), own.1.clone(), ready.clone())
    });
    let own = (ctx.clone(), pods.clone());
    tasks.keep("kubelet runtime events", move || {
        pleg::run(own.0.clone(), own.1.clone(), sources_ready.clone(), healthy.clone())
    });
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn closes_pod_directory_to_other_users() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("kubelet");
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o7777;
        make_root(&root).unwrap();
        assert_eq!((mode(&root), mode(&root.join("pods"))), (0o750, 0o750));
        // An earlier kubelet left it open.
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(root.join("pods"), open).unwrap();
        make_root(&root).unwrap();
        assert_eq!(mode(&root.join("pods")), 0o750);
    }
}
