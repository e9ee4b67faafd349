//! Reads the process's arguments for the parser: the name of the binary becomes the command.

use std::{ffi::OsString, path::PathBuf};

use clap::CommandFactory;

use crate::{cli::Cli, empty_paths};

/// The commands that are also names of the binary.
const COMPONENTS: &[&str] = &[
    "butane",
    "coredns",
    "etcd-manager-ctl",
    "ignition",
    "kops",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubelet",
];

/// The commands whose flags have a single dash upstream.
pub(crate) const ONE_DASH: &[&str] = &["coredns", "etcd-manager-ctl", "ignition", "metal"];

/// Returns the command line for the parser. The name of the binary becomes the command, and the single-dash flags of
/// CoreDNS, Matchbox, Ignition and etcd-manager-ctl get a second dash.
pub(crate) fn arguments() -> Vec<OsString> {
    let mut process = std::env::args_os();
    let mut arguments: Vec<OsString> = process.by_ref().take(1).collect();
    let name = called_as();
    if COMPONENTS.contains(&name.as_str()) {
        arguments.push(name.into());
    }
    let rest: Vec<OsString> = process.collect();
    let command = arguments.get(1).or(rest.first());
    if command.is_some_and(|c| ONE_DASH.iter().any(|one| c == one)) {
        arguments.extend(dns::flags::two_dashes(rest));
    } else {
        arguments.extend(rest);
    }
    let is_empty = |argument: &OsString| argument.as_encoded_bytes().ends_with(b"=");
    if arguments.get(1).is_some_and(|a| COMPONENTS.iter().any(|c| a == c))
        && arguments.iter().any(is_empty)
    {
        return empty_paths::without_empty_paths(&Cli::command(), arguments);
    }
    arguments
}

/// Returns the name that the binary was called by.
pub(crate) fn called_as() -> String {
    let first = std::env::args_os().next().map(PathBuf::from).unwrap_or_default();
    first.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Returns `true` for a request for a component's version, which installers send.
pub(crate) fn is_version_request(arguments: &[OsString]) -> bool {
    let is_one_of = |argument: &OsString, texts: &[&str]| texts.iter().any(|text| argument == text);
    let kubernetes = |name: &&&str| name.starts_with("kube");
    let components: Vec<&str> = COMPONENTS.iter().filter(kubernetes).copied().collect();
    arguments.get(1).is_some_and(|command| is_one_of(command, &components))
        && arguments.iter().skip(2).any(|a| is_one_of(a, &["--version", "--version=true"]))
}
