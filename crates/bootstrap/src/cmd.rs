//! The commands, as a user types them: kubeadm's names, flags and output.

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

use bootstrap_core::constants::DEFAULT_REPOSITORY;
pub use bootstrap_core::constants::OWN_REPOSITORY;
use clap::Subcommand;

use crate::{Error, node::TakeAddress, reset::CleanUp};

/// Under which root a machine that is set up by these commands keeps its timeline.
pub const TIMELINE_ROOT: &str = "/var/lib/windlass";

/// By which name the program was called: it decides whose images a cluster runs unless it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    Windlass,
    Kubeadm,
}

impl Program {
    pub fn name(self) -> &'static str {
        match self {
            Self::Windlass => "windlass",
            Self::Kubeadm => "kubeadm",
        }
    }

    pub fn image_repository(self) -> &'static str {
        match self {
            Self::Windlass => OWN_REPOSITORY,
            Self::Kubeadm => DEFAULT_REPOSITORY,
        }
    }
}

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

/// How much is logged, as klog's flag says it.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Verbosity {
    /// Number for the log level verbosity
    #[arg(short = 'v', long = "v", global = true, value_name = "LEVEL", default_value_t = 0)]
    level: u8,
}

impl Command {
    /// The log filter that the user's `-v` asks for.
    pub fn log_filter(&self) -> &'static str {
        let verbosity = match self {
            Self::Init(args) => &args.verbosity,
            Self::Join(args) => &args.verbosity,
            Self::Reset(args) => &args.verbosity,
            Self::Token(args) => &args.verbosity,
            Self::Certs(args) => &args.verbosity,
            Self::Config(args) => &args.verbosity,
            Self::Kubeconfig(args) => &args.verbosity,
            Self::Version(args) => &args.verbosity,
        };
        telemetry::filter_for_verbosity(verbosity.level)
    }
}

/// What components do for these commands, which do not know them.
#[derive(Clone, Copy)]
pub struct Others {
    pub clean_up: CleanUp,
    pub take_address: TakeAddress,
}

/// Runs a command within a Tokio runtime.
pub async fn run(command: Command, program: Program, others: Others) -> Result<(), Error> {
    match command {
        Command::Init(args) => init::run(*args, program, others.take_address).await,
        Command::Join(args) => join::run(*args, program).await,
        Command::Reset(args) => reset::run(*args, others.clean_up).await,
        Command::Token(args) => token::run(args, program).await,
        Command::Certs(args) => certs::run(args, program).await,
        Command::Config(args) => config::run(args, program).await,
        Command::Kubeconfig(args) => kubeconfig::run(args, program),
        Command::Version(args) => version::run(&args, program),
    }
}
