//! Runs the host's programs that mount volumes, such as `mount` for NFS and `iscsiadm`, with a time limit.
//!
//! Secrets are never arguments, because all users of the node see those, and errors repeat them.

use std::{ffi::OsString, path::PathBuf, process::Stdio, time::Duration};

use rt::{Excess, RunError, RunLimits};
use tokio::process::Command;

/// The time after which a program is killed. `mount.nfs` itself tries for two minutes.
const LIMIT: Duration = Duration::from_secs(150);

/// The part of a program's output that is kept, in bytes.
const MAX_OUTPUT: u64 = 16 << 10;

/// The error of a program that mounts volumes.
#[derive(Debug, thiserror::Error)]
pub enum VolumeProgramError {
    #[error("run {program}: {source}; is it installed on the node?")]
    Start { program: String, source: RunError },
    #[error(
        "{command} did not end within {} s and was killed; does the server answer?", limit.as_secs()
    )]
    Slow { command: String, limit: Duration },
    #[error(
        "{program} failed: {status}\n{verb} command: {program}\n{verb} arguments: {arguments}\nOutput: {output}"
    )]
    Failed {
        program: String,
        verb: &'static str,
        status: String,
        code: Option<i32>,
        arguments: String,
        output: String,
    },
}

impl VolumeProgramError {
    /// Returns the exit code of a program that failed.
    pub(crate) fn code(&self) -> Option<i32> {
        match self {
            Self::Failed { code, .. } => *code,
            Self::Start { .. } | Self::Slow { .. } => None,
        }
    }
}

/// The host's programs that mount volumes.
#[derive(Clone, Debug)]
pub struct VolumePrograms {
    /// The search path; `None` for the kubelet's own.
    path: Option<OsString>,
    limit: Duration,
    /// The directory before `/etc/iscsi`, `/var/lib/iscsi` and `/dev/disk/by-path`; only tests have another.
    system: PathBuf,
}

impl Default for VolumePrograms {
    fn default() -> Self {
        Self { path: None, limit: LIMIT, system: PathBuf::from("/") }
    }
}

impl VolumePrograms {
    /// Finds programs in `path`, and kills one that runs for longer than `limit`.
    pub fn new(path: impl Into<OsString>, limit: Duration) -> Self {
        Self { path: Some(path.into()), limit, ..Self::default() }
    }

    #[cfg(test)]
    pub(crate) fn with_system(self, system: PathBuf) -> Self {
        Self { system, ..self }
    }

    /// Returns the directories in which `iscsiadm` may keep records of a kind. Distributions differ.
    pub(crate) fn iscsi_records(&self, kind: &str) -> [PathBuf; 2] {
        ["etc/iscsi", "var/lib/iscsi"].map(|at| self.system.join(at).join(kind))
    }

    /// Returns the directory of links to devices by their paths.
    pub(crate) fn device_links(&self) -> PathBuf {
        self.system.join("dev/disk/by-path")
    }

    /// Runs a program that must succeed and returns its output.
    pub(crate) async fn run(
        &self,
        program: &str,
        arguments: &[&str],
    ) -> Result<String, VolumeProgramError> {
        // `mount` starts `mount.nfs`; both are killed.
        let limits = RunLimits {
            time: self.limit,
            output: MAX_OUTPUT,
            excess: Excess::Discarded,
            kills_children: true,
        };
        let mut command = Command::new(program);
        if let Some(path) = &self.path {
            command.env("PATH", path);
        }
        command.args(arguments).stdin(Stdio::null()).stderr(Stdio::piped());
        let run = limits.run(&mut command, &[]).await.map_err(|source| match source {
            RunError::Timeout(limit) => {
                let command = format!("{program} {}", arguments.join(" "));
                VolumeProgramError::Slow { command, limit }
            }
            source => VolumeProgramError::Start { program: program.to_owned(), source },
        })?;
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let output = text(&run.stdout) + &text(&run.stderr);
        let status = run.status.unwrap_or_default();
        if status.success() {
            return Ok(output);
        }
        Err(VolumeProgramError::Failed {
            program: program.to_owned(),
            verb: if program == "mount" { "Mounting" } else { "Running" },
            code: status.code(),
            status: status.to_string().replace("exit status:", "exit status"),
            arguments: arguments.join(" "),
            output: output.trim().to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn returns_output_or_reports_why_program_failed() {
        let programs = VolumePrograms::new("/usr/bin:/bin", Duration::from_secs(30));
        assert_eq!(programs.run("sh", &["-c", "echo a; echo b >&2"]).await.unwrap(), "a\nb\n");
        let error = programs.run("sh", &["-c", "echo bad >&2; exit 32"]).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "sh failed: exit status 32\nRunning command: sh\nRunning arguments: -c echo bad >&2; exit 32\nOutput: bad"
        );
        let error = programs.run("no-such-program", &[]).await.unwrap_err().to_string();
        assert!(
            error.starts_with("run no-such-program: it cannot be started: No such file"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn kills_program_after_limit() {
        let programs = VolumePrograms::new("/usr/bin:/bin", Duration::from_millis(300));
        let error = programs.run("sleep", &["1000"]).await.unwrap_err().to_string();
        assert!(error.contains("sleep 1000 did not end within 0 s and was killed"), "{error}");
    }
}
