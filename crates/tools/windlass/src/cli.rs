//! The command line: the commands of `windlass`, each with the arguments of its crate.

use std::{ffi::OsString, path::PathBuf};

use clap::{Parser, Subcommand};
use local::ClusterArgs;

use crate::{butane, components, images, machines, storage, timeline};

/// Kubernetes v1.36 and its bootstrap, from bare metal to a Ready node.
#[derive(Parser)]
#[command(name = "windlass", version, disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    Up(local::UpArgs),
    Down(local::DownArgs),
    Status(local::StatusArgs),
    Node(local::NodeArgs),
    SecretsEncrypt(local::SecretsArgs),
    Kubectl(local::KubectlArgs),
    Logs(local::LogsArgs),
    SupportBundle(local::SupportArgs),
    /// Prints the completion script of a shell, for all commands
    #[command(name = "shell-completion")]
    ShellCompletion {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Draws the start-up steps over time
    Timeline(timeline::Args),
    Dashboard(dashboard::Args),
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
    DnsController(Box<kops_node::dns_controller::Args>),
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
    #[command(subcommand)]
    LoadBalancer(local::LoadBalancerCommand),
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
pub(crate) enum Metal {
    #[command(flatten)]
    Machines(machines::Command),
    /// Builds the kernel, initrd and root that machines boot: Debian's packages and this binary
    Image(nodeimage::Args),
}

#[derive(Subcommand)]
pub(crate) enum Internal {
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
    /// Writes the manual pages of all commands to a directory
    ManPages { directory: PathBuf },
    #[command(flatten)]
    Local(Background),
}

/// The background processes of a cluster on this machine.
#[derive(Subcommand)]
pub(crate) enum Background {
    Supervisor(ClusterArgs),
    ControlPlane(ClusterArgs),
    Agent(ClusterArgs),
    SimulatedNodes(ClusterArgs),
    /// Creates and holds the namespaces of a node
    Holder(ClusterArgs),
    /// Runs a command inside of a node
    Enter {
        #[command(flatten)]
        cluster: ClusterArgs,
        #[arg(last = true)]
        command: Vec<OsString>,
    },
    /// Joins the cluster, inside of a node
    Join(ClusterArgs),
}

impl Background {
    /// Returns the name of the process, for its log.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Supervisor(_) => "supervisor",
            Self::ControlPlane(_) => "control-plane",
            Self::Agent(_) => "agent",
            Self::SimulatedNodes(_) => "simulated-nodes",
            Self::Holder(_) => "holder",
            Self::Enter { .. } => "enter",
            Self::Join(_) => "join",
        }
    }

    /// Returns the arguments that name the cluster.
    pub(crate) fn cluster(&self) -> &ClusterArgs {
        match self {
            Self::Supervisor(cluster)
            | Self::ControlPlane(cluster)
            | Self::Agent(cluster)
            | Self::SimulatedNodes(cluster)
            | Self::Holder(cluster)
            | Self::Enter { cluster, .. }
            | Self::Join(cluster) => cluster,
        }
    }
}
