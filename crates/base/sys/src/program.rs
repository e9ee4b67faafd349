//! Runs programs to completion, such as mkfs.

use std::{
    io::{self, Write},
    process::{Command, Stdio},
};

use parking_lot::Mutex;

/// The error of a program that could not be run or that failed.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    #[error("running `{command}`: {source}")]
    Start { command: String, source: io::Error },
    #[error("`{command}` failed ({status}): {message}")]
    Failed { command: String, status: String, message: String },
}

/// The result of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgramOutput {
    /// The exit code; `None` if a signal killed the program.
    pub code: Option<i32>,
    /// The standard output.
    pub stdout: String,
    /// The standard error.
    pub stderr: String,
}

/// The programs of the machine, or a fake that records the commands.
pub trait Programs: Send + Sync {
    /// Runs a program to completion, whatever its exit code.
    fn run(&self, command: &[&str], stdin: &[u8]) -> Result<ProgramOutput, ProgramError>;

    /// Runs a program that must succeed and returns its standard output.
    fn must(&self, command: &[&str]) -> Result<String, ProgramError> {
        let output = self.run(command, &[])?;
        if output.code == Some(0) {
            return Ok(output.stdout);
        }
        let status =
            output.code.map_or("ended by a signal".to_owned(), |code| format!("exit {code}"));
        let message = if output.stderr.trim().is_empty() { output.stdout } else { output.stderr };
        Err(ProgramError::Failed {
            command: command.join(" "),
            status,
            message: message.trim().to_owned(),
        })
    }
}

/// The real programs of the machine.
pub struct HostPrograms;

impl Programs for HostPrograms {
    fn run(&self, command: &[&str], stdin: &[u8]) -> Result<ProgramOutput, ProgramError> {
        let failed = |source| ProgramError::Start { command: command.join(" "), source };
        let (name, arguments) =
            command.split_first().ok_or_else(|| failed(io::ErrorKind::InvalidInput.into()))?;
        let mut process = Command::new(name);
        if std::env::var_os("PATH").is_none() {
            // The first process has no environment, and the default search path lacks the sbin directories.
            process.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        }
        let mut process = process
            .args(arguments)
            .stdin(if stdin.is_empty() { Stdio::null() } else { Stdio::piped() })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        if let Some(mut pipe) = process.stdin.take() {
            // A program that exits without reading its input reports the reason itself.
            let _ = pipe.write_all(stdin);
        }
        let output = process.wait_with_output().map_err(failed)?;
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        Ok(ProgramOutput {
            code: output.status.code(),
            stdout: text(&output.stdout),
            stderr: text(&output.stderr),
        })
    }
}

type OutputFn = Box<dyn Fn(&str) -> ProgramOutput + Send + Sync>;

/// A fake that records the commands and answers them with a function.
pub struct RecordedPrograms {
    calls: Mutex<Vec<String>>,
    output_of: OutputFn,
}

impl RecordedPrograms {
    /// Creates a fake. `output_of` returns the output for a command line.
    pub fn new(output_of: impl Fn(&str) -> ProgramOutput + Send + Sync + 'static) -> Self {
        Self { calls: Mutex::default(), output_of: Box::new(output_of) }
    }

    /// Returns the commands so far.
    pub fn calls(&self) -> Vec<String> {
        self.calls.lock().clone()
    }
}

impl Programs for RecordedPrograms {
    fn run(&self, command: &[&str], _stdin: &[u8]) -> Result<ProgramOutput, ProgramError> {
        let command = command.join(" ");
        let output = (self.output_of)(&command);
        self.calls.lock().push(command);
        Ok(output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_stderr_of_failed_program() {
        let error = HostPrograms.must(&["sh", "-c", "echo why >&2; exit 3"]).unwrap_err();
        assert_eq!(error.to_string(), "`sh -c echo why >&2; exit 3` failed (exit 3): why");
        assert_eq!(HostPrograms.run(&["cat"], b"in").unwrap().stdout, "in");
        assert!(HostPrograms.must(&["no-such-program"]).is_err());
    }
}
