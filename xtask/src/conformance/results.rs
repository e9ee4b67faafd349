//! The results of the tests on the cluster: a file that is written after every batch of tests.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use super::suite::{Outcome, Outcomes, State};
use crate::{error::Result, file};

/// The last outcome of each test that has run, by name.
pub(super) struct Results {
    file: PathBuf,
    /// The container runtime of the nodes on which tests run now.
    runtime: String,
    pub(super) outcomes: Outcomes,
}

impl Results {
    pub(super) fn new(file: &Path, runtime: String) -> Self {
        Self { file: file.to_owned(), runtime, outcomes: Outcomes::new() }
    }

    /// Reads the results of earlier runs.
    pub(super) fn load(file: &Path, runtime: String) -> Result<Self> {
        let value = file::read_json(file)?;
        let tests = value["tests"].as_object().into_iter().flatten();
        let outcomes = tests.map(|(name, test)| (name.clone(), parse(test))).collect();
        Ok(Self { file: file.to_owned(), runtime, outcomes })
    }

    /// Adds outcomes and writes the file. The outcome of a test that runs again keeps the first failure.
    pub(super) fn add(&mut self, outcomes: Outcomes) -> Result<()> {
        for (name, mut outcome) in outcomes {
            outcome.runtime.clone_from(&self.runtime);
            if let Some(earlier) = self.outcomes.get(&name).filter(|earlier| earlier.has_run()) {
                let failure = earlier.first_failure.as_deref().or(earlier.failure());
                outcome.first_failure = failure.map(str::to_owned);
            }
            self.outcomes.insert(name, outcome);
        }
        let tests = self.outcomes.iter().map(|(name, outcome)| (name.clone(), value(outcome)));
        let tests: serde_json::Map<String, Value> = tests.collect();
        file::write(&self.file, format!("{:#}\n", json!({"tests": tests})))
    }

    /// Returns the container runtimes of the nodes, with the number of tests that ran on each.
    pub(super) fn runtimes(&self) -> String {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for outcome in self.outcomes.values().filter(|outcome| outcome.has_run()) {
            *counts.entry(outcome.runtime.as_str()).or_default() += 1;
        }
        let texts = counts.iter().map(|(name, tests)| format!("{name} (tests: {tests})"));
        texts.collect::<Vec<_>>().join(" and ")
    }
}

fn value(outcome: &Outcome) -> Value {
    json!({
        "state": outcome.state.name(),
        "seconds": (outcome.seconds * 1000.0).round() / 1000.0,
        "message": outcome.message,
        "first_failure": outcome.first_failure,
        "runtime": outcome.runtime,
    })
}

fn parse(test: &Value) -> Outcome {
    let state = [State::Passed, State::Skipped];
    let state = state.into_iter().find(|state| test["state"] == state.name());
    Outcome {
        state: state.unwrap_or(State::Failed),
        seconds: test["seconds"].as_f64().unwrap_or_default(),
        message: test["message"].as_str().unwrap_or_default().to_owned(),
        first_failure: test["first_failure"].as_str().map(str::to_owned),
        runtime: test["runtime"].as_str().unwrap_or_default().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_first_failure_of_repeated_tests() {
        let file = std::env::temp_dir().join(format!("results-{}.json", std::process::id()));
        let outcome = |state, message: &str| {
            let message = message.to_owned();
            Outcomes::from([("a".to_owned(), Outcome { message, ..Outcome::new(state) })])
        };
        let mut results = Results::new(&file, "containerd 1.6".to_owned());
        results.add(outcome(State::Failed, "timed out")).unwrap();
        results.add(outcome(State::Passed, "")).unwrap();
        let mut read = Results::load(&file, "containerd 2.3".to_owned()).unwrap();
        assert_eq!(read.outcomes["a"].state, State::Passed);
        assert_eq!(read.outcomes["a"].first_failure.as_deref(), Some("timed out"));
        results.add(outcome(State::Passed, "")).unwrap();
        assert_eq!(results.outcomes["a"].first_failure.as_deref(), Some("timed out"));
        assert_eq!(results.runtimes(), "containerd 1.6 (tests: 1)");
        read.add(Outcomes::from([("b".to_owned(), Outcome::new(State::Passed))])).unwrap();
        assert_eq!(read.runtimes(), "containerd 1.6 (tests: 1) and containerd 2.3 (tests: 1)");
        std::fs::remove_file(&file).unwrap();
    }
}
