//! Tests the binary as upstream's go-runner, by which kOps' manifests start components.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _},
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Command, Stdio},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::processes::{Process, WINDLASS};

/// Writes to both outputs, in this order, and ends with a code of its own.
const PROGRAM: &str = "echo one; echo two >&2; echo three; exit 7";

fn go_runner() -> Command {
    let mut command = Command::new(WINDLASS);
    command.arg0("/go-runner");
    command
}

fn log_file(directory: &Path) -> String {
    format!("--log-file={}", directory.join("log").display())
}

#[test]
fn copies_output_to_file_and_returns_exit_code() {
    let one = |flags: &[&str], log: &str, stdout: &str, stderr: &str| {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        fs::write(&path, "earlier\n").unwrap();
        let mut command = go_runner();
        command.arg(log_file(directory.path())).args(flags).args(["/bin/sh", "-c", PROGRAM]);
        let ended = command.output().unwrap();
        assert_eq!(ended.status.code(), Some(7), "{flags:?}");
        assert_eq!(fs::read_to_string(path).unwrap(), format!("earlier\n{log}"), "{flags:?}");
        assert_eq!(String::from_utf8_lossy(&ended.stdout), stdout, "{flags:?}");
        assert_eq!(String::from_utf8_lossy(&ended.stderr), stderr, "{flags:?}");
    };
    let all = "one\ntwo\nthree\n";
    one(&["--also-stdout"], all, all, "");
    one(&["-also-stdout=true", "--"], all, all, "");
    one(&[], all, "", "");
    one(&["--also-stdout", "--redirect-stderr=false"], "one\nthree\n", "one\nthree\n", "two\n");
}

#[test]
fn passes_signals_to_program() {
    let directory = tempfile::tempdir().unwrap();
    let script = "trap 'echo stopped; exit 3' TERM; echo ready; while :; do sleep 0.05; done";
    let mut command = go_runner();
    command.arg(log_file(directory.path())).args(["--also-stdout", "/bin/sh", "-c", script]);
    let mut runner = Process(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut output = BufReader::new(runner.0.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    kill(Pid::from_raw(runner.0.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert_eq!((rest.as_str(), runner.0.wait().unwrap().code()), ("stopped\n", Some(3)));
}

#[test]
fn reports_program_and_log_file_that_cannot_be_opened() {
    for (arguments, cause) in [
        (["--also-stdout", "/no/such/program"], "/no/such/program"),
        (["--log-file=/no/such/log", "/bin/true"], "/no/such/log"),
    ] {
        let ended = go_runner().args(arguments).output().unwrap();
        let stderr = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.code() == Some(1) && stderr.contains(cause), "{stderr}");
    }
}

#[test]
fn runs_component_by_its_link_in_image() {
    let directory = tempfile::tempdir().unwrap();
    let link = directory.path().join("kube-apiserver");
    std::os::unix::fs::symlink(WINDLASS, &link).unwrap();
    let mut command = go_runner();
    command.arg(log_file(directory.path())).arg("--also-stdout").arg(link).arg("--version");
    let ended = command.output().unwrap();
    let stdout = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success() && stdout.starts_with("Kubernetes v1."), "{stdout}");
}
