//! The table of operations.

use std::sync::LazyLock;

const TABLE: &str = include_str!("../facts/operations.tsv");

/// An operation as the table has it.
pub(crate) struct Operation {
    pub(crate) service: &'static str,
    pub(crate) name: &'static str,
    /// Of those that have a path of their own: method, path, and the root of what is sent.
    pub(crate) http: &'static str,
    /// What it may be told, without the numbers of lists.
    pub(crate) parameters: Vec<&'static str>,
}

static OPERATIONS: LazyLock<Vec<Operation>> = LazyLock::new(|| {
    let lines = TABLE.lines().filter(|line| !line.starts_with('#'));
    let read = |line: &'static str| {
        let mut fields = line.split('\t');
        let mut next = || fields.next().unwrap_or_default();
        let (service, name, http) = (next(), next(), next());
        let parameters = next().split_whitespace().collect();
        Operation { service, name, http, parameters }
    };
    lines.map(read).collect()
});

impl Operation {
    pub(crate) fn find(service: &str, name: &str) -> Option<&'static Self> {
        OPERATIONS.iter().find(|one| one.service == service && one.name == name)
    }

    /// Whether it changes nothing, so that it may be asked for again.
    pub(crate) fn reads(&self) -> bool {
        ["Describe", "List", "Get"].iter().any(|verb| self.name.starts_with(verb))
    }

    pub(crate) fn takes(&self, parameter: &str) -> bool {
        self.parameters.contains(&parameter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::Place;

    #[test]
    fn the_table_is_whole() {
        for operation in OPERATIONS.iter() {
            let found = Operation::find(operation.service, operation.name);
            let found = found.is_some_and(|found| std::ptr::eq(found, operation));
            assert!(found, "{} stands there twice", operation.name);
            assert!(Place::of(operation.service, "r", None).is_some(), "{}", operation.service);
            assert_eq!(operation.service == "route53", !operation.http.is_empty());
        }
    }
}
