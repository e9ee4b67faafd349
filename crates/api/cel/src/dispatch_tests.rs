//! Calls whose types the checker does not know. A call succeeds only if an overload accepts the values.

use crate::{
    Env, Limits, Program, Type, Value,
    natives::LIBRARIES,
    overloads::{self, Overload},
};

/// An expression for a value of each type.
const SAMPLES: [&str; 16] = [
    "1",
    "'a'",
    "[1]",
    "['a']",
    "{'a': 1}",
    "duration('1h')",
    "timestamp('2020-01-01T00:00:00Z')",
    "2u",
    "1.5",
    "true",
    "null",
    "b'a'",
    "optional.of(1)",
    "quantity('1')",
    "semver('1.0.0')",
    "ip('10.0.0.1')",
];
/// The number of samples for the fourth argument and later ones.
const FEW: usize = 4;

fn dynamic(args: usize) -> Env {
    let env = Env::kubernetes(36).with_mutation();
    (0..args).fold(env, |env, at| env.typed(&format!("a{at}"), Type::Dyn))
}

fn evaluate<'a>(program: &'a Program, args: &[Value<'a>]) -> Option<Value<'a>> {
    let args: Vec<_> = args.iter().cloned().map(Some).collect();
    program.evaluate(&args, Limits::default()).value.ok()
}

/// Returns the call of an overload with variables of unknown types.
fn call(overload: &Overload) -> String {
    let args: Vec<String> = (0..overload.args.len()).map(|at| format!("a{at}")).collect();
    let name = overload.function.name;
    if overload.member {
        format!("{}.{name}({})", args[0], args[1..].join(", "))
    } else {
        format!("{name}({})", args.join(", "))
    }
}

/// Calls `then` with all combinations of samples.
fn combine<'a>(
    samples: &[Value<'a>],
    left: usize,
    args: &mut Vec<Value<'a>>,
    then: &mut dyn FnMut(&[Value<'a>]),
) {
    if left == 0 {
        return then(args);
    }
    let some = if args.len() < 3 { samples } else { &samples[..FEW] };
    for sample in some {
        args.push(sample.clone());
        combine(samples, left - 1, args, then);
        args.pop();
    }
}

#[test]
fn rejects_values_that_no_overload_accepts() {
    let env = dynamic(0);
    let programs: Vec<Program> =
        SAMPLES.iter().map(|text| Program::compile(&env, text).unwrap()).collect();
    let samples: Vec<Value<'_>> =
        programs.iter().map(|program| evaluate(program, &[]).unwrap()).collect();
    let (mut wrong, mut accepted) = (Vec::new(), 0);
    for function in LIBRARIES.iter().flat_map(|library| library.functions) {
        // As upstream, `or` does not evaluate its argument if the receiver has a value.
        if !function.name.starts_with(|c: char| c.is_ascii_alphabetic()) || function.name == "or" {
            continue;
        }
        let all = overloads::find(function.name);
        for overload in all.iter().filter(|overload| std::ptr::eq(overload.function, function)) {
            let (text, length) = (call(overload), overload.args.len());
            let Ok(program) = Program::compile(&dynamic(length), &text) else { continue };
            combine(&samples, length, &mut Vec::new(), &mut |args| {
                if evaluate(&program, args).is_none() {
                    return;
                }
                accepted += 1;
                let fits = all.iter().any(|other| {
                    other.member == overload.member
                        && other.args.len() == length
                        && other.args.iter().zip(args).all(|(ty, value)| value.is_kind_of(ty))
                });
                if !fits {
                    let types: Vec<String> =
                        args.iter().map(|value| value.type_of().to_string()).collect();
                    wrong.push(format!("{text} of {}", types.join(", ")));
                }
            });
        }
    }
    wrong.sort_unstable();
    wrong.dedup();
    assert!(wrong.is_empty(), "{} calls:\n{}", wrong.len(), wrong.join("\n"));
    assert!(accepted > 500, "{accepted} calls succeed");
}

#[test]
fn counts_arguments_of_dynamic_receivers() {
    let env = Env::kubernetes(36);
    for (text, expected) in [
        ("dyn('aXa').indexOf('a', 1)", Some(Value::Int(2))),
        ("dyn(['b', 'a']).indexOf('a')", Some(Value::Int(1))),
        ("dyn(['a']).indexOf('a', 1)", None),
        ("dyn('aXa').lastIndexOf('a', 1)", Some(Value::Int(0))),
        ("dyn(['a']).lastIndexOf('a', 0)", None),
        ("dyn(duration('90m')).getHours()", Some(Value::Int(1))),
        ("dyn(duration('90m')).getHours('UTC')", None),
        ("dyn(timestamp('2020-01-01T03:00:00Z')).getHours('UTC')", Some(Value::Int(3))),
    ] {
        let program = Program::compile(&env, text).unwrap();
        let result = program.evaluate(&[], Limits::default()).value;
        match expected {
            Some(expected) => {
                assert_eq!(format!("{:?}", result.unwrap()), format!("{expected:?}"), "{text}")
            }
            None => assert_eq!(result.unwrap_err().to_string(), "no such overload", "{text}"),
        }
    }
}
