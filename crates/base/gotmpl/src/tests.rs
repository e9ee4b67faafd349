use serde_json::{Value, json};

use crate::{ErrorKind, Functions, Limits, MissingKey, Template};

fn data() -> Value {
    json!({
        "n": 3, "big": 1_000_000, "f": 1.5, "s": "hi", "t": true, "no": false, "nil": null,
        "empty": "", "html": "<a href='x'>&\"</a>",
        "list": ["a", "b", "c"], "nums": [1, 2, 3], "none": [],
        "map": {"b": 2, "a": 1, "C": {"deep": "x"}},
    })
}

fn run(text: &str) -> Result<String, String> {
    Template::parse("x", text)
        .and_then(|template| template.missing_key(MissingKey::Error).execute(&data()))
        .map_err(|error| error.to_string())
}

#[track_caller]
fn table(rows: &[(&str, &str)]) {
    for (text, want) in rows {
        assert_eq!(run(text).as_deref(), Ok(*want), "{text}");
    }
}

#[test]
fn executes_actions() {
    table(&[
        ("", ""),
        ("plain", "plain"),
        ("{{.s}} {{ .n }}", "hi 3"),
        ("{{.map.C.deep}}", "x"),
        ("{{.nil}}", "<no value>"),
        (
            "{{.big}} {{.f}} {{.t}} {{.nums}} {{.map}}",
            "1e+06 1.5 true [1 2 3] map[C:map[deep:x] a:1 b:2]",
        ),
        ("a {{- .s -}} b", "ahib"),
        ("a {{.s -}}\n\t b", "a hib"),
        ("a {{- /* gone */ -}} b", "ab"),
        ("x{{/* a\nb */}}y", "xy"),
        (
            "{{3}} {{-3}} {{0x10}} {{1e3}} {{'a'}} {{1_000}} {{0b11}} {{017}}",
            "3 -3 16 1000 97 1000 3 15",
        ),
        ("{{\"a\\tb\\u00e9\"}}{{`r\\t`}}", "a\tb\u{e9}r\\t"),
        ("{{if .t}}1{{else}}2{{end}}", "1"),
        ("{{if .none}}1{{else if .no}}2{{else if .s}}3{{else}}4{{end}}", "3"),
        ("{{if not .t}}1{{end}}", ""),
        ("{{with .map.C}}{{.deep}}{{end}}", "x"),
        ("{{with .empty}}1{{else with .s}}{{.}}{{else}}3{{end}}", "hi"),
        ("{{with $x := .s}}{{$x}}{{.}}{{end}}", "hihi"),
        ("{{range .list}}{{.}},{{end}}", "a,b,c,"),
        ("{{range $x := .list}}{{$x}}{{end}}", "abc"),
        ("{{range $i, $x := .list}}{{$i}}{{$x}}{{end}}", "0a1b2c"),
        ("{{range $k, $v := .map}}{{$k}}={{$v}};{{end}}", "C=map[deep:x];a=1;b=2;"),
        ("{{range .none}}1{{else}}none{{end}}", "none"),
        ("{{range 3}}{{.}}{{end}}", "012"),
        ("{{range .list}}{{if eq . \"b\"}}{{break}}{{end}}{{.}}{{end}}", "a"),
        ("{{range .list}}{{if eq . \"b\"}}{{continue}}{{end}}{{.}}{{end}}", "ac"),
        ("{{$x := 1}}{{range .list}}{{$x = .}}{{end}}{{$x}}", "c"),
        ("{{$x := 1}}{{if true}}{{$x := 2}}{{$x}}{{end}}{{$x}}", "21"),
        ("{{range .list}}{{$.s}}{{end}}", "hihihi"),
        (
            "{{define \"t\"}}[{{.}}]{{end}}{{template \"t\" .s}}{{template \"t\"}}",
            "[hi][<no value>]",
        ),
        ("{{block \"b\" .s}}<{{.}}>{{end}}", "<hi>"),
        ("{{.s | printf \"%s-%s\" \"a\"}}", "a-hi"),
        ("{{(.map).C.deep}} {{(index .list 1)}}", "x b"),
        ("{{$m := .map}}{{$m.C.deep}}", "x"),
        ("{{- 3}}{{.s | }}{{/*/*/}}", "3hi"),
        ("{{.s}}\n{{- /* c */}}\n", "hi\n"),
    ]);
}

