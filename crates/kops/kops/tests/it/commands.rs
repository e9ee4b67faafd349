//! Tests that each of upstream's commands and flags acts or is rejected by name.

use clap::{Args as _, Command};

use crate::stored::TestStore;

/// Upstream's commands with their flags.
const COMMANDS: &str = include_str!("../../facts/commands.tsv");
/// The commands that are rejected with a reason, whatever their flags.
const REJECTED: [&str; 1] = ["toolbox clusterapi generate machinedeployment"];

/// A command of upstream.
struct UpstreamCommand {
    path: &'static str,
    flags: Vec<&'static str>,
}

fn upstream() -> Vec<UpstreamCommand> {
    let rows = COMMANDS.lines().filter(|line| !line.starts_with('#'));
    let read = |line: &'static str| {
        let (path, flags) = line.split_once('\t').unwrap_or((line, ""));
        UpstreamCommand { path, flags: flags.split_whitespace().collect() }
    };
    rows.map(read).collect()
}

/// Returns the command of a path.
fn find<'a>(root: &'a Command, path: &str) -> Option<&'a Command> {
    path.split(' ').try_fold(root, |command, word| command.find_subcommand(word))
}

#[test]
fn has_each_command_and_flag_of_upstream() {
    let mut root = kops::Args::augment_args(Command::new("kops"));
    root.build();
    let all = upstream();
    let count: usize = all.iter().map(|command| command.flags.len()).sum();
    assert_eq!((all.len(), count), (47, 246));
    let mut missing = Vec::new();
    for UpstreamCommand { path, flags } in all {
        if REJECTED.contains(&path) {
            continue;
        }
        let Some(command) = find(&root, path) else {
            missing.push(path.to_owned());
            continue;
        };
        let has = |flag: &&str| {
            command.get_arguments().any(|argument| {
                argument.get_long() == Some(*flag)
                    || argument.get_all_aliases().is_some_and(|names| names.contains(flag))
            })
        };
        missing
            .extend(flags.iter().filter(|flag| !has(flag)).map(|flag| format!("{path} --{flag}")));
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn rejects_commands_without_meaning_here_by_name() {
    let place = TestStore::with_cluster("local");
    let before = place.objects();
    for UpstreamCommand { path, flags } in upstream() {
        if !REJECTED.contains(&path) {
            continue;
        }
        for flag in flags.iter().map(|flag| format!("--{flag}")).chain([String::new()]) {
            let mut arguments: Vec<&str> = path.split(' ').collect();
            if !flag.is_empty() && flag != "--name" {
                arguments.extend([flag.as_str(), "x"]);
            }
            let error = place.kops(&arguments).unwrap_err();
            let name = path.split(" generate").next().unwrap();
            assert!(error.contains(name) && error.contains("is not supported: "), "{error}");
        }
    }
    assert_eq!(place.objects(), before);
}
