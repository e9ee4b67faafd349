//! Runs `kops completion`: writes the completion script for a shell.

use std::io::Write;

use clap::{Args as _, Command};
use clap_complete::{Shell, generate};

use crate::{
    error::Error,
    flags::{Args, Completion, Descriptions},
};

/// Writes the script of a shell, for the program `kops`.
pub(crate) fn write(command: &Completion, out: &mut dyn Write) -> Result<(), Error> {
    let (shell, Descriptions { no_descriptions }) = match command {
        Completion::Bash(descriptions) => (Shell::Bash, descriptions),
        Completion::Fish(descriptions) => (Shell::Fish, descriptions),
        Completion::Powershell(descriptions) => (Shell::PowerShell, descriptions),
        Completion::Zsh(descriptions) => (Shell::Zsh, descriptions),
    };
    let mut kops = Args::augment_args(Command::new("kops"));
    if *no_descriptions {
        kops = without_descriptions(kops);
    }
    let mut script = Vec::new();
    generate(shell, &mut kops, "kops", &mut script);
    Ok(out.write_all(&script)?)
}

/// Returns a command whose subcommands and flags have no help texts.
fn without_descriptions(command: Command) -> Command {
    let command = command.about("").long_about("");
    let command = command.mut_args(|arg| arg.help("").long_help(""));
    command.mut_subcommands(without_descriptions)
}
