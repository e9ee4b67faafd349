//! Tests of the `authorizer` library: the checks of expressions and their user.

use std::sync::{Arc, Mutex};

use api_meta::{Attributes, Authorizer, Decision, UserInfo};
use cel::{AuthorizerContext, Env, EvalError, Limits, Opaque, Program, Type, Value};

#[derive(Default)]
struct Recorder(Mutex<Vec<String>>);

impl Authorizer for Recorder {
    fn authorize(&self, asked: &Attributes<'_>) -> Decision {
        let labels = asked.label_selector.map(ToString::to_string).unwrap_or_default();
        let shown = format!("{asked} named {:?} labels {labels:?}", asked.name);
        self.0.lock().expect("a lock").push(shown);
        if asked.user.name == "alice" {
            Decision::Allow(None)
        } else {
            Decision::NoOpinion(Some("no".into()))
        }
    }
}

fn asked(text: &str) -> (Result<bool, EvalError>, Vec<String>, u64) {
    let env =
        Env::default().typed("authorizer", Type::Opaque("kubernetes.authorization.Authorizer"));
    let program = Program::compile(&env, text).unwrap_or_else(|issues| panic!("{issues}"));
    let recorder = Arc::new(Recorder::default());
    let user = UserInfo { name: "alice".to_owned(), ..UserInfo::default() };
    let asks = AuthorizerContext { authorizer: recorder.clone(), user };
    let outcome =
        program.evaluate(&[Some(Value::opaque(Opaque::Authorizer(asks)))], Limits::default());
    let value = outcome.value.map(|value| matches!(value, Value::Bool(true)));
    let seen = recorder.0.lock().expect("a lock").clone();
    (value, seen, outcome.cost)
}

#[test]
fn builds_check_from_method_chain() {
    let (value, seen, cost) = asked(
        "authorizer.group('apps').resource('deployments').subresource('scale').namespace('n').name('d').labelSelector('a=b').check('update').allowed()",
    );
    assert_eq!(value, Ok(true));
    assert_eq!(
        seen,
        [
            "User \"alice\" cannot update resource \"deployments/scale\" in API group \"apps\" in the namespace \"n\" named \"d\" labels \"a=b\""
        ]
    );
    assert!((350_000..350_200).contains(&cost), "{cost}");
    let (value, seen, _) = asked("authorizer.path('/healthz').check('get').allowed()");
    assert_eq!((value, seen.len()), (Ok(true), 1));
}

#[test]
fn checks_service_account_instead_of_caller() {
    let (value, seen, _) = asked(
        "authorizer.serviceAccount('n', 'sa').group('').resource('pods').check('get').allowed()",
    );
    assert_eq!(value, Ok(false));
    assert!(seen[0].starts_with("User \"system:serviceaccount:n:sa\" cannot get"), "{seen:?}");
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
        let (value, seen, _) = asked(text);
        assert_eq!(value, Err(EvalError::Failed(wanted.to_owned())));
        assert!(seen.is_empty());
    }
}

#[test]
fn cost_limit_allows_two_checks() {
    let check = "authorizer.path('/').check('get').allowed()";
    assert_eq!(asked(&format!("{check} && {check}")).0, Ok(true));
    let (value, seen, _) = asked(&format!("{check} && {check} && {check}"));
    assert_eq!(value, Err(EvalError::CostLimit));
    // The third check is not made.
    assert_eq!(seen.len(), 2);
}
