//! Outputs, as values and as locals, for use in other configurations.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    hcl::{Block, Expr, Item},
    labels,
};
use crate::error::Error;

/// The outputs of a configuration.
#[derive(Default)]
pub(crate) struct Outputs {
    values: BTreeMap<String, Expr>,
    lists: BTreeMap<String, BTreeSet<String>>,
}

impl Outputs {
    /// Sets an output.
    pub(crate) fn set(&mut self, name: impl Into<String>, value: Expr) {
        self.values.insert(name.into(), value);
    }

    /// Adds an item to a list.
    pub(crate) fn push(&mut self, name: impl Into<String>, value: &Expr) {
        self.lists.entry(name.into()).or_default().insert(value.render());
    }

    /// Returns the locals and the outputs.
    pub(super) fn render(&self) -> Result<String, Error> {
        let mut all = self.values.clone();
        for (name, items) in &self.lists {
            let items = items.iter().map(|item| Expr::Token(item.clone())).collect();
            all.insert(name.clone(), Expr::List(items));
        }
        let mut locals = Block::default();
        for (name, value) in all {
            locals.set_named(labels::label(&name)?, Item::Value(value));
        }
        let mut text = locals.render(0, "locals") + "\n";
        for (name, item) in locals.members() {
            let mut block = Block::default();
            block.set("value", item.clone());
            text.push_str(&block.render(0, &format!("output \"{name}\"")));
            text.push('\n');
        }
        Ok(text)
    }
}
