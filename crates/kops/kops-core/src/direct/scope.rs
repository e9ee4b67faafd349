//! The scope of the queries for a comparison with a model.

use crate::{
    aws::{Kind, Scope},
    model::aws::Model,
};

impl Scope {
    /// Returns the scope for a comparison with a model.
    pub fn of_model(cluster: &str, model: &Model) -> Self {
        let mut scope = Self::of_name(cluster);
        if model.of_kind(Kind::Queue).next().is_none() {
            (scope.queue, scope.rules) = (String::new(), String::new());
        }
        for resource in model.resources.values() {
            resource.body.operations().extend_scope(resource.shared.as_deref(), &mut scope);
        }
        scope
    }
}
