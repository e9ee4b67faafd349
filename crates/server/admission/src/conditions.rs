//! Evaluates the `matchConditions` of a webhook or policy. All expressions must be true for the webhook or policy to
//! apply. They see the request and its objects in the matched version, and may query the authorizer.

use std::sync::Arc;

use api_meta::Tree as _;
use api_rules::expressions::{ResultType, Scope};
use cel::{Composition, Value as Cel};
use serde_json::Value;

use crate::expressions::{CONDITIONS_BUDGET, Expression, ExpressionError, ExpressionInput, Run};

/// The match conditions of one webhook or policy, compiled once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conditions(Arc<[Expression]>);

impl Conditions {
    /// Compiles the `matchConditions` of `holder`. An expression that does not compile fails at each evaluation.
    pub(crate) fn of(holder: &Value, scope: &Scope<'_>) -> Self {
        let condition = |condition: &Value| {
            let text = condition.text("expression").to_owned();
            Expression { program: scope.compile(&text, ResultType::Bool), text }
        };
        Self(holder.items("matchConditions").iter().map(condition).collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reports whether all conditions are true. A false condition wins over an error in another one.
    pub(crate) fn hold(
        &self,
        input: &ExpressionInput<'_>,
        composition: Option<&Composition>,
    ) -> Result<bool, ExpressionError> {
        let mut run = Run::new(input.activation(composition)?, CONDITIONS_BUDGET);
        let (mut errors, mut holds): (Vec<ExpressionError>, bool) = (Vec::new(), true);
        for condition in self.0.iter() {
            match run.evaluate(condition)? {
                Ok(value) => holds &= !matches!(value, Cel::Bool(false)),
                Err(error) if errors.contains(&error) => {}
                Err(error) => errors.push(error),
            }
        }
        match errors.as_slice() {
            _ if !holds => Ok(false),
            [] => Ok(true),
            [error] => Err(error.clone()),
            _ => Err(ExpressionError::Several(errors)),
        }
    }
}
