//! CEL's conformance tests from `CEL_SPEC_DIR` (a checkout of google/cel-spec).

use std::{env, fs, path::PathBuf};

use api_meta::Timestamp;
use cel::{Env, Limits, Program, Text, Type, Value};

use crate::textproto::{Item, Message, read};

/// Words of tests for features that Kubernetes' environment lacks: messages, wrappers and enums of protobuf, other
/// libraries, and evaluation without type checking.
const UNSUPPORTED: [&str; 18] = [
    "TestAllTypes",
    "NestedTestAllTypes",
    "GlobalEnum",
    "google.protobuf.Any",
    "google.protobuf.Struct",
    "google.protobuf.Value",
    "google.protobuf.ListValue",
    "google.protobuf.BoolValue",
    "google.protobuf.BytesValue",
    "google.protobuf.DoubleValue",
    "google.protobuf.FloatValue",
    "google.protobuf.Int",
    "google.protobuf.UInt",
    "google.protobuf.StringValue",
    "google.protobuf.Empty",
    "google.protobuf.FieldMask",
    "wrapper",
    "enum",
];

const UNSUPPORTED_FILES: [&str; 9] = [
    "bindings_ext",
    "block_ext",
    "dynamic",
    "encoders_ext",
    "enums",
    "math_ext",
    "proto2",
    "proto2_ext",
    "proto3",
];

fn directory() -> Option<PathBuf> {
    let root = PathBuf::from(env::var_os("CEL_SPEC_DIR")?);
    Some(root.join("tests/simple/testdata"))
}

#[derive(Default)]
struct Count {
    passed: usize,
    failed: Vec<String>,
    elsewhere: usize,
}

#[test]
fn passes_supported_conformance_tests() {
    let Some(directory) = directory() else {
        eprintln!("skipped: CEL_SPEC_DIR names no checkout of google/cel-spec");
        return;
    };
    let mut names: Vec<PathBuf> = fs::read_dir(&directory)
        .expect("the directory of the tests")
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|e| e == "textproto"))
        .collect();
    names.sort();
    assert!(!names.is_empty(), "{} has no tests", directory.display());
    let mut failures = Vec::new();
    let mut total = Count::default();
    for path in names {
        let name = path.file_stem().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let count = file(&name, &read(&fs::read_to_string(&path).expect("a file of tests")));
        println!(
            "{name}: {} passed, {} failed, {} of what Kubernetes has not",
            count.passed,
            count.failed.len(),
            count.elsewhere
        );
        total.passed += count.passed;
        total.elsewhere += count.elsewhere;
        failures.extend(count.failed);
    }
    println!(
        "all: {} passed, {} failed, {} elsewhere",
        total.passed,
        failures.len(),
        total.elsewhere
    );
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

fn file(name: &str, file: &Message) -> Count {
    let mut count = Count::default();
    for section in file.messages("section") {
        for test in section.messages("test") {
            let at = format!("{name}/{}/{}", section.text("name"), test.text("name"));
            if UNSUPPORTED_FILES.contains(&name) || elsewhere(test) {
                count.elsewhere += 1;
                continue;
            }
            match run(test) {
                Ok(()) => count.passed += 1,
                Err(why) => count.failed.push(format!("{at}: {}: {why}", test.text("expr"))),
            }
        }
    }
    count
}

fn elsewhere(test: &Message) -> bool {
    let shown = words(test);
    let declares_function =
        test.messages("type_env").any(|decl| decl.message("function").is_some());
    let zone = ["Asia/", "America/", "Australia/", "US/", "Europe/"];
    test.is("disable_check")
        || test.is("disable_macros")
        || declares_function
        || UNSUPPORTED.iter().any(|word| shown.contains(word))
        // Upstream returns the total milliseconds of a duration, like the total seconds.
        || test.text("expr") == "x.getMilliseconds()" && shown.contains("Duration")
        // Kubernetes' version of the strings extension prints exponents like printf.
        || shown.contains("scientific notation") && shown.contains("e+0")
        || shown.contains("2.718280e+00") || shown.contains("2.000000e+00") || shown.contains("3.000000e+00")
        // IPv4-mapped IPv6 addresses are rejected, and this version of the strings extension has no `reverse`.
        || shown.contains("ip('::ffff:c0a8") || shown.contains("'.reverse()")
        || zone.iter().any(|zone| test.text("expr").contains(zone))
}

