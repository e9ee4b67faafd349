//! The functions of Sprig 3 that return plain values.

use std::{cmp::Ordering, sync::Arc};

use api_meta::is_zero;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use gotmpl::{Function, Functions, Message, Template};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// The largest text of a function, in bytes.
const LARGEST: usize = 16 << 20;

/// The result of a function.
type Outcome = Result<Value, Message>;
/// A function of Sprig.
type Sprig = fn(&[Value]) -> Outcome;

/// The functions.
const FUNCTIONS: [(&str, Sprig); 60] = [
    ("upper", |args| Ok(text(args, 0)?.to_uppercase().into())),
    ("lower", |args| Ok(text(args, 0)?.to_lowercase().into())),
    ("title", |args| Ok(title(text(args, 0)?).into())),
    ("trim", |args| Ok(text(args, 0)?.trim().into())),
    ("trimAll", |args| Ok(text(args, 1)?.trim_matches(|c| is_in(args, c)).into())),
    ("trimall", |args| Ok(text(args, 1)?.trim_matches(|c| is_in(args, c)).into())),
    ("trimPrefix", |args| {
        let text = text(args, 1)?;
        Ok(text.strip_prefix(self::text(args, 0)?).unwrap_or(text).into())
    }),
    ("trimSuffix", |args| {
        let text = text(args, 1)?;
        Ok(text.strip_suffix(self::text(args, 0)?).unwrap_or(text).into())
    }),
    ("nospace", |args| Ok(text(args, 0)?.split_whitespace().collect::<String>().into())),
    ("contains", |args| Ok(text(args, 1)?.contains(text(args, 0)?).into())),
    ("hasPrefix", |args| Ok(text(args, 1)?.starts_with(text(args, 0)?).into())),
    ("hasSuffix", |args| Ok(text(args, 1)?.ends_with(text(args, 0)?).into())),
    ("replace", replace),
    ("repeat", |args| repeat(text(args, 1)?, int(args, 0)?).map(Value::from)),
    ("trunc", |args| trunc(int(args, 0)?, text(args, 1)?)),
    ("substr", |args| substr(int(args, 0)?, int(args, 1)?, text(args, 2)?)),
    ("indent", |args| indent_rest(int(args, 0)?, text(args, 1)?)),
    ("nindent", |args| {
        let pad = repeat(" ", int(args, 0)?)?;
        let lines = text(args, 1)?.replace('\n', &bounded(text(args, 1)?, &pad)?);
        Ok(format!("\n{pad}{lines}").into())
    }),
    ("quote", |args| joined(args, r#"{{printf "%q" .}}"#)),
    ("squote", |args| joined(args, "'{{.}}'")),
    ("cat", |args| joined(args, "{{.}}")),
    ("join", join),
    ("toString", |args| format_value(arg(args, 0)?).map(Value::from)),
    ("plural", |args| {
        let which = usize::from(int(args, 2)? != 1);
        Ok(text(args, which)?.into())
    }),
    ("default", |args| {
        let given = args.get(1).filter(|given| !is_zero(given));
        given.or(args.first()).cloned().ok_or_else(|| "an argument is missing".into())
    }),
    ("empty", |args| Ok(is_zero(arg(args, 0)?).into())),
    ("coalesce", |args| Ok(args.iter().find(|one| !is_zero(one)).cloned().unwrap_or_default())),
    ("all", |args| Ok((!args.iter().any(is_zero)).into())),
    ("any", |args| Ok((!args.iter().all(is_zero)).into())),
    ("ternary", |args| match arg(args, 2)? {
        Value::Bool(condition) => Ok(arg(args, usize::from(!condition))?.clone()),
        _ => Err("argument 3 must be a bool".into()),
    }),
    ("fail", |args| Err(text(args, 0)?.into())),
    ("has", |args| match arg(args, 1)? {
        Value::Null => Ok(false.into()),
        Value::Array(items) => Ok(items.iter().any(|item| is_same(item, &args[0])).into()),
        _ => Err("argument 2 must be a list".into()),
    }),
    ("hasKey", |args| Ok(map(args, 0)?.contains_key(text(args, 1)?).into())),
    ("get", |args| Ok(map(args, 0)?.get(text(args, 1)?).cloned().unwrap_or_else(|| "".into()))),
    ("first", |args| Ok(list(args, 0)?.first().cloned().unwrap_or_default())),
    ("last", |args| Ok(list(args, 0)?.last().cloned().unwrap_or_default())),
    ("atoi", |args| Ok(text(args, 0)?.parse::<i64>().unwrap_or_default().into())),
    ("int", |args| int(args, 0).map(Value::from)),
    ("int64", |args| int(args, 0).map(Value::from)),
    ("float64", |args| float(args, 0).map(Value::from)),
    ("add", |args| fold(args, i64::wrapping_add, 0)),
    ("add1", |args| Ok(int(args, 0)?.wrapping_add(1).into())),
    ("sub", |args| Ok(int(args, 0)?.wrapping_sub(int(args, 1)?).into())),
    ("mul", |args| fold(args, i64::wrapping_mul, 1)),
    ("div", |args| match int(args, 1)? {
        0 => Err("integer divide by zero".into()),
        by => Ok(int(args, 0)?.wrapping_div(by).into()),
    }),
    ("mod", |args| match int(args, 1)? {
        0 => Err("integer divide by zero".into()),
        by => Ok(int(args, 0)?.wrapping_rem(by).into()),
    }),
    ("max", |args| fold(args, Ord::max, int(args, 0)?)),
    ("biggest", |args| fold(args, Ord::max, int(args, 0)?)),
    ("min", |args| fold(args, Ord::min, int(args, 0)?)),
    ("floor", |args| Ok(float(args, 0)?.floor().into())),
    ("ceil", |args| Ok(float(args, 0)?.ceil().into())),
    ("toJson", |args| Ok(escape(&json(arg(args, 0)?)).into())),
    ("mustToJson", |args| Ok(escape(&json(arg(args, 0)?)).into())),
    ("toRawJson", |args| Ok(json(arg(args, 0)?).into())),
    ("toPrettyJson", |args| {
        let text = serde_json::to_string_pretty(&integers(arg(args, 0)?));
        Ok(escape(&text.unwrap_or_default()).into())
    }),
    ("b64enc", |args| Ok(STANDARD.encode(text(args, 0)?).into())),
    ("b64dec", |args| match STANDARD.decode(text(args, 0)?) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned().into()),
        Err(error) => Ok(error.to_string().into()),
    }),
    ("sha256sum", |args| {
        let sum = Sha256::digest(text(args, 0)?);
        Ok(sum.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into())
    }),
    ("untitle", |args| Ok(untitle(text(args, 0)?).into())),
    ("hello", |_| Ok("Hello!".into())),
];

