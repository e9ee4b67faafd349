//! The `windlass` binary: parses the command line, sets up logging and the runtime, and calls the crate of the command.
//!
//! It contains no logic of components. Called by a component's name (through a link `kubelet`, `coredns` or a CNI
//! plugin), the binary is that component. Read [`Command`] first; [`component`] runs long-lived processes and drains
//! their tasks.

mod address;
mod butane;
mod components;
mod diagnostics;
mod empty;
mod images;
mod leftovers;
mod machines;
mod storage;

use std::{ffi::OsString, path::PathBuf, process::ExitCode, time::Duration};

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use local::Cluster;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Kubernetes v1.36 and its bootstrap, from bare metal to a Ready node.
#[derive(Parser)]
#[command(name = "windlass", version, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Up(local::UpArgs),
    Down(local::DownArgs),
    Status(local::StatusArgs),
    Node(local::NodeArgs),
    /// Draws the start-up steps over time
    Timeline(Timeline),
    /// Waits until it is stopped: the first process of a Pod
    Pause,
    /// Runs as the CNI plugin
    Cni,
    /// kubeadm's commands: init, join, reset, token, certs, config, kubeconfig
    #[command(flatten)]
    Bootstrap(bootstrap::cmd::Command),
    /// Serves machines that boot from the network, joins them to a cluster, and powers them
    #[command(subcommand)]
    Metal(Metal),
    /// Runs an Ignition stage of a machine's first boot
    Ignition(firstboot::cmd::Args),
    /// Translates a Butane or Container Linux config to Ignition's
    Butane(butane::Args),
    /// Serves cluster DNS like CoreDNS
    Coredns(dns::Args),
    Kops(kops::Args),
    Nodeup(kops_node::nodeup::Args),
    KopsController(kops_node::controller::Args),
    Protokube(kops_node::protokube::Args),
    EtcdManagerCtl(kops_node::manager_ctl::Args),
    #[command(subcommand)]
    Channels(kops_node::channels::Command),
    /// Runs the node's agent
    Kubelet(kubelet::Args),
    Balancer(balancer::Args),
    VirtualAddress(vip::Args),
    /// Runs the service proxy
    KubeProxy(proxy::Args),
    #[command(subcommand)]
    Network(local::NetworkCommand),
    /// The default StorageClass as an add-on
    #[command(subcommand)]
    Storage(local::StorageCommand),
    KubeApiserver(Box<apiserver::flags::Args>),
    KubeControllerManager(Box<components::ControllerManager>),
    KubeScheduler(Box<components::Scheduler>),
    /// Builds and imports container images without a registry
    #[command(subcommand)]
    Images(images::Command),
    /// Moves a cluster's objects between stores
    #[command(subcommand)]
    Store(storage::Store),
    /// Saves a cluster's objects to a file, and creates a store from such a file
    #[command(subcommand)]
    Snapshot(storage::Snapshot),
    /// Processes that `up` starts in the background
    #[command(subcommand, hide = true)]
    Internal(Internal),
}

#[derive(Subcommand)]
enum Metal {
    #[command(flatten)]
    Machines(machines::Command),
    /// Builds the kernel, initrd and root that machines boot: Debian's packages and this binary
    Image(nodeimage::Args),
}

