//! The command line that `init`, `join` and `reset` share: all phases, or `phase NAME…` alone.

use clap::{Args, Subcommand};

use crate::phase::Phase;

/// The flags of one command, given to the whole of it or to the phase it is asked for.
#[derive(Debug, Args)]
pub(super) struct Workflow<F: Args> {
    #[command(flatten)]
    flags: F,
    #[command(subcommand)]
    sub: Option<Sub<F>>,
}

#[derive(Debug, Subcommand)]
enum Sub<F: Args> {
    /// Use this command to invoke single phase of the workflow
    Phase(Box<PhaseArgs<F>>),
}

#[derive(Debug, Args)]
struct PhaseArgs<F: Args> {
    /// The phase, such as `certs ca` or `control-plane all`; without one, all are listed
    names: Vec<String>,
    #[command(flatten)]
    flags: F,
}

impl<F: Args> Workflow<F> {
    /// The flags and the phases that alone are wanted (none: all); nothing where `phases` were to be
    /// listed only, which is then done.
    pub(super) fn chosen<C>(self, phases: &[Phase<C>]) -> Option<(F, Vec<String>)> {
        match self.sub {
            None => Some((self.flags, Vec::new())),
            Some(Sub::Phase(phase)) if phase.names.is_empty() => {
                for phase in phases {
                    println!("{:<48}{}", phase.name.replace('/', " "), phase.about);
                }
                None
            }
            Some(Sub::Phase(phase)) => Some((phase.flags, vec![phase.names.join("/")])),
        }
    }
}