/// The other functions, which are rejected by name.
const UNSUPPORTED: &str = "\
    abbrev abbrevboth adler32sum addf add1f ago append appendStr base bcrypt b32dec b32enc buildCustomCert \
    camelcase chunk clean compact concat date dateInZone dateModify date_in_zone date_modify decryptAES \
    deepCopy deepEqual derivePassword dict dig dir divf duration durationRound encryptAES env expandenv ext \
    fromJson genCA genCAWithKey genPrivateKey genSelfSignedCert genSelfSignedCertWithKey genSignedCert \
    genSignedCertWithKey getHostByName htmlDate htmlDateInZone htpasswd initial initials isAbs kebabcase keys \
    kindIs kindOf list maxf merge mergeOverwrite minf mulf mustAppend mustChunk mustCompact mustDateModify \
    mustDeepCopy mustFirst mustFromJson mustHas mustInitial mustLast mustMerge mustMergeOverwrite mustPrepend \
    mustPush mustRegexFind mustRegexFindAll mustRegexMatch mustRegexReplaceAll mustRegexReplaceAllLiteral \
    mustRegexSplit mustRest mustReverse mustSlice mustToDate mustToPrettyJson mustToRawJson mustUniq \
    mustWithout must_date_modify now omit osBase osClean osDir osExt osIsAbs pick pluck prepend push \
    randAlpha randAlphaNum randAscii randBytes randInt randNumeric regexFind regexFindAll regexMatch \
    regexQuoteMeta regexReplaceAll regexReplaceAllLiteral regexSplit rest reverse round semver semverCompare \
    seq set sha1sum sha512sum shuffle snakecase sortAlpha split splitList splitn subf substring swapcase \
    toDate toDecimal toStrings tuple typeIs typeIsLike typeOf uniq unixEpoch unset until untilStep urlJoin \
    urlParse uuidv4 values without wrap wrapWith";