#[derive(clap::Args)]
struct Timeline {
    #[command(flatten)]
    place: ClusterArgs,
    /// Write a self-contained page instead of drawing in the terminal
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

#[derive(clap::Args)]
struct ClusterArgs {
    /// The cluster's name
    #[arg(long, default_value = local::DEFAULT_NAME)]
    name: String,
    /// The directory of the cluster's files [default: /var/lib/windlass/NAME]
    #[arg(long)]
    root: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Internal {
    /// Keeps the kubelet of `init` and `join` running on machines without systemd
    KeepKubelet,
    /// Keeps the machines of a fleet running
    Fleet {
        #[arg(long)]
        root: PathBuf,
        /// Supervise the process that keeps them
        #[arg(long)]
        guard: bool,
    },
    /// Serves the state store of a fleet to its control planes
    Store {
        #[arg(long)]
        root: PathBuf,
    },
    /// Creates the namespaces of a machine of a fleet, and becomes its first process
    Hold {
        #[arg(long)]
        root: PathBuf,
        #[arg(long)]
        machine: String,
    },
    /// Runs a machine's first process
    Machine,
    #[command(flatten)]
    Local(Background),
}

/// The background processes of a cluster on this machine.
#[derive(Subcommand)]
enum Background {
    Supervisor(ClusterArgs),
    ControlPlane(ClusterArgs),
    Agent(ClusterArgs),
    /// Creates and holds the namespaces of a node
    Holder(ClusterArgs),
    /// Runs a command inside of a node
    Enter {
        #[command(flatten)]
        place: ClusterArgs,
        #[arg(last = true)]
        command: Vec<OsString>,
    },
    /// Joins the cluster, inside of a node
    Join(ClusterArgs),
}

impl Background {
    fn place(&self) -> (&'static str, &ClusterArgs) {
        match self {
            Self::Supervisor(place) => ("supervisor", place),
            Self::ControlPlane(place) => ("control-plane", place),
            Self::Agent(place) => ("agent", place),
            Self::Holder(place) => ("holder", place),
            Self::Enter { place, .. } => ("enter", place),
            Self::Join(place) => ("join", place),
        }
    }
}

/// Sets the umask, whatever the process was started with. No mask would make files world-writable, and a strict one
/// would make directories that containers cannot enter.
fn mask_modes(mask: nix::sys::stat::Mode) {
    nix::sys::stat::umask(mask);
}

/// Returns the umask of commands that create files for others: machines, images, programs of clusters.
fn usual_mask() -> nix::sys::stat::Mode {
    nix::sys::stat::Mode::S_IWGRP | nix::sys::stat::Mode::S_IWOTH
}

/// Returns the umask of components. Files for other users of the machine get their mode set explicitly.
fn private_mask() -> nix::sys::stat::Mode {
    nix::sys::stat::Mode::S_IWGRP | nix::sys::stat::Mode::S_IRWXO
}

/// The components that start programs such as the container runtime and the kubelet, which expect the usual umask.
const STARTERS: &[&str] = &["supervisor", "kubelet-supervisor", "fleet", "machine", "nodeup"];

/// Raises the limit of open files to its maximum, as Go programs do: a cluster's nodes have more connections than the
/// usual 1,024. Processes that start other programs keep the limit, because those would inherit it.
fn allow_files() {
    use nix::sys::resource::{Resource::RLIMIT_NOFILE, getrlimit, setrlimit};
    let raised =
        getrlimit(RLIMIT_NOFILE).and_then(|(_, most)| setrlimit(RLIMIT_NOFILE, most, most));
    if let Err(error) = raised {
        eprintln!("raising the limit of open files failed: {error}; the limit stays unchanged");
    }
}

fn main() -> ExitCode {
    mask_modes(usual_mask());
    match called_as().as_str() {
        name if name == "windlass-cni" || name == "loopback" => return cni::main(),
        "pause" => return pause(),
        "init" => {
            log("init");
            install_tls();
            return firstboot::init::run();
        }
        _ => {}
    }
    // A Pod's first process counts against the Pod's memory limit, and parsing flags takes several megabytes.
    if std::env::args_os().nth(1).is_some_and(|command| command == "pause") {
        return pause();
    }
    end_with_the_reader();
    let arguments = arguments();
    if is_version_request(&arguments) {
        println!("Kubernetes {}", apiserver::KUBERNETES_VERSION);
        return ExitCode::SUCCESS;
    }
    let mut command = bootstrap::cmd::shape(Cli::command());
    let mut matches = command.try_get_matches_from_mut(arguments).unwrap_or_else(|e| e.exit());
    if let Err(error) = bootstrap::cmd::check(&command, &matches) {
        return fail(&error);
    }
    match Cli::from_arg_matches_mut(&mut matches) {
        Ok(cli) => run(cli.command),
        Err(error) => error.exit(),
    }
}

/// Ends a command silently when the reader of its output is gone, as in `windlass metal status | head -1`. Other
/// programs are killed by SIGPIPE, but here a peer that closes a connection would raise it too. The panic of `println!`
/// is therefore the only sign. All other panics go to the log if there is one.
fn end_with_the_reader() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let message = panic.payload_as_str().unwrap_or_default();
        if message.starts_with("failed printing to stdout: Broken pipe") {
            // The exit code that a shell reports for SIGPIPE.
            std::process::exit(128 + 13);
        }
        if !rt::note_panic(panic) {
            usual(panic);
        }
    }));
}

