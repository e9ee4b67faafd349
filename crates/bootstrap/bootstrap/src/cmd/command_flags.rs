//! The flags that each command accepts: kubeadm's, and those of commands that kubeadm does not have.
//!
//! Commands share flag definitions, so that a flag has one meaning. A flag that a command does not accept is rejected,
//! because the user expects an effect of it.

use clap::{ArgMatches, parser::ValueSource};

use crate::{Error, FlagError};

/// The table: one line per command with its words, a colon and its flags.
const TABLE: &str = include_str!("flags.txt");
/// The flags of every command.
const GLOBAL: [&str; 4] = ["help", "rootfs", "v", "vmodule"];

fn rows() -> impl Iterator<Item = (&'static str, &'static str)> {
    TABLE.lines().filter_map(|line| line.split_once(':'))
}

/// Returns all commands that do something.
pub(super) fn paths() -> impl Iterator<Item = &'static str> {
    rows().map(|(path, _)| path)
}

/// Returns the flags of a command; `None` if there is no such command.
pub(super) fn of(path: &str) -> Option<Vec<&'static str>> {
    let (_, flags) = rows().find(|(other, _)| *other == path)?;
    Some(flags.split_whitespace().chain(GLOBAL).collect())
}

/// Hides flags that a command does not accept, and lets boolean flags take a value, like Go's.
pub fn shape(command: clap::Command) -> clap::Command {
    let names: Vec<String> = command.get_subcommands().map(|c| c.get_name().to_owned()).collect();
    let ours = |name: &&String| paths().any(|path| path.split(' ').next() == Some(name.as_str()));
    names
        .iter()
        .filter(ours)
        .fold(command, |command, name| command.mut_subcommand(name, |sub| shape_below(sub, name)))
}

/// Applies [`shape`] to one command and its subcommands.
pub(super) fn shape_below(command: clap::Command, path: &str) -> clap::Command {
    let accepted = of(path);
    let command = command.mut_args(|argument| {
        let is_switch = matches!(argument.get_action(), clap::ArgAction::SetTrue);
        let is_hidden = argument.get_long().is_some_and(|long| {
            accepted.as_ref().is_some_and(|accepted| !accepted.contains(&long))
        });
        let argument = if is_hidden { argument.hide(true) } else { argument };
        if !is_switch {
            return argument;
        }
        let argument =
            argument.action(clap::ArgAction::Set).value_parser(clap::value_parser!(bool));
        argument
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true")
            .default_value("false")
            .hide_default_value(true)
            .hide_possible_values(true)
    });
    let names: Vec<String> = command.get_subcommands().map(|c| c.get_name().to_owned()).collect();
    names.iter().fold(command, |command, name| {
        command.mut_subcommand(name, |sub| shape_below(sub, &format!("{path} {name}")))
    })
}

/// Rejects flags that the given command does not accept.
pub fn check(command: &clap::Command, matches: &ArgMatches) -> Result<(), Error> {
    let (mut path, mut command, mut at) = (Vec::new(), command, matches);
    let mut present = Vec::new();
    loop {
        // GlobalFlags flags are accepted everywhere.
        let own = command.get_arguments().filter(|argument| !argument.is_global_set());
        for argument in own.filter(|argument| at.ids().any(|id| id == argument.get_id())) {
            let source = at.value_source(argument.get_id().as_str());
            present
                .extend(argument.get_long().filter(|_| source == Some(ValueSource::CommandLine)));
        }
        let Some((name, below)) = at.subcommand() else { break };
        let Some(sub) = command.find_subcommand(name) else { break };
        path.push(name);
        (command, at) = (sub, below);
    }
    let Some(accepted) = of(&path.join(" ")) else { return Ok(()) };
    match present.iter().find(|flag| !accepted.contains(*flag)) {
        Some(flag) => {
            Err(FlagError::Unknown { flag: (*flag).to_owned(), command: path.join(" ") }.into())
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use clap::{FromArgMatches, Parser};

    use super::*;
    use crate::cmd::Command;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(subcommand)]
        command: Command,
    }

    fn parsed(line: &str) -> Result<Command, String> {
        let mut command = shape(<Cli as clap::CommandFactory>::command());
        let words = std::iter::once("kubeadm").chain(line.split(' '));
        let mut matches = command.try_get_matches_from_mut(words).map_err(|e| e.to_string())?;
        check(&command, &matches).map_err(|e| e.to_string())?;
        Cli::from_arg_matches_mut(&mut matches).map(|cli| cli.command).map_err(|e| e.to_string())
    }

    /// Returns the command with all its subcommands built.
    fn find(path: &str) -> clap::Command {
        let mut command = shape(<Cli as clap::CommandFactory>::command());
        command.build();
        path.split(' ').fold(command, |command, name| {
            command.find_subcommand(name).unwrap_or_else(|| panic!("no {name} of {path}")).clone()
        })
    }

    #[test]
    fn shows_exactly_the_flags_of_each_command() {
        for path in paths() {
            let (command, mut wanted) = (find(path), of(path).unwrap());
            let shown = command.get_arguments().filter(|argument| !argument.is_hide_set());
            let mut shown: Vec<&str> = shown.filter_map(clap::Arg::get_long).collect();
            wanted.sort_unstable();
            shown.sort_unstable();
            assert_eq!(shown, wanted, "{path}");
        }
    }

    #[test]
    fn rejects_flags_of_other_commands() {
        for line in [
            "init --print-manifest",
            "init --kubeconfig=a",
            "init phase certs ca --pod-network-cidr=10.0.0.0/8",
            "init phase certs all --print-manifest",
            "init phase certs ca --print-manifest=true",
            "join --upload-certs",
            "join phase wait-control-plane --token=a",
            "certs renew all --dry-run",
            "config images pull --dry-run",
            "reset phase cleanup-node --kubeconfig a",
        ] {
            let error = parsed(line).unwrap_err();
            assert!(
                error.contains("unknown flag") || error.contains("unexpected"),
                "{line}: {error}"
            );
        }
        for line in ["init phase nonsense", "init phase certs nonsense", "reset phase nonsense"] {
            let error = parsed(line).unwrap_err();
            assert!(error.contains("unrecognized subcommand 'nonsense'"), "{line}: {error}");
        }
    }

    #[test]
    fn accepts_flags_where_upstream_does() {
        for line in [
            "init --upload-certs=true --skip-token-print=false --v=3 --vmodule=a=1,b=2",
            "init phase certs ca --cert-dir /a -v 5",
            "init phase addon coredns --print-manifest --rootfs=/r",
            "join phase preflight 10.0.0.1:6443 --token a",
            "join 10.0.0.1:6443 --token a --control-plane",
            "reset phase remove-etcd-member --kubeconfig /k",
            "--help",
            "token --dry-run create",
            "token --kubeconfig /k create a --print-join-command",
            "token list --dry-run -o jsonpath={.token} --show-managed-fields",
            "certs check-expiration -o kyaml --kubeconfig /k --allow-missing-template-keys=false",
            "config validate --config /c --allow-deprecated-api --allow-experimental-api --kubeconfig /k",
        ] {
            match parsed(line) {
                Ok(_) => {}
                Err(e) => assert!(line == "--help" && e.contains("Usage"), "{line}: {e}"),
            }
        }
        assert!(parsed("init --vmodule=nonsense").unwrap_err().contains("filename=N"));
        assert!(parsed("init --upload-certs=maybe").is_err());
    }
}