/// Returns the functions by name.
pub(super) fn functions() -> Functions {
    let wrapped = FUNCTIONS.iter().map(|(name, run)| {
        let run = move |args: &[Value]| run(args).map_err(|message| message.to_string().into());
        ((*name).to_owned(), Arc::new(run) as Function)
    });
    let unsupported = UNSUPPORTED.split_whitespace().map(|name| {
        let run =
            move |_: &[Value]| Err(format!("Sprig's function {name} is not supported").into());
        (name.to_owned(), Arc::new(run) as Function)
    });
    unsupported.chain(wrapped).collect()
}

fn arg(args: &[Value], at: usize) -> Result<&Value, Message> {
    args.get(at).ok_or_else(|| format!("argument {} is missing", at + 1).into())
}

fn text(args: &[Value], at: usize) -> Result<&str, Message> {
    let text = arg(args, at)?.as_str();
    text.ok_or_else(|| format!("argument {} must be a string", at + 1).into())
}

fn list(args: &[Value], at: usize) -> Result<&[Value], Message> {
    let list = arg(args, at)?.as_array();
    list.map(Vec::as_slice).ok_or_else(|| format!("argument {} must be a list", at + 1).into())
}

fn map(args: &[Value], at: usize) -> Result<&serde_json::Map<String, Value>, Message> {
    let map = arg(args, at)?.as_object();
    map.ok_or_else(|| format!("argument {} must be a map", at + 1).into())
}

/// Returns an argument as an integer. As in Sprig, other texts are 0, and fractions are cut off.
fn int(args: &[Value], at: usize) -> Result<i64, Message> {
    Ok(match arg(args, at)? {
        Value::Number(number) => number
            .as_i64()
            .unwrap_or_else(|| number.as_f64().map(|number| number as i64).unwrap_or_default()),
        Value::Bool(value) => i64::from(*value),
        Value::String(text) => text.parse().unwrap_or_default(),
        _ => 0,
    })
}

fn float(args: &[Value], at: usize) -> Result<f64, Message> {
    Ok(match arg(args, at)? {
        Value::Number(number) => number.as_f64().unwrap_or_default(),
        Value::Bool(value) => f64::from(u8::from(*value)),
        Value::String(text) => text.parse().unwrap_or_default(),
        _ => 0.0,
    })
}

fn fold(args: &[Value], operation: fn(i64, i64) -> i64, start: i64) -> Outcome {
    (0..args.len()).try_fold(start, |sum, at| Ok(operation(sum, int(args, at)?))).map(Value::from)
}

/// Reports whether a character is in the first argument.
fn is_in(args: &[Value], character: char) -> bool {
    args.first().and_then(Value::as_str).is_some_and(|cutset| cutset.contains(character))
}

/// Compares values; `1` and `1.0` are the same.
fn is_same(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a.partial_cmp(&b) == Some(Ordering::Equal),
        _ => a == b,
    }
}

fn title(text: &str) -> String {
    let mut starts = true;
    let change = |c: char| {
        let changed = if starts { c.to_uppercase().next().unwrap_or(c) } else { c };
        starts =
            if c.is_ascii() { !c.is_ascii_alphanumeric() && c != '_' } else { c.is_whitespace() };
        changed
    };
    text.chars().map(change).collect()
}

fn untitle(text: &str) -> String {
    let mut starts = true;
    let change = |c: char| {
        let changed = if starts { c.to_lowercase().next().unwrap_or(c) } else { c };
        starts = c.is_whitespace();
        changed
    };
    text.chars().map(change).collect()
}

fn too_long() -> Message {
    format!("text longer than {LARGEST} bytes").into()
}

fn repeat(text: &str, count: i64) -> Result<String, Message> {
    let count = usize::try_from(count).map_err(|_| Message::from("negative repeat count"))?;
    match text.len().checked_mul(count) {
        Some(size) if size <= LARGEST => Ok(text.repeat(count)),
        _ => Err(too_long()),
    }
}

