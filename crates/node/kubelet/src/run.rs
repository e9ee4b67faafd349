//! Starts the kubelet.

use std::{path::Path, sync::Arc, time::Duration};

use api_config::FeatureGates;
use kubelet_config::{Args, CloudSettings, CredentialProviderPaths, HostSettings, Settings};
use kubelet_objects::{Events, NodeInformer, Objects};
use kubelet_resources::{
    Claims, Devices, Placement, PlacementError, PluginWatcher, Topology, VolumeLimits,
};
use kubelet_server::Backend;
use kubelet_stats::{Machine, Stats, StatsSources};
use kubelet_volumes::{Certificates, Operations, VolumePrograms, VolumeSpace, Volumes};
use pod_core::{PodRegistry, paths::DIRECTORY_MODE};
use rt::Tasks;
use sys::{
    cgroup::Cgroups,
    mount::{HostMounts, Mounts},
};
use telemetry::metrics::Metrics;
use tokio::sync::watch;

use crate::{
    certificate::Certificate,
    context::{Context, PullLimits, rate_limit},
    credentials::Providers,
    error::Error,
    eviction, housekeeping, kernel, machine,
    metrics::{CertificateFiles, KubeletMetrics, follow_certificates},
    node::{self, Heartbeats},
    pleg,
    pods::Pods,
    pulls::PullRecords,
    shutdown,
    sources::{api, files, manifest::StaticPods, mirror, url},
    startups::Startups,
    systemd::ServiceManager,
    user_namespaces::UserNamespaces,
};

/// The configuration of one kubelet.
#[derive(Clone)]
pub struct Config {
    /// The checked settings.
    pub settings: Settings,
    /// A separate client for heartbeats. `None` uses the kubelet's client.
    pub heartbeats: Option<client::Client>,
    /// `true` if the kubelet renews its client certificate; see [`crate::keep_enrolled`].
    pub rotate_certificates: bool,
    /// The service manager that learns of the kubelet's start and health.
    pub service_manager: ServiceManager,
    /// The kernel's interfaces.
    pub host: Host,
}

/// The kernel's interfaces that a kubelet changes. Simulated nodes have fakes.
#[derive(Clone)]
pub struct Host {
    /// The cgroups of Pods.
    pub cgroups: Arc<dyn Cgroups>,
    /// The mounts of volumes.
    pub mounts: Arc<dyn Mounts>,
}

impl Host {
    /// Returns the interfaces of this machine's kernel.
    pub fn real() -> Self {
        Self { cgroups: sys::cgroup::detect().into(), mounts: Arc::new(HostMounts) }
    }
}

