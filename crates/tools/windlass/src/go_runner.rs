//! Runs a program and copies its output to a file, as upstream's go-runner (also `kube-log-runner`) does. kOps'
//! manifests start components with the `/go-runner` of their images. Read [`Args`] first.

use std::{
    ffi::OsString,
    fs::File,
    io::{PipeReader, Write},
    os::{fd::AsFd as _, unix::process::ExitStatusExt as _},
    process::{ExitCode, ExitStatus, Stdio},
};

use api_config::GoFlag as _;
use clap::Parser;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{
    process::{Child, Command},
    signal::unix::{SignalKind, signal},
    task::{JoinHandle, spawn_blocking},
};

use crate::{
    failure::Failure,
    process::{block_on, fail},
};

/// Runs a program and copies its output to a file
#[derive(Parser)]
#[command(name = "go-runner")]
struct Args {
    /// Appends the program's standard output to a file instead of writing it to standard output
    #[arg(long, default_value = "")]
    log_file: OsString,
    /// With --log-file, writes to standard output as well
    #[arg(long, go_bool(), default_value_t = false)]
    also_stdout: bool,
    /// Treats standard error as standard output
    #[arg(long, go_bool(), default_value_t = true)]
    redirect_stderr: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

/// Runs the program of this process's arguments and returns its exit code.
pub(crate) fn run() -> ExitCode {
    let args = Args::parse_from(with_two_dashes(std::env::args_os()));
    match block_on(supervise(&args)) {
        Ok(status) => ExitCode::from(code(status)),
        Err(error) => fail(&error),
    }
}

/// Rewrites Go's one-dash flags with two dashes, up to the program.
fn with_two_dashes(mut process: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = process.by_ref().take(1).collect();
    let mut rest = process.peekable();
    let is_flag = |argument: &OsString| argument.as_encoded_bytes().starts_with(b"-");
    let flags: Vec<OsString> = std::iter::from_fn(|| rest.next_if(is_flag)).collect();
    arguments.extend(dns::flags::two_dashes(flags));
    arguments.extend(rest);
    arguments
}

/// Returns the exit code that a shell reports for a status.
fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// Runs the program to its end, and passes the signals on that end a process.
async fn supervise(args: &Args) -> Result<ExitStatus, Failure> {
    let mut hangup = signal(SignalKind::hangup())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut quit = signal(SignalKind::quit())?;
    let (mut child, copying) = start(args)?;
    let status = loop {
        let signal = tokio::select! {
            ended = child.wait() => break ended?,
            _ = hangup.recv() => Signal::SIGHUP,
            _ = interrupt.recv() => Signal::SIGINT,
            _ = terminate.recv() => Signal::SIGTERM,
            _ = quit.recv() => Signal::SIGQUIT,
        };
        pass_on(&child, signal);
    };
    if let Some(copying) = copying {
        copying.await?;
    }
    Ok(status)
}

fn pass_on(child: &Child, signal: Signal) {
    let id = child.id().and_then(|id| i32::try_from(id).ok());
    // The program may have ended at this moment.
    if let Some(id) = id
        && let Err(error) = kill(Pid::from_raw(id), signal)
    {
        eprintln!("go-runner: sending {signal} to process {id} failed: {error}");
    }
}

/// Starts the program, and the task that copies its output if both the file and standard output get it.
fn start(args: &Args) -> Result<(Child, Option<JoinHandle<()>>), Failure> {
    let mut command = Command::new(&args.program[0]);
    command.args(&args.program[1..]);
    let mut copied = None;
    let mut output: Box<dyn Fn() -> std::io::Result<Stdio>> =
        Box::new(|| Ok(std::io::stdout().into()));
    if !args.log_file.is_empty() {
        let shown = args.log_file.display().to_string();
        let file = File::options().append(true).create(true).open(&args.log_file);
        let file = file.map_err(|e| format!("opening the log file {shown} failed: {e}"))?;
        if args.also_stdout {
            let (reader, writer) = std::io::pipe()?;
            let stdout = File::from(std::io::stdout().as_fd().try_clone_to_owned()?);
            copied = Some((reader, Tee { stdout, file, path: shown, is_failing: false }));
            output = Box::new(move || writer.try_clone().map(Into::into));
        } else {
            output = Box::new(move || file.try_clone().map(Into::into));
        }
    }
    command.stdout(output()?);
    if args.redirect_stderr {
        command.stderr(output()?);
    }
    let child =
        command.spawn().map_err(|e| format!("starting {:?} failed: {e}", args.program[0]))?;
    let copying = copied.map(|(reader, tee)| spawn_blocking(move || copy(reader, tee)));
    Ok((child, copying))
}

/// Copies output until the program has closed it.
fn copy(mut reader: PipeReader, mut tee: Tee) {
    if let Err(error) = std::io::copy(&mut reader, &mut tee) {
        eprintln!("go-runner: reading the program's output failed: {error}");
    }
}

/// Standard output and the log file. An error of one of them must not stop the program or the other one.
struct Tee {
    stdout: File,
    file: File,
    path: String,
    /// `true` after a write to the file has failed, which is reported once.
    is_failing: bool,
}

impl Write for Tee {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let _ = self.stdout.write_all(bytes);
        let written = self.file.write_all(bytes);
        if let (Err(error), false) = (&written, self.is_failing) {
            eprintln!(
                "go-runner: writing the log file {} failed: {error}; it lacks output",
                self.path
            );
        }
        self.is_failing = written.is_err();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
