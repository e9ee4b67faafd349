//! Tests of CEL and Kubernetes' libraries, by tables of cases and by the conformance tests if present.

mod authorizer;
mod conformance;
mod costs;
mod hostile;
mod language;
mod libraries;
mod textproto;

use cel::{Decl, Env, EvalError, Limits, Program, Value};
use serde_json::Value as Json;

/// Returns the newest environment with an undeclared `self`.
fn env() -> Env {
    Env::default().variable("self", Decl::ANY)
}

fn compiled(text: &str) -> Program {
    Program::compile(&env(), text).unwrap_or_else(|issues| panic!("{text}: {issues}"))
}

/// Evaluates an expression and returns the value as JSON.
fn given(text: &str, itself: &Json) -> Result<Json, EvalError> {
    let program = compiled(text);
    let outcome = program.evaluate(&[Some(Value::dynamic(itself))], Limits::default());
    outcome.value.and_then(|value| value.to_json())
}

#[track_caller]
fn all_true(texts: &[&str], itself: &Json) {
    for text in texts {
        assert_eq!(given(text, itself), Ok(Json::Bool(true)), "{text}");
    }
}

#[track_caller]
fn all_fail(cases: &[(&str, &str)], itself: &Json) {
    for (text, wanted) in cases {
        match given(text, itself) {
            Err(error) => assert_eq!(error.to_string(), *wanted, "{text}"),
            Ok(value) => panic!("{text} ought to fail and gives {value}"),
        }
    }
}
