use std::{
    fmt::Display,
    future::Future,
    io::{self, IsTerminal, Write},
    sync::{Mutex, PoisonError},
};

use crate::timeline::{Recorder, Running, spoken};

/// Shows the steps of a command as they happen, and records them in the timeline.
///
/// On a terminal a step's line appears when it begins and is completed when it ends; elsewhere each step is one
/// plain line, written at its end, so that logs stay readable.
pub struct Progress {
    out: Mutex<Box<dyn Write + Send>>,
    interactive: bool,
    recorder: Recorder,
}

impl Progress {
    /// Shows on standard error.
    pub fn stderr(recorder: Recorder) -> Self {
        let interactive = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        Self::new(Box::new(io::stderr()), interactive, recorder)
    }

    /// Shows steps on `out`: as they run where it is a terminal (`interactive`), else each in one line when it ends.
    pub fn new(out: Box<dyn Write + Send>, interactive: bool, recorder: Recorder) -> Self {
        Self { out: Mutex::new(out), interactive, recorder }
    }

    /// Shows nothing; the timeline is still written.
    pub fn silent(recorder: Recorder) -> Self {
        Self::new(Box::new(io::sink()), false, recorder)
    }

    /// Where the steps are recorded beside being shown.
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Runs `work` as a step. `work` may tell what it read and wrote through [`Progress::begin`] instead.
    pub async fn step<T, E: Display>(
        &self,
        name: &str,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let shown = self.begin(name);
        let result = work.await;
        shown.end(result)
    }

    /// Runs `work` as a step that does nothing but wait for `what`.
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

    /// Begins a step whose end the caller tells.
    pub fn begin<'a>(&'a self, name: &'a str) -> Shown<'a> {
        if self.interactive {
            self.write(format_args!(" \u{1b}[36m•\u{1b}[0m {name} …"));
        }
        Shown { progress: self, name, running: self.recorder.begin(name) }
    }

    /// A line of its own, between steps.
    pub fn note(&self, text: &str) {
        self.write(format_args!("   {text}\n"));
    }

    /// The line of a step that has ended well, with why it did nothing if it did, or badly.
    fn ended(&self, name: &str, micros: u64, how: Result<Option<&str>, ()>) {
        let (mark, colour) = if how.is_ok() { ("✓", "32") } else { ("✗", "31") };
        let took = spoken(micros);
        let note = how.ok().flatten().map(|why| format!("  ({why})")).unwrap_or_default();
        if self.interactive {
            self.write(format_args!("\r\u{1b}[K \u{1b}[{colour}m{mark}\u{1b}[0m {name}  \u{1b}[2m{took}\u{1b}[0m{note}\n"));
        } else {
            self.write(format_args!(" {mark} {name}  {took}{note}\n"));
        }
    }

    /// A terminal that is gone must not stop the work.
    fn write(&self, text: std::fmt::Arguments<'_>) {
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = out.write_fmt(text).and_then(|()| out.flush());
    }
}

/// A step that is shown.
pub struct Shown<'a> {
    progress: &'a Progress,
    name: &'a str,
    running: Running,
}

impl Shown<'_> {
    /// What the timeline records of this step.
    pub fn record(&mut self) -> &mut Running {
        &mut self.running
    }

    /// A failure's cause goes into the timeline; to the user it is told once, by who gets the error in the end.
    pub fn end<T, E: Display>(self, result: Result<T, E>) -> Result<T, E> {
        let (took, how) = match &result {
            Ok(_) => (self.running.done(), Ok(None)),
            Err(e) => (self.running.failed(e), Err(())),
        };
        self.progress.ended(self.name, took, how);
        result
    }

    /// As [`Shown::end`] for a step that only looks: a failure has changed nothing, and leaves no record either.
    pub fn checked<T, E: Display>(self, result: Result<T, E>) -> Result<T, E> {
        if result.is_ok() {
            return self.end(result);
        }
        self.progress.ended(self.name, self.running.forget(), Err(()));
        result
    }

    /// Ends the step as one that was not needed, and says why.
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
            self.0.lock().unwrap().extend_from_slice(bytes);
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
        let text = String::from_utf8(buffer.0.lock().unwrap().clone()).unwrap();
        (text, timeline::load(root.path()).unwrap())
    }

    #[tokio::test(flavor = "current_thread")]
    async fn plain_lines_where_there_is_no_terminal() {
        let (text, steps) = run(false).await;
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with(" ✓ certificates  "), "{text}");
        assert!(lines[1].ends_with("(external)"), "{text}");
        assert!(lines[2].starts_with(" ✗ kubelet  ") && lines.len() == 3, "{text}");
        assert!(!text.contains('\u{1b}') && !text.contains('\r'));
        assert_eq!(steps[2].outcome, Outcome::Failed("no answer\nsee its log".to_owned()));
    }

    #[test]
    fn a_check_that_fails_leaves_nothing() {
        let root = tempfile::tempdir().unwrap();
        let progress = Progress::silent(Recorder::new(root.path(), "init"));
        let _ = progress.begin("preflight").checked(Err::<(), _>("a port is taken"));
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
        progress.begin("preflight").checked(Ok::<_, String>(())).unwrap();
        assert_eq!(timeline::load(root.path()).unwrap().len(), 1);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_terminal_sees_the_step_begin() {
        let (text, _) = run(true).await;
        assert!(
            text.starts_with(" \u{1b}[36m•\u{1b}[0m certificates …\r\u{1b}[K \u{1b}[32m✓"),
            "{text}"
        );
    }
}
