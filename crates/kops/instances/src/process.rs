//! Processes in the background.

use std::{
    fs,
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use sys::process::PidFile;

use crate::error::Error;

/// The time limit for a process to end.
pub(crate) const END_TIMEOUT: Duration = Duration::from_secs(20);

/// Writes the PID of a started process.
pub(crate) fn record(file: &PidFile, pid: u32) -> Result<(), Error> {
    Ok(file.record(pid.cast_signed())?)
}

/// Prepares a command to run in the background, with its output appended to a log.
pub(crate) fn background(mut command: Command, log: &Path) -> Result<Command, Error> {
    let open = || fs::OpenOptions::new().create(true).append(true).open(log);
    let (out, err) = (
        open().map_err(sys::Error::at("opening the log", log))?,
        open().map_err(sys::Error::at("opening the log", log))?,
    );
    command.stdin(Stdio::null()).stdout(out).stderr(err).process_group(0);
    Ok(command)
}

/// Returns the conversion of the error of a start.
pub(crate) fn start_error(command: &Command) -> impl FnOnce(std::io::Error) -> Error + use<> {
    let program = command.get_program().to_string_lossy().into_owned();
    |source| Error::Start { program, source }
}
