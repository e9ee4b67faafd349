//! The answers to queries about existing resources.

use api_meta::Tree as _;
use serde_json::Value;

use super::call::Call;

/// Calls and their answers, one value per page.
#[derive(Debug, Default)]
pub struct Answers(Vec<(Call, Vec<Value>)>);

impl Answers {
    /// Stores an answer. `pages` is empty if the resource does not exist.
    pub fn add(&mut self, call: Call, pages: Vec<Value>) {
        self.0.push((call, pages));
    }

    /// Reports whether a call has an answer.
    pub(crate) fn has(&self, call: &Call) -> bool {
        self.0.iter().any(|(request, _)| request == call)
    }

    /// Reports whether a call of an operation has an answer.
    pub(crate) fn has_operation(&self, operation: &str) -> bool {
        self.0.iter().any(|(request, _)| request.operation == operation)
    }

    /// Returns the parameters and the pages of all answers to an operation.
    pub(crate) fn of(&self, operation: &str) -> impl Iterator<Item = (&Value, &Value)> {
        let found = self.0.iter().filter(move |(call, _)| call.operation == operation);
        found.flat_map(|(call, pages)| pages.iter().map(move |page| (&call.parameters, page)))
    }

    /// Returns the items of a list in all answers to an operation.
    pub(crate) fn each<'a>(
        &'a self,
        operation: &str,
        list: &'a str,
    ) -> impl Iterator<Item = &'a Value> {
        self.of(operation).flat_map(move |(_, page)| page.items(list))
    }

    /// Returns the answer to the call with this parameter.
    pub(crate) fn about(&self, operation: &str, parameter: &str, id: &str) -> Option<&Value> {
        let mut found = self.of(operation);
        found.find(|(parameters, _)| parameters.text(parameter) == id).map(|(_, page)| page)
    }
}
