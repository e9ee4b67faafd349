//! Robustness tests with malformed expressions: none panics, and none exceeds its cost limit by more than one step.

use crate::{Decl, Env, Limits, Program, Value};

const HERE: &str = env!("CARGO_MANIFEST_DIR");

#[test]
fn expressions() {
    let seeds: [&[u8]; 8] = [
        b"self.all(x, x.startsWith('a') && size(x) < 3) ? {'a': [1, 2u, 3.5]} : {?'b': self.?c}",
        b"[1, 2].map(x, x * 2).filter(y, y > 1).exists_one(z, z == 4) || has(self.a.b)",
        b"'%d %s %.3f'.format([1, 'a', 2.0]).split(' ', -1).join('\\u00e9\\x41')",
        b"{'a': 1}.transformMap(k, v, v + 1).transformList(k, v, k)[0].matches(r'^a+$')",
        b"timestamp('2020-01-01T00:00:00Z') + duration('1h30m') < timestamp(0)",
        b"ip('10.0.0.1').family() + quantity('1Gi').asInteger() - -9223372036854775808",
        b"optional.of(self).optMap(v, v.a[?0].orValue(b'x' + B\"y\")).value()",
        b"[3, 1].sortBy(x, -x).slice(0, 1).flatten(2) + lists.range(5).reverse().distinct()",
    ];
    let tree = serde_json::json!({"a": {"b": "text"}, "c": [1, 2.5, null, "x"]});
    let env = Env::default().variable("self", Decl::ANY);
    fuzz::fuzz(HERE, "expression", &seeds, |input| {
        let Ok(text) = std::str::from_utf8(input) else { return };
        match Program::compile(&env, text) {
            Ok(program) => {
                let limits = Limits { cost: 10_000, ..Limits::default() };
                let outcome = program.evaluate(&[Some(Value::dynamic(&tree))], limits);
                assert!(outcome.cost <= 10_000 || outcome.value.is_err(), "{text:?}");
            }
            Err(issues) => assert!(!issues.to_string().is_empty()),
        }
    });
}
