//! The table of operations.

use std::sync::LazyLock;

const TABLE: &str = include_str!("../facts/operations.tsv");

/// An operation in the table.
pub(crate) struct Operation {
    pub(crate) service: &'static str,
    pub(crate) name: &'static str,
    /// The method, path and root element of a request with a path of its own; empty for others.
    pub(crate) http: &'static str,
    /// The parameters, without the numbers of lists.
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

    /// Reports whether the operation changes nothing, so that it may be repeated.
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
    use crate::endpoint::ServiceEndpoint;

    #[test]
    fn table_is_complete() {
        for operation in OPERATIONS.iter() {
            let found = Operation::find(operation.service, operation.name);
            let found = found.is_some_and(|found| std::ptr::eq(found, operation));
            assert!(found, "{} is duplicated", operation.name);
            assert!(
                ServiceEndpoint::of(operation.service, "r", None).is_some(),
                "{}",
                operation.service
            );
            assert_eq!(operation.service == "route53", !operation.http.is_empty());
        }
    }
}
