//! The options of a template: the caller's functions, the meaning of absent keys, and the limits.

use std::{collections::BTreeMap, error::Error, sync::Arc};

use serde_json::Value;

/// A function of the caller, in addition to the built-in ones. It must return a scalar.
pub type Function =
    Arc<dyn Fn(&[Value]) -> Result<Value, Box<dyn Error + Send + Sync>> + Send + Sync>;

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