/// Returns a line break with padding, unless the padded text would be too long.
fn bounded(text: &str, pad: &str) -> Result<String, Message> {
    let lines = text.matches('\n').count();
    match lines.checked_mul(pad.len()) {
        Some(size) if size <= LARGEST => Ok(format!("\n{pad}")),
        _ => Err(too_long()),
    }
}

/// Indents all lines but the first and empty ones, as kOps' `indent` does.
fn indent_rest(count: i64, text: &str) -> Outcome {
    let pad = repeat(" ", count)?;
    bounded(text, &pad)?;
    let mut lines = text.split('\n');
    let mut indented = lines.next().unwrap_or_default().to_owned();
    for line in lines {
        indented.push('\n');
        if !line.is_empty() {
            indented.push_str(&pad);
        }
        indented.push_str(line);
    }
    Ok(indented.into())
}

fn replace(args: &[Value]) -> Outcome {
    let (old, new, text) = (text(args, 0)?, text(args, 1)?, text(args, 2)?);
    let size = text.matches(old).count().saturating_mul(new.len());
    if size > LARGEST { Err(too_long()) } else { Ok(text.replace(old, new).into()) }
}

fn cut(text: &str, from: usize, to: usize) -> Value {
    String::from_utf8_lossy(&text.as_bytes()[from..to]).into_owned().into()
}

/// Keeps the first `count` bytes, or the last ones if it is negative.
fn trunc(count: i64, text: &str) -> Outcome {
    let size = usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX).min(text.len());
    Ok(if count < 0 { cut(text, text.len() - size, text.len()) } else { cut(text, 0, size) })
}

/// Cuts bytes out. A negative start or end is that of the text.
fn substr(start: i64, end: i64, text: &str) -> Outcome {
    let end = usize::try_from(end).ok().filter(|end| *end <= text.len() || start < 0);
    let (from, to) = (usize::try_from(start).unwrap_or(0), end.unwrap_or(text.len()));
    if from <= to && to <= text.len() {
        return Ok(cut(text, from, to));
    }
    Err(format!("slice bounds out of range [{from}:{to}] with length {}", text.len()).into())
}

/// Joins all arguments but nulls with spaces, each formatted by a template.
fn joined(args: &[Value], format: &str) -> Outcome {
    let given = args.iter().filter(|value| !value.is_null());
    let texts = given.map(|value| {
        let value = Value::from(format_value(value)?);
        formatted(format, &value)
    });
    Ok(texts.collect::<Result<Vec<_>, Message>>()?.join(" ").into())
}

/// Joins the items of a list.
fn join(args: &[Value]) -> Outcome {
    let items = match arg(args, 1)? {
        Value::Array(items) => items.as_slice(),
        other => std::slice::from_ref(other),
    };
    let separator = text(args, 0)?;
    if items.len().saturating_mul(separator.len()) > LARGEST {
        return Err(too_long());
    }
    let texts = items.iter().filter(|item| !item.is_null()).map(format_value);
    Ok(texts.collect::<Result<Vec<_>, _>>()?.join(separator).into())
}

fn formatted(format: &str, value: &Value) -> Result<String, Message> {
    let template = Template::parse("value", format).and_then(|template| template.execute(value));
    template.map_err(|error| error.message.into())
}

/// Formats a value as Go's `%v` does.
pub(super) fn format_value(value: &Value) -> Result<String, Message> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) if number.is_i64() => Ok(number.to_string()),
        value => formatted("{{.}}", value),
    }
}

/// Formats a value as JSON. Whole numbers have no fraction, as in Go.
fn json(value: &Value) -> String {
    integers(value).to_string()
}

fn integers(value: &Value) -> Value {
    match value {
        Value::Number(number) => match number.as_f64() {
            Some(float) if float.fract() == 0.0 && float.abs() < 1e15 => (float as i64).into(),
            _ => value.clone(),
        },
        Value::Array(items) => items.iter().map(integers).collect(),
        Value::Object(map) => {
            Value::Object(map.iter().map(|(key, value)| (key.clone(), integers(value))).collect())
        }
        _ => value.clone(),
    }
}

