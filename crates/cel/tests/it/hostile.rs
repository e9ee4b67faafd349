//! Expressions that are made to do harm.

use cel::{Decl, Env, EvalError, Limits, Value};

/// On a stack as a server's threads have it.
fn on_a_small_stack(act: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(2 << 20).spawn_scoped(scope, act);
        thread.expect("a thread").join().expect("no panic");
    });
}

fn tried(text: &str) -> Result<Result<Value<'static>, EvalError>, String> {
    let env = Env::default().with_mixed_literals().variable("self", Decl::ANY);
    let program = env.compile(text).map_err(|issues| issues.to_string())?;
    let outcome = program.evaluate(&[Some(Value::Int(1))], Limits::default());
    assert!(outcome.cost <= 2_000_000, "{} for {:.50}", outcome.cost, text);
    Ok(outcome.value.map(|_| Value::Null))
}

#[test]
fn depth_is_limited_and_what_is_within_the_limit_does_not_overflow() {
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
