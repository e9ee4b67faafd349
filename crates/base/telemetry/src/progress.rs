//! Progress of a command on standard error.

use std::{
    fmt::Display,
    future::Future,
    io::{self, IsTerminal, Write},
};

use parking_lot::Mutex;

use crate::timeline::{Recorder, RunningStep, duration_text};

/// Shows the steps of a command while they run, and records them in the timeline.
///
/// On a terminal, the line of a step appears when it starts and is completed when it ends. Otherwise each step is one
/// plain line, written at its end, so that logs stay readable.
pub struct Progress {
    out: Mutex<Box<dyn Write + Send>>,
    interactive: bool,
    recorder: Recorder,
}

impl Progress {
    /// Shows steps on standard error.
    pub fn stderr(recorder: Recorder) -> Self {
        let interactive = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        Self::new(Box::new(io::stderr()), interactive, recorder)
    }

    /// Shows steps on `out`: while they run if it is a terminal (`interactive`), otherwise one line each at their end.
    pub fn new(out: Box<dyn Write + Send>, interactive: bool, recorder: Recorder) -> Self {
        Self { out: Mutex::new(out), interactive, recorder }
    }

    /// Shows nothing, and only records the timeline.
    pub fn silent(recorder: Recorder) -> Self {
        Self::new(Box::new(io::sink()), false, recorder)
    }

    /// Returns the recorder of the timeline.
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Runs `work` as a step. With [`Progress::begin`], a step can record its files, too.
    pub async fn step<T, E: Display>(
        &self,
        name: &str,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let shown = self.begin(name);
        let result = work.await;
        shown.end(result)
    }

    /// Runs `work` as a step that only waits for `what`.
    pub async fn wait<T, E: Display>(
        &self,
        name: &str,
        what: &str,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let mut shown = self.begin(name);
        shown.record().waited_for(what);
        let result = work.await;
        shown.end(result)
    }

    /// Starts a step that the caller ends.
    pub fn begin<'a>(&'a self, name: &'a str) -> ShownStep<'a> {
        if self.interactive {
            self.write(format_args!(" \u{1b}[36m•\u{1b}[0m {name} …"));
        }
        ShownStep { progress: self, name, running: self.recorder.begin(name) }
    }

    /// Writes a separate line between steps.
    pub fn note(&self, text: &str) {
        self.write(format_args!("   {text}\n"));
    }

    /// Writes the line of a step that has ended. `how` is `Err` for a failure, or the reason for skipping it, if any.
    fn ended(&self, name: &str, micros: u64, how: Result<Option<&str>, ()>) {
        let (mark, colour) = if how.is_ok() { ("✓", "32") } else { ("✗", "31") };
        let took = duration_text(micros);
        let note = how.ok().flatten().map(|why| format!("  ({why})")).unwrap_or_default();
        if self.interactive {
            self.write(format_args!(
                "\r\u{1b}[K \u{1b}[{colour}m{mark}\u{1b}[0m {name}  \u{1b}[2m{took}\u{1b}[0m{note}\n"
            ));
        } else {
            self.write(format_args!(" {mark} {name}  {took}{note}\n"));
        }
    }

    /// Errors are ignored, because a closed terminal must not stop the work.
    fn write(&self, text: std::fmt::Arguments<'_>) {
        let mut out = self.out.lock();
        let _ = out.write_fmt(text).and_then(|()| out.flush());
    }
}

/// A step that is being shown.
pub struct ShownStep<'a> {
    progress: &'a Progress,
    name: &'a str,
    running: RunningStep,
}

impl ShownStep<'_> {
    /// Returns the timeline's record of this step.
    pub fn record(&mut self) -> &mut RunningStep {
        &mut self.running
    }

    /// Ends the step. The cause of a failure is only recorded in the timeline; the user sees it once, from the final
    /// error.
    pub fn end<T, E: Display>(self, result: Result<T, E>) -> Result<T, E> {
        let (took, how) = match &result {
            Ok(_) => (self.running.done(), Ok(None)),
            Err(e) => (self.running.failed(e), Err(())),
        };
        self.progress.ended(self.name, took, how);
        result
    }

    /// Like [`ShownStep::end`], for a step that only checks: a failure has changed nothing, and is not recorded.
    pub fn checked<T, E: Display>(self, result: Result<T, E>) -> Result<T, E> {
        if result.is_ok() {
            return self.end(result);
        }
        self.progress.ended(self.name, self.running.forget(), Err(()));
        result
    }

    /// Ends the step as not needed, for the given reason.
    pub fn skipped(self, why: &str) {
        let took = self.running.skipped(why);
        self.progress.ended(self.name, took, Ok(Some(why)));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::timeline::{self, Outcome};

    #[derive(Clone, Default)]
    struct Buffer(Arc<Mutex<Vec<u8>>>);

    impl Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    async fn run(interactive: bool) -> (String, Vec<timeline::Step>) {
        let root = tempfile::tempdir().unwrap();
        let buffer = Buffer::default();
        let progress = Progress::new(
            Box::new(buffer.clone()),
            interactive,
            Recorder::new(root.path(), "init"),
        );
        progress.step("certificates", async { Ok::<_, String>(()) }).await.unwrap();
        progress.begin("etcd").skipped("external");
        let failed =
            progress.step("kubelet", async { Err::<(), _>("no answer\nsee its log") }).await;
        assert_eq!(failed, Err("no answer\nsee its log"));
        let text = String::from_utf8(buffer.0.lock().clone()).unwrap();
        (text, timeline::load(root.path()).unwrap())
    }

    #[tokio::test(flavor = "current_thread")]
    async fn writes_plain_lines_without_terminal() {
        let (text, steps) = run(false).await;
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with(" ✓ certificates  "), "{text}");
        assert!(lines[1].ends_with("(external)"), "{text}");
        assert!(lines[2].starts_with(" ✗ kubelet  ") && lines.len() == 3, "{text}");
        assert!(!text.contains('\u{1b}') && !text.contains('\r'));
        assert_eq!(steps[2].outcome, Outcome::Failed("no answer\nsee its log".to_owned()));
    }

    #[test]
    fn records_no_failed_check() {
        let root = tempfile::tempdir().unwrap();
        let progress = Progress::silent(Recorder::new(root.path(), "init"));
        let _ = progress.begin("preflight").checked(Err::<(), _>("a port is taken"));
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
        progress.begin("preflight").checked(Ok::<_, String>(())).unwrap();
        assert_eq!(timeline::load(root.path()).unwrap().len(), 1);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn shows_start_of_step_on_terminal() {
        let (text, _) = run(true).await;
        assert!(
            text.starts_with(" \u{1b}[36m•\u{1b}[0m certificates …\r\u{1b}[K \u{1b}[32m✓"),
            "{text}"
        );
    }
}
