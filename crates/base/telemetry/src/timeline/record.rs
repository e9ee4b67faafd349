//! Recording of steps in the timeline.

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Instant, SystemTime},
};

use parking_lot::Mutex;

use super::step::{Outcome, Step};

/// The size in bytes at which a component's file is rotated. Only one rotated file is kept.
const LIMIT: u64 = 1 << 20;
/// The maximum number of files or waits of a step. More would not help a reader.
const MANY: usize = 64;
const LONG: usize = 2_000;

/// Returns the directory of the timeline files under a cluster's root.
pub fn directory(root: &Path) -> PathBuf {
    root.join("timeline")
}

/// Appends the steps of one component. Clones share the file. The default records nothing.
#[derive(Clone, Debug, Default)]
pub struct Recorder(Option<Arc<Sink>>);

#[derive(Debug)]
struct Sink {
    component: String,
    path: PathBuf,
    limit: u64,
    /// `true` after a failed write, so that the failure is logged once.
    broken: Mutex<bool>,
}

impl Recorder {
    /// Records to `<root>/timeline`. If the directory cannot be created, this is logged at the end of a step.
    pub fn new(root: &Path, component: &str) -> Self {
        Self::bounded(root, component, LIMIT)
    }

    /// Records nothing.
    pub fn none() -> Self {
        Self::default()
    }

    pub(super) fn bounded(root: &Path, component: &str, limit: u64) -> Self {
        let path = directory(root).join(format!("{component}.jsonl"));
        Self(Some(Arc::new(Sink {
            component: component.to_owned(),
            path,
            limit,
            broken: Mutex::new(false),
        })))
    }

    /// Starts a step. It is recorded when it ends; dropping it counts as a failure.
    pub fn begin(&self, step: impl Into<String>) -> RunningStep {
        RunningStep {
            recorder: self.clone(),
            at: Instant::now(),
            ended: false,
            step: Step {
                component: self.0.as_ref().map(|s| s.component.clone()).unwrap_or_default(),
                step: step.into(),
                start: rt::now()
                    .duration_since(SystemTime::UNIX_EPOCH)
                    .map(|d| d.as_micros() as u64)
                    .unwrap_or_default(),
                duration: 0,
                waited_for: Vec::new(),
                read: Vec::new(),
                written: Vec::new(),
                outcome: Outcome::Done,
            },
        }
    }

    /// Appends a step that was measured elsewhere.
    pub fn record(&self, step: &Step) {
        let Some(sink) = &self.0 else { return };
        let mut broken = sink.broken.lock();
        match sink.append(step) {
            Ok(()) => *broken = false,
            Err(e) if !*broken => {
                *broken = true;
                tracing::warn!(
                    path = %sink.path.display(),
                    error = %e,
                    "failed to write the bootstrap timeline; steps are not recorded"
                );
            }
            Err(_) => {}
        }
    }
}

impl Sink {
    fn append(&self, step: &Step) -> io::Result<()> {
        let mut line = serde_json::to_vec(step)?;
        line.push(b'\n');
        if fs::metadata(&self.path).is_ok_and(|m| m.len() + line.len() as u64 > self.limit) {
            fs::rename(&self.path, self.path.with_extension("jsonl.1"))?;
        }
        let open = || fs::OpenOptions::new().create(true).append(true).mode(0o644).open(&self.path);
        let mut file = match open() {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(self.path.parent().unwrap_or(Path::new(".")))?;
                open()?
            }
            other => other?,
        };
        // A single write call, so that lines of several processes are not mixed.
        file.write_all(&line)
    }
}

/// A running step. Dropping it without ending it records a failure.
#[derive(Debug)]
pub struct RunningStep {
    recorder: Recorder,
    at: Instant,
    step: Step,
    ended: bool,
}

impl RunningStep {
    /// Records what the step waited for.
    pub fn waited_for(&mut self, what: impl Into<String>) -> &mut Self {
        push(&mut self.step.waited_for, what.into());
        self
    }

    /// Records a file that the step read.
    pub fn read(&mut self, path: impl Into<PathBuf>) -> &mut Self {
        push(&mut self.step.read, path.into());
        self
    }

    /// Records a file that the step wrote.
    pub fn written(&mut self, path: impl Into<PathBuf>) -> &mut Self {
        push(&mut self.step.written, path.into());
        self
    }

    /// Ends the step successfully and returns its duration in microseconds.
    pub fn done(self) -> u64 {
        self.end(Outcome::Done)
    }

    /// Ends the step as not needed.
    pub fn skipped(self, why: impl Into<String>) -> u64 {
        self.end(Outcome::Skipped(why.into()))
    }

    /// Ends the step with the cause of its failure, cut to a readable length.
    pub fn failed(self, cause: impl std::fmt::Display) -> u64 {
        self.end(Outcome::Failed(cause.to_string().chars().take(LONG).collect()))
    }

    /// Ends the step without recording it, and returns the duration in microseconds.
    pub fn forget(mut self) -> u64 {
        self.ended = true;
        self.at.elapsed().as_micros() as u64
    }

    /// Records the end and returns the duration in microseconds.
    fn end(mut self, outcome: Outcome) -> u64 {
        self.finish(outcome);
        self.step.duration
    }

    fn finish(&mut self, outcome: Outcome) {
        self.ended = true;
        self.step.outcome = outcome;
        self.step.duration = self.at.elapsed().as_micros() as u64;
        self.recorder.record(&self.step);
    }
}

impl Drop for RunningStep {
    fn drop(&mut self) {
        if !self.ended {
            self.finish(Outcome::Failed("interrupted before its end".to_owned()));
        }
    }
}

fn push<T>(list: &mut Vec<T>, item: T) {
    if list.len() < MANY {
        list.push(item);
    }
}
