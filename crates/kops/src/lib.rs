//! The command `kops`: what users say of clusters, kept in their state store in upstream's layout.
//!
//! Invariants:
//! - What is written is valid, and was made from what is there: of two users one is told to try again.
//! - Everything is looked at before anything is written.
//! - A cluster's directory loses only what kOps wrote.
//!
//! Only specs are written as yet: no machine is made.

mod change;
mod error;
mod flags;
mod get;
mod registry;
mod table;

use std::{io::Write, time::SystemTime};

pub use error::Error;
pub use flags::{Args, Command};

use crate::registry::Registry;

/// What a command has from outside.
pub struct Surroundings<'a> {
    pub now: SystemTime,
    pub out: &'a mut dyn Write,
    /// An environment variable's value.
    pub environment: &'a dyn Fn(&str) -> Option<String>,
}

/// Runs a command.
pub fn run(args: &Args, around: &mut Surroundings<'_>) -> Result<(), Error> {
    let settings = flags::settings(args, around.environment)?;
    let registry = Registry::open(&settings.state)?;
    let name = settings.name.as_str();
    match &args.command {
        Command::Create(args) => change::create(&registry, args, around),
        Command::Replace(args) => change::replace(&registry, args, around),
        Command::Get(command) => get::run(&registry, command, name, around.out),
        Command::Delete(command) => change::delete(&registry, command, name, around.out),
    }
}
