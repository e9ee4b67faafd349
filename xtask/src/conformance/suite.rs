//! Runs upstream's test program and parses its report.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use parking_lot::Mutex;
use serde_json::Value;

use super::{
    list::{Selection, Test},
    set::Set,
};
use crate::{
    error::{During, Result, fail},
    file::{create_directory, read},
    run::{join, log_to, output, program},
};

/// The result of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Passed,
    Failed,
    /// The suite skipped the test, for example because of a missing feature.
    Skipped,
}

impl State {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) state: State,
    pub(super) seconds: f64,
    pub(super) message: String,
    /// The message of the first failure, if the test has run again.
    pub(super) first_failure: Option<String>,
    /// The container runtime of the nodes on which the test ran.
    pub(super) runtime: String,
}

impl Outcome {
    pub(super) fn new(state: State) -> Self {
        Self {
            state,
            seconds: 0.0,
            message: String::new(),
            first_failure: None,
            runtime: String::new(),
        }
    }

    /// The outcome of a test that the suite did not report, because it has no such test or crashed.
    fn missing() -> Self {
        let message = "the suite did not report this test".to_owned();
        Self { message, ..Self::new(State::Failed) }
    }

    /// Returns `true` if the test ran, whatever its result.
    pub(super) fn has_run(&self) -> bool {
        self.state != State::Skipped
    }

    /// Returns the message if the test did not pass.
    pub(super) fn failure(&self) -> Option<&str> {
        Some(self.message.as_str()).filter(|_| self.state != State::Passed)
    }
}

/// The cluster or control plane on which tests run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target<'a> {
    /// The directory of the suite's reports and logs.
    pub(super) directory: &'a Path,
    pub(super) kubeconfig: &'a Path,
    /// The network namespace of the cluster, if it has one.
    pub(super) namespace: Option<&'a str>,
    /// The number of nodes that the suite expects. Without a number the suite counts them, and needs at least one.
    pub(super) nodes: Option<usize>,
}

/// The outcomes, sorted by test name.
pub(super) type Outcomes = BTreeMap<String, Outcome>;

/// Returns the outcome of a test, which is a failure if there is none.
pub(super) fn outcome_of(outcomes: &Outcomes, test: &Test) -> Outcome {
    outcomes.get(&test.name).cloned().unwrap_or_else(Outcome::missing)
}

/// The file name of upstream's suite.
pub(super) const PROGRAM: &str = "e2e.test";

pub(super) struct Suite {
    program: PathBuf,
    kubectl: String,
}

/// Longer than the timeout of the slowest test.
const TIMEOUT: &str = "--ginkgo.timeout=2h";

impl Suite {
    pub(super) fn new(peer: &Path, kubectl: String) -> Result<Self> {
        let program = peer.join(PROGRAM);
        if !program.is_file() {
            return fail(format!(
                "{} is missing: --peer needs upstream's suite",
                program.display()
            ));
        }
        Ok(Self { program, kubectl })
    }

    pub(super) fn program(&self) -> &Path {
        &self.program
    }

    /// Returns the selected tests of a set. The suite writes a report to `directory`.
    pub(super) fn tests(
        &self,
        set: Set,
        selection: &Selection,
        directory: &Path,
    ) -> Result<Vec<Test>> {
        let report = directory.join("tests.json");
        // Without a focus the suite leaves out the tests of optional features.
        let mut list = program(&self.program, ["--ginkgo.dry-run", "--ginkgo.focus=."]);
        list.arg(flag("--ginkgo.json-report", &report));
        output(&mut list)?;
        let outcomes = read_report(&report)?;
        let _ = fs::remove_file(&report);
        let tests = outcomes
            .into_iter()
            .filter(|(_, outcome)| outcome.state == State::Passed)
            .map(|(name, _)| Test { class: String::new(), name })
            .filter(|test| set.has(test) && selection.takes(test));
        Ok(tests.collect())
    }

    /// Returns the names of all images that the suite may use.
    pub(super) fn images(&self) -> Result<String> {
        output(&mut program(&self.program, ["--list-images"]))
    }

    /// Runs tests in `jobs` parallel processes. Each process runs a batch of tests, whose outcomes `done` receives.
    pub(super) fn run(
        &self,
        target: Target,
        tests: &[&Test],
        jobs: usize,
        done: &mut (dyn FnMut(Outcomes) -> Result<()> + Send),
    ) -> Result<()> {
        let batches = tests.chunks(batch_size(tests.len(), jobs));
        let (next, done) = (Mutex::new(batches), Mutex::new(done));
        let work = || {
            loop {
                let Some(batch) = next.lock().next() else { return Ok(()) };
                let outcomes = self.run_batch(target, batch)?;
                (done.lock())(outcomes)?;
            }
        };
        thread::scope(|scope| {
            let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
            workers.into_iter().try_for_each(|worker| join(worker)?)
        })
    }

    fn run_batch(&self, target: Target, tests: &[&Test]) -> Result<Outcomes> {
        let directory = new_directory(target.directory)?;
        let mut child = self.start(target, tests, &directory)?;
        // The exit code is nonzero if a test failed, which the report shows in detail.
        child.wait().during("waiting for", "the suite")?;
        let report = read_report(&directory.join("report.json")).unwrap_or_else(|error| {
            eprintln!("    no report, see {}: {error}", directory.display());
            Outcomes::new()
        });
        // The report lists the tests of other batches as skipped.
        Ok(tests.iter().map(|test| (test.name.clone(), outcome_of(&report, test))).collect())
    }

