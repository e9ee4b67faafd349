//! Tests of actual costs, estimated costs and cost limits, in upstream's units.

use std::{cell::Cell, sync::Arc};

use cel::{Cost, Decl, Env, EvalError, Field, Limits, ListKind, Object, Program, Shape, Value};
use proptest::prelude::*;
use serde_json::{Value as Json, json};

use crate::compiled;

fn spent(text: &str, itself: &Json) -> u64 {
    compiled(text).evaluate(&[Some(Value::dynamic(itself))], Limits::default()).cost
}

#[test]
fn charges_like_upstream() {
    let tree = json!({"s": "0123456789abcdefghij", "l": [1, 2, 3, 4], "m": {"a": 1}});
    for (text, cost) in [
        ("1 + 2 == 3", 2),
        ("self.s == 'a'", 3),
        ("self.s == self.s", 6),
        // Constant lists and lookups in them are free.
        ("self.s in ['a', 'b']", 2),
        ("self.m.a in self.l", 6),
        ("has(self.s)", 1),
        ("has(self.m.a)", 2),
        ("size(self.l) == 4", 4),
        ("self.s.startsWith('0')", 4),
        // (20 + 1) * 0.1 rounded up, times 8 * 0.25.
        ("self.s.matches('^[0-9]+$')", 8),
        ("self.l.all(x, x > 0)", 23),
        ("self.l.exists(x, x == 4)", 27),
        ("self.l.map(x, x).size() == 4", 57),
        ("self.l[0] == 1", 4),
        ("true ? self.l : self.s", 1),
        ("[self.s]", 12),
        ("{'a': self.s}", 32),
    ] {
        assert_eq!(spent(text, &tree), cost, "{text}");
    }
}

fn bounded() -> Env {
    let text = Decl::new(Shape::String, 40, 2);
    let item = Arc::new(text.clone());
    let list = Decl::new(Shape::List { item, kind: ListKind::Atomic }, 100, 2);
    let field =
        |name: &str, decl: &Decl| Field { name: name.into(), key: name.into(), decl: decl.clone() };
    let int = Decl::new(Shape::Int, 0, 1);
    let fields = vec![field("s", &text), field("l", &list), field("i", &int)];
    Env::default().variable("self", Decl::new(Shape::Object(Object::new("t", fields)), 0, 2))
}

#[test]
fn estimates_like_upstream() {
    for (text, min, max) in [
        ("true", 0, 0),
        ("self.i == 1", 2, 2),
        ("self.s == self.s", 5, 8),
        ("self.s.startsWith('abc')", 3, 3),
        ("self.s.contains('abcdefghijk')", 2, 10),
        ("self.s.matches('abcd')", 3, 7),
        ("self.l.all(x, x == 'a')", 3, 503),
        ("self.l.exists(x, x in self.l)", 3, 10_703),
        ("self.l.map(x, x + x).size() > 1", 15, 2215),
        ("self.s == 'a' || self.i == 1", 3, 5),
    ] {
        let cost = Program::compile(&bounded(), text)
            .unwrap_or_else(|issues| panic!("{issues}"))
            .estimate();
        assert_eq!(cost, Cost { min, max }, "{text}");
    }
    // Without bounds the maximum cost is unlimited.
    let unbounded = Env::default().variable("self", Decl::ANY);
    let cost = Program::compile(&unbounded, "self.all(x, self.all(y, x == y))")
        .expect("it compiles")
        .estimate();
    assert_eq!(cost.max, u64::MAX);
}

#[test]
fn stops_at_cost_limit() {
    let list = Json::from((0..2000).collect::<Vec<i64>>());
    for text in [
        "self.all(x, self.all(y, self.all(z, x + y + z >= 0)))",
        "self.map(x, self.map(y, self.map(z, z))).size() > 0",
        "self.exists(x, self.exists(y, self.exists(z, false)))",
        "lists.range(100000000).size() > 0",
        "lists.range(900000).map(x, lists.range(900000)).size() > 0",
        // Each concatenation costs one and copies nothing; the result is too long to traverse.
        "optional.of(self).optMap(a, a + a).optMap(a, a + a).optMap(a, a + a).optMap(a, a + a).optMap(a, a + a).optMap(a, a + a).optMap(a, a + a).optMap(a, a + a).value().all(x, x >= 0)",
        "self.all(x, self == self.map(y, y) && self.map(y, y) == self)",
        "self.map(x, 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'.replace('', 'bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb').replace('', 'ccccccccccccccccccccccccccc')).join('').replace('', 'dddddddddddddddddddd').size() > 1",
    ] {
        let program = compiled(text);
        let outcome = program.evaluate(&[Some(Value::dynamic(&list))], Limits::default());
        assert_eq!(outcome.value.map(|_| ()), Err(EvalError::CostLimit), "{text}");
    }
}

#[test]
fn stops_when_cancelled() {
    let list = Json::from((0..10_000).collect::<Vec<i64>>());
    let calls = Cell::new(0);
    let cancelled = || {
        calls.set(calls.get() + 1);
        calls.get() > 3
    };
    let limits = Limits { cancelled: Some(&cancelled), ..Limits::default() };
    let program = compiled("self.all(x, x >= 0)");
    let outcome = program.evaluate(&[Some(Value::dynamic(&list))], limits);
    assert_eq!(outcome.value.map(|_| ()), Err(EvalError::Interrupted));
    assert_eq!(calls.get(), 4);
}

/// Generates expressions of every kind, most of which compile.
fn expressions() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("self".to_owned()),
        Just("self.l".to_owned()),
        Just("self.s".to_owned()),
        Just("x".to_owned()),
        Just("1".to_owned()),
        Just("'ab'".to_owned()),
        Just("[1, 2]".to_owned()),
        Just("true".to_owned()),
    ];
    leaf.prop_recursive(6, 40, 3, |inner| {
        prop_oneof![
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a} + {b})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a} == {b})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("dyn({a}).map(x, {b})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("dyn({a}).all(x, dyn({b}))")),
            (inner.clone(), inner.clone())
                .prop_map(|(a, b)| format!("optional.of({a}).optMap(x, {b}).value()")),
            (inner.clone(), inner.clone())
                .prop_map(|(a, b)| format!("dyn({a}).replace('', string(dyn({b})))")),
            inner.clone().prop_map(|a| format!("[dyn({a}), dyn({a})].flatten(9)")),
            inner.clone().prop_map(|a| format!("size(dyn({a}))")),
            inner.prop_map(|a| format!("'%s'.format([{a}])")),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn never_exceeds_cost_limit(text in expressions(), limit in 0_u64..3000) {
        let tree = json!({"l": [1, "a", [true]], "s": "text"});
        let env = Env::default().with_mixed_literals().variable("self", Decl::ANY);
        if let Ok(program) = Program::compile(&env.typed("x", cel::Type::Dyn), &text) {
            let limits = Limits { cost: limit, ..Limits::default() };
            let values = [Some(Value::dynamic(&tree)), Some(Value::Int(1))];
            let outcome = program.evaluate(&values, limits);
            prop_assert!(outcome.cost <= limit || outcome.value.is_err());
            // The estimate is an upper bound of the actual cost. Here it is trivial, because the variables are
            // unbounded.
            let whole = program.evaluate(&values, Limits::default());
            prop_assert!(whole.value.is_err() || whole.cost <= program.estimate().max.max(1_000_000));
        }
    }
}