/// Returns `true` for a request for a component's version, which installers send.
fn is_version_request(arguments: &[OsString]) -> bool {
    let is = |argument: Option<&OsString>, those: &[&str]| {
        argument.and_then(|a| a.to_str()).is_some_and(|a| those.contains(&a))
    };
    let kubernetes = |name: &&&str| name.starts_with("kube");
    let components: Vec<&str> = COMPONENTS.iter().filter(kubernetes).copied().collect();
    is(arguments.get(1), &components)
        && arguments.iter().skip(2).any(|a| is(Some(a), &["--version", "--version=true"]))
}

/// The commands that are also names of the binary.
const COMPONENTS: &[&str] = &[
    "butane",
    "coredns",
    "etcd-manager-ctl",
    "ignition",
    "kops",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubelet",
];

/// The commands whose flags have a single dash upstream.
const ONE_DASH: &[&str] = &["coredns", "etcd-manager-ctl", "ignition", "metal"];

/// Returns the command line for the parser. The name of the binary becomes the command, and the single-dash flags of
/// CoreDNS, Matchbox, Ignition and etcd-manager-ctl get a second dash.
fn arguments() -> Vec<OsString> {
    let mut given = std::env::args_os();
    let mut arguments: Vec<OsString> = given.by_ref().take(1).collect();
    let name = called_as();
    if COMPONENTS.contains(&name.as_str()) {
        arguments.push(name.into());
    }
    let rest: Vec<OsString> = given.collect();
    let command = arguments.get(1).or(rest.first());
    if command.is_some_and(|c| ONE_DASH.iter().any(|one| c == one)) {
        arguments.extend(dns::flags::two_dashes(rest));
    } else {
        arguments.extend(rest);
    }
    let is_empty = |argument: &OsString| argument.as_encoded_bytes().ends_with(b"=");
    if arguments.get(1).is_some_and(|a| COMPONENTS.iter().any(|c| a == c))
        && arguments.iter().any(is_empty)
    {
        return empty::without_empty_paths(&Cli::command(), arguments);
    }
    arguments
}

/// Returns the name that the binary was called by.
fn called_as() -> String {
    let first = std::env::args_os().next().map(PathBuf::from).unwrap_or_default();
    first.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
}

