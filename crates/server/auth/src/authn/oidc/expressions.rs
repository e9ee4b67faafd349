//! CEL expressions over the claims of a token, or over the mapped user.

use std::sync::LazyLock;

use api_rules::expressions::USER_INFO;
use cel::{Env, EvalError, Issues, Limits, Program, Type, Value as Cel};
use serde_json::Value;

/// The variable of an expression.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ExpressionInput {
    Claims,
    User,
}

/// The reason why an expression has no result that can be used, with upstream's messages.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExpressionError {
    #[error("compilation failed: {0}")]
    Compilation(#[from] Issues),
    #[error("must evaluate to bool")]
    NotCondition,
    #[error(transparent)]
    Value(#[from] EvalError),
    #[error("expression '{expression}' resulted in error: {source}")]
    Evaluation { expression: String, source: EvalError },
    #[error("{field} claim expression must return a string")]
    NotString { field: &'static str },
    #[error("expression must return a string or a list of strings")]
    NotStrings,
    #[error("validation expression must return a boolean")]
    NotBool,
    #[error("validation expression '{expression}' failed: {message}")]
    Violation { expression: String, message: String },
}

/// A compiled expression and its source text for messages.
#[derive(Debug)]
pub(super) struct Expression {
    pub(super) text: String,
    program: Program,
}

impl Expression {
    /// Compiles an expression. If `bool` is set, the result must be a boolean.
    pub(super) fn compile(
        text: &str,
        of: ExpressionInput,
        bool: bool,
    ) -> Result<Self, ExpressionError> {
        static CLAIMS: LazyLock<Env> =
            LazyLock::new(|| Env::default().typed("claims", Type::map(Type::String, Type::Dyn)));
        static USER: LazyLock<Env> =
            LazyLock::new(|| Env::default().variable("user", USER_INFO.clone()));
        let env: &Env = if of == ExpressionInput::Claims { &CLAIMS } else { &USER };
        let program = Program::compile(env, text)?;
        if bool && *program.result().declared() != *"bool" {
            return Err(ExpressionError::NotCondition);
        }
        Ok(Self { text: text.to_owned(), program })
    }

    /// Reports whether the expression selects this claim by name.
    pub(super) fn selects(&self, claim: &str) -> bool {
        self.program.selects(0, claim)
    }

    /// Evaluates the expression within upstream's cost limit for one expression.
    fn evaluate<'a>(
        &'a self,
        tree: &'a Value,
        of: ExpressionInput,
    ) -> Result<Cel<'a>, ExpressionError> {
        let value = match of {
            ExpressionInput::Claims => Cel::dynamic(tree),
            ExpressionInput::User => Cel::from_json(tree, &USER_INFO)?,
        };
        let outcome = self.program.evaluate(&[Some(value)], Limits::default());
        outcome
            .value
            .map_err(|source| ExpressionError::Evaluation { expression: self.text.clone(), source })
    }

    /// Evaluates to a string. `field` is the name of the user's field in messages.
    pub(super) fn string(
        &self,
        claims: &Value,
        field: &'static str,
    ) -> Result<String, ExpressionError> {
        match self.evaluate(claims, ExpressionInput::Claims)? {
            Cel::String(text) => Ok(text.to_string()),
            _ => Err(ExpressionError::NotString { field }),
        }
    }

    /// Evaluates to a list of strings, from a list, a string or null. Empty strings are dropped.
    pub(super) fn strings(&self, claims: &Value) -> Result<Vec<String>, ExpressionError> {
        let items = match self.evaluate(claims, ExpressionInput::Claims)? {
            Cel::Null => Vec::new(),
            text @ Cel::String(_) => vec![text],
            list @ Cel::List(_) => list.items()?,
            _ => return Err(ExpressionError::NotStrings),
        };
        let texts = items.iter().map(|item| match item {
            Cel::String(text) => Ok(text.to_string()),
            _ => Err(ExpressionError::NotStrings),
        });
        let texts: Vec<String> = texts.collect::<Result<_, _>>()?;
        Ok(texts.into_iter().filter(|text| !text.is_empty()).collect())
    }

    /// Evaluates a condition, and returns an error if it is false. `message` is the configured message.
    pub(super) fn require(
        &self,
        tree: &Value,
        of: ExpressionInput,
        message: &str,
    ) -> Result<(), ExpressionError> {
        match self.evaluate(tree, of)? {
            Cel::Bool(true) => Ok(()),
            Cel::Bool(false) => Err(ExpressionError::Violation {
                expression: self.text.clone(),
                message: message.to_owned(),
            }),
            _ => Err(ExpressionError::NotBool),
        }
    }
}