impl Config {
    /// Assembles the configuration from flags, the configuration file and facts about the machine.
    pub fn from_args(args: &Args) -> Result<Self, Error> {
        args.ignored.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
        let file = kubelet_config::load(args)?;
        let node_name = args.node_name();
        let node_ips = if args.node_ip.is_empty() {
            vec![machine::default_address().ok_or(Error::NoAddress)?.to_string()]
        } else {
            args.node_ip.clone()
        };
        let host = HostSettings {
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
        let mut settings = Settings::new(&file, host)?;
        settings.features.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
        settings.cloud = CloudSettings::new(args)?;
        settings.images.credential_providers = credential_providers(args, &settings.features)?;
        let service_manager = ServiceManager::from_environment()?;
        let host = Host::real();
        Ok(Self { settings, heartbeats, rotate_certificates, service_manager, host })
    }
}

fn credential_providers(
    args: &Args,
    features: &FeatureGates,
) -> Result<Option<CredentialProviderPaths>, Error> {
    let paths = (&args.image_credential_provider_config, &args.image_credential_provider_bin_dir);
    match paths {
        (Some(config), Some(programs)) => {
            let gate = "KubeletServiceAccountTokenForCredentialProviders";
            Ok(Some(CredentialProviderPaths {
                config: config.clone(),
                programs: programs.clone(),
                account_tokens: features.is_enabled(gate),
            }))
        }
        (None, None) => Ok(None),
        _ => Err(Error::HalfCredentialProviders),
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
    let settings = Arc::new(config.settings);
    let listing_error = watch::Sender::new(None);
    let manager = config.service_manager;
    // The time limit counts from the start of the process, also while the kubelet waits for the runtime.
    let fed = manager.clone().feed_watchdog(tasks.clone(), listing_error.subscribe());
    tasks.spawn_until_shutdown("kubelet watchdog", fed);
    let Some(ctx) = context(settings, config.host, client.clone(), tasks).await? else {
        return Ok(());
    };
    let settings = &ctx.settings;
    if let Err(error) = ctx.volumes.reconstruct().await {
        tracing::warn!(%error, "reconstruct the CSI volumes mounted by an earlier kubelet");
    }
    let pods = Pods::new(ctx.clone());
    if let Some(client) = config.heartbeats.or_else(|| client.clone()) {
        let (node, duration) = (settings.node_name.clone(), settings.lease_duration);
        let heartbeats = Heartbeats { client, node, duration, clock: ctx.clock.clone() };
        heartbeats.start(tasks.shutdown().clone()).map_err(Error::Thread)?;
    }
    if settings.serve {
        serve(&ctx, &pods, listing_error.subscribe()).await?;
    }
    let served = kubelet_resources::serve_pod_resources(
        &settings.root,
        ctx.placement.clone(),
        ctx.claims.clone(),
        Arc::new(pods.clone()),
        tasks,
    );
    if let Err(error) = served {
        tracing::warn!(%error, "serve the Pod resources API; monitoring agents see no devices");
    }
    start(&ctx, &pods, client, listing_error);
    manager.ready();
    tasks.shutdown().stopping().await;
    Ok(())
}

/// Starts the export of traces, if it is configured.
fn tracer(settings: &Settings, metrics: &Metrics, tasks: &Tasks) -> Result<otlp::Tracer, Error> {
    let Some(exporter) = &settings.tracing else { return Ok(otlp::Tracer::default()) };
    let attributes = vec![("host.name", settings.node_name.clone())];
    let resource = otlp::Resource { service: "kubelet", attributes };
    Ok(exporter.start(resource, metrics, tasks)?)
}

/// Returns the files of the kubelet's certificates, which need not exist.
fn certificate_files(settings: &Settings) -> CertificateFiles {
    let (node, dir) = (settings.node_name.clone(), &settings.cert_dir);
    let configured = settings.server.certificate.as_ref().map(|(certificate, _)| certificate);
    CertificateFiles {
        client: Certificate::client(node.clone()).current(dir),
        serving: configured
            .cloned()
            .unwrap_or_else(|| Certificate::serving(node, &settings.node_ips).current(dir)),
    }
}

/// Prepares the machine and creates the kubelet's managers. Returns `None` if shutdown begins before the runtime
/// answers.
async fn context(
    settings: Arc<Settings>,
    host: Host,
    client: Option<client::Client>,
    tasks: &Tasks,
) -> Result<Option<Arc<Context>>, Error> {
    if settings.protect_kernel {
        kernel::check(Path::new("/proc/sys"))?;
    }
    let credential_providers = Providers::load(settings.images.credential_providers.as_ref())?;
    let Host { cgroups, mounts } = host;
    kernel::prepare(&settings, cgroups.as_ref(), Path::new("/proc"))?;
    make_root(&settings.root)
        .map_err(|source| Error::Root { path: settings.root.clone(), source })?;
    let user_namespaces = user_namespaces(&settings)?;
    let machine = Machine::read();
    let clock: Arc<dyn rt::Clock> = Arc::new(rt::SystemClock);
    let metrics = diagnostics::component_metrics(&settings.features);
    let client = client.map(|client| client.measured(&client::ClientMetrics::new(&metrics)));
    let kubelet_metrics = KubeletMetrics::new(&metrics);
    follow_certificates(&metrics, certificate_files(&settings));
    let devices = Arc::new(Devices::new(&settings.root, clock.clone(), tasks));
    let topology = Topology::read_if_needed(Path::new("/sys"), machine.memory, &settings.placement)
        .map_err(PlacementError::from)?;
    let claims = Arc::new(Claims::new(&settings.root, &metrics, tasks)?);
    let placement = Arc::new(Placement::new(&settings, topology, devices.clone(), &metrics)?);
    // Upstream's kubelet makes its root shared, too. If it took over later, it would otherwise hide our mounts below
    // its own.
    mounts.make_shared(&settings.root)?;
    let Some(Runtime { cri, name }) = runtime(&settings, tasks).await? else { return Ok(None) };
    let volumes = volumes(&settings, machine.memory, client.clone(), &clock, tasks);
    let volumes = Arc::new(Volumes { mounts, ..volumes });
    let sources = StatsSources {
        node_name: settings.node_name.clone(),
        root: settings.root.clone(),
        logs: settings.logs.clone(),
        machine: machine.clone(),
        cri: cri.clone(),
        cgroups: cgroups.clone(),
        cgroup_names: settings.cgroups.clone(),
        volumes: volumes.clone(),
        clock: clock.clone(),
    };
    Ok(Some(Arc::new(Context {
        machine,
        user_namespaces,
        runtime_name: name,
        objects: volumes.objects.clone(),
        node: volumes.node.clone(),
        events: volumes.events.clone(),
        cgroups,
        volumes,
        devices,
        claims,
        placement,
        credential_providers,
        pulls: PullLimits::new(&settings.images),
        shutting_down: watch::Sender::new(false),
        mirrors: Default::default(),
        pressures: Default::default(),
        tracer: tracer(&settings, &metrics, tasks)?,
        startups: Startups::new(&metrics),
        stats: Arc::new(Stats::new(sources, metrics)),
        metrics: kubelet_metrics,
        pull_records: PullRecords::new(&settings.root, settings.verification.clone()),
        client,
        clock,
        cri,
        tasks: tasks.clone(),
        settings,
    })))
}

fn user_namespaces(settings: &Settings) -> Result<UserNamespaces, Error> {
    let pods = u32::try_from(settings.max_pods).unwrap_or(0);
    Ok(UserNamespaces::new(&settings.root, settings.kernel.ids_per_pod, pods)?)
}

fn volumes(
    settings: &Settings,
    memory: u64,
    client: Option<client::Client>,
    clock: &Arc<dyn rt::Clock>,
    tasks: &Tasks,
) -> Volumes {
    let node = &settings.node_name;
    Volumes {
        root: settings.root.clone(),
        node_name: node.clone(),
        node: Arc::new(NodeInformer::new(client.as_ref(), node, tasks)),
        objects: Arc::new(Objects::new(client.clone(), tasks)),
        events: Events::new(client, node, rate_limit(settings.event_rate), clock.clone(), tasks),
        mounts: Arc::new(HostMounts),
        programs: VolumePrograms::default(),
        operations: Operations::default(),
        drivers: Arc::default(),
        certificates: Certificates::new(settings.features.is_enabled("PodCertificateRequest")),
        space: Arc::new(VolumeSpace::new(memory)),
        clock: clock.clone(),
    }
}

/// Starts the kubelet's server, and the renewal of the certificate that the cluster issues for it.
async fn serve(
    ctx: &Arc<Context>,
    pods: &Pods,
    health: watch::Receiver<Option<String>>,
) -> Result<(), Error> {
    let settings = &ctx.settings;
    let certificate = Certificate::serving(settings.node_name.clone(), &settings.node_ips);
    let issued = settings.server.bootstrap.then(|| certificate.current(&settings.cert_dir));
    kubelet_server::start(Backend {
        settings: settings.clone(),
        issued_certificate: issued,
        client: ctx.client.clone(),
        cri: ctx.cri.clone(),
        pods: Arc::new(pods.clone()),
        stats: ctx.stats.clone(),
        health,
        tracer: ctx.tracer.clone(),
        clock: ctx.clock.clone(),
        tasks: ctx.tasks.clone(),
    })
    .await?;
    if let (true, Some(client)) = (settings.server.bootstrap, ctx.client.clone()) {
        let own = ctx.clone();
        ctx.tasks.keep("kubelet serving certificate", move || {
            let (dir, clock) = (own.settings.cert_dir.clone(), own.clock.clone());
            certificate.clone().keep_current(dir, client.clone(), clock)
        });
    }
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

struct Runtime {
    cri: cri::Client,
    name: String,
}

/// Connects to the container runtime. Returns `None` if shutdown begins before the runtime answers.
async fn runtime(settings: &Settings, tasks: &Tasks) -> Result<Option<Runtime>, Error> {
    let mut cri = cri::Client::new(&settings.runtime_endpoint, settings.request_timeout);
    if let Some(endpoint) = &settings.images.endpoint {
        cri = cri.with_image_service(endpoint);
    }
    let Some(version) = tasks.shutdown().unless_stopping(await_runtime(&cri)).await else {
        return Ok(None);
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
    Ok(Some(Runtime { cri, name: version.runtime_name }))
}

async fn await_runtime(cri: &cri::Client) -> Result<cri::v1::VersionResponse, cri::Error> {
    let query = || async {
        let version = cri.version().await;
        version.inspect_err(|error| tracing::debug!(%error, "waiting for the container runtime"))
    };
    rt::retry(RUNTIME_PATIENCE, Duration::from_millis(100), |_| true, query).await
}

/// The static Pods, and the state of their sources.
struct StaticSources {
    /// Keeps the channel open if there is no source.
    sender: watch::Sender<StaticPods>,
    current: watch::Receiver<StaticPods>,
    /// `true` once the directory of manifests has been read.
    files_ready: watch::Receiver<bool>,
    /// `true` once the URL has served Pods.
    url_ready: watch::Receiver<bool>,
}

/// Starts the sources of static Pods that the settings have.
fn start_static_pods(ctx: &Arc<Context>, pods: &Pods) -> StaticSources {
    let tasks = &ctx.tasks;
    let (statics, current) = watch::channel(StaticPods::new());
    let (files_read, files_ready) = watch::channel(ctx.settings.static_pods.is_none());
    if let Some(dir) = ctx.settings.static_pods.clone() {
        let (own, pods, statics) = (ctx.clone(), pods.clone(), statics.clone());
        tasks.keep("kubelet static pods", move || {
            files::run(own.clone(), dir.clone(), pods.clone(), statics.clone(), files_read.clone())
        });
    }
    let (url_read, url_ready) = watch::channel(ctx.settings.static_url.is_none());
    if let Some(source) = ctx.settings.static_url.clone() {
        let (own, pods, statics) = (ctx.clone(), pods.clone(), statics.clone());
        tasks.keep("kubelet static pods of a URL", move || {
            let (own, source, pods) = (own.clone(), source.clone(), pods.clone());
            url::run(own, source, pods, statics.clone(), url_read.clone())
        });
    }
    StaticSources { sender: statics, current, files_ready, url_ready }
}

/// Starts the tasks that follow the sources and the runtime.
fn start(
    ctx: &Arc<Context>,
    pods: &Pods,
    client: Option<client::Client>,
    listing_error: watch::Sender<Option<String>>,
) {
    let tasks = &ctx.tasks;
    let StaticSources { sender, current, files_ready, url_ready } = start_static_pods(ctx, pods);
    let (sources_read, sources_ready) = watch::channel(false);
    let informer = client.as_ref().map(|client| api::start(client, ctx, pods));
    if let Some(client) = client {
        let (own, api, health) = (ctx.clone(), client.clone(), listing_error.subscribe());
        tasks.keep("kubelet node status", move || {
            node::run(own.clone(), api.clone(), health.clone())
        });
        let (own, api) = (ctx.clone(), client.clone());
        tasks.keep("kubelet mirror pods", move || {
            mirror::run(own.clone(), api.clone(), current.clone())
        });
        start_plugins(ctx, client);
    }
    start_resources(ctx, pods, &sources_ready);
    let volumes = ctx.volumes.clone();
    tasks.keep("kubelet unused volumes", move || volumes.clone().unstage_unused());
    tasks.spawn_until_shutdown("kubelet sources", async move {
        let mut files_ready = files_ready;
        let _ = files_ready.wait_for(|read| *read).await;
        let mut url_ready = url_ready;
        let _ = url_ready.wait_for(|read| *read).await;
        if let Some(informer) = &informer {
            informer.synced().await;
        }
        sources_read.send_replace(true);
        // This task owns the informer and the channel of static Pods, and keeps both open.
        let _sender = sender;
        std::future::pending::<()>().await;
    });
    let own = (ctx.clone(), pods.clone());
    tasks.keep("kubelet eviction", move || eviction::run(own.0.clone(), own.1.clone()));
    let (own, ready) = ((ctx.clone(), pods.clone()), sources_ready.clone());
    tasks.keep("kubelet housekeeping", move || {
        housekeeping::run(own.0.clone(), own.1.clone(), ready.clone())
    });
    if !ctx.settings.shutdown.is_empty() {
        let own = (ctx.clone(), pods.clone());
        tasks.keep("kubelet shutdown", move || shutdown::run(own.0.clone(), own.1.clone()));
    }
    let own = ctx.clone();
    tasks.keep("kubelet logs", move || housekeeping::rotate_logs(own.clone()));
    let own = (ctx.clone(), pods.clone());
    tasks.keep("kubelet runtime events", move || {
        pleg::run(own.0.clone(), own.1.clone(), sources_ready.clone(), listing_error.clone())
    });
}

/// Starts the tasks that register plugins and publish them at the API server.
fn start_plugins(ctx: &Context, client: client::Client) {
    let watcher = PluginWatcher {
        root: ctx.settings.root.clone(),
        node_name: ctx.settings.node_name.clone(),
        client: client.clone(),
        drivers: ctx.volumes.drivers.clone(),
        devices: ctx.devices.clone(),
        claims: ctx.claims.clone(),
    };
    ctx.tasks.keep("kubelet plugins", move || watcher.clone().run());
    let drivers = ctx.volumes.drivers.clone();
    let limits = VolumeLimits::new(client.clone(), &ctx.settings.node_name, drivers, &ctx.tasks);
    ctx.tasks.keep("kubelet volume limits", move || limits.clone().run());
    let (claims, node) = (ctx.claims.clone(), ctx.settings.node_name.clone());
    ctx.tasks.keep("kubelet resource slices", move || {
        kubelet_resources::remove_slices(claims.clone(), client.clone(), node.clone())
    });
}

/// Starts the tasks of devices, claims and CPUs.
fn start_resources(ctx: &Context, pods: &Pods, sources_ready: &watch::Receiver<bool>) {
    let (tasks, registry): (_, Arc<dyn PodRegistry>) = (&ctx.tasks, Arc::new(pods.clone()));
    let (devices, pods) = (ctx.devices.clone(), registry.clone());
    tasks.keep("kubelet devices", move || {
        kubelet_resources::serve_devices(devices.clone(), pods.clone())
    });
    let (claims, cri, pods) = (ctx.claims.clone(), ctx.cri.clone(), registry.clone());
    let ready = sources_ready.clone();
    tasks.keep("kubelet claims", move || {
        kubelet_resources::follow_claims(claims.clone(), cri.clone(), pods.clone(), ready.clone())
    });
    let (placement, cri) = (ctx.placement.clone(), ctx.cri.clone());
    tasks.keep("kubelet placement", move || {
        kubelet_resources::reconcile_cpus(placement.clone(), cri.clone(), registry.clone())
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
