//! Runs upstream's test program and parses its report.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command},
};

use serde_json::Value;

use super::list::{Selection, Test};
use crate::{
    control_plane::ControlPlane,
    error::{During, Result, fail},
    file::{create_directory, read},
    run::{log_to, output, program},
};

/// The result of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Passed,
    Failed,
    /// The suite skipped the test, for example because of a missing feature.
    Skipped,
}

#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) state: State,
    pub(super) seconds: f64,
    pub(super) message: String,
}

impl Outcome {
    /// The outcome of a test that the suite did not report, because it has no such test or crashed.
    pub(super) fn missing() -> Self {
        let message = "the suite did not report this test".to_owned();
        Self { state: State::Failed, seconds: 0.0, message }
    }
}

/// A set of tests that may run together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Parallel,
    Serial,
    /// The tests that need nodes, which would attract the Pods of the other tests.
    Nodes,
}

impl Phase {
    fn name(self) -> &'static str {
        match self {
            Self::Parallel => "parallel",
            Self::Serial => "serial",
            Self::Nodes => "nodes",
        }
    }

    /// Returns the flag with the number of nodes. Without it, the suite does not start unless there is a node.
    fn nodes(self) -> &'static str {
        if self == Self::Nodes { "--num-nodes=2" } else { "--num-nodes=0" }
    }
}

/// The outcomes by test name.
pub(super) type Outcomes = HashMap<String, Outcome>;

pub(super) struct Suite {
    program: PathBuf,
    kubectl: String,
}

/// Longer than the timeout of the slowest test.
const TIMEOUT: &str = "--ginkgo.timeout=2h";

impl Suite {
    pub(super) fn new(peer: &Path, kubectl: String) -> Result<Self> {
        let program = peer.join("e2e.test");
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

    /// Returns all tests that the suite marks as conformance tests.
    pub(super) fn conformance_tests(&self, selection: &Selection) -> Result<Vec<Test>> {
        let report = std::env::temp_dir().join(format!("conformance-{}.json", std::process::id()));
        let mut list = program(&self.program, ["--ginkgo.dry-run", "--ginkgo.focus"]);
        list.arg(r"\[Conformance\]").arg(flag("--ginkgo.json-report", &report));
        output(&mut list)?;
        let outcomes = read_report(&report)?;
        let _ = fs::remove_file(&report);
        let mut tests: Vec<Test> = outcomes
            .into_iter()
            .filter(|(_, outcome)| outcome.state == State::Passed)
            .map(|(name, _)| Test { class: String::new(), name })
            .filter(|test| selection.takes(test))
            .collect();
        tests.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(tests)
    }

    /// Runs tests in `jobs` parallel processes.
    pub(super) fn run(
        &self,
        control_plane: &mut ControlPlane,
        tests: &[&Test],
        jobs: usize,
        phase: Phase,
    ) -> Result<Outcomes> {
        let mut running = Vec::new();
        for (number, share) in shares(tests, jobs).into_iter().enumerate() {
            let directory =
                control_plane.directory.join(format!("suite-{}-{number}", phase.name()));
            create_directory(&directory)?;
            running.push((self.start(control_plane, &share, phase, &directory)?, share, directory));
        }
        let mut outcomes = Outcomes::new();
        for (mut child, share, directory) in running {
            // The exit code is nonzero if a test failed, which the report shows in detail.
            child.wait().during("waiting for", "the suite")?;
            match read_report(&directory.join("report.json")) {
                // The report lists the tests of other shares as skipped.
                Ok(report) => {
                    outcomes.extend(report.into_iter().filter(|(name, _)| is_in(&share, name)))
                }
                Err(error) => eprintln!("    no report, see {}: {error}", directory.display()),
            }
        }
        control_plane.check()?;
        Ok(outcomes)
    }

    fn start(
        &self,
        control_plane: &ControlPlane,
        tests: &[&Test],
        phase: Phase,
        directory: &Path,
    ) -> Result<Child> {
        let mut command = Command::new(&self.program);
        command
            .arg(flag("--kubeconfig", &control_plane.kubeconfig()))
            .args(["--provider=skeleton", "--allowed-not-ready-nodes=-1"])
            .args(["--ginkgo.no-color", "--ginkgo.flake-attempts=1", TIMEOUT])
            .args(["--node-os-distro=custom", phase.nodes()])
            .arg(format!("--kubectl-path={}", self.kubectl))
            .arg(flag("--ginkgo.json-report", &directory.join("report.json")))
            .arg(format!("--ginkgo.focus={}", focus(tests)))
            .current_dir(directory);
        log_to(&mut command, &directory.join("output.log"))?;
        command.spawn().during("starting", self.program.display())
    }
}

fn flag(name: &str, path: &Path) -> String {
    format!("{name}={}", path.display())
}

fn is_in(share: &[&Test], name: &str) -> bool {
    share.iter().any(|test| test.name == name)
}

/// Distributes tests round robin, because adjacent tests tend to take the same time.
fn shares<'a>(tests: &[&'a Test], jobs: usize) -> Vec<Vec<&'a Test>> {
    let mut shares = vec![Vec::new(); jobs.min(tests.len())];
    let count = shares.len();
    for (number, test) in tests.iter().enumerate() {
        if let Some(share) = shares.get_mut(number % count) {
            share.push(*test);
        }
    }
    shares
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
    (texts.join(" "), Outcome { state, seconds: nanoseconds / 1e9, message })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test(name: &str) -> Test {
        Test { class: "api".into(), name: name.into() }
    }

    #[test]
    fn distributes_all_tests() {
        let tests = ["a", "b", "c", "d", "e"].map(test);
        let tests: Vec<&Test> = tests.iter().collect();
        let sizes = |jobs| shares(&tests, jobs).iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(sizes(2), [3, 2]);
        assert_eq!(sizes(9), [1, 1, 1, 1, 1]);
        assert!(shares(&[], 4).is_empty());
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
