//! CEL expressions over the claims of a token, or over the mapped user.

use std::sync::LazyLock;

use api_rules::expressions::USER_INFO;
use cel::{Env, Limits, Program, Type, Value as Cel};
use serde_json::Value;

/// The variable of an expression.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ExpressionInput {
    Claims,
    User,
}

/// A compiled expression and its source text for messages.
#[derive(Debug)]
pub(super) struct Expression {
    pub(super) text: String,
    program: Program,
}

impl Expression {
    /// Compiles an expression. The error is in upstream's words. If `bool` is set, the result must be a boolean.
    pub(super) fn compile(text: &str, of: ExpressionInput, bool: bool) -> Result<Self, String> {
        static CLAIMS: LazyLock<Env> =
            LazyLock::new(|| Env::default().typed("claims", Type::map(Type::String, Type::Dyn)));
        static USER: LazyLock<Env> =
            LazyLock::new(|| Env::default().variable("user", USER_INFO.clone()));
        let env: &Env = if of == ExpressionInput::Claims { &CLAIMS } else { &USER };
        let program = Program::compile(env, text)
            .map_err(|issues| format!("compilation failed: {issues}"))?;
        if bool && *program.result().declared() != *"bool" {
            return Err("must evaluate to bool".to_owned());
        }
        Ok(Self { text: text.to_owned(), program })
    }

    /// Reports whether the expression selects this claim by name.
    pub(super) fn selects(&self, claim: &str) -> bool {
        self.program.selects(0, claim)
    }

    /// Evaluates the expression within upstream's cost limit for one expression.
    fn evaluate<'a>(&'a self, tree: &'a Value, of: ExpressionInput) -> Result<Cel<'a>, String> {
        let value = match of {
            ExpressionInput::Claims => Cel::dynamic(tree),
            ExpressionInput::User => Cel::from_json(tree, &USER_INFO).map_err(|e| e.to_string())?,
        };
        let outcome = self.program.evaluate(&[Some(value)], Limits::default());
        outcome
            .value
            .map_err(|error| format!("expression '{}' resulted in error: {error}", self.text))
    }

    /// Evaluates to a string. `what` is the field's name in messages.
    pub(super) fn one(&self, claims: &Value, what: &str) -> Result<String, String> {
        match self.evaluate(claims, ExpressionInput::Claims)? {
            Cel::String(text) => Ok(text.to_string()),
            _ => Err(format!("{what} claim expression must return a string")),
        }
    }

    /// Evaluates to a list of strings, from a list, a string or null. Empty strings are dropped.
    pub(super) fn many(&self, claims: &Value) -> Result<Vec<String>, String> {
        const WANTED: &str = "expression must return a string or a list of strings";
        let items = match self.evaluate(claims, ExpressionInput::Claims)? {
            Cel::Null => Vec::new(),
            text @ Cel::String(_) => vec![text],
            list @ Cel::List(_) => list.items().map_err(|e| e.to_string())?,
            _ => return Err(WANTED.to_owned()),
        };
        let texts = items.iter().map(|item| match item {
            Cel::String(text) => Ok(text.to_string()),
            _ => Err(WANTED.to_owned()),
        });
        let texts: Vec<String> = texts.collect::<Result<_, _>>()?;
        Ok(texts.into_iter().filter(|text| !text.is_empty()).collect())
    }

    /// Evaluates a condition. `message` is the configured message of a failure.
    pub(super) fn holds(
        &self,
        tree: &Value,
        of: ExpressionInput,
        message: &str,
    ) -> Result<(), String> {
        match self.evaluate(tree, of)? {
            Cel::Bool(true) => Ok(()),
            Cel::Bool(false) => {
                Err(format!("validation expression '{}' failed: {message}", self.text))
            }
            _ => Err("validation expression must return a boolean".to_owned()),
        }
    }
}
