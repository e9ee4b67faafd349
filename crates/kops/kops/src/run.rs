//! Runs a command.

use kops_core::{CloudName, Cluster as _};
use kops_store::Registry;

use crate::{
    aws, change, create,
    environment::CommandEnvironment,
    error::Error,
    flags::{
        Args, Command, CreateTarget, Export, Get, KeypairCommand, ReconcileCommand, RollingUpdate,
        Update, UpgradeCommand, Validate,
    },
    get, instance_list,
    keypair::{self, KeypairAction},
    kubeconfig, reconcile, roll,
    settings::read_settings,
    toolbox, update, upgrade, validate,
};

/// Runs a command.
pub async fn run(args: &Args, context: &mut CommandEnvironment<'_>) -> Result<(), Error> {
    let settings = read_settings(args, context.environment)?;
    let registry = Registry::open(&settings.state, context.environment)?;
    let name = settings.name.as_str();
    let or_default = |cluster: &Option<String>| cluster.clone().unwrap_or_else(|| name.to_owned());
    match &args.command {
        Command::Create(args) => match &args.target {
            Some(CreateTarget::Cluster(command)) => {
                create::run(&registry, command, &settings.state, name, context).await
            }
            Some(CreateTarget::Keypair(command)) => {
                keypair::create(&registry, command, name, context)
            }
            None => change::create(&registry, args, context),
        },
        Command::Edit(command) => change::edit(&registry, command, name, context),
        Command::Replace(args) => change::replace(&registry, args, context),
        Command::Get(Get::Instances(show)) => {
            if get::find_cluster(&registry, name)?.cloud() == CloudName::Aws {
                aws::list_instances(&registry, name, &show.output, context).await
            } else {
                instance_list::run(&registry, show, name, context.out).await
            }
        }
        Command::Get(Get::Keypairs(command)) => {
            keypair::show(&registry, command, name, context.out)
        }
        Command::Get(command) => get::run(&registry, command, name, context.out),
        Command::Delete(command) => change::delete(&registry, command, name, context).await,
        Command::Update(Update::Cluster(command)) => {
            update::run(&registry, command, &or_default(&command.cluster), context).await
        }
        Command::RollingUpdate(RollingUpdate::Cluster(command)) => {
            roll::run(&registry, command, &or_default(&command.cluster), context).await
        }
        Command::Validate(Validate::Cluster(command)) => {
            validate::run(&registry, command, &or_default(&command.cluster), context).await
        }
        Command::Promote(KeypairCommand::Keypair(command)) => {
            keypair::apply(&registry, KeypairAction::Promote, command, name, context)
        }
        Command::Distrust(KeypairCommand::Keypair(command)) => {
            keypair::apply(&registry, KeypairAction::Distrust, command, name, context)
        }
        Command::Trust(KeypairCommand::Keypair(command)) => {
            keypair::apply(&registry, KeypairAction::Trust, command, name, context)
        }
        Command::Export(Export::Kubeconfig(command)) => {
            kubeconfig::export(&registry, command, &or_default(&command.cluster), context)
        }
        Command::Upgrade(UpgradeCommand::Cluster(command)) => {
            upgrade::run(&registry, command, &or_default(&command.cluster), context)
        }
        Command::Reconcile(ReconcileCommand::Cluster(command)) => {
            reconcile::run(&registry, command, &or_default(&command.cluster), context).await
        }
        Command::Toolbox(command) => toolbox::run(&registry, command, name, context).await,
    }
}
