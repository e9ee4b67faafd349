//! The command line of `init`, `join`, `upgrade` and `reset`: all phases, or one with `phase NAME…`.

use clap::{ArgMatches, Args, FromArgMatches, Subcommand};

use super::command_flags;
use crate::phase::Phase;

/// The flags of a command with phases. Each phase has a subset of them.
pub(super) trait Phased: Args {
    /// The name of the command.
    const COMMAND: &'static str;

    /// Returns name and description of every phase.
    fn phases() -> Vec<(&'static str, &'static str)>;
}

/// Returns name and description of each phase.
pub(super) fn descriptions<C>(phases: Vec<Phase<C>>) -> Vec<(&'static str, &'static str)> {
    phases.into_iter().map(|phase| (phase.name, phase.about)).collect()
}

/// The flags of a command, given to the command itself or to one of its phases.
#[derive(Debug, Args)]
pub(super) struct Workflow<F: Phased> {
    #[command(flatten)]
    flags: F,
    #[command(subcommand)]
    sub: Option<Sub<F>>,
}

/// The subcommand `phase` and the names after it. Only a single phase has flags, a group has none.
#[derive(Debug)]
struct Sub<F> {
    names: Vec<String>,
    flags: Option<Box<F>>,
}

impl<F: Phased> FromArgMatches for Sub<F> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let (mut names, mut at) = (Vec::new(), matches);
        while let Some((name, below)) = at.subcommand() {
            names.push(name.to_owned());
            at = below;
        }
        names.remove(0);
        let is_phase =
            command_flags::of(&format!("{} phase {}", F::COMMAND, names.join(" "))).is_some();
        let flags = is_phase.then(|| F::from_arg_matches(at).map(Box::new)).transpose()?;
        Ok(Self { names, flags })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl<F: Phased> Subcommand for Sub<F> {
    fn augment_subcommands(command: clap::Command) -> clap::Command {
        // Some sixty phases with their flags are built only if `phase` is given.
        let phase = clap::Command::new("phase")
            .about("Use this command to invoke single phase of the workflow")
            .defer(|command| group::<F>(command, ""));
        command.subcommand(phase)
    }

    fn augment_subcommands_for_update(command: clap::Command) -> clap::Command {
        Self::augment_subcommands(command)
    }

    fn has_subcommand(name: &str) -> bool {
        name == "phase"
    }
}

/// Adds the phases and groups of a group.
fn group<F: Phased>(mut command: clap::Command, prefix: &str) -> clap::Command {
    let phases = F::phases();
    let start = format!("{} phase {}", F::COMMAND, prefix.replace('/', " "));
    let mut names: Vec<&str> = Vec::new();
    for path in command_flags::paths().filter_map(|path| path.strip_prefix(start.as_str())) {
        let (name, is_group) = path.split_once(' ').map_or((path, false), |(name, _)| (name, true));
        if names.contains(&name) {
            continue;
        }
        names.push(name);
        let whole = format!("{prefix}{name}");
        let about = match phases.iter().find(|(phase, _)| *phase == whole) {
            Some((_, about)) => (*about).to_owned(),
            None if name == "all" => format!("All phases of {}", prefix.trim_end_matches('/')),
            None => format!("The phases of {name}"),
        };
        let below = clap::Command::new(name);
        let below = if is_group {
            group::<F>(below, &format!("{whole}/"))
        } else {
            command_flags::shape_below(F::augment_args(below), &format!("{start}{name}"))
        };
        command = command.subcommand(below.about(about));
    }
    command
}

impl<F: Phased> Workflow<F> {
    /// Returns the flags and the selected phases (none: all). Returns `None` after listing the phases of a group.
    pub(super) fn chosen(self) -> Option<(F, Vec<String>)> {
        let Some(Sub { names, flags }) = self.sub else { return Some((self.flags, Vec::new())) };
        let name = names.join("/");
        if let Some(flags) = flags {
            return Some((*flags, vec![name]));
        }
        for (phase, about) in F::phases().iter().filter(|(phase, _)| phase.starts_with(&name)) {
            println!("{:<48}{about}", phase.replace('/', " "));
        }
        None
    }
}
