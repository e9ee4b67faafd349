//! The input of an evaluation.

use std::sync::Arc;

use serde_json::Value;

use crate::{expressions::ExpressionInput, matching::MatchedResource, request::Request};

/// The input of one evaluation: the request, its objects in the version of `shown`, and one parameter or null.
#[derive(Clone, Copy)]
pub struct Question<'a> {
    /// The request.
    pub request: &'a Request<'a>,
    /// The resource as which the policy matches the request.
    pub shown: &'a MatchedResource,
    /// The new and the old object.
    pub objects: (&'a Value, &'a Value),
    /// The request's Namespace; `None` for cluster-scoped objects.
    pub namespace: &'a Option<Arc<Value>>,
    /// The parameter; null without one.
    pub params: &'a Value,
}

impl Question<'_> {
    pub(super) fn expression_input(&self) -> ExpressionInput<'_> {
        ExpressionInput::new(self.request, self.shown, self.objects, self.params)
    }

    pub(super) fn expression_input_with_namespace(&self) -> ExpressionInput<'_> {
        self.expression_input().in_namespace(self.namespace.clone())
    }
}