fn pause() -> ExitCode {
    match sys::pause() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

fn run(command: Command) -> ExitCode {
    match command {
        Command::Pause => pause(),
        Command::Cni => cni::main(),
        Command::Timeline(args) => timeline(&args),
        Command::Up(args) => short(local::up(args)),
        Command::Down(args) => short(local::down(args)),
        Command::Node(args) => short(local::node(args)),
        Command::Status(args) => match block_on(local::status(args)) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(error) => fail(&error),
        },
        Command::Images(command) => match images::run(command) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&error),
        },
        Command::Bootstrap(command) => {
            log_at("bootstrap", command.log_filter());
            let program = match called_as().as_str() {
                "kubeadm" => bootstrap::cmd::Program::Kubeadm,
                _ => bootstrap::cmd::Program::Windlass,
            };
            match block_on(async { Ok(bootstrap::cmd::run(command, program, HOOKS).await?) }) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => fail(&error),
            }
        }
        Command::Metal(Metal::Image(args)) => {
            log("metal");
            match nodeimage::build(&args) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => fail(&error),
            }
        }
        Command::Metal(Metal::Machines(command)) => {
            component_at("metal", command.log_level(), |tasks| async {
                machines::run(command, tasks).await
            })
        }
        Command::Ignition(args) => {
            log("ignition");
            install_tls();
            firstboot::cmd::run(&args)
        }
        Command::Butane(args) => match butane::run(&args) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&error),
        },
        Command::Coredns(args) => component("coredns", |tasks| components::coredns(args, tasks)),
        Command::Kops(args) => run_kops(&args),
        Command::Nodeup(args) => {
            component("nodeup", |_| async move { Ok(kops_node::nodeup::run(&args).await?) })
        }
        Command::KopsController(args) => component("kops-controller", |tasks| async move {
            Ok(kops_node::controller::run(&args, &tasks).await?)
        }),
        Command::Protokube(args) => {
            component(
                "protokube",
                |tasks| async move { Ok(kops_node::protokube::run(&args, &tasks).await?) },
            )
        }
        Command::EtcdManagerCtl(args) => {
            match kops_node::manager_ctl::run(&args, rt::now(), &mut std::io::stdout()) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => fail(&error),
            }
        }
        Command::Channels(command) => component("channels", |tasks| async move {
            Ok(kops_node::channels::run(&command, &tasks).await?)
        }),
        Command::Balancer(args) => {
            component("balancer", |tasks| async move { Ok(balancer::run(args, &tasks).await?) })
        }
        Command::VirtualAddress(args) => {
            component("virtual-address", |tasks| async move { Ok(vip::run(args, &tasks).await?) })
        }
        Command::Store(command) => command_on_store(storage::store(command)),
        Command::Snapshot(command) => command_on_store(storage::snapshot(command)),
        Command::Kubelet(args) => component("kubelet", |tasks| components::kubelet(args, tasks)),
        Command::KubeProxy(args) => {
            component("kube-proxy", |tasks| components::kube_proxy(args, tasks))
        }
        Command::Storage(local::StorageCommand::Print) => short(local::print_storage()),
        Command::Network(local::NetworkCommand::Print(args)) => short(local::print_network(args)),
        Command::Network(local::NetworkCommand::Run(args)) => component(
            "network",
            |tasks| async move { ended(local::run_network(args, &tasks).await) },
        ),
        Command::KubeScheduler(args) => component("kube-scheduler", |tasks| async move {
            components::kube_scheduler(&args, tasks).await
        }),
        Command::KubeApiserver(args) => component("kube-apiserver", |tasks| async move {
            components::kube_apiserver(&args, tasks).await
        }),
        Command::KubeControllerManager(args) => {
            component("kube-controller-manager", |tasks| async move {
                components::kube_controller_manager(&args, tasks).await
            })
        }
        Command::Internal(internal) => self::internal(internal),
    }
}

/// The operations of other components that kubeadm's commands need.
const HOOKS: bootstrap::cmd::ComponentHooks =
    bootstrap::cmd::ComponentHooks { clean_up: leftovers::remove, take_address: address::claim };

/// Runs a kOps command.
fn run_kops(args: &kops::Args) -> ExitCode {
    let environment = |name: &str| std::env::var(name).ok();
    let mut out = std::io::stdout();
    let mut around =
        kops::CommandEnvironment { now: rt::now(), out: &mut out, environment: &environment };
    match block_on(async { Ok(kops::run(args, &mut around).await) }) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => fail(&error),
        Err(error) => fail(&error),
    }
}

fn timeline(args: &Timeline) -> ExitCode {
    let root = Cluster::at(&args.place.name, args.place.root.as_deref());
    let steps = match telemetry::timeline::load(&root) {
        Ok(steps) => steps,
        Err(error) => return fail(&error),
    };
    match &args.html {
        Some(file) => match std::fs::write(file, telemetry::timeline::html(&steps)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&format!("writing {}: {error}", file.display())),
        },
        None => {
            print!("{}", telemetry::timeline::chart(&steps, 100));
            ExitCode::SUCCESS
        }
    }
}

fn fail(error: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("windlass: {error}");
    ExitCode::FAILURE
}

fn log(component: &'static str) {
    log_at(component, "info");
}

/// Logs at the command's own level, unless `WINDLASS_LOG` is set.
fn log_at(component: &'static str, level: &str) {
    let filter = std::env::var("WINDLASS_LOG").unwrap_or_else(|_| level.to_owned());
    if let Err(error) = telemetry::init_logging(component, &filter) {
        eprintln!("windlass: {error}");
    }
}

/// Runs a short-lived command.
fn short(work: impl Future<Output = Result<(), local::Error>>) -> ExitCode {
    log("windlass");
    match block_on(work) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

fn block_on<T>(work: impl Future<Output = Result<T, local::Error>>) -> Result<T, local::Error> {
    install_tls();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| local::Error::Other(format!("starting the runtime: {e}")))?;
    runtime.block_on(work)
}

/// Runs a short-lived command that opens a store itself.
fn command_on_store(work: impl Future<Output = Result<(), Failure>>) -> ExitCode {
    log("store");
    match block_on(async { Ok(work.await) }) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => fail(&error),
        Err(error) => fail(&error),
    }
}

