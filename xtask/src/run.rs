//! Runs other programs. Errors name the command.

use std::{
    ffi::OsStr,
    fs::File,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread::ScopedJoinHandle,
    time::Instant,
};

use crate::error::{During, Error, Result, fail};

pub(crate) fn workspace_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new(".")).to_owned()
}

/// Returns cargo's target directory: the workspace's own, unless the environment names another.
pub(crate) fn target_directory() -> PathBuf {
    let root = workspace_root();
    std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| root.join("target"), |directory| root.join(directory))
}

/// Returns a cargo command in the workspace, with the cargo that runs this program.
pub(crate) fn cargo<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(workspace_root()).args(args);
    command
}

pub(crate) fn program<S: AsRef<OsStr>>(
    name: impl AsRef<OsStr>,
    args: impl IntoIterator<Item = S>,
) -> Command {
    let mut command = Command::new(name);
    command.args(args);
    command
}

/// Runs a command that inherits this program's output.
pub(crate) fn pass(command: &mut Command) -> Result<()> {
    let status = command.status().during("starting", command_line(command))?;
    if status.success() {
        Ok(())
    } else {
        fail(format!("{} failed ({status})", command_line(command)))
    }
}

/// Runs a command and returns its standard output.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command.output().during("starting", command_line(command))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        return fail(format!(
            "{} failed ({}): {}",
            command_line(command),
            output.status,
            stderr.trim()
        ));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns a file's SHA-256 in hexadecimal digits.
pub(crate) fn sha256(path: &Path) -> Result<String> {
    let sum = output(program("sha256sum", ["--binary"]).arg(path))?;
    Ok(sum.split_whitespace().next().unwrap_or_default().to_owned())
}

/// Prints the name of a step, runs it and prints its duration.
pub(crate) fn step<T>(what: &str, run: impl FnOnce() -> Result<T>) -> Result<T> {
    eprintln!("==> {what}");
    let started = Instant::now();
    let result = run();
    eprintln!("    {what}: {:.1} s", started.elapsed().as_secs_f64());
    result
}

/// Redirects a command's output to a new file, and its input from nothing.
pub(crate) fn log_to(command: &mut Command, path: &Path) -> Result<()> {
    let share = || File::create(path).and_then(|log| Ok((log.try_clone()?, log)));
    let (stdout, stderr) = share().during("creating", path.display())?;
    command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
    Ok(())
}

/// Waits for a thread's result. A panic of the thread is an error.
pub(crate) fn join<T>(thread: ScopedJoinHandle<'_, T>) -> Result<T> {
    thread.join().map_err(|_| Error::from("a thread panicked"))
}

pub(crate) fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Debian excludes the sbin directories from the PATH of ordinary users.
    let sbin = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(sbin).any(|directory| directory.join(program).is_file())
}

pub(crate) fn command_line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    format!("`{}`", words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" "))
}
