//! The command `windlass metal`: the boot servers, and enrollment and power of machines.

use clap::Subcommand;
use metal::cluster::Cluster;
use netboot::cmd;
use rt::Tasks;

use crate::failure::Failure;

#[derive(Subcommand)]
pub(crate) enum Command {
    #[command(flatten)]
    Netboot(cmd::Command),
    /// Joins the machines of a group to a cluster
    Enroll(Box<metal::enroll::Args>),
    /// Controls a machine's power through its BMC, by IPMI or Redfish
    Power(metal::power::Args),
    /// Prints the public key of this machine's TPM, for the store's tpm/MAC.pem
    TpmKey,
}

impl Command {
    /// Returns the command's log level.
    pub(crate) fn log_level(&self) -> &'static str {
        match self {
            Self::Netboot(command) => cmd::log_level_of(command),
            Self::Enroll(_) | Self::Power(_) | Self::TpmKey => "info",
        }
    }
}

pub(crate) async fn run(command: Command, tasks: Tasks) -> Result<(), Failure> {
    match command {
        Command::Netboot(cmd::Command::Serve(args)) => {
            let cluster = args.kubeconfig.as_deref().map(Cluster::of).transpose()?;
            let maker = cluster.as_ref().map(Cluster::token_maker);
            let served = cmd::start(&args, &tasks, maker).await?;
            if let Some(cluster) = cluster {
                cluster.watch(served.store, served.inventory, &tasks);
            }
            tasks.shutdown().stopping().await;
        }
        Command::Netboot(command) => cmd::run(command, tasks).await?,
        Command::Enroll(args) => metal::enroll::run(*args).await?,
        Command::Power(args) => metal::power::run(args).await?,
        Command::TpmKey => print!("{}", firstboot::tpm_public_key()?),
    }
    Ok(())
}