fn install_tls() {
    // Only the first call has an effect, and all install the same provider.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}

fn internal(command: Internal) -> ExitCode {
    match command {
        Internal::KeepKubelet => component("kubelet-supervisor", |tasks| async move {
            Ok(bootstrap::service::keep_kubelet(&Default::default(), &tasks).await?)
        }),
        Internal::Fleet { root, guard: true } => component("fleet", |tasks| async move {
            Ok(instances::guard(instances::Fleet::at(root), &tasks).await?)
        }),
        Internal::Fleet { root, guard: false } => {
            component("fleet", |tasks| async move { Ok(kops_local::keep(root, &tasks).await?) })
        }
        Internal::Store { root } => {
            component("store", |tasks| async move { Ok(kops_local::serve_store(root, &tasks).await?) })
        }
        // Only single-threaded processes can create namespaces.
        Internal::Hold { root, machine } => {
            match instances::machine::hold(&instances::Fleet::at(root), &machine) {
                Ok(code) => ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)),
                Err(error) => fail(&error),
            }
        }
        Internal::Machine => {
            component("machine", |tasks| async move { Ok(instances::machine::run(&tasks).await?) })
        }
        Internal::Local(command) => background(command),
    }
}

/// Runs a background process of a cluster, or a command inside a node.
fn background(command: Background) -> ExitCode {
    let (name, place) = command.place();
    let root = Cluster::at(&place.name, place.root.as_deref());
    let cluster = match Cluster::load(&place.name, &root) {
        Ok(cluster) => cluster,
        Err(error) => return fail(&error),
    };
    match command {
        // Only single-threaded processes can create and enter namespaces.
        Background::Holder(_) => match local::hold_node(&cluster) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&error),
        },
        Background::Enter { command, .. } => fail(&local::enter_node(&cluster, &command)),
        Background::Join(_) => short(local::join_node(cluster)),
        Background::Supervisor(_) => {
            component(
                name,
                |tasks| async move { ended(local::run_supervisor(cluster, &tasks).await) },
            )
        }
        Background::ControlPlane(_) => component(name, |tasks| async move {
            ended(local::run_control_plane(cluster, &tasks).await)
        }),
        Background::Agent(_) => {
            component(name, |tasks| async move { ended(local::run_agent(cluster, &tasks).await) })
        }
    }
}

fn ended(result: Result<(), local::Error>) -> Result<(), Failure> {
    result.map_err(Failure::from)
}

/// The error of a component or command.
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Runs a component until it ends or is stopped.
fn component<F>(name: &'static str, work: impl FnOnce(rt::Tasks) -> F) -> ExitCode
where
    F: Future<Output = Result<(), Failure>>,
{
    component_at(name, "info", work)
}

fn component_at<F>(name: &'static str, level: &str, work: impl FnOnce(rt::Tasks) -> F) -> ExitCode
where
    F: Future<Output = Result<(), Failure>>,
{
    if !STARTERS.contains(&name) {
        mask_modes(private_mask());
        allow_files();
    }
    log_at(name, level);
    install_tls();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error),
    };
    match runtime.block_on(until_stopped(work)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "stopping");
            ExitCode::FAILURE
        }
    }
}

/// The time that tasks have to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(5);

/// Runs a component until it ends or a signal stops it, and drains its tasks.
async fn until_stopped<F>(component: impl FnOnce(rt::Tasks) -> F) -> Result<(), Failure>
where
    F: Future<Output = Result<(), Failure>>,
{
    use tokio::signal::unix::{SignalKind, signal};
    let tasks = rt::Tasks::new(rt::Shutdown::new());
    let (mut terminate, mut interrupt) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let shutdown = tasks.shutdown().clone();
    tasks.spawn_until_shutdown("signals", async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        shutdown.stop();
    });
    let result = component(tasks.clone()).await;
    let drained = tasks.drain(GRACE).await;
    if !drained.unfinished.is_empty() {
        tracing::warn!(tasks = ?drained.unfinished, "ended with tasks still running");
    }
    match tasks.failure() {
        Some(failure) => result.and(Err(failure.to_string().into())),
        None => result,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn builds_valid_command_line() {
        super::Cli::command().debug_assert();
    }
}
