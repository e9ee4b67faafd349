//! Tests of the language: values and error messages.

use cel::{Env, Program};
use serde_json::json;

use crate::{all_fail, all_true, env};

#[test]
fn operators_macros_and_conversions() {
    let tree = json!({"a": {"b": [1, 2, 3]}, "t": "text", "n": null, "f": 1.5});
    all_true(
        &[
            "1 + 2 * 3 == 7 && 7 / 2 == 3 && -7 % 3 == -1",
            "9223372036854775807 == 0x7fffffffffffffff && -9223372036854775808 < 0",
            "dyn(1) == 1.0 && dyn(1u) == 1 && 2.5 > 2 && dyn(1) != 'a'",
            "'a' + 'b' == \"ab\" && b'a' + b'\\x62' == b'ab' && r'\\d' == '\\\\d'",
            "'''a\n'b''' == 'a\\n\\'b' && '\\u00e9' == 'é' && '\\101' == 'A'",
            "false && self.missing || true || self.missing",
            "self.missing == 1 || true",
            "self.a.b[1] == 2 && self['a']['b'][2] == 3 && self.n == null && self.f == 1.5",
            "has(self.a.b) && !has(self.a.c) && 't' in self && !('z' in self)",
            "self.a.b.all(x, x > 0) && self.a.b.exists(x, x == 2) && self.a.b.exists_one(x, x > 2)",
            "self.a.b.map(x, x > 1, x * x) == [4, 9] && self.a.b.filter(x, x != 2) == [1, 3]",
            "self.a.all(k, k == 'b') && {'x': 1, 'y': 2}.exists(k, k == 'y')",
            "[1, 2].all(i, v, v == i + 1) && {'a': 1}.transformMap(k, v, k + string(v)) == {'a': 'a1'}",
            "['a', 'b'].transformList(i, v, v + string(i)) == ['a0', 'b1']",
            "{'a': 'b'}.transformMapEntry(k, v, {v: k}) == {'b': 'a'}",
            "[1, 2, 3].map(x, [x].map(y, x + y)) == [[2], [4], [6]]",
            "size('é!') == 2 && size(b'é') == 2 && [1].size() == 1 && {'a': 1}.size() == 1",
            "int('-5') == -5 && uint(3.9) == 3u && double('1e3') == 1000.0 && string(1.0) == '1' && bool('true')",
            "string(b'hi') == 'hi' && bytes('hi') == b'hi' && string(1e21) == '1e+21'",
            "type(1) == int && type(type(1)) == type && type([]) == list && type(null) == null_type",
            "duration('1h30m') == duration('90m') && duration('1.5s').getMilliseconds() == 1500",
            "timestamp('2024-02-29T12:00:00Z').getDayOfYear() == 59 && timestamp('2024-02-29T12:00:00Z').getDayOfWeek() == 4",
            "timestamp('2024-01-01T00:00:00Z').getHours('-01:00') == 23 && string(timestamp(0)) == '1970-01-01T00:00:00Z'",
            "timestamp('2024-01-01T00:00:00Z') + duration('24h') == timestamp('2024-01-02T00:00:00Z')",
            "timestamp('2024-01-02T00:00:00Z') - timestamp('2024-01-01T00:00:00Z') == duration('24h')",
            "optional.of(1).hasValue() && !optional.none().hasValue() && self.?t.value() == 'text'",
            "self.?missing.orValue('x') == 'x' && self.a.?b[?7].or(optional.of(1)).value() == 1",
            "optional.of(2).optMap(x, x + 1).value() == 3 && optional.of(2).optFlatMap(x, optional.none()) == optional.none()",
            "[?self.?t, ?self.?missing].size() == 1 && {?'a': optional.none()} == {}",
            "true ? self.t == 'text' : self.missing",
            "[1, 2] + [3] == [1, 2, 3] && 2 in [1, 2] && !(4 in [1, 2])",
            "1 in {1: 'a'} && {1: 'a'}[dyn(1u)] == 'a' && dyn({'a': [1]}) == {'a': [1.0]}",
        ],
        &tree,
    );
}

#[test]
fn reports_evaluation_errors() {
    all_fail(
        &[
            ("self.b", "no such key: b"),
            ("self.a[3]", "index out of bounds: 3"),
            ("self.a[-1]", "index out of bounds: -1"),
            ("1 / self.zero", "division by zero"),
            ("1 % self.zero", "modulus by zero"),
            ("9223372036854775807 + self.one", "integer overflow"),
            ("0u - uint(self.one)", "unsigned integer overflow"),
            ("self.one + 'a'", "no such overload"),
            ("self.one && true", "no such overload"),
            ("self.missing == 1 || false", "no such key: missing"),
            ("optional.none().value()", "optional.none() dereference"),
            ("{self.one: 1, dyn(1): 2}", "insert failed: key 1 already exists"),
            ("timestamp(self.big)", "timestamp overflow"),
        ],
        &json!({"a": [1], "zero": 0, "one": 1, "big": 9_000_000_000_000_i64}),
    );
}

