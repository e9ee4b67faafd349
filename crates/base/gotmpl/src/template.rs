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
    pub(crate) text: Arc<str>,
    pub(crate) trees: BTreeMap<String, Vec<ast::Node>>,
    pub(crate) functions: Functions,
    pub(crate) missing_key: MissingKey,
    pub(crate) limits: Limits,
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
