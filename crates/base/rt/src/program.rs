//! Runs a program to its end, with limits of time and output.

use std::{
    io,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _},
    process::{Child, Command},
};

/// The treatment of output beyond the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Excess {
    /// The program is killed, and its run fails.
    Rejected,
    /// The program is killed, and its output until then is returned.
    Cut,
    /// The program runs on, and further output is discarded.
    Discarded,
}

/// The limits of a program's run.
#[derive(Clone, Copy, Debug)]
pub struct RunLimits {
    /// The time after which the program is killed.
    pub time: Duration,
    /// The limit of its standard output, and of its standard error if that is piped, in bytes.
    pub output: u64,
    /// The treatment of standard output beyond the limit. Standard error beyond it is discarded.
    pub excess: Excess,
    /// `true` if the program's children are killed with it. The program then cannot read from a terminal.
    pub kills_children: bool,
}

/// The result of a program that was run.
#[derive(Debug)]
pub struct RunOutput {
    /// The exit status; `None` if the program was killed because of its output.
    pub status: Option<ExitStatus>,
    /// The standard output.
    pub stdout: Vec<u8>,
    /// The standard error, if it was piped.
    pub stderr: Vec<u8>,
}

/// The error of a program that could not be run to its end.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("it cannot be started: {0}")]
    Start(io::Error),
    #[error("its output cannot be read: {0}")]
    Read(io::Error),
    #[error("it did not end within {}s and was killed", .0.as_secs())]
    Timeout(Duration),
    #[error("it printed more than {0} bytes and was killed")]
    TooLarge(u64),
}

/// A running program. Dropping it kills the program, and its children if they are one process group.
struct Running {
    child: Child,
    group: Option<rustix::process::Pid>,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(group) = self.group {
            // The group is gone if the program has ended and left no children.
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
    }
}

impl RunLimits {
    /// Runs the program and returns its output. Sets its standard output, and its standard input if there is `input`.
    ///
    /// # Errors
    ///
    /// Returns an error if the program cannot be started or exceeds a limit. A nonzero exit code is not an error.
    pub async fn run(self, command: &mut Command, input: &[u8]) -> Result<RunOutput, RunError> {
        if !input.is_empty() {
            command.stdin(Stdio::piped());
        }
        if self.kills_children {
            command.process_group(0);
        }
        let child =
            command.stdout(Stdio::piped()).kill_on_drop(true).spawn().map_err(RunError::Start)?;
        let group = child
            .id()
            .filter(|_| self.kills_children)
            .and_then(|id| i32::try_from(id).ok().and_then(rustix::process::Pid::from_raw));
        let mut running = Running { child, group };
        let output = tokio::time::timeout(self.time, self.output(&mut running, input)).await;
        output.map_err(|_| RunError::Timeout(self.time))?
    }

    async fn output(self, running: &mut Running, input: &[u8]) -> Result<RunOutput, RunError> {
        let child = &mut running.child;
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let write = async {
            // A program that ends without reading its input reports the reason itself.
            if let Some(mut stdin) = stdin {
                let _ = stdin.write_all(input).await;
            }
            Ok::<_, Stop>(())
        };
        let print = async {
            let printed = read(stdout, self.output, self.excess == Excess::Discarded).await?;
            match self.excess {
                Excess::Rejected if printed.is_cut => {
                    Err(Stop::Failed(RunError::TooLarge(self.output)))
                }
                Excess::Cut if printed.is_cut => Err(Stop::Cut(printed.bytes)),
                _ => Ok(printed.bytes),
            }
        };
        let complain = async { Ok::<_, Stop>(read(stderr, self.output, true).await?.bytes) };
        let (stdout, stderr) = match tokio::try_join!(write, print, complain) {
            Ok(((), stdout, stderr)) => (stdout, stderr),
            Err(Stop::Cut(stdout)) => {
                return Ok(RunOutput { status: None, stdout, stderr: Vec::new() });
            }
            Err(Stop::Failed(error)) => return Err(error),
        };
        let status = running.child.wait().await.map_err(RunError::Read)?;
        // The process ID may belong to another process from now on.
        running.group = None;
        Ok(RunOutput { status: Some(status), stdout, stderr })
    }
}