#[test]
fn reports_compile_errors_with_position() {
    for (text, wanted) in [
        (
            "1 +",
            "ERROR: <input>:1:4: Syntax error: mismatched input '<EOF>' expecting {'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}\n | 1 +\n | ...^",
        ),
        (
            "nobody",
            "ERROR: <input>:1:1: undeclared reference to 'nobody' (in container '')\n | nobody\n | ^",
        ),
        (
            "'é'.nothing()",
            "ERROR: <input>:1:12: undeclared reference to 'nothing' (in container '')\n | 'é'.nothing()\n | .．.........^",
        ),
        (
            "true &&\n  1",
            "ERROR: <input>:1:6: found no matching overload for '_&&_' applied to '(bool, int)'\n | true &&\n | .....^",
        ),
        (
            "'a'.startsWith(1)",
            "ERROR: <input>:1:15: found no matching overload for 'startsWith' applied to 'string.(int)'\n | 'a'.startsWith(1)\n | ..............^",
        ),
        (
            "1.all(x, true)",
            "ERROR: <input>:1:1: expression of type 'int' cannot be range of a comprehension (must be list, map, or dynamic)\n | 1.all(x, true)\n | ^",
        ),
        (
            "[1].all(x.y, true)",
            "ERROR: <input>:1:10: argument must be a simple name\n | [1].all(x.y, true)\n | .........^",
        ),
        (
            "has(self)",
            "ERROR: <input>:1:5: invalid argument to has() macro\n | has(self)\n | ....^",
        ),
        ("for", "ERROR: <input>:1:1: reserved identifier: for\n | for\n | ^"),
        (
            "[1, 'a']",
            "ERROR: <input>:1:5: expected type 'int' but found 'string'\n | [1, 'a']\n | ....^",
        ),
        (
            "'a'.matches('(')",
            "ERROR: <input>:1:13: invalid matches argument\n | 'a'.matches('(')\n | ............^",
        ),
        (
            "duration('1 day')",
            "ERROR: <input>:1:10: invalid duration argument\n | duration('1 day')\n | .........^",
        ),
        (
            "9223372036854775808",
            "ERROR: <input>:1:1: invalid int literal\n | 9223372036854775808\n | ^",
        ),
        ("'a", "ERROR: <input>:1:1: Syntax error: token recognition error at: ''a'\n | 'a\n | ^"),
    ] {
        let issues = Program::compile(&env(), text).expect_err(text);
        assert_eq!(issues.to_string(), wanted, "{text}");
    }
}

#[test]
fn older_versions_lack_newer_functions() {
    for (minor, text) in [
        (27, "optional.none().hasValue()"),
        (27, "quantity('1') == quantity('1')"),
        (28, "sets.contains([1], [1])"),
        (29, "isIP('::1')"),
        (30, "format.uri().validate('a').hasValue()"),
        (31, "[1].all(i, v, true)"),
        (32, "isSemver('1.2.3')"),
        (33, "[1].reverse() == [1]"),
    ] {
        assert!(Program::compile(&Env::kubernetes(minor), text).is_err(), "{minor} {text}");
        assert!(Program::compile(&Env::kubernetes(minor + 1), text).is_ok(), "{text}");
    }
    let patch = "jsonpatch.escapeKey('a') == 'a'";
    assert!(Program::compile(&env(), patch).is_err());
    assert!(Program::compile(&env().with_mutation(), patch).is_ok());
}

#[test]
fn binds_value_to_name() {
    let env = Env::default().with_bindings();
    let outcome = |text: &str| {
        let program =
            Program::compile(&env, text).unwrap_or_else(|issues| panic!("{text}: {issues}"));
        let outcome = program.evaluate(&[], cel::Limits::default());
        (outcome.value.and_then(|value| value.to_json()), outcome.cost)
    };
    for text in [
        "cel.bind(x, [1, 2], x[0] + x[1] == 3)",
        "cel.bind(x, 2, cel.bind(y, x * 2, x + y)) == 6",
        "[1, 2].all(i, cel.bind(x, i, x > 0))",
        "cel.bind(x, 1, cel.bind(x, x + 1, x)) == 2",
    ] {
        assert_eq!(outcome(text).0, Ok(serde_json::json!(true)), "{text}");
    }
    // The value is evaluated once, however often it is used.
    let (once, twice) =
        (outcome("cel.bind(x, 1 + 2 + 3, x)").1, outcome("cel.bind(x, 1 + 2 + 3, x + x)").1);
    assert!(twice - once <= 3, "{once} and {twice}");
    for (text, words) in [
        ("cel.bind(x.y, 1, 2)", "cel.bind() variable names must be simple identifiers"),
        ("cel.bind(x, 'a', x + 1)", "found no matching overload for '_+_'"),
        ("cel.bind(x, 1, 2) + x", "undeclared reference to 'x'"),
        ("cel.bind(x, 1)", "undeclared reference to"),
    ] {
        let issues = Program::compile(&env, text).unwrap_err().to_string();
        assert!(issues.contains(words), "{text}: {issues}");
    }
    assert!(
        Program::compile(&Env::default(), "cel.bind(x, 1, x)").is_err(),
        "only where it is asked for"
    );
}

#[test]
fn map_has_default_for_other_keys() {
    use cel::{Decl, Limits, Shape, Value};
    let shape = Shape::Map(std::sync::Arc::new(Decl::ANY));
    let env = Env::default().variable("m", Decl::new(shape, 8, 2));
    let known = [(Value::string("a"), Value::Int(1))];
    let map = Value::map_or(known, Value::Int(0)).unwrap();
    for (text, wanted) in [
        ("m.a == 1 && m['b'] == 0 && m.c == 0", true),
        ("'b' in m", false),
        ("m.all(key, key == 'a') && size(m) == 1", true),
        ("has(m.b)", true),
    ] {
        let program = Program::compile(&env, text).unwrap();
        let outcome = program.evaluate(&[Some(map.clone())], Limits::default());
        assert_eq!(
            outcome.value.and_then(|v| v.to_json()),
            Ok(serde_json::json!(wanted)),
            "{text}"
        );
    }
}
