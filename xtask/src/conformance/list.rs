//! Selects the tests to run.

use std::path::Path;

use crate::{
    error::{Result, fail},
    file,
};

/// A test of the suite, by its full name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Test {
    pub(super) class: String,
    pub(super) name: String,
}

impl Test {
    pub(super) fn is_serial(&self) -> bool {
        self.name.contains("[Serial]")
    }

    /// Returns the group that owns the test, such as `sig-node`.
    pub(super) fn group(&self) -> &str {
        let group = self.name.strip_prefix('[').and_then(|rest| rest.split_once(']'));
        group.map_or("", |(group, _)| group)
    }

    /// Returns the name without labels such as `[Conformance]`, but for the group.
    pub(super) fn title(&self) -> String {
        let is_label = |(index, word): &(usize, &str)| *index > 0 && word.starts_with('[');
        let words = self.name.split(' ').enumerate().filter(|word| !is_label(word));
        words.map(|(_, word)| word).collect::<Vec<_>>().join(" ")
    }

    pub(super) fn wants_nodes(&self) -> bool {
        self.class == "api+node"
    }
}

/// The selection of tests. An empty list selects everything.
#[derive(Debug, Default)]
pub(super) struct Selection {
    pub(super) classes: Vec<String>,
    pub(super) only: Vec<String>,
    pub(super) except: Vec<String>,
}

impl Selection {
    pub(super) fn is_everything(&self) -> bool {
        [&self.classes, &self.only, &self.except].into_iter().all(Vec::is_empty)
    }

    pub(super) fn takes(&self, test: &Test) -> bool {
        let named = |texts: &[String]| texts.iter().any(|text| test.name.contains(text));
        (self.classes.is_empty() || self.classes.contains(&test.class))
            && (self.only.is_empty() || named(&self.only))
            && !named(&self.except)
    }
}

pub(super) fn read(path: &Path, selection: &Selection) -> Result<Vec<Test>> {
    parse(&file::read(path)?, selection)
}

fn parse(text: &str, selection: &Selection) -> Result<Vec<Test>> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut tests = Vec::new();
    for line in lines {
        let columns: Vec<&str> = line.split('\t').collect();
        let (Some(class), Some(name)) = (columns.first(), columns.get(3)) else {
            return fail(format!("this line of the list has fewer than four columns: {line}"));
        };
        tests.push(Test { class: (*class).to_owned(), name: (*name).to_owned() });
    }
    tests.retain(|test| selection.takes(test));
    Ok(tests)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const LIST: &str = "# class\tnodes\timages\tname\tfile\n\
        api\t0\t-\t[sig-a] reads [Conformance]\ta.go:1\n\
        api+node\t1\t-\t[sig-a] places [Serial] [Conformance]\ta.go:2\n\
        pods\t1\tAgnhost\t[sig-b] runs [Conformance]\tb.go:3\n";

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn selects_tests_by_class_and_name() {
        let names = |selection| {
            let tests = parse(LIST, &selection).unwrap();
            tests.into_iter().map(|test| test.name).collect::<Vec<_>>()
        };
        assert_eq!(names(Selection::default()).len(), 3);
        let classes = texts(&["api", "api+node"]);
        let except = texts(&["places"]);
        let chosen = names(Selection { classes, only: vec![], except });
        assert_eq!(chosen, ["[sig-a] reads [Conformance]"]);
        let only = texts(&["sig-b", "places"]);
        assert_eq!(names(Selection { only, ..Selection::default() }).len(), 2);
    }

    #[test]
    fn sample_has_all_classes_and_groups() {
        let sample = include_str!("../../facts/conformance-sample.tsv");
        let tests = parse(sample, &Selection::default()).unwrap();
        let of = |text: fn(&Test) -> &str| tests.iter().map(text).collect::<BTreeSet<_>>();
        assert_eq!(of(|test| &test.name).len(), 60);
        assert_eq!(of(|test| &test.class), BTreeSet::from(["api", "api+kcm", "api+node", "pods"]));
        assert_eq!(of(Test::group).len(), 10);
        assert!(tests.iter().all(|test| test.name.ends_with("[Conformance]")));
    }

    #[test]
    fn names_group_and_title_without_labels() {
        let name = "[sig-a] Thing [Slow] [LinuxOnly] does [x] it [Conformance]".to_owned();
        let test = Test { class: String::new(), name };
        assert_eq!((test.group(), test.title().as_str()), ("sig-a", "[sig-a] Thing does it"));
    }

    #[test]
    fn rejects_malformed_line() {
        let error = parse("api\t0\t-\n", &Selection::default()).unwrap_err().to_string();
        assert!(error.contains("four columns"), "{error}");
    }
}
