//! The command line: kubeadm's commands, flags and output. Read [`Command`] and [`run`] first.

mod certs;
mod command_flags;
mod config;
mod confirm;
mod flags;
mod global;
mod init;
mod join;
mod kubeconfig;
mod output;
mod program;
mod reset;
mod table;
mod token;
mod upgrade;
mod version;
mod workflow;

pub use bootstrap_core::constants::OWN_REPOSITORY;
use clap::Subcommand;

pub use command_flags::{check, shape};
use global::{GlobalFlags, Subcommands, WithGlobal};
pub use program::Program;
use workflow::Workflow;

use crate::{Error, node::TakeAddress, reset::CleanUp, upgrade::ReviewCorefile};

/// kubeadm's commands, with kubeadm's help texts.
#[derive(Debug, Subcommand)]
#[expect(private_interfaces, reason = "only this module reads the flags")]
pub enum Command {
    /// Run this command in order to set up the Kubernetes control plane
    #[command(args_conflicts_with_subcommands = true)]
    Init(Box<WithGlobal<Workflow<init::Flags>>>),
    /// Run this on any machine you wish to join an existing cluster
    Join(Box<WithGlobal<Workflow<join::Flags>>>),
    /// Performs a best effort revert of changes made to this host by 'init' or 'join'
    Reset(Box<WithGlobal<Workflow<reset::Flags>>>),
    /// Upgrade your cluster smoothly to a newer version with this command
    Upgrade(Box<Subcommands<upgrade::Command>>),
    /// Manage bootstrap tokens
    Token(WithGlobal<token::Args>),
    /// Commands related to handling Kubernetes certificates
    Certs(Subcommands<certs::Command>),
    /// Manage configuration for a cluster
    Config(WithGlobal<config::Args>),
    /// Kubeconfig file utilities
    Kubeconfig(Subcommands<kubeconfig::Command>),
    /// Print the version
    Version(version::Args),
}

impl Command {
    fn global(&self) -> &GlobalFlags {
        match self {
            Self::Init(args) => &args.global,
            Self::Join(args) => &args.global,
            Self::Reset(args) => &args.global,
            Self::Upgrade(args) => &args.global,
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
    /// Reviews the Corefile before an `upgrade`.
    pub review_corefile: ReviewCorefile,
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
        Command::Upgrade(args) => upgrade::run(*args, program, hooks.review_corefile).await,
        Command::Token(args) => token::run(args, program).await,
        Command::Certs(args) => certs::run(args, program).await,
        Command::Config(args) => config::run(args, program).await,
        Command::Kubeconfig(args) => kubeconfig::run(args, program),
        Command::Version(args) => version::run(&args, program),
    }
}
