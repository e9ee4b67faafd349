//! A parsed template.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    ast,
    options::{Functions, Limits, MissingKey},
};

/// A parsed template with the templates that it defines.
#[derive(Clone)]
pub struct Template {
    pub(crate) name: String,
    pub(crate) trees: BTreeMap<String, Definition>,
    pub(crate) functions: Functions,
    /// `true` if the function `include` executes a defined template.
    pub(crate) includes: bool,
    pub(crate) missing_key: MissingKey,
    pub(crate) limits: Limits,
}

/// A defined template.
#[derive(Clone)]
pub(crate) struct Definition {
    pub(crate) nodes: Vec<ast::Node>,
    /// The name of the text that defines it.
    pub(crate) source: Arc<str>,
    /// The text, for the lines of messages.
    pub(crate) text: Arc<str>,
}

impl std::fmt::Debug for Template {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Template").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Template {
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
}
