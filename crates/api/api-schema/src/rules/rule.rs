//! Compiled rules, as a tree like the schema.

use std::{collections::BTreeMap, sync::Arc};

use cel::{Decl, Issues, Program};

/// The error for an expression of a rule, in upstream's words.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExpressionError {
    #[error("compilation failed: {0}")]
    Rule(Issues),
    #[error("messageExpression compilation failed: {0}")]
    Message(Issues),
    #[error("cel expression must evaluate to a bool")]
    RuleType,
    #[error("messageExpression must evaluate to a string")]
    MessageType,
}

/// The rules of a schema and its descendants.
#[derive(Debug)]
pub(crate) struct Rules {
    /// The `type` keyword, which upstream shows instead of a value.
    pub(super) kind: Box<str>,
    pub(super) decl: Arc<Decl>,
    pub(super) rules: Vec<Rule>,
    pub(super) fields: BTreeMap<Box<str>, Rules>,
    pub(super) values: Option<Box<Rules>>,
    pub(super) items: Option<Box<Rules>>,
    /// The keys of a list whose items correlate.
    pub(super) keys: Option<Box<[Box<str>]>>,
    pub(super) all_of: Vec<Rules>,
}

/// A rule.
#[derive(Debug)]
pub(super) struct Rule {
    pub(super) text: Box<str>,
    pub(super) message: Box<str>,
    pub(super) reason: Option<Box<str>>,
    /// The path below the value at which a failure is reported.
    pub(super) field_path: Option<Box<str>>,
    pub(super) optional_old: bool,
    /// The program, or the compile error, which is reported for every object. New definitions with such rules are
    /// rejected, but other releases may have stored them.
    pub(super) program: Result<Program, ExpressionError>,
    pub(super) uses_old: bool,
    pub(super) message_expression: Option<(Box<str>, Program)>,
}
