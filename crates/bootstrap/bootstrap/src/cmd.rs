//! The command line: kubeadm's commands, flags and output. Read [`Command`] and [`run`] first.

mod allowed;
mod certs;
mod config;
mod flags;
mod init;
mod join;
mod kubeconfig;
mod output;
mod reset;
mod token;
mod version;
mod workflow;

use std::path::{Path, PathBuf};

use bootstrap_core::constants::DEFAULT_REPOSITORY;
pub use bootstrap_core::constants::OWN_REPOSITORY;
use clap::Subcommand;

pub use allowed::{check, shape};

use crate::{Error, node::TakeAddress, reset::CleanUp};

/// The root below which machines that these commands set up keep their timeline.
pub(crate) const TIMELINE_ROOT: &str = "/var/lib/windlass";

/// The name by which the program was called. It selects the default image repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    Windlass,
    Kubeadm,
}

impl Program {
    /// Returns the program name for messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Windlass => "windlass",
            Self::Kubeadm => "kubeadm",
        }
    }

    /// Returns the default image repository: images that are built locally, or upstream's.
    pub fn image_repository(self) -> &'static str {
        match self {
            Self::Windlass => OWN_REPOSITORY,
            Self::Kubeadm => DEFAULT_REPOSITORY,
        }
    }
}

/// kubeadm's commands, with kubeadm's help texts.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run this command in order to set up the Kubernetes control plane
    Init(Box<init::Args>),
    /// Run this on any machine you wish to join an existing cluster
    Join(Box<join::Args>),
    /// Performs a best effort revert of changes made to this host by 'init' or 'join'
    Reset(Box<reset::Args>),
    /// Manage bootstrap tokens
    Token(token::Args),
    /// Commands related to handling Kubernetes certificates
    Certs(certs::Args),
    /// Manage configuration for a cluster
    Config(config::Args),
    /// Kubeconfig file utilities
    Kubeconfig(kubeconfig::Args),
    /// Print the version
    Version(version::Args),
}

/// The flags of every command: klog's verbosity flags and the root of the machine's files.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Global {
    /// Number for the log level verbosity
    #[arg(short = 'v', long = "v", global = true, value_name = "LEVEL", default_value_t = 0)]
    level: u8,
    /// Comma-separated list of pattern=N settings for file-filtered logging; upstream's files do not exist here
    #[arg(long, global = true, value_name = "PATTERN=N,...", value_delimiter = ',', value_parser = module)]
    vmodule: Vec<String>,
    /// The path to the 'real' host root filesystem; files are read and written below it
    #[arg(long, global = true)]
    rootfs: Option<PathBuf>,
}

/// Parses one setting of `--vmodule`.
fn module(text: &str) -> Result<String, String> {
    match text.split_once('=') {
        Some((pattern, level)) if !pattern.is_empty() && level.parse::<u8>().is_ok() => {
            Ok(text.to_owned())
        }
        _ => Err("syntax error: expect comma-separated list of filename=N".to_owned()),
    }
}

impl Global {
    /// Adds these flags to a command's cluster flags.
    fn of(&self, mut flags: flags::ClusterFlags) -> flags::ClusterFlags {
        flags.rootfs.clone_from(&self.rootfs);
        flags
    }

    /// Returns a path below the root of the machine.
    fn path(&self, path: &Path) -> PathBuf {
        match &self.rootfs {
            Some(root) => root.join(path.strip_prefix("/").unwrap_or(path)),
            None => path.to_owned(),
        }
    }
}

impl Command {
    fn global(&self) -> &Global {
        match self {
            Self::Init(args) => &args.global,
            Self::Join(args) => &args.global,
            Self::Reset(args) => &args.global,
            Self::Token(args) => &args.global,
            Self::Certs(args) => &args.global,
            Self::Config(args) => &args.global,
            Self::Kubeconfig(args) => &args.global,
            Self::Version(args) => &args.global,
        }
    }

    /// Returns the log filter for the `-v` flag.
    pub fn log_filter(&self) -> &'static str {
        telemetry::filter_for_verbosity(self.global().level)
    }
}

/// Functions of components that these commands call without depending on the components.
#[derive(Clone, Copy)]
pub struct ComponentHooks {
    /// Removes kernel state of components at `reset`.
    pub clean_up: CleanUp,
    /// Takes the virtual IP address for the first control plane at `init`.
    pub take_address: TakeAddress,
}

/// Runs a command in a Tokio runtime.
pub async fn run(command: Command, program: Program, hooks: ComponentHooks) -> Result<(), Error> {
    if !command.global().vmodule.is_empty() {
        tracing::warn!("--vmodule does nothing: it names upstream's source files; use -v");
    }
    match command {
        Command::Init(args) => init::run(*args, program, hooks.take_address).await,
        Command::Join(args) => join::run(*args, program).await,
        Command::Reset(args) => reset::run(*args, hooks.clean_up).await,
        Command::Token(args) => token::run(args, program).await,
        Command::Certs(args) => certs::run(args, program).await,
        Command::Config(args) => config::run(args, program).await,
        Command::Kubeconfig(args) => kubeconfig::run(args, program),
        Command::Version(args) => version::run(&args, program),
    }
}