/// Returns all strings and words of a test.
fn words(message: &Message) -> String {
    let item = |(name, item): &(String, Item)| match item {
        Item::Message(message) => format!("{name} {}", words(message)),
        Item::Text(text) => String::from_utf8_lossy(text).into_owned(),
        Item::Word(word) => word.clone(),
    };
    message.0.iter().map(item).collect::<Vec<_>>().join("\n")
}

fn run(test: &Message) -> Result<(), String> {
    let mut environment =
        Env::default().with_mixed_literals().in_container(&test.text("container"));
    let mut values = Vec::new();
    for decl in test.messages("type_env") {
        let ident = decl.message("ident").ok_or("a declaration of no variable")?;
        environment =
            environment.typed(&decl.text("name"), ty(ident.message("type").ok_or("a type")?)?);
        values.push(binding(test, &decl.text("name"))?);
    }
    let program = match Program::compile(&environment, &test.text("expr")) {
        Ok(program) => program,
        Err(_)
            if test.message("eval_error").is_some()
                || test.message("any_eval_errors").is_some() =>
        {
            return Ok(());
        }
        Err(issues) => return Err(issues.to_string()),
    };
    let typed = test.message("typed_result");
    if let Some(wanted) = typed.and_then(|t| t.message("deduced_type")) {
        let wanted = ty(wanted)?;
        if *program.result() != wanted {
            return Err(format!("its type is {} and ought to be {wanted}", program.result()));
        }
    }
    if test.is("check_only") {
        return Ok(());
    }
    let outcome = program.evaluate(&values, Limits::default());
    let errs = test.message("eval_error").is_some() || test.message("any_eval_errors").is_some();
    let given = match (outcome.value, errs) {
        (Err(_), true) => return Ok(()),
        (Err(error), false) => return Err(format!("fails: {error}")),
        (Ok(value), true) => return Err(format!("ought to fail and gives {value:?}")),
        (Ok(value), false) => value,
    };
    let wanted = match test.message("value").or_else(|| typed.and_then(|t| t.message("result"))) {
        Some(wanted) => value(wanted)?,
        // A test expects `true` by default.
        None => Value::Bool(true),
    };
    if same(&given, &wanted) {
        Ok(())
    } else {
        Err(format!("gives {given:?} and ought to give {wanted:?}"))
    }
}

fn binding(test: &Message, name: &str) -> Result<Option<Value<'static>>, String> {
    let found = test.messages("bindings").find(|binding| binding.text("key") == name);
    let Some(given) = found.and_then(|b| b.message("value")).and_then(|v| v.message("value"))
    else {
        return Ok(None);
    };
    value(given).map(Some)
}

fn ty(message: &Message) -> Result<Type, String> {
    let below = |message: &Message, name: &str| message.message(name).map_or(Ok(Type::Dyn), ty);
    let (name, item) = message.0.first().ok_or("an empty type")?;
    Ok(match (name.as_str(), item) {
        ("primitive", Item::Word(word)) => match word.as_str() {
            "BOOL" => Type::Bool,
            "INT64" => Type::Int,
            "UINT64" => Type::Uint,
            "DOUBLE" => Type::Double,
            "STRING" => Type::String,
            _ => Type::Bytes,
        },
        ("well_known", Item::Word(word)) => match word.as_str() {
            "TIMESTAMP" => Type::Timestamp,
            "DURATION" => Type::Duration,
            other => return Err(format!("type {other}")),
        },
        ("list_type", Item::Message(of)) => Type::list(below(of, "elem_type")?),
        ("map_type", Item::Message(of)) => {
            Type::map(below(of, "key_type")?, below(of, "value_type")?)
        }
        ("message_type", Item::Text(name)) if name.ends_with(b".Duration") => Type::Duration,
        ("message_type", Item::Text(name)) if name.ends_with(b".Timestamp") => Type::Timestamp,
        ("dyn", _) => Type::Dyn,
        ("null", _) => Type::Null,
        ("type", Item::Message(of)) if of.0.is_empty() => Type::type_of(Type::Dyn),
        ("type", Item::Message(of)) => Type::type_of(ty(of)?),
        ("abstract_type", Item::Message(of)) => Type::optional(below(of, "parameter_types")?),
        (other, _) => return Err(format!("type {other}")),
    })
}