/// The reason why a program's output is not read to its end.
enum Stop {
    Cut(Vec<u8>),
    Failed(RunError),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Failed(RunError::Read(error))
    }
}

/// The first part of a program's output.
struct Printed {
    bytes: Vec<u8>,
    /// `true` if there was more.
    is_cut: bool,
}

/// Reads at most `limit` bytes, and the rest only to discard it.
async fn read(
    pipe: Option<impl AsyncRead + Unpin>,
    limit: u64,
    discards: bool,
) -> io::Result<Printed> {
    let mut bytes = Vec::new();
    let Some(mut pipe) = pipe else { return Ok(Printed { bytes, is_cut: false }) };
    (&mut pipe).take(limit.saturating_add(1)).read_to_end(&mut bytes).await?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let is_cut = bytes.len() > limit;
    bytes.truncate(limit);
    if discards {
        tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await?;
    }
    Ok(Printed { bytes, is_cut })
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn limits(time: Duration, output: u64, excess: Excess) -> RunLimits {
        RunLimits { time, output, excess, kills_children: true }
    }

    async fn run(limits: RunLimits, script: &str, input: &[u8]) -> Result<RunOutput, RunError> {
        limits.run(Command::new("sh").args(["-c", script]).stderr(Stdio::piped()), input).await
    }

    const LONG: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn returns_output_status_and_start_error() {
        let limits = limits(LONG, 100, Excess::Rejected);
        let output = run(limits, "cat; echo bad >&2; exit 3", b"in").await.unwrap();
        assert_eq!(output.status.unwrap().code(), Some(3));
        assert_eq!((output.stdout, output.stderr), (b"in".to_vec(), b"bad\n".to_vec()));
        // A program that does not read its input is no error.
        assert!(run(limits, "exit 0", &[b'x'; 1 << 20]).await.is_ok());
        let missing = limits.run(&mut Command::new("/no/such/program"), &[]).await;
        assert!(matches!(missing, Err(RunError::Start(_))));
    }

    #[tokio::test]
    async fn rejects_cuts_or_discards_output_beyond_the_limit() {
        let script = "printf 0123456789; exit 0";
        let of = |output, excess| run(limits(LONG, output, excess), script, &[]);
        assert!(matches!(of(9, Excess::Rejected).await, Err(RunError::TooLarge(9))));
        let cut = of(4, Excess::Cut).await.unwrap();
        assert_eq!((cut.status, cut.stdout), (None, b"0123".to_vec()));
        let discarded = run(
            limits(LONG, 4, Excess::Discarded),
            "head -c 1000000 /dev/zero; head -c 1000000 /dev/zero >&2",
            &[],
        );
        let discarded = discarded.await.unwrap();
        assert!(discarded.status.unwrap().success());
        assert_eq!((discarded.stdout, discarded.stderr), (vec![0; 4], vec![0; 4]));
        assert_eq!(of(10, Excess::Rejected).await.unwrap().stdout, b"0123456789");
    }

    #[tokio::test]
    async fn kills_program_and_its_children_after_the_time() {
        let dir = std::env::temp_dir().join(format!("windlass-run-{}", std::process::id()));
        // The child holds the pipes, and the endless output fills them.
        let script =
            format!("sleep 1000 & echo $! > {}; while :; do echo full; done", dir.display());
        let begin = Instant::now();
        let time = Duration::from_millis(700);
        let error = run(limits(time, 100, Excess::Discarded), &script, &[]).await.unwrap_err();
        assert!(matches!(error, RunError::Timeout(_)), "{error}");
        assert!(begin.elapsed() < Duration::from_secs(20));
        let child = std::fs::read_to_string(&dir).unwrap();
        std::fs::remove_file(dir).unwrap();
        let state = format!("/proc/{}/stat", child.trim());
        // A killed child may wait for its new parent to collect it.
        let is_gone = || std::fs::read_to_string(&state).map_or(true, |stat| stat.contains(") Z "));
        assert!(
            crate::wait_until(Duration::from_secs(20), Duration::from_millis(10), is_gone).await
        );
    }
}
