//! Renders the book's page of the conformance tests that were run.

use std::{collections::BTreeMap, fmt::Write as _};

use super::{
    list::Test,
    suite::{Outcome, Outcomes, State},
};

/// The path below the workspace's root.
pub(super) const PATH: &str = "docs/conformance.md";

const HEAD: &str = "# Conformance tests that were run

`cargo xtask conformance --peer DIR` runs upstream's conformance tests of Kubernetes v1.36 on a cluster of
`windlass up --nodes 3`, and writes this page. `DIR` holds upstream's `e2e.test`, `agnhost` and `sample-apiserver`. The
other images that the tests use are made from Debian's packages (`xtask/facts/conformance-images.tsv`). A `containerd`
in `DIR` replaces the machine's. The nodes pull from Debian's `docker-registry`, which has the same stand-ins.
";

const FOOT: &str = "
The seconds are those of the tests, several of which ran at a time. With `--again` the command keeps earlier results: a
first failure may be that of an earlier binary or image.
";

/// The longest cause on the page, in characters.
const LONGEST: usize = 160;

/// The counts of one group of tests.
#[derive(Default)]
struct Group {
    tests: usize,
    run: usize,
    passed: usize,
    seconds: f64,
}

/// Renders the page. `tests` are all conformance tests of the suite.
pub(super) fn render(tests: &[Test], outcomes: &Outcomes, setting: &str) -> String {
    let mut groups: BTreeMap<&str, Group> = BTreeMap::new();
    let mut all = Group::default();
    for test in tests {
        let outcome = outcomes.get(&test.name);
        count(groups.entry(test.group()).or_default(), outcome);
        count(&mut all, outcome);
    }
    let mut page = format!("{HEAD}\n{setting}\n\n");
    page.push_str("| group | tests | run | passed | seconds |\n|---|---|---|---|---|\n");
    for (name, group) in groups.into_iter().chain([("all", all)]) {
        let Group { tests, run, passed, seconds } = group;
        let _ = writeln!(page, "| {name} | {tests} | {run} | {passed} | {seconds:.0} |");
    }
    page.push_str(FOOT);
    let failed = |outcome: &Outcome| outcome.failure().map(str::to_owned);
    table(&mut page, "Not passed", tests, outcomes, &failed);
    let repeated = |outcome: &Outcome| match outcome.state {
        State::Passed => outcome.first_failure.clone(),
        _ => None,
    };
    table(&mut page, "Passed when they ran again", tests, outcomes, &repeated);
    page
}

fn count(group: &mut Group, outcome: Option<&Outcome>) {
    group.tests += 1;
    let Some(outcome) = outcome else { return };
    group.run += usize::from(outcome.has_run());
    group.passed += usize::from(outcome.state == State::Passed);
    group.seconds += outcome.seconds;
}

/// Adds a table of the tests for which `cause` returns a text.
fn table(
    page: &mut String,
    title: &str,
    tests: &[Test],
    outcomes: &Outcomes,
    cause: &dyn Fn(&Outcome) -> Option<String>,
) {
    let rows: Vec<String> = tests
        .iter()
        .filter_map(|test| {
            let cause = cause(outcomes.get(&test.name)?)?;
            Some(format!("| {} | {} |\n", cell(&test.title()), cell(&shortened(&cause))))
        })
        .collect();
    if !rows.is_empty() {
        let _ = write!(page, "\n## {title}\n\n| test | cause |\n|---|---|\n{}", rows.concat());
    }
}

/// Returns the first lines of a message as one line.
fn shortened(message: &str) -> String {
    let words: Vec<&str> = message.split_whitespace().collect();
    let line = words.join(" ");
    if line.chars().count() <= LONGEST {
        return line;
    }
    line.chars().take(LONGEST - 1).chain(['…']).collect()
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test(name: &str) -> Test {
        Test { class: String::new(), name: name.to_owned() }
    }

    #[test]
    fn counts_by_group_and_names_causes() {
        let tests =
            ["[sig-a] one [Conformance]", "[sig-a] two", "[sig-b] three", "[sig-b] four"].map(test);
        let outcome = |state, message: &str, first_failure: Option<&str>| Outcome {
            seconds: 1.5,
            message: message.to_owned(),
            first_failure: first_failure.map(str::to_owned),
            ..Outcome::new(state)
        };
        let outcomes = Outcomes::from([
            (tests[0].name.clone(), outcome(State::Passed, "", Some("slow"))),
            (tests[1].name.clone(), outcome(State::Failed, "a | b\n\n<c>", None)),
            (tests[2].name.clone(), outcome(State::Skipped, "needs more", None)),
        ]);
        let page = render(&tests, &outcomes, "On two cores.");
        for text in [
            "\nOn two cores.\n",
            "| sig-a | 2 | 2 | 1 | 3 |\n",
            "| sig-b | 2 | 0 | 0 | 2 |\n",
            "| all | 4 | 2 | 1 | 4 |\n",
            "## Not passed\n\n| test | cause |\n|---|---|\n| [sig-a] two | a \\| b &lt;c> |\n| [sig-b] three | needs more |\n",
            "## Passed when they ran again\n\n| test | cause |\n|---|---|\n| [sig-a] one | slow |\n",
        ] {
            assert!(page.contains(text), "{text} in\n{page}");
        }
    }

    #[test]
    fn shortens_long_messages() {
        let long = shortened(&"é ".repeat(1000));
        assert_eq!(long.chars().count(), LONGEST);
        assert!(long.ends_with('…'));
    }
}
