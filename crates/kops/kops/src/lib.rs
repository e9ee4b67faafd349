//! The command `kops`: stores clusters in upstream's layout, and manages their machines.
//!
//! Machines of cloud local are [`instances`]. Those of AWS are managed by its API (`amazon.rs`), or by Terraform with a
//! generated configuration (`terraform.rs`). Other clouds are rejected by name. The pure part is `kops-core`. Read
//! [`run`] first.
//!
//! The machines' own programs are here, too. [`nodeup`] configures a machine for its group, [`controller`] admits
//! workers, [`channels`] applies the add-ons, [`protokube`] backs up etcd, and [`manager_ctl`] restores a backup.
//!
//! Invariants:
//! - Stored objects are valid, and a write fails if the object has changed since it was read.
//! - Everything is validated before anything is written.
//! - A command that changes a cluster's resources holds its lock.
//! - Only objects that kOps wrote are deleted from a cluster's directory, and only marked machines from a fleet.
//! - Private keys are in the store and on control planes only.

mod addons;
mod amazon;
mod backups;
mod change;
pub mod channels;
mod cloud;
pub mod controller;
mod create;
mod drain;
mod error;
mod flags;
mod gateway;
mod get;
mod keeping;
mod keypair;
mod keys;
mod known;
mod kubeconfig;
mod leave;
mod local;
pub mod manager_ctl;
mod model;
pub mod nodeup;
mod plan;
pub mod protokube;
mod registry;
mod roll;
mod seen;
mod table;
mod terraform;
mod update;
mod validate;
mod why;

use std::{io::Write, time::SystemTime};

pub use error::Error;
pub use flags::{Args, Command};
use flags::{CreateTarget, Export, Get, KeypairCommand, RollingUpdate, Update, Validate};
pub use gateway::serve_store;
pub use keeping::keep;

use crate::{keypair::Act, registry::Registry};

/// The kOps release that this implementation follows.
pub(crate) const KOPS: &str = "1.36.2";

/// The environment of a command.
pub struct CommandEnvironment<'a> {
    /// The current time.
    pub now: SystemTime,
    /// The standard output.
    pub out: &'a mut dyn Write,
    /// Returns an environment variable's value.
    pub environment: &'a dyn Fn(&str) -> Option<String>,
}

/// Runs a command.
pub async fn run(args: &Args, around: &mut CommandEnvironment<'_>) -> Result<(), Error> {
    let settings = flags::settings(args, around.environment)?;
    let registry = Registry::open(&settings.state, around.environment)?;
    let name = settings.name.as_str();
    let or = |given: &Option<String>| given.clone().unwrap_or_else(|| name.to_owned());
    match &args.command {
        Command::Create(args) => match &args.what {
            Some(CreateTarget::Cluster(command)) => {
                create::run(&registry, command, &settings.state, name, around).await
            }
            Some(CreateTarget::Keypair(command)) => {
                keypair::create(&registry, command, name, around)
            }
            None => change::create(&registry, args, around),
        },
        Command::Edit(command) => change::edit(&registry, command, name, around),
        Command::Replace(args) => change::replace(&registry, args, around),
        Command::Get(Get::Instances(show)) => {
            if amazon::is_aws(&get::named(&registry, name)?) {
                amazon::instances(&registry, name, &show.output, around).await
            } else {
                local::instances(&registry, show, name, around.out).await
            }
        }
        Command::Get(Get::Keypairs(command)) => keypair::show(&registry, command, name, around.out),
        Command::Get(command) => get::run(&registry, command, name, around.out),
        Command::Delete(command) => change::delete(&registry, command, name, around).await,
        Command::Update(Update::Cluster(command)) => {
            update::run(&registry, command, &or(&command.cluster), around).await
        }
        Command::RollingUpdate(RollingUpdate::Cluster(command)) => {
            roll::run(&registry, command, &or(&command.cluster), around).await
        }
        Command::Validate(Validate::Cluster(command)) => {
            validate::run(&registry, command, &or(&command.cluster), around).await
        }
        Command::Promote(KeypairCommand::Keypair(command)) => {
            keypair::act(&registry, Act::Promote, command, name, around)
        }
        Command::Distrust(KeypairCommand::Keypair(command)) => {
            keypair::act(&registry, Act::Distrust, command, name, around)
        }
        Command::Trust(KeypairCommand::Keypair(command)) => {
            keypair::act(&registry, Act::Trust, command, name, around)
        }
        Command::Export(Export::Kubeconfig(command)) => {
            kubeconfig::export(&registry, command, &or(&command.cluster), around)
        }
    }
}
