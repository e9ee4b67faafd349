//! Go's `text/template` for JSON data, and kubectl's JSONPath ([`jsonpath`]).
//!
//! Templates written for Go produce the same output here, and the same messages when they fail. The data is a
//! `serde_json::Value` and is treated like JSON that Go has decoded. Every number is a `float64`. Every object is a
//! `map[string]interface {}`, which is iterated in the order of its keys. Read [`Template`] first. Loading templates
//! and data is left to the callers.
//!
//! Invariants: a template accesses nothing but its own text and data. [`Limits`] bounds its steps, output and depth, so
//! that an untrusted template can neither block a thread nor fill the memory.
//!
//! A difference that remains: Go strings contain arbitrary bytes, Rust strings Unicode, so that cutting a string within
//! a character gives U+FFFD. Complex numbers and addresses (`%p`) are not supported.

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

/// Formats a number like Go's `strconv.FormatFloat(value, 'g', -1, 64)` and `%v`, as Prometheus' text format requires.
pub fn float(value: f64) -> String {
    format::float(value)
}

/// A function of the caller, in addition to the built-in ones. It must return a scalar.
pub type Function = Arc<dyn Fn(&[Value]) -> Result<Value, String> + Send + Sync>;

/// The caller's functions by name. The parser rejects unknown functions.
pub type Functions = BTreeMap<String, Function>;

/// The meaning of an absent map key; Go's option `missingkey`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissingKey {
    /// An absent key prints `<no value>`.
    #[default]
    Default,
    /// An absent key is the zero value, which for JSON data also prints `<no value>`.
    Zero,
    /// An absent key is an error.
    Error,
}

/// The limits of one execution.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The number of visited nodes, plus one for every 16 bytes that functions return.
    pub steps: usize,
    /// The size of the output, and of any intermediate string, in bytes.
    pub output: usize,
    /// The nesting depth of templates and control blocks.
    pub depth: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { steps: 1_000_000, output: 16 << 20, depth: 250 }
    }
}

/// The phase in which a template failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The text is not a valid template.
    Parse,
    /// The data does not fit, or a function failed.
    Execute,
    /// A limit of [`Limits`] was exceeded.
    Limit,
}

/// An error with Go's message, which names the template and the line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// The phase.
    pub kind: ErrorKind,
    /// The line of the template, counted from 1.
    pub line: usize,
    /// The message.
    pub message: String,
}

/// A parsed template with the templates that it defines.
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
    /// Parses a template with Go's built-in functions.
    pub fn parse(name: &str, text: &str) -> Result<Self, Error> {
        Self::parse_with(name, text, Functions::new())
    }

    /// Parses a template that may also call these functions. An unknown function is a parse error, as in Go.
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

    /// Sets the meaning of absent keys (Go's option `missingkey`).
    pub fn missing_key(mut self, missing_key: MissingKey) -> Self {
        self.missing_key = missing_key;
        self
    }

    /// Sets the limits.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Returns the names of the defined templates, including this one.
    pub fn defined(&self) -> impl Iterator<Item = &str> {
        self.trees.keys().map(String::as_str)
    }

    /// Executes the template. The output of a failed execution is dropped.
    pub fn execute(&self, data: &Value) -> Result<String, Error> {
        exec::execute(self, &self.name, data)
    }
}
