//! The command `kops`: what users say of clusters, kept in their state store in upstream's layout, and the machines that
//! come of it. Machines of cloud local are [`instances`]; those of AWS are made by its API (`amazon.rs`), or by Terraform, for
//! which a configuration is written (`terraform.rs`); other clouds' are refused by name.
//!
//! A machine's own side is here, too: [`nodeup`] makes of a machine what its group is to be, [`controller`] lets workers in,
//! [`channels`] applies the add-ons, and [`protokube`] backs etcd up; [`manager_ctl`] has a backup restored.
//!
//! Invariants:
//! - What is written is valid, and was made from what is there: of two users one is told to try again.
//! - Everything is looked at before anything is written.
//! - Whoever changes what there is of a cluster holds its lock.
//! - A cluster's directory loses only what kOps wrote, and a fleet only what is marked as its.
//! - Private keys are in the store and on control planes, and nowhere else.

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
use flags::{Export, Get, Made, OfKeypair, RollingUpdate, Update, Validate};
pub use gateway::serve_store;
pub use keeping::keep;

use crate::{keypair::Act, registry::Registry};

/// The release of kOps whose behaviour this is.
pub(crate) const KOPS: &str = "1.36.2";

/// What a command has from outside.
pub struct Surroundings<'a> {
    pub now: SystemTime,
    pub out: &'a mut dyn Write,
    /// An environment variable's value.
    pub environment: &'a dyn Fn(&str) -> Option<String>,
}

/// Runs a command.
pub async fn run(args: &Args, around: &mut Surroundings<'_>) -> Result<(), Error> {
    let settings = flags::settings(args, around.environment)?;
    let registry = Registry::open(&settings.state, around.environment)?;
    let name = settings.name.as_str();
    let or = |given: &Option<String>| given.clone().unwrap_or_else(|| name.to_owned());
    match &args.command {
        Command::Create(args) => match &args.what {
            Some(Made::Cluster(command)) => {
                create::run(&registry, command, &settings.state, name, around).await
            }
            Some(Made::Keypair(command)) => keypair::create(&registry, command, name, around),
            None => change::create(&registry, args, around),
        },
        Command::Edit(command) => change::edit(&registry, command, name, around),
        Command::Replace(args) => change::replace(&registry, args, around),
        Command::Get(Get::Instances(show)) => match amazon::is_aws(&get::named(&registry, name)?) {
            true => amazon::instances(&registry, name, &show.output, around).await,
            false => local::instances(&registry, show, name, around.out).await,
        },
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
        Command::Promote(OfKeypair::Keypair(command)) => {
            keypair::act(&registry, Act::Promote, command, name, around)
        }
        Command::Distrust(OfKeypair::Keypair(command)) => {
            keypair::act(&registry, Act::Distrust, command, name, around)
        }
        Command::Trust(OfKeypair::Keypair(command)) => {
            keypair::act(&registry, Act::Trust, command, name, around)
        }
        Command::Export(Export::Kubeconfig(command)) => {
            kubeconfig::export(&registry, command, &or(&command.cluster), around)
        }
    }
}
