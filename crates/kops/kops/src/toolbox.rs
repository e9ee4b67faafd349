//! Runs `kops toolbox`.

mod addons;
mod dump;
mod selector;
mod template;

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
        Toolbox::Addons(AddonsCommand::List) => addons::list(registry, name, context).await,
        Toolbox::Addons(AddonsCommand::Apply { channel, yes }) => {
            addons::apply(registry, name, channel, *yes, context).await
        }
        Toolbox::InstanceSelector(flags) => selector::run(registry, flags, name, context),
        Toolbox::Enroll(_) => Err(Error::Rejected {
            command: "toolbox enroll",
            reason: "it configures machines over SSH, which kops does not do",
        }),
        Toolbox::Clusterapi(_) => Err(Error::Rejected {
            command: "toolbox clusterapi",
            reason: "kops has no controllers of Cluster API; use instance groups",
        }),
    }
}
