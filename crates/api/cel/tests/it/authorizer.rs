//! Tests of the `authorizer` library: the checks of expressions and their user.

use std::sync::Arc;

use api_meta::{Attributes, Authorizer, Decision, UserInfo};
use cel::{AuthorizerContext, Env, EvalError, Limits, Opaque, Program, Type, Value};
use parking_lot::Mutex;

#[derive(Default)]
struct Recorder(Mutex<Vec<String>>);

impl Authorizer for Recorder {
    fn authorize(&self, attributes: &Attributes<'_>) -> Decision {
        let labels = attributes.label_selector.map(ToString::to_string).unwrap_or_default();
        let shown = format!("{attributes} named {:?} labels {labels:?}", attributes.name);
        self.0.lock().push(shown);
        if attributes.user.name == "alice" {
            Decision::Allow(None)
        } else {
            Decision::NoOpinion(Some("no".into()))
        }
    }
}

fn evaluate(text: &str) -> (Result<bool, EvalError>, Vec<String>, u64) {
    let env =
        Env::default().typed("authorizer", Type::Opaque("kubernetes.authorization.Authorizer"));
    let program = Program::compile(&env, text).unwrap_or_else(|issues| panic!("{issues}"));
    let recorder = Arc::new(Recorder::default());
    let user = UserInfo { name: "alice".to_owned(), ..UserInfo::default() };
    let context = AuthorizerContext { authorizer: recorder.clone(), user };
    let outcome =
        program.evaluate(&[Some(Value::opaque(Opaque::Authorizer(context)))], Limits::default());
    let value = outcome.value.map(|value| matches!(value, Value::Bool(true)));
    let checks = recorder.0.lock().clone();
    (value, checks, outcome.cost)
}

#[test]
fn builds_check_from_method_chain() {
    let (value, checks, cost) = evaluate(
        "authorizer.group('apps').resource('deployments').subresource('scale').namespace('n').name('d').labelSelector('a=b').check('update').allowed()",
    );
    assert_eq!(value, Ok(true));
    assert_eq!(
        checks,
        [
            "User \"alice\" cannot update resource \"deployments/scale\" in API group \"apps\" in the namespace \"n\" named \"d\" labels \"a=b\""
        ]
    );
    assert!((350_000..350_200).contains(&cost), "{cost}");
    let (value, checks, _) = evaluate("authorizer.path('/healthz').check('get').allowed()");
    assert_eq!((value, checks.len()), (Ok(true), 1));
}

#[test]
fn checks_service_account_instead_of_caller() {
    let (value, checks, _) = evaluate(
        "authorizer.serviceAccount('n', 'sa').group('').resource('pods').check('get').allowed()",
    );
    assert_eq!(value, Ok(false));
    assert!(checks[0].starts_with("User \"system:serviceaccount:n:sa\" cannot get"), "{checks:?}");
    for (text, wanted) in [
        (
            "authorizer.serviceAccount('N!', 'sa').path('/').check('get').allowed()",
            "Invalid service account namespace",
        ),
        (
            "authorizer.serviceAccount('n', 'sa:x').path('/').check('get').allowed()",
            "Invalid service account name",
        ),
        ("authorizer.path('').check('get').allowed()", "path must not be empty"),
        ("authorizer.group('').resource('').check('get').allowed()", "resource must not be empty"),
    ] {
        let (value, checks, _) = evaluate(text);
        assert_eq!(value, Err(EvalError::Failed(wanted.to_owned())));
        assert!(checks.is_empty());
    }
}

#[test]
fn cost_limit_allows_two_checks() {
    let check = "authorizer.path('/').check('get').allowed()";
    assert_eq!(evaluate(&format!("{check} && {check}")).0, Ok(true));
    let (value, checks, _) = evaluate(&format!("{check} && {check} && {check}"));
    assert_eq!(value, Err(EvalError::CostLimit));
    // The third check is not made.
    assert_eq!(checks.len(), 2);
}
