//! Runs a command.

use kops_core::{CloudName, Cluster as _};
use kops_store::Registry;

use crate::{
    assets, aws, change, completion, create, delete_file, edit,
    environment::CommandEnvironment,
    error::Error,
    flags::{
        Args, Command, Create, CreateTarget, DeleteArgs, DeleteTarget, Export, Get, GetTarget,
        Helpers, KeypairCommand, ReconcileCommand, RollingUpdate, Update, UpgradeCommand, Validate,
    },
    get::{self, ClusterSelection},
    group,
    instance_list::{self, InstanceSelection},
    keypair::{self, KeypairAction, KeypairSelection},
    kubeconfig, reconcile, roll,
    secret::{self, SecretSelection},
    settings::{Settings, read_settings},
    ssh_key, toolbox, update, upgrade, validate, version,
};

/// Runs a command.
pub async fn run(args: &Args, context: &mut CommandEnvironment<'_>) -> Result<(), Error> {
    let settings = read_settings(args, context.environment)?;
    if let Command::Completion(command) = &args.command {
        return completion::write(command, context.out);
    }
    let registry = Registry::open(&settings.state, context.environment)?;
    let name = settings.name.as_str();
    let or_default = |cluster: &Option<String>| cluster.clone().unwrap_or_else(|| name.to_owned());
    match &args.command {
        Command::Create(command) => create(&registry, command, &settings, context).await,
        Command::Edit(command) => edit::run(&registry, command, name, context),
        Command::Replace(args) => change::replace(&registry, args, context),
        Command::Get(command) => show(&registry, command, &settings, context).await,
        Command::Delete(command) => delete(&registry, command, &settings, context).await,
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
            let name = settings.cluster(&command.cluster)?;
            kubeconfig::export(&registry, command, name, context)
        }
        Command::Helpers(Helpers::KubectlAuth(command)) => {
            kubeconfig::authenticate(&registry, command, context)
        }
        Command::Upgrade(UpgradeCommand::Cluster(command)) => {
            upgrade::run(&registry, command, &or_default(&command.cluster), context)
        }
        Command::Reconcile(ReconcileCommand::Cluster(command)) => {
            reconcile::run(&registry, command, &or_default(&command.cluster), context).await
        }
        Command::Toolbox(command) => toolbox::run(&registry, command, name, context).await,
        Command::Version(command) => {
            let name = settings.cluster(&command.cluster)?;
            version::show(&registry, command, name, context.out)
        }
        Command::Completion(command) => completion::write(command, context.out),
    }
}

async fn create(
    registry: &Registry,
    command: &Create,
    settings: &Settings,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let name = settings.name.as_str();
    match &command.target {
        Some(CreateTarget::Cluster(command)) => {
            create::run(registry, command, &settings.state, name, context).await
        }
        Some(CreateTarget::Keypair(command)) => keypair::create(registry, command, name, context),
        Some(CreateTarget::Group(command)) => group::create(registry, command, name, context).await,
        Some(CreateTarget::Secret(command)) => {
            secret::create(registry, command, settings.cluster(&command.file().cluster)?)
        }
        Some(CreateTarget::SshKey(command)) => {
            let name = settings.cluster(&command.cluster)?;
            ssh_key::create(registry, &command.ssh_public_key, name)
        }
        None => change::create(registry, command, context),
    }
}

async fn delete(
    registry: &Registry,
    command: &DeleteArgs,
    settings: &Settings,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let name = settings.name.as_str();
    match &command.target {
        Some(DeleteTarget::Stored(command)) => {
            change::delete(registry, command, name, context).await
        }
        Some(DeleteTarget::Instance(command)) => {
            roll::single::run(registry, command, name, context).await
        }
        Some(DeleteTarget::Secret { secret }) => secret::delete(registry, secret, name),
        Some(DeleteTarget::SshKey { cluster }) => {
            ssh_key::delete(registry, settings.cluster(cluster)?)
        }
        None => delete_file::run(registry, &command.filename, command.yes, context).await,
    }
}

async fn show(
    registry: &Registry,
    command: &Get,
    settings: &Settings,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let (name, output) = (settings.name.as_str(), command.output.as_str());
    let is_of_secrets = matches!(command.target, Some(GetTarget::Secrets { .. }));
    if output == "plaintext" && !is_of_secrets {
        return Err(Error::OutputFormat(output.to_owned()));
    }
    match &command.target {
        None => get::get_all(registry, output, settings.cluster(&command.cluster)?, context.out),
        Some(GetTarget::All { cluster }) => {
            get::get_all(registry, output, settings.cluster(cluster)?, context.out)
        }
        Some(GetTarget::Assets { copy: true, .. }) => Err(Error::CopyAssets),
        Some(GetTarget::Assets { cluster, .. }) => {
            let cluster = get::find_cluster(registry, settings.cluster(cluster)?)?;
            assets::show(registry, &cluster, output, context.out)
        }
        Some(GetTarget::Clusters { clusters, full }) => {
            let names = settings.clusters(clusters)?;
            let wanted = ClusterSelection { names: &names, full: *full, output };
            get::get_clusters(registry, &wanted, context.out)
        }
        Some(GetTarget::Groups { groups }) => {
            get::get_groups(registry, groups, output, name, context.out)
        }
        Some(GetTarget::Instances { cluster, connection }) => {
            let name = settings.cluster(cluster)?;
            if get::find_cluster(registry, name)?.cloud() == CloudName::Aws {
                return aws::list_instances(registry, name, output, context).await;
            }
            let wanted = InstanceSelection { connection, output };
            instance_list::run(registry, &wanted, name, context).await
        }
        Some(GetTarget::Keypairs { keysets, distrusted }) => {
            let wanted = KeypairSelection { keysets, distrusted: *distrusted, output };
            keypair::show(registry, &wanted, name, context.out)
        }
        Some(GetTarget::Secrets { secrets, r#type }) => {
            let wanted = SecretSelection { names: secrets, kind: r#type, output };
            secret::show(registry, &wanted, name, context.out)
        }
        Some(GetTarget::SshKeys { cluster }) => {
            let cluster = get::find_cluster(registry, settings.cluster(cluster)?)?;
            ssh_key::print(registry, &cluster, output, context.out)
        }
    }
}