#[test]
fn calls_builtin_functions() {
    table(&[
        (
            "{{and .t .s}} {{and .no (index .list 9)}} {{or .empty 0 .s}} {{not 0}}",
            "hi false hi true",
        ),
        (
            "{{eq .s \"a\" \"hi\"}} {{ne 1 2}} {{lt 1 2}} {{le 2 2}} {{gt \"b\" \"a\"}} {{ge 1.5 2.0}}",
            "true true true true true false",
        ),
        ("{{eq .n 3.0}} {{eq .nil nil}} {{eq .s nil}}", "true true false"),
        ("{{len .list}} {{len .s}} {{len .map}}", "3 2 3"),
        (
            "{{index .list 1}} {{index .map \"a\"}} {{index .map \"C\" \"deep\"}} {{index .s 0}} {{index .map \"zz\"}}",
            "b 1 x 104 <no value>",
        ),
        (
            "{{slice .list 1}} {{slice .list 0 1}} {{slice .s 1 2}} {{slice .list 0 1 2}}",
            "[b c] [a] i [a]",
        ),
        ("{{print 1 2 \"a\" 3 nil}}|{{println .s 1}}", "1 2a3 <nil>|hi 1\n"),
        ("{{html .html}}", "&lt;a href=&#39;x&#39;&gt;&amp;&#34;&lt;/a&gt;"),
        ("{{js \"a'b<c>\\n=é\"}}", "a\\'b\\u003Cc\\u003E\\u000A\\u003Dé"),
        ("{{urlquery \"a b/c?&é~\"}} {{html 1 2}}", "a+b%2Fc%3F%26%C3%A9~ 1 2"),
    ]);
}

