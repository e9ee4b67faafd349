//! `matchConditions`: expressions that must all be true for a webhook or a policy to be asked. They see the request, the
//! objects as the webhook or the policy is shown them, and may ask what the user may do.

use std::sync::Arc;

use api_meta::Tree as _;
use api_rules::expressions::{Gives, Scope};
use cel::{Composition, Value as Cel};
use serde_json::Value;

use crate::expressions::{CONDITIONS_BUDGET, Expression, Run, Seen};

/// The conditions of one webhook or policy, compiled once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conditions(Arc<[Expression]>);

impl Conditions {
    /// The `matchConditions` of `holder`. What does not compile ends in an error whenever it is looked at.
    pub(crate) fn of(holder: &Value, scope: &Scope<'_>) -> Self {
        let condition = |condition: &Value| {
            let text = condition.text("expression").to_owned();
            Expression { program: scope.compile(&text, Gives::Bool), text }
        };
        Self(holder.items("matchConditions").iter().map(condition).collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether all hold: one that does not decides, whatever goes wrong with others.
    pub(crate) fn hold(
        &self,
        seen: &Seen<'_>,
        composition: Option<&Composition>,
    ) -> Result<bool, String> {
        let mut run = Run::new(seen.activation(composition)?, CONDITIONS_BUDGET);
        let (mut errors, mut holds): (Vec<String>, bool) = (Vec::new(), true);
        for condition in self.0.iter() {
            match run.evaluate(condition).map_err(|spent| spent.message())? {
                Ok(value) => holds &= !matches!(value, Cel::Bool(false)),
                Err(error) if errors.contains(&error) => {}
                Err(error) => errors.push(error),
            }
        }
        match errors.as_slice() {
            _ if !holds => Ok(false),
            [] => Ok(true),
            [error] => Err(error.clone()),
            errors => Err(format!("[{}]", errors.join(", "))),
        }
    }
}
