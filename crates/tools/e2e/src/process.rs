//! Runs programs and waits for conditions.

use std::{
    fmt,
    io::{BufRead, BufReader, Write},
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, sync_channel},
    time::{Duration, Instant},
};

/// The time after which a wait fails. It is long, because the tests also run on slow machines.
const LIMIT: Duration = Duration::from_secs(90);
const PAUSE: Duration = Duration::from_millis(100);

/// The result of a finished program.
#[derive(Clone, Debug)]
pub struct Output {
    /// The command line, for messages.
    pub command: String,
    /// The exit code. `None` if a signal ended the program.
    pub code: Option<i32>,
    /// The standard output.
    pub stdout: String,
    /// The standard error.
    pub stderr: String,
}

impl Output {
    /// Returns the standard output. Panics with the whole output if the program failed.
    #[track_caller]
    pub fn ok(self) -> String {
        assert!(self.code == Some(0), "{self}");
        self.stdout
    }

    /// Returns the standard error. Panics if the program succeeded.
    #[track_caller]
    pub fn refused(self) -> String {
        assert!(self.code.is_some_and(|code| code != 0), "expected a failure of {self}");
        self.stderr
    }

    /// Returns the standard output if the program succeeded and `wanted` accepts it, and else the whole output as
    /// error. Use it with [`until`].
    pub fn ok_if(self, wanted: impl FnOnce(&str) -> bool) -> Result<String, String> {
        if self.code == Some(0) && wanted(&self.stdout) {
            Ok(self.stdout)
        } else {
            Err(self.to_string())
        }
    }
}

impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}\nexit code {:?}\n--- stdout\n{}\n--- stderr\n{}",
            self.command, self.code, self.stdout, self.stderr
        )
    }
}

/// Runs a command to its end, with `input` on its standard input.
#[track_caller]
pub(crate) fn run(mut command: impl std::borrow::BorrowMut<Command>, input: &[u8]) -> Output {
    let command = command.borrow_mut();
    let shown = format!("{command:?}");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|e| panic!("starting {shown}: {e}"));
    let mut stdin = child.stdin.take().expect("a pipe");
    let output = std::thread::scope(|scope| {
        // Ignore the error: a program may end without reading its input.
        scope.spawn(move || drop(stdin.write_all(input)));
        child.wait_with_output().unwrap_or_else(|e| panic!("waiting for {shown}: {e}"))
    });
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Output {
        command: shown,
        code: output.status.code(),
        stdout: text(&output.stdout),
        stderr: text(&output.stderr),
    }
}

/// A program that runs in the background. Dropping it kills the program.
pub struct Background {
    child: Child,
    lines: Receiver<String>,
    /// Lines that no caller has waited for, for messages.
    seen: Vec<String>,
}

impl Background {
    /// Starts the program. [`Background::wait_for_line`] reads its standard output.
    #[track_caller]
    pub fn start(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().unwrap_or_else(|e| panic!("starting {command:?}: {e}"));
        let stdout = child.stdout.take().expect("a pipe");
        let (send, lines) = sync_channel(1024);
        std::thread::spawn(move || {
            let read = BufReader::new(stdout).lines().map_while(Result::ok);
            // Sending fails once the test has ended and dropped the receiver.
            let _ = read.into_iter().try_for_each(|line| send.send(line));
        });
        Self { child, lines, seen: Vec::new() }
    }

    /// Waits for a line that `wanted` accepts.
    #[track_caller]
    pub fn wait_for_line(&mut self, wanted: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + LIMIT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) if wanted(&line) => return line,
                Ok(line) => self.seen.push(line),
                Err(error) => panic!(
                    "the expected line did not come ({error}); the other lines: {:#?}",
                    self.seen
                ),
            }
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Repeats `attempt` until it succeeds. Panics with its last error after 90 seconds.
#[track_caller]
pub fn until<T>(what: &str, attempt: impl FnMut() -> Result<T, String>) -> T {
    until_within(LIMIT, what, attempt)
}

/// Repeats `attempt` until it succeeds, like [`until`], with another limit.
#[track_caller]
pub fn until_within<T>(
    limit: Duration,
    what: &str,
    mut attempt: impl FnMut() -> Result<T, String>,
) -> T {
    let deadline = Instant::now() + limit;
    loop {
        match attempt() {
            Ok(value) => return value,
            Err(last) if Instant::now() > deadline => {
                panic!("waited {limit:?} for {what}; the last error: {last}")
            }
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

/// Returns the pid of a process's parent.
#[track_caller]
pub fn parent(pid: u32) -> u32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .unwrap_or_else(|e| panic!("reading /proc/{pid}/stat: {e}"));
    // The command's name, in parentheses, may contain spaces and parentheses.
    let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1));
    parent
        .and_then(|parent| parent.parse().ok())
        .unwrap_or_else(|| panic!("process {pid} has no parent in {stat:?}"))
}

/// Returns a shell script that prints the page of the test application at an address. It sends HTTP with `nc`, because
/// the wget of Debian's static busybox crashes.
pub fn fetch_script(host: &str, port: &str) -> String {
    format!("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 {host} {port} | grep version")
}
