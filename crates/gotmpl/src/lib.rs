//! Go's `text/template` over JSON data, and kubectl's JSONPath ([`jsonpath`]).
//!
//! Templates written for Go give the same bytes here, and the same messages when they fail. Data comes as a
//! `serde_json::Value`, and is seen as Go sees decoded JSON: every number is a `float64`, every object a
//! `map[string]interface {}` visited in the order of its keys.
//!
//! Invariants: nothing outside the template and its data is read or written; execution is bounded in steps,
//! output and depth ([`Limits`]), so that a template from a stranger cannot hold a thread or fill memory.
//!
//! One difference is inherent: a Go string may hold any bytes and ours are Unicode, so that cutting a string
//! within a character gives U+FFFD. Complex numbers are left out, and addresses (`%p`).

mod ast;
mod compare;
mod escape;
mod exec;
mod format;
mod funcs;
pub mod jsonpath;
mod lex;
mod number;
mod parse;
mod value;

#[cfg(test)]
mod fuzzed;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, sync::Arc};

use serde_json::Value;

/// A number as Go's `strconv.FormatFloat(value, 'g', -1, 64)` and `%v` write it, which is what Prometheus' text format has.
pub fn float(value: f64) -> String {
    format::float(value)
}

/// A function of the caller's, beside the built-in ones. It may return scalars only.
pub type Function = Arc<dyn Fn(&[Value]) -> Result<Value, String> + Send + Sync>;

/// The caller's functions by name; they are known when a template is parsed.
pub type Functions = BTreeMap<String, Function>;

/// What naming an absent key of a map means; Go's option `missingkey`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissingKey {
    /// It prints `<no value>`.
    #[default]
    Default,
    /// It is the zero value, which for JSON data prints `<no value>` too.
    Zero,
    /// It ends execution.
    Error,
}

/// Bounds on one execution.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Nodes visited, plus one for every 16 bytes that functions make.
    pub steps: usize,
    /// Bytes of output, and of any one string on the way to it.
    pub output: usize,
    /// Templates, and blocks of control, within one another.
    pub depth: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { steps: 1_000_000, output: 16 << 20, depth: 250 }
    }
}

/// Where a template failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The text is no template.
    Parse,
    /// The data does not fit, or a function failed.
    Execute,
    /// One of [`Limits`] was reached.
    Limit,
}

/// A failure, worded as Go words it: it names the template and the line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    pub kind: ErrorKind,
    /// The line of the template, counted from 1.
    pub line: usize,
    pub message: String,
}

/// A parsed template with those that it defines.
#[derive(Clone)]
pub struct Template {
    name: String,
    text: Arc<str>,
    trees: BTreeMap<String, Vec<ast::Node>>,
    functions: Functions,
    missing_key: MissingKey,
    limits: Limits,
}

impl std::fmt::Debug for Template {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Template").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Template {
    /// Parses a template with Go's own functions.
    pub fn parse(name: &str, text: &str) -> Result<Self, Error> {
        Self::parse_with(name, text, Functions::new())
    }

    /// Parses a template that also calls these functions; one that is not known is an error here, as in Go.
    pub fn parse_with(name: &str, text: &str, functions: Functions) -> Result<Self, Error> {
        let trees = parse::parse(name, text, &functions)?;
        Ok(Self {
            name: name.to_owned(),
            text: text.into(),
            trees,
            functions,
            missing_key: MissingKey::default(),
            limits: Limits::default(),
        })
    }

    /// Says what a key that is missing is (Go's option `missingkey`).
    pub fn missing_key(mut self, missing_key: MissingKey) -> Self {
        self.missing_key = missing_key;
        self
    }

    /// Sets bounds other than the usual.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// The names of the templates that this text defines, itself included.
    pub fn defined(&self) -> impl Iterator<Item = &str> {
        self.trees.keys().map(String::as_str)
    }

    /// Runs the template. What it wrote before it failed is dropped.
    pub fn execute(&self, data: &Value) -> Result<String, Error> {
        exec::execute(self, &self.name, data)
    }
}