/// Escapes HTML's characters in JSON, as Go does.
fn escape(json: &str) -> String {
    json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run(text: &str) -> Result<String, String> {
        let data = json!({"s": "hello world", "n": 3, "list": ["a", "b", 1], "map": {"k": "v", "n": 1}, "nil": null});
        let template = Template::parse_with("x", text, functions());
        template.and_then(|t| t.execute(&data)).map_err(|error| error.to_string())
    }

    #[test]
    fn computes_as_sprig_does() {
        for (text, want) in [
            ("{{ title .s }} {{ untitle \"Ab Cd\" }}", "Hello World ab cd"),
            (
                "{{ trim \" a \" }}{{ trimAll \"$\" \"$5$\" }}{{ trimPrefix \"a\" \"ab\" }}{{ trimSuffix \"b\" \"ab\" }}",
                "a5ba",
            ),
            ("{{ replace \" \" \"-\" .s }} {{ nospace .s }}", "hello-world helloworld"),
            (
                "{{ contains \"lo\" .s }} {{ hasPrefix \"x\" .s }} {{ hasSuffix \"ld\" .s }}",
                "true false true",
            ),
            (
                "{{ repeat 3 \"ab\" }} {{ trunc 3 .s }} {{ trunc -3 .s }} {{ substr 0 5 .s }} {{ substr 6 -1 .s }}",
                "ababab hel rld hello world",
            ),
            ("{{ \"a\\nb\" | nindent 2 }}", "\n  a\n  b"),
            ("{{ \"a\\n\\nb\" | indent 2 }}", "a\n\n  b"),
            (
                "{{ quote .s .nil 1 }} {{ squote .s }} {{ cat 1 .nil \"x\" }}",
                "\"hello world\" \"1\" 'hello world' 1 x",
            ),
            ("{{ join \"-\" .list }} {{ join \"-\" .s }}", "a-b-1 hello world"),
            (
                "{{ default \"d\" .nil }} {{ default \"d\" .s }} {{ .nil | default 5 }}",
                "d hello world 5",
            ),
            (
                "{{ empty .nil }} {{ coalesce .nil 0 \"x\" }} {{ ternary \"a\" \"b\" false }} {{ all 1 0 }} {{ any 1 0 }}",
                "true x b false true",
            ),
            (
                "{{ has \"a\" .list }} {{ has 1 .list }} {{ has 9 .list }} {{ hasKey .map \"k\" }} {{ get .map \"k\" }}",
                "true true false true v",
            ),
            ("{{ first .list }}{{ last .list }}", "a1"),
            (
                "{{ add 1 2 .n }} {{ add1 .n }} {{ sub 5 .n }} {{ mul 2 .n }} {{ div 7 2 }} {{ mod 7 2 }}",
                "6 4 2 6 3 1",
            ),
            (
                "{{ max 1 .n }} {{ min 1 .n }} {{ floor 1.7 }} {{ ceil 1.2 }} {{ atoi \"12\" }} {{ int \"x\" }}",
                "3 1 1 2 12 0",
            ),
            (
                "{{ toJson .map }} {{ toJson \"<&>\" }} {{ toRawJson \"<\" }}",
                "{\"k\":\"v\",\"n\":1} \"\\u003c\\u0026\\u003e\" \"<\"",
            ),
            ("{{ toPrettyJson .map }}", "{\n  \"k\": \"v\",\n  \"n\": 1\n}"),
            ("{{ b64enc \"a\" }} {{ b64dec \"YQ==\" }}", "YQ== a"),
            (
                "{{ sha256sum \"\" }}",
                "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            ),
            (
                "{{ toString 1.5 }} {{ plural \"one\" \"many\" 2 }} {{ float64 \"1.5\" }}",
                "1.5 many 1.5",
            ),
        ] {
            assert_eq!(run(text).as_deref(), Ok(want), "{text}");
        }
    }

    #[test]
    fn survives_wrong_arguments() {
        for name in functions().keys() {
            for arguments in [
                "",
                ".nil",
                ".s",
                ".n",
                ".list .map",
                "-1 .s",
                ".n .n .n",
                ".s .s .s",
                "-9223372036854775808 -1",
                "9e18 9e18 .s",
            ] {
                // The result may be a value or an error, but not a panic.
                let _ = run(&format!("{{{{ {name} {arguments} }}}}"));
            }
        }
        let failed = run("{{ fail \"no\" }}").expect_err("fails");
        assert!(failed.contains("error calling fail: no"), "{failed}");
    }
}