fn value(message: &Message) -> Result<Value<'static>, String> {
    let (name, item) = message.0.first().ok_or("an empty value")?;
    let word = match item {
        Item::Word(word) => word.as_str(),
        _ => "",
    };
    let bad = |_| format!("value {word}");
    Ok(match (name.as_str(), item) {
        ("null_value", _) => Value::Null,
        ("bool_value", _) => Value::Bool(word == "true"),
        ("int64_value", _) => Value::Int(word.parse().map_err(bad)?),
        ("uint64_value", _) => Value::Uint(word.parse().map_err(bad)?),
        ("double_value", _) => Value::Double(word.parse().map_err(|_| format!("value {word}"))?),
        ("string_value", Item::Text(text)) => {
            Value::String(Text::Shared(String::from_utf8_lossy(text).into()))
        }
        ("bytes_value", Item::Text(bytes)) => Value::Bytes(bytes.as_slice().into()),
        ("type_value", Item::Text(name)) => {
            let name = String::from_utf8_lossy(name).into_owned();
            let program =
                Program::compile(&Env::default(), &name).map_err(|issues| issues.to_string())?;
            match program.evaluate(&[], Limits::default()).value {
                Ok(Value::Type(ty)) => Value::Type(ty),
                other => return Err(format!("type {other:?}")),
            }
        }
        ("list_value", Item::Message(list)) => {
            Value::list(list.messages("values").map(value).collect::<Result<_, _>>()?)
        }
        ("map_value", Item::Message(map)) => {
            let mut entries = Vec::new();
            for entry in map.messages("entries") {
                let part = |name| entry.message(name).ok_or("an entry").map(value);
                entries.push((part("key")??, part("value")??));
            }
            Value::map(entries).map_err(|error| error.to_string())?
        }
        ("object_value", Item::Message(any)) => object(any)?,
        (other, _) => return Err(format!("value {other}")),
    })
}

fn object(any: &Message) -> Result<Value<'static>, String> {
    let Some((name, Item::Message(fields))) = any.0.first() else {
        return Err("an object".to_owned());
    };
    let number = |field: &str| fields.text(field).parse::<i64>().unwrap_or(0);
    let (seconds, nanos) = (number("seconds"), number("nanos"));
    match name.rsplit('.').next() {
        Some("Timestamp") => Ok(Value::Timestamp(Timestamp::from_unix(seconds, nanos as u32))),
        Some("Duration") => Ok(Value::Duration(seconds * 1_000_000_000 + nanos)),
        _ => Err(format!("object {name}")),
    }
}

/// Reports whether two values are equal and of the same type.
fn same(a: &Value<'_>, b: &Value<'_>) -> bool {
    match (a, b) {
        (Value::Double(a), Value::Double(b)) => a == b || a.is_nan() && b.is_nan(),
        (Value::List(a), Value::List(b)) => {
            a.len() == b.len()
                && (0..a.len()).all(|at| match (a.get(at), b.get(at)) {
                    (Ok(a), Ok(b)) => same(&a, &b),
                    _ => false,
                })
        }
        (Value::Map(a), Value::Map(b)) => {
            a.len() == b.len()
                && a.entries().all(|entry| {
                    entry.is_ok_and(|(key, value)| {
                        b.get(&key)
                            .is_ok_and(|other| other.is_some_and(|other| same(&value, &other)))
                    })
                })
        }
        (Value::Type(a), Value::Type(b)) => a.name() == b.name(),
        (Value::Null, Value::Null) => true,
        (a, b) => {
            std::mem::discriminant(a) == std::mem::discriminant(b) && a.to_json() == b.to_json()
        }
    }
}
