//! Expressions over the claims of a token, or over the user that they were mapped to.

use std::sync::LazyLock;

use api_rules::expressions::USER_INFO;
use cel::{Env, Limits, Program, Type, Value as Cel};
use serde_json::Value;

/// What an expression speaks of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    Claims,
    User,
}

/// A compiled expression and its text, which messages show.
#[derive(Debug)]
pub(super) struct Expression {
    pub(super) text: String,
    program: Program,
}

impl Expression {
    /// Compiles; the error is in upstream's words. `bool`: it must be a condition.
    pub(super) fn compile(text: &str, of: Of, bool: bool) -> Result<Self, String> {
        static CLAIMS: LazyLock<Env> =
            LazyLock::new(|| Env::default().typed("claims", Type::map(Type::String, Type::Dyn)));
        static USER: LazyLock<Env> =
            LazyLock::new(|| Env::default().variable("user", USER_INFO.clone()));
        let env: &Env = if of == Of::Claims { &CLAIMS } else { &USER };
        let program =
            env.compile(text).map_err(|issues| format!("compilation failed: {issues}"))?;
        if bool && *program.result().declared() != *"bool" {
            return Err("must evaluate to bool".to_owned());
        }
        Ok(Self { text: text.to_owned(), program })
    }

    /// Whether it selects this claim by its name.
    pub(super) fn selects(&self, claim: &str) -> bool {
        self.program.selects(0, claim)
    }

    /// Evaluates within upstream's limit of one expression.
    fn evaluate<'a>(&'a self, tree: &'a Value, of: Of) -> Result<Cel<'a>, String> {
        let value = match of {
            Of::Claims => Cel::dynamic(tree),
            Of::User => Cel::from_json(tree, &USER_INFO).map_err(|e| e.to_string())?,
        };
        let outcome = self.program.evaluate(&[Some(value)], Limits::default());
        outcome
            .value
            .map_err(|error| format!("expression '{}' resulted in error: {error}", self.text))
    }

    /// One text; `what` is what messages call it.
    pub(super) fn one(&self, claims: &Value, what: &str) -> Result<String, String> {
        match self.evaluate(claims, Of::Claims)? {
            Cel::String(text) => Ok(text.to_string()),
            _ => Err(format!("{what} claim expression must return a string")),
        }
    }

    /// Texts: a list of them, one, or null for none. Empty ones are passed over.
    pub(super) fn many(&self, claims: &Value) -> Result<Vec<String>, String> {
        const WANTED: &str = "expression must return a string or a list of strings";
        let items = match self.evaluate(claims, Of::Claims)? {
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

    /// Whether a condition holds; `message` is what its author says of those for whom it does not.
    pub(super) fn holds(&self, tree: &Value, of: Of, message: &str) -> Result<(), String> {
        match self.evaluate(tree, of)? {
            Cel::Bool(true) => Ok(()),
            Cel::Bool(false) => {
                Err(format!("validation expression '{}' failed: {message}", self.text))
            }
            _ => Err("validation expression must return a boolean".to_owned()),
        }
    }
}