#[test]
fn formats_with_printf_verbs() {
    for (call, want) in [
        ("\"%d|%5d|%-5d|%05d|%+d|% d\" 42 42 42 -42 42 42", "42|   42|42   |-0042|+42| 42"),
        (
            "\"%x %X %#x %o %b %c %q %U\" 255 255 255 8 5 65 65 0x1F600",
            "ff FF 0xff 10 101 A 'A' U+1F600",
        ),
        ("\"%s|%10s|%-4s|%.1s|%q|%x\" .s .s .s .s .s .s", "hi|        hi|hi  |h|\"hi\"|6869"),
        (
            "\"%f %.2f %e %g %G %v %8.3f\" 1.5 1.5 1.5 1e21 1e-7 1e6 3.14159",
            "1.500000 1.50 1.500000e+00 1e+21 1E-07 1e+06    3.142",
        ),
        ("\"%t %v %T %T %T\" true nil .n .list 1", "true <nil> float64 []interface {} int"),
        ("\"%d %s\" .n 5", "%!d(float64=3) %!s(int=5)"),
        ("\"%d\"", "%!d(MISSING)"),
        ("\"%d\" 1 \"a\"", "1%!(EXTRA string=a)"),
        ("\"100%%\"", "100%"),
        ("\"100%\"", "100%!(NOVERB)"),
        ("\"%[2]d %[1]d\" 1 2", "2 1"),
        ("\"%[3]d\" 1 2", "%!d(BADINDEX)"),
        ("\"%*d|%.*f\" 4 7 1 2.55", "   7|2.5"),
        ("\"%v %s %q\" .nums .list .list", "[1 2 3] [a b c] [\"a\" \"b\" \"c\"]"),
        (
            "\"%#v %#v\" .list .map.C",
            "[]interface {}{\"a\", \"b\", \"c\"} map[string]interface {}{\"deep\":\"x\"}",
        ),
        ("\"%s|%9s\" nil nil", "%!s(<nil>)|%!s(<nil>)"),
        (
            "\"%5d|%-7s|%+d|%05d|%#q|%.1q\" .n 4 .n -7.0 1e6 2.5",
            "%!d(float64=    3)|%!s(int=4      )|%!d(float64=+3)|%!d(float64=-0007)|%!q(float64=1.00000e+06)|%!q(float64=2)",
        ),
        ("\"%+v|%.3T|%w\" 1e6 .s .list", "1e+06|str|%!w([]interface {}=[a b c])"),
        (
            "\"%x|%X|%.2x|%.0x|%x|%x\" 1.0 2.5 1.999 1.5 0.0 1e-7",
            "0x1p+00|0X1.4P+01|0x1.00p+01|0x1p+01|0x0p+00|0x1.ad7f29abcaf48p-24",
        ),
        (
            "\"%b|%#g|%#.3x|%#.0f|% x\" 1.0 0.0 1.0 3.0 -7.0",
            "4503599627370496p-52|0.00000|0x1.000p+00|3.|-0x1.cp+02",
        ),
        ("\"%.3g %.10g %g\" 1234.5 1234.5 100000.0", "1.23e+03 1234.5 100000"),
    ] {
        let got = run(&format!("{{{{printf {call}}}}}"));
        assert_eq!(got.as_deref(), Ok(want), "{call}");
    }
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table of cases")]
fn names_template_line_and_location_in_errors() {
    for (text, want) in [
        ("{{.a}}", "template: x:1:2: executing \"x\" at <.a>: map has no entry for key \"a\""),
        (
            "\n  {{.map.zz}}",
            "template: x:2:8: executing \"x\" at <.map.zz>: map has no entry for key \"zz\"",
        ),
        (
            "{{.s.b}}",
            "template: x:1:4: executing \"x\" at <.s.b>: can't evaluate field b in type interface {}",
        ),
        (
            "{{.nil.b}}",
            "template: x:1:6: executing \"x\" at <.nil.b>: nil pointer evaluating interface {}.b",
        ),
        (
            "{{index .list 5}}",
            "template: x:1:2: executing \"x\" at <index .list 5>: error calling index: index out of range: 5",
        ),
        (
            "{{lt 1 .s}}",
            "template: x:1:2: executing \"x\" at <lt 1 .s>: error calling lt: incompatible types for comparison: int and string",
        ),
        (
            "{{eq .n 3}}",
            "template: x:1:2: executing \"x\" at <eq .n 3>: error calling eq: incompatible types for comparison: float64 and int",
        ),
        (
            "{{len 3}}",
            "template: x:1:2: executing \"x\" at <len 3>: error calling len: len of type int",
        ),
        (
            "{{len}}",
            "template: x:1:2: executing \"x\" at <len>: wrong number of args for len: want 1 got 0",
        ),
        (
            "{{range .s}}{{end}}",
            "template: x:1:8: executing \"x\" at <.s>: range can't iterate over hi",
        ),
        (
            "{{template \"y\" .}}",
            "template: x:1:11: executing \"x\" at <{{template \"y\" .}}>: template \"y\" not defined",
        ),
        ("{{nil}}", "template: x:1:2: executing \"x\" at <nil>: nil is not a command"),
        (
            "{{3 4}}",
            "template: x:1:2: executing \"x\" at <3>: can't give argument to non-function 3",
        ),
        (
            "{{.s 1}}",
            "template: x:1:2: executing \"x\" at <.s>: s is not a method but has arguments",
        ),
        (
            "{{define \"t\"}}{{.zz}}{{end}}{{template \"t\" .}}",
            "template: x:1:16: executing \"t\" at <.zz>: map has no entry for key \"zz\"",
        ),
        ("a\n{{.s", "template: x:2: unclosed action"),
        ("{{if .t}}", "template: x:1: unexpected EOF"),
        ("{{foo}}", "template: x:1: function \"foo\" not defined"),
        ("{{$x}}", "template: x:1: undefined variable \"$x\""),
        ("{{}}", "template: x:1: missing value for command"),
        ("{{end}}", "template: x:1: unexpected {{end}}"),
        ("{{.s | 3}}", "template: x:1: non executable command in pipeline stage 2"),
        ("{{break}}", "template: x:1: {{break}} outside {{range}}"),
        ("{{/* a", "template: x:1: unclosed comment"),
        ("{{\"a}}", "template: x:1: unterminated quoted string"),
        ("{{(.s}}", "template: x:1: unclosed left paren"),
        ("{{.s)}}", "template: x:1: unexpected right paren"),
        ("{{1ab}}", "template: x:1: bad number syntax: \"1a\""),
        ("{{-}}", "template: x:1: illegal number syntax: \"-\""),
        ("{{09}}", "template: x:1: integer overflow: \"09\""),
        ("{{''}}", "template: x:1: invalid syntax"),
        (
            "{{9223372036854775808}}",
            "template: x:1:2: executing \"x\" at <9223372036854775808>: 9223372036854775808 overflows int",
        ),
        ("{{$x = .s}}", "template: x:1:7: executing \"x\" at <.s>: undefined variable: $x"),
        ("{{$y := $y}}", "template: x:1:8: executing \"x\" at <$y>: undefined variable: $y"),
        (
            "{{(.s).a}}",
            "template: x:1:3: executing \"x\" at <.s>: can't evaluate field a in type string",
        ),
        (
            "{{.s | (len .s)}}",
            "template: x:1:2: executing \"x\" at <.s>: can't give argument to non-function len .s",
        ),
        (
            "{{index .list 3}}",
            "template: x:1:2: executing \"x\" at <index .list 3>: error calling index: reflect: slice index out of range",
        ),
        ("{{.a#}}", "template: x:1: bad character U+0023 '#'"),
    ] {
        assert_eq!(run(text).unwrap_err(), want, "{text}");
    }
}

#[test]
fn applies_missing_key_option() {
    for (option, want) in [
        (MissingKey::Default, Ok("<no value>".to_owned())),
        (MissingKey::Zero, Ok("<no value>".to_owned())),
        (MissingKey::Error, Err(ErrorKind::Execute)),
    ] {
        let template = Template::parse("x", "{{.zz}}").unwrap().missing_key(option);
        assert_eq!(template.execute(&data()).map_err(|error| error.kind), want);
    }
}

#[test]
fn calls_callers_functions_with_json() {
    let mut functions = Functions::new();
    functions.insert(
        "secret".into(),
        std::sync::Arc::new(|args| match args {
            [Value::String(name)] => Ok(format!("<{name}>").into()),
            _ => Err("want a name".into()),
        }),
    );
    let run = |text: &str| {
        Template::parse_with("x", text, functions.clone())
            .unwrap()
            .execute(&data())
            .map_err(|error| error.to_string())
    };
    assert_eq!(run("{{secret \"a\"}} {{.s | secret}}").unwrap(), "<a> <hi>");
    assert_eq!(
        run("{{secret 1}}").unwrap_err(),
        "template: x:1:2: executing \"x\" at <secret 1>: error calling secret: want a name"
    );
}

#[test]
fn limits_steps_output_and_depth() {
    let limits = Limits { steps: 10_000, output: 1000, depth: 50 };
    let deep_parens = format!("{{{{{}1{}}}}}", "(".repeat(100_000), ")".repeat(100_000));
    let deep_ifs = "{{if true}}".repeat(100_000);
    for text in [
        "{{define \"a\"}}{{template \"a\"}}{{end}}{{template \"a\"}}",
        "{{range 1000000000}}{{end}}",
        "{{range 10000}}aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa{{end}}",
        "{{$x := \"aaaaaaaaaaaaaaaa\"}}{{range 64}}{{$x = print $x $x}}{{end}}",
        "{{printf \"%999999d%999999d\" 1 2}}",
        &deep_parens,
        &deep_ifs,
    ] {
        let outcome = Template::parse("x", text).and_then(|t| t.limits(limits).execute(&data()));
        assert!(outcome.is_err(), "{}", &text[..40]);
    }
}

proptest::proptest! {
    #[test]
    fn never_panics_on_any_text(text in "(\\{\\{|\\}\\}|[-. $()|:=,\"'`%/*\n]|if|end|range|with|else|define|block|template|printf|index|slice|len|\\.s|\\.list|[a-z0-9é]){0,24}") {
        let limits = Limits { steps: 10_000, output: 10_000, depth: 50 };
        if let Ok(template) = Template::parse("x", &text) {
            let _ = template.limits(limits).execute(&data());
        }
    }

    #[test]
    fn keeps_text_without_actions(text in "[^{]*") {
        proptest::prop_assert_eq!(run(&text), Ok(text));
    }

    #[test]
    fn never_panics_on_any_format(format in "[%a-zA-Z0-9 +#.*\\[\\]-]{0,16}") {
        for value in [crate::value::Val::Int(5), crate::value::Val::Float(-0.1), crate::value::Val::text("é")] {
            crate::format::sprintf(&format, &[value], 100_000);
        }
    }
}

fn set(text: &str, snippets: &[(&str, &str)]) -> Result<String, String> {
    let snippets = snippets.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
    Template::parse_set("main", text, &snippets.collect(), Functions::new())
        .and_then(|template| {
            template.limits(Limits { depth: 100, ..Limits::default() }).execute(&data())
        })
        .map_err(|error| error.to_string())
}

#[test]
fn includes_snippets() {
    for (text, want) in [
        ("a {{ include \"s\" . }} b", "a [hi] b"),
        ("{{ include \"s\" . | printf \"%5s\" }}", " [hi]"),
        ("{{ len (include \"s\" .) }}", "4"),
        ("{{template \"s\" .}}{{template \"inner\"}}", "[hi]within"),
        ("{{ $x := 1 }}{{ include \"nested\" . }}{{ $x }}", "<[hi]>1"),
    ] {
        let snippets = [
            ("s", "[{{.s}}]"),
            ("nested", "<{{ include \"s\" . }}>"),
            ("more", "{{define \"inner\"}}within{{end}}"),
        ];
        assert_eq!(set(text, &snippets).as_deref(), Ok(want), "{text}");
    }
    // Without snippets there is no such function, as in Go.
    assert!(
        run("{{ include \"s\" . }}").is_err_and(|e| e.contains("function \"include\" not defined"))
    );
}

#[test]
fn bounds_includes() {
    let nested = |text: &str| format!("{}{text}{}", "(".repeat(60), ")".repeat(60));
    let deep = format!("{{{{ {} }}}}", nested("include \"s\" ."));
    for (text, reason) in [
        ("{{ include \"s\" . }}", "exceeded maximum template depth"),
        (deep.as_str(), "exceeded maximum template depth"),
        ("{{ range 9 }}{{ include \"s\" $ }}{{ end }}", "exceeded maximum template depth"),
        ("{{ include \"twice\" . }}", "exceeded maximum template depth"),
        ("{{ include \"other\" . }}", "main:1:3: executing \"main\" at <include \"other\" .>"),
        ("{{ include \"s\" }}", "want 2 got 1"),
        ("{{ include 7 . }}", "expected string"),
        ("{{ include \"wrong\" . }}", "template: wrong:2:2: executing \"wrong\" at <slice"),
    ] {
        let snippets = [
            ("s", text),
            ("twice", "{{ include \"twice\" (include \"twice\" .) }}"),
            ("wrong", "é\n{{slice .n 1}}"),
        ];
        let error = set(text, &snippets).expect_err(text);
        assert!(error.contains(reason), "{text}: {error}");
    }
    // Each level doubles the output.
    let snippets: Vec<(String, String)> = (0..40)
        .map(|n| {
            (
                format!("s{n}"),
                format!("{{{{ include \"s{0}\" . }}}}{{{{ include \"s{0}\" . }}}}", n + 1),
            )
        })
        .chain([("s40".to_owned(), "x".repeat(100))])
        .collect();
    let snippets: Vec<_> = snippets.iter().map(|(n, t)| (n.as_str(), t.as_str())).collect();
    let error = set("{{ include \"s0\" . }}", &snippets).expect_err("stopped");
    assert!(error.contains("stopped after") || error.contains("longer than"), "{error}");
}
