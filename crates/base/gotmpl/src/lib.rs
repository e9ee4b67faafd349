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
mod error;
mod escape;
mod exec;
mod format;
mod funcs;
pub mod jsonpath;
mod lex;
mod number;
mod options;
mod parse;
mod template;
mod value;

#[cfg(test)]
mod fuzzed;
#[cfg(test)]
mod tests;

pub use error::{Error, ErrorKind, Message};
pub use options::{Function, Functions, Limits, MissingKey};
pub use template::Template;

/// Formats a number like Go's `strconv.FormatFloat(value, 'g', -1, 64)` and `%v`, as Prometheus' text format requires.
pub fn float(value: f64) -> String {
    format::float(value)
}
