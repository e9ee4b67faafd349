//! Runs `kops toolbox`.

mod addons;
mod dump;
mod enroll;
mod selector;
mod template;

use kops_node::channels::read_channel;
use kops_store::Registry;

use crate::{
    environment::CommandEnvironment,
    error::Error,
    flags::{AddonsCommand, Toolbox},
};

pub(crate) async fn run(
    registry: &Registry,
    command: &Toolbox,
    name: &str,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    match command {
        Toolbox::Template(flags) => template::run(flags, name, context),
        Toolbox::Dump(flags) => {
            let name = flags.cluster.as_deref().unwrap_or(name);
            dump::run(registry, flags, name, context).await
        }
        Toolbox::Addons(AddonsCommand::List { connection }) => {
            let client = addons::connect(registry, name, connection, context)?;
            addons::list(&client, context).await
        }
        Toolbox::Addons(AddonsCommand::Apply { channel, yes, connection }) => {
            // Read the channel first: a wrong one is reported even if the API does not answer.
            let channel = read_channel(channel)?;
            let client = addons::connect(registry, name, connection, context)?;
            addons::apply(&client, &channel, *yes, context).await
        }
        Toolbox::InstanceSelector(flags) => selector::run(registry, flags, name, context),
        Toolbox::Enroll(flags) => enroll::run(registry, flags, name, context).await,
        Toolbox::Clusterapi(_) => Err(Error::Rejected {
            command: "toolbox clusterapi",
            reason: "kops has no controllers of Cluster API; use instance groups",
        }),
    }
}
