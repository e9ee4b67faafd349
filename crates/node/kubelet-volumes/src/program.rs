//! Runs the host's programs that mount volumes, such as `mount` for NFS and `iscsiadm`, with a time limit.
//!
//! Secrets are never arguments, because all users of the node see those, and errors repeat them.

use std::{ffi::OsString, path::PathBuf, process::Stdio, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    process::{Child, Command},
};

/// The time after which a program is killed. `mount.nfs` itself tries for two minutes.
const LIMIT: Duration = Duration::from_secs(150);

/// The part of a program's output that is kept, in bytes.
const MAX_OUTPUT: u64 = 16 << 10;

/// The error of a program that mounts volumes.
#[derive(Debug, thiserror::Error)]
pub enum VolumeProgramError {
    #[error("run {program}: {source}; install it on the node")]
    Start { program: String, source: std::io::Error },
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
        let failed = |source| VolumeProgramError::Start { program: program.to_owned(), source };
        let mut command = Command::new(program);
        if let Some(path) = &self.path {
            command.env("PATH", path);
        }
        // `mount` starts `mount.nfs`; both are killed as one group.
        let mut child = command
            .args(arguments)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let group = child.id();
        let Ok(output) = tokio::time::timeout(self.limit, output(&mut child)).await else {
            if let Some(group) = group.and_then(|id| i32::try_from(id).ok()) {
                sys::process::kill_group(group);
            }
            let command = format!("{program} {}", arguments.join(" "));
            return Err(VolumeProgramError::Slow { command, limit: self.limit });
        };
        let (status, output) = output.map_err(failed)?;
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

/// Waits for a program's end and returns what it wrote.
async fn output(child: &mut Child) -> std::io::Result<(std::process::ExitStatus, String)> {
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (stdout, stderr, status) = tokio::join!(read(stdout), read(stderr), child.wait());
    let text = stdout? + &stderr?;
    Ok((status?, text))
}

/// Reads the first part of a program's output. A program that writes more than that is stopped by the time limit.
async fn read(pipe: Option<impl AsyncRead + Unpin>) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        pipe.take(MAX_OUTPUT).read_to_end(&mut bytes).await?;
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

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
        assert!(error.starts_with("run no-such-program: No such file"), "{error}");
    }

    #[tokio::test]
    async fn kills_program_and_its_children_after_limit() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        // The child holds the pipes, and the endless output fills them.
        let script =
            format!("sleep 1000 & echo $! > {}; while :; do echo full; done", file.display());
        let programs = VolumePrograms::new("/usr/bin:/bin", Duration::from_millis(700));
        let start = Instant::now();
        let error = programs.run("sh", &["-c", &script]).await.unwrap_err().to_string();
        assert!(error.contains("did not end within 0 s and was killed"), "{error}");
        assert!(start.elapsed() < Duration::from_secs(20));
        let child: i32 = std::fs::read_to_string(file).unwrap().trim().parse().unwrap();
        let gone = async {
            while sys::process::start_time(child).is_some() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), gone).await.expect("the child is killed too");
    }
}
