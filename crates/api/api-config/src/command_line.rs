//! A command line of flags only.

use clap::Parser;

/// The command line of a component: the program's name and its flags.
#[derive(Debug, Parser)]
pub struct CommandLine<A: clap::Args> {
    /// The flags.
    #[command(flatten)]
    pub args: A,
}