    fn start(&self, target: Target, tests: &[&Test], directory: &Path) -> Result<Child> {
        let mut command = match target.namespace {
            Some(name) => program("nsenter", [format!("--net=/run/netns/{name}")]),
            None => Command::new("env"),
        };
        command
            .arg(&self.program)
            .arg(flag("--kubeconfig", target.kubeconfig))
            .args(["--provider=skeleton", "--allowed-not-ready-nodes=-1"])
            .args(["--ginkgo.no-color", "--ginkgo.flake-attempts=1", TIMEOUT])
            .arg("--node-os-distro=custom")
            .args(target.nodes.map(|nodes| format!("--num-nodes={nodes}")))
            .arg(format!("--kubectl-path={}", self.kubectl))
            .arg(flag("--ginkgo.json-report", &directory.join("report.json")))
            .arg(format!("--ginkgo.focus={}", focus(tests)))
            .current_dir(directory);
        log_to(&mut command, &directory.join("output.log"))?;
        command.spawn().during("starting", self.program.display())
    }
}

/// Creates a directory for one process of the suite.
fn new_directory(parent: &Path) -> Result<PathBuf> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let directory = parent.join(format!("suite-{number}"));
    create_directory(&directory)?;
    Ok(directory)
}

/// The largest number of tests of one process. A larger one would start fewer processes, but delay the results.
const LARGEST_BATCH: usize = 8;

/// Returns the number of tests of one process. Every job gets several batches, because some take far longer.
fn batch_size(tests: usize, jobs: usize) -> usize {
    (tests / (4 * jobs.max(1))).clamp(1, LARGEST_BATCH)
}

fn flag(name: &str, path: &Path) -> String {
    format!("{name}={}", path.display())
}

/// Returns a regular expression that matches these tests, and otherwise only tests whose names end like them. The suite
/// puts its own name before the test's.
fn focus(tests: &[&Test]) -> String {
    let names: Vec<String> = tests.iter().map(|test| quoted(&test.name)).collect();
    format!(" (?:{})$", names.join("|"))
}

fn quoted(text: &str) -> String {
    let special = |c: char| !c.is_alphanumeric() && c != ' ' && c.is_ascii();
    text.chars().flat_map(|c| special(c).then_some('\\').into_iter().chain([c])).collect()
}

fn read_report(path: &Path) -> Result<Outcomes> {
    let text = read(path)?;
    parse_report(&text).during("parsing the report", path.display())
}

/// Parses a report. It names every test of the suite; unselected tests count as skipped, like those that were skipped
/// for a reason.
fn parse_report(text: &str) -> Result<Outcomes, serde_json::Error> {
    let suites: Value = serde_json::from_str(text)?;
    let specs = suites.as_array().into_iter().flatten();
    let specs = specs.flat_map(|suite| suite["SpecReports"].as_array().into_iter().flatten());
    Ok(specs.filter(|spec| spec["LeafNodeType"] == "It").map(outcome).collect())
}

fn outcome(spec: &Value) -> (String, Outcome) {
    let containers = spec["ContainerHierarchyTexts"].as_array().into_iter().flatten();
    let texts: Vec<&str> =
        containers.chain([&spec["LeafNodeText"]]).filter_map(Value::as_str).collect();
    let state = match spec["State"].as_str() {
        Some("passed") => State::Passed,
        Some("skipped" | "pending") => State::Skipped,
        _ => State::Failed,
    };
    let nanoseconds = spec["RunTime"].as_f64().unwrap_or_default();
    let message = spec["Failure"]["Message"].as_str().unwrap_or_default().to_owned();
    let seconds = nanoseconds / 1e9;
    (texts.join(" "), Outcome { seconds, message, ..Outcome::new(state) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test(name: &str) -> Test {
        Test { class: "api".into(), name: name.into() }
    }

    #[test]
    fn gives_every_job_several_batches() {
        assert_eq!(batch_size(446, 4), 8);
        assert_eq!(batch_size(60, 4), 3);
        assert_eq!(batch_size(3, 4), 1);
        assert_eq!(batch_size(0, 4), 1);
    }

    #[test]
    fn quotes_names_in_focus() {
        let wanted = test("[sig-a] reads (all) a.b [Conformance]");
        assert_eq!(focus(&[&wanted]), r" (?:\[sig\-a\] reads \(all\) a\.b \[Conformance\])$");
    }

    #[test]
    fn parses_outcomes_of_report() {
        let spec = |name: &str, state: &str| {
            serde_json::json!({"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-a]", "x"],
                "LeafNodeText": name, "State": state, "RunTime": 1_500_000_000,
                "Failure": {"Message": "why"}})
        };
        let before = serde_json::json!({"LeafNodeType": "BeforeSuite", "State": "passed"});
        let report = serde_json::json!([{"SpecReports": [before, spec("a", "passed"),
            spec("b", "skipped"), spec("c", "failed"), spec("d", "timedout")]}]);
        let outcomes = parse_report(&report.to_string()).unwrap();
        let state = |name: &str| outcomes[&format!("[sig-a] x {name}")].state;
        assert_eq!(outcomes.len(), 4);
        assert_eq!(["a", "b"].map(state), [State::Passed, State::Skipped]);
        assert_eq!(["c", "d"].map(state), [State::Failed, State::Failed]);
        assert!((outcomes["[sig-a] x a"].seconds - 1.5).abs() < f64::EPSILON);
    }
}
