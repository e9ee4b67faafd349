//! Tests with malicious expressions.

use cel::{Decl, Env, EvalError, Limits, Program, Value};

/// Runs `act` in a thread with a small stack, like a server's threads.
fn on_a_small_stack(act: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(2 << 20).spawn_scoped(scope, act);
        thread.expect("a thread").join().expect("no panic");
    });
}

fn tried(text: &str) -> Result<Result<Value<'static>, EvalError>, String> {
    let env = Env::default().with_mixed_literals().variable("self", Decl::ANY);
    let program = Program::compile(&env, text).map_err(|issues| issues.to_string())?;
    let outcome = program.evaluate(&[Some(Value::Int(1))], Limits::default());
    assert!(outcome.cost <= 2_000_000, "{} for {:.50}", outcome.cost, text);
    Ok(outcome.value.map(|_| Value::Null))
}

#[test]
fn limits_depth_without_stack_overflow() {
    for (before, middle, after) in [
        ("(", "1", ")"),
        ("[", "1", "]"),
        ("{1: ", "1", "}"),
        ("!(", "true", ")"),
        ("-(", "1", ")"),
        ("1 + (", "1", ")"),
        ("true && (", "true", ")"),
        ("true ? 1 : (", "1", ")"),
        ("size([", "1", "])"),
        ("[1].map(x, ", "1", ")"),
        ("[1].all(x, ", "true", ")"),
        ("optional.of(1).optMap(x, ", "1", ")"),
        ("{1: 2}.transformMap(k, v, ", "1", ")"),
        ("[", "1", "][0]"),
        ("dyn(", "1", ")"),
        ("self[", "1", "]"),
        ("[?optional.of(", "1", ")]"),
    ] {
        for depth in [60, 120, 240, 260, 10_000] {
            let text = format!("{}{middle}{}", before.repeat(depth), after.repeat(depth));
            on_a_small_stack(|| {
                let result = tried(&text);
                if depth > 250 {
                    let issues = result.expect_err("too deep");
                    assert!(
                        issues.contains("expression recursion limit exceeded: 250")
                            || issues.contains("limit"),
                        "{issues:.200}"
                    );
                } else if depth == 60 {
                    result
                        .expect("within the limit")
                        .map(|_| ())
                        .unwrap_or_else(|e| assert!(before.starts_with("self"), "{e} {before}"));
                }
            });
        }
    }
}

#[test]
fn rejects_long_expressions_before_parsing() {
    let long = format!("'{}' == self", "a".repeat(1 << 20));
    let issues = tried(&long).expect_err("too long");
    assert!(
        issues.contains("expression code point size exceeds limit: size: 1048586, limit 100000"),
        "{issues:.200}"
    );
    // Valid long expressions are parsed in linear time.
    for text in [
        vec!["true"; 12_000].join(" && "),
        format!("[{}]", vec!["1"; 30_000].join(",")),
        format!("{{{}}}", (0..8_000).map(|i| format!("{i}:{i}")).collect::<Vec<_>>().join(",")),
        "!".repeat(90_000) + "true",
    ] {
        tried(&text).expect("it compiles").map(|_| ()).expect("it evaluates");
    }
    let row = vec!["1"; 300].join(" + ");
    assert!(
        tried(&row).expect_err("too deep").contains("expression recursion limit exceeded: 250")
    );
}

#[test]
fn rejects_exploding_patterns() {
    for pattern in ["(a{1000}){1000}", "((((a{100}){100}){100}){100})", "(x+x+)+y{1001}"] {
        let constant = tried(&format!("'aaa'.matches('{pattern}')"));
        assert!(constant.expect_err(pattern).contains("invalid matches argument"));
        let dynamic = tried(&format!("'aaa'.matches(self == 1 ? '{pattern}' : '')"));
        assert!(dynamic.expect("it compiles").is_err(), "{pattern}");
    }
    // Matching takes time proportional to the lengths of pattern and text.
    let text = format!("'{}'.matches('^(a|aa)+$')", "a".repeat(30_000));
    tried(&text).expect("it compiles").map(|_| ()).expect("it matches");
}
