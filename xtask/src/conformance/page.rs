//! Renders the book's pages of upstream's tests that were run.

use std::{collections::BTreeMap, fmt::Write as _};

use super::{
    list::Test,
    set::Set,
    suite::{Outcome, Outcomes, State},
};
use crate::error::{Result, fail};

/// The causes of failures that were examined.
const CAUSES: &str = include_str!("../../facts/conformance-causes.tsv");

const CONFORMANCE: &str = "# Conformance tests that were run

`cargo xtask conformance --peer DIR` runs upstream's conformance tests of Kubernetes v1.36 on a cluster of
`windlass up --nodes 3`, and writes this page. `DIR` holds upstream's `e2e.test`, `agnhost` and `sample-apiserver`. The
other images that the tests use are made from Debian's packages (`xtask/facts/conformance-images.tsv`). A `containerd`
in `DIR` replaces the machine's. The nodes pull from Debian's `docker-registry`, which has the same stand-ins.

`WINDLASS_PEER=DIR cargo xtask test` runs 60 of them (`xtask/facts/conformance-sample.tsv`). Upstream's other tests are
on [a page of their own](beyond.md).
";

const BEYOND: &str = "# Upstream's other tests that were run

`cargo xtask conformance --beyond --peer DIR` runs upstream's tests that are not [conformance tests](conformance.md), on
the same cluster and with the same images, and writes this page. If `DIR` has the drivers and sidecars of CSI and
upstream's `resource-consumer`, the tests that use them run too. Left out are tests that need a cloud, an alpha feature
or a storage server, and those that upstream marks as disruptive or flaky (`xtask/src/conformance/set.rs`).
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

/// An examined cause of failures.
struct Cause<'a> {
    /// A part of the tests' names.
    part: &'a str,
    /// The part of the setting that must change for the tests to pass.
    owner: &'a str,
    text: &'a str,
}

/// Renders the page of a set of tests. `tests` are all tests in it.
pub(super) fn render(
    set: Set,
    tests: &[Test],
    outcomes: &Outcomes,
    setting: &str,
) -> Result<String> {
    let causes = causes(CAUSES)?;
    let mut groups: BTreeMap<&str, Group> = BTreeMap::new();
    let mut all = Group::default();
    for test in tests {
        let outcome = outcomes.get(&test.name);
        count(groups.entry(test.group()).or_default(), outcome);
        count(&mut all, outcome);
    }
    let head = match set {
        Set::Conformance => CONFORMANCE,
        Set::Beyond => BEYOND,
    };
    let mut page = format!("{head}\n{setting}\n\n");
    page.push_str("| group | tests | run | passed | seconds |\n|---|---|---|---|---|\n");
    for (name, group) in groups.into_iter().chain([("all", all)]) {
        let Group { tests, run, passed, seconds } = group;
        let _ = writeln!(page, "| {name} | {tests} | {run} | {passed} | {seconds:.0} |");
    }
    page.push_str(FOOT);
    let failed = tests.iter().filter_map(|test| {
        let outcome = outcomes.get(&test.name).filter(|outcome| outcome.has_run())?;
        let message = outcome.failure()?;
        let known = causes.iter().find(|cause| test.name.contains(cause.part));
        let (owner, text) =
            known.map_or(("not examined", message), |cause| (cause.owner, cause.text));
        Some([test.title(), owner.to_owned(), shortened(text)])
    });
    table(&mut page, "Failed", ["test", "whose", "cause"], failed);
    let repeated = tests.iter().filter_map(|test| {
        let outcome = outcomes.get(&test.name).filter(|outcome| outcome.state == State::Passed)?;
        Some([test.title(), shortened(outcome.first_failure.as_deref()?)])
    });
    table(&mut page, "Passed when they ran again", ["test", "cause"], repeated);
    let mut skipped: BTreeMap<String, usize> = BTreeMap::new();
    for outcome in tests.iter().filter_map(|test| outcomes.get(&test.name)) {
        if !outcome.has_run() {
            *skipped.entry(shortened(&outcome.message)).or_default() += 1;
        }
    }
    let skipped = skipped.into_iter().map(|(message, tests)| [message, tests.to_string()]);
    table(&mut page, "Skipped by the suite", ["reason", "tests"], skipped);
    Ok(page)
}

/// Parses the table of causes.
fn causes(table: &str) -> Result<Vec<Cause<'_>>> {
    let lines = table.lines().filter(|line| !line.starts_with('#'));
    let parsed = lines.map(|line| match line.split('\t').collect::<Vec<_>>()[..] {
        [part, owner, text] => Ok(Cause { part, owner, text }),
        _ => fail(format!("this line of the causes' table has not three columns: {line}")),
    });
    parsed.collect()
}

fn count(group: &mut Group, outcome: Option<&Outcome>) {
    group.tests += 1;
    let Some(outcome) = outcome else { return };
    group.run += usize::from(outcome.has_run());
    group.passed += usize::from(outcome.state == State::Passed);
    group.seconds += outcome.seconds;
}

/// Adds a table, unless it has no rows.
fn table<const COLUMNS: usize>(
    page: &mut String,
    title: &str,
    head: [&str; COLUMNS],
    rows: impl Iterator<Item = [String; COLUMNS]>,
) {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let rows: String = rows.map(|row| line(&row.map(|text| cell(&text)))).collect();
    if !rows.is_empty() {
        let (head, rule) = (line(&head.map(str::to_owned)), "---|".repeat(COLUMNS));
        let _ = write!(page, "\n## {title}\n\n{head}|{rule}\n{rows}");
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
        let page = render(Set::Beyond, &tests, &outcomes, "On two cores.").unwrap();
        for text in [
            "\nOn two cores.\n",
            "| sig-a | 2 | 2 | 1 | 3 |\n",
            "| sig-b | 2 | 0 | 0 | 2 |\n",
            "| all | 4 | 2 | 1 | 4 |\n",
            "## Failed\n\n| test | whose | cause |\n|---|---|---|\n| [sig-a] two | not examined | a \\| b &lt;c> |\n",
            "## Passed when they ran again\n\n| test | cause |\n|---|---|\n| [sig-a] one | slow |\n",
            "## Skipped by the suite\n\n| reason | tests |\n|---|---|\n| needs more | 1 |\n",
        ] {
            assert!(page.contains(text), "{text} in\n{page}");
        }
    }

    #[test]
    fn causes_name_tests_and_owners() {
        for Cause { part, owner, text } in causes(CAUSES).unwrap() {
            let owners = ["the images", "the setting", "upstream's test", "Windlass"];
            assert!(owners.contains(&owner), "{part}: {owner}");
            assert!(!text.is_empty() && part.len() > 10, "{part}");
        }
        assert!(causes("a\tb").is_err());
    }

    #[test]
    fn shortens_long_messages() {
        let long = shortened(&"é ".repeat(1000));
        assert_eq!(long.chars().count(), LONGEST);
        assert!(long.ends_with('…'));
    }
}
