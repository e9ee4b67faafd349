//! Reads YAML, and writes it as Go's `sigs.k8s.io/yaml` does, byte for byte. Hashes of such documents identify
//! configurations, and users read their differences.
//!
//! The rules are libyaml's emitter with go-yaml's choices: block style, and lists at the indentation of their key.
//! Scalars are plain where a YAML 1.1 parser reads them as the same string. Lines are folded at 80 columns, and
//! multi-line text is a literal block.

mod scalar;

use std::cmp::Ordering;

use serde_json::{Map, Value};

use self::scalar::{Style, escaped};
use crate::error::Error;

/// The column after which a scalar is folded at the next space.
const WIDTH: usize = 80;
/// The longest key that does not need the form with a question mark.
const LONG_KEY: usize = 128;

/// Parses one document. `what` names it in errors.
pub fn parse(what: &str, text: &[u8]) -> Result<Value, Error> {
    api_codec::from_yaml(text).map_err(failed(what))
}

/// Parses all documents of a text; those of comments only are left out. `what` names the text in errors.
pub fn parse_all(what: &str, text: &str) -> Result<Vec<Value>, Error> {
    let documents = api_codec::yaml_documents(text).map_err(failed(what))?;
    let parsed = documents.into_iter().map(|document| parse(what, document.as_bytes()));
    parsed.filter(|tree| !matches!(tree, Ok(Value::Null))).collect()
}

fn failed(what: &str) -> impl Fn(api_codec::YamlError) -> Error {
    move |error| Error::Yaml { what: what.to_owned(), cause: error.to_string() }
}

/// Returns a value as one document.
pub fn to_string(value: &Value) -> String {
    let mut out = Emitter::default();
    match value {
        Value::Object(members) if !members.is_empty() => out.mapping(members, 0, false),
        Value::Array(items) if !items.is_empty() => out.sequence(items, 0, false),
        value => {
            out.scalar(value, 0);
            out.text.push('\n');
        }
    }
    out.text
}

#[derive(Default)]
struct Emitter {
    text: String,
    /// The number of characters since the last line break.
    column: usize,
}

impl Emitter {
    fn put(&mut self, text: &str) {
        self.text.push_str(text);
        self.column += text.chars().count();
    }

    fn line(&mut self, indent: usize) {
        self.text.push('\n');
        self.text.extend(std::iter::repeat_n(' ', indent));
        self.column = indent;
    }

    fn start(&mut self, indent: usize) {
        self.text.extend(std::iter::repeat_n(' ', indent));
        self.column = indent;
    }

    /// Writes a mapping. With `inline`, the first key stays on the current line, after a list's dash.
    fn mapping(&mut self, members: &Map<String, Value>, indent: usize, inline: bool) {
        let mut keys: Vec<_> = members.iter().collect();
        keys.sort_by(|(a, _), (b, _)| natural(a, b));
        for (number, (key, value)) in keys.into_iter().enumerate() {
            if number > 0 || !inline {
                self.start(indent);
            }
            self.key(key, indent);
            match value {
                Value::Object(inner) if !inner.is_empty() => {
                    self.end();
                    self.mapping(inner, indent + 2, false);
                }
                Value::Array(items) if !items.is_empty() => {
                    self.end();
                    self.sequence(items, indent, false);
                }
                value => {
                    self.put(" ");
                    self.scalar(value, indent);
                    self.end();
                }
            }
        }
    }

    fn sequence(&mut self, items: &[Value], indent: usize, inline: bool) {
        for (number, item) in items.iter().enumerate() {
            if number > 0 || !inline {
                self.start(indent);
            }
            self.put("- ");
            match item {
                Value::Object(inner) if !inner.is_empty() => self.mapping(inner, indent + 2, true),
                Value::Array(inner) if !inner.is_empty() => self.sequence(inner, indent + 2, true),
                value => {
                    self.scalar(value, indent);
                    self.end();
                }
            }
        }
    }

    fn end(&mut self) {
        // A literal block ends with its own line break.
        if !(self.column == 0 && self.text.ends_with('\n')) {
            self.text.push('\n');
        }
        self.column = 0;
    }

    fn key(&mut self, key: &str, indent: usize) {
        let long = key.chars().count() > LONG_KEY || key.contains('\n');
        if long {
            self.put("? ");
        }
        match Style::of(key, true) {
            Style::Plain => self.put(key),
            Style::Single => self.single(key, None),
            Style::Double | Style::Literal => self.double(key, None),
        }
        if long {
            self.line(indent);
        }
        self.put(":");
    }

    fn scalar(&mut self, value: &Value, indent: usize) {
        let fold = Some(indent + 2);
        match value {
            Value::Null => self.put("null"),
            Value::Bool(flag) => self.put(if *flag { "true" } else { "false" }),
            Value::Number(number) => self.put(&go_number(number)),
            Value::Object(_) => self.put("{}"),
            Value::Array(_) => self.put("[]"),
            Value::String(text) => match Style::of(text, false) {
                Style::Plain => self.plain(text, fold),
                Style::Single => self.single(text, fold),
                Style::Double => self.double(text, fold),
                Style::Literal => self.literal(text, indent + 2),
            },
        }
    }

    fn plain(&mut self, text: &str, fold: Option<usize>) {
        self.folded(text, fold, false);
    }

    fn single(&mut self, text: &str, fold: Option<usize>) {
        self.put("'");
        self.folded(text, fold, true);
        self.put("'");
    }

    /// Writes text, replacing a single space after the width by a line break.
    fn folded(&mut self, text: &str, fold: Option<usize>, quoted: bool) {
        let chars: Vec<char> = text.chars().collect();
        let mut spaces = false;
        for (i, &c) in chars.iter().enumerate() {
            let inside = !quoted || (i > 0 && i + 1 < chars.len());
            let next = chars.get(i + 1).copied();
            match fold {
                Some(indent)
                    if c == ' '
                        && !spaces
                        && self.column > WIDTH
                        && inside
                        && next != Some(' ') =>
                {
                    self.line(indent);
                }
                _ if c == '\'' && quoted => self.put("''"),
                _ => self.put(c.encode_utf8(&mut [0; 4])),
            }
            spaces = c == ' ';
        }
    }

    fn double(&mut self, text: &str, fold: Option<usize>) {
        self.put("\"");
        let chars: Vec<char> = text.chars().collect();
        let mut spaces = false;
        for (i, &c) in chars.iter().enumerate() {
            if c == ' ' {
                match fold {
                    Some(indent)
                        if !spaces && self.column > WIDTH && i > 0 && i + 1 < chars.len() =>
                    {
                        self.line(indent);
                        if chars.get(i + 1) == Some(&' ') {
                            self.put("\\");
                        }
                    }
                    _ => self.put(" "),
                }
                spaces = true;
                continue;
            }
            spaces = false;
            self.put(&escaped(c));
        }
        self.put("\"");
    }

    fn literal(&mut self, text: &str, indent: usize) {
        self.put("|");
        if text.starts_with([' ', '\n']) {
            self.put("2");
        }
        if !text.ends_with('\n') {
            self.put("-");
        } else if text.ends_with("\n\n") || text == "\n" {
            self.put("+");
        }
        for line in text.strip_suffix('\n').unwrap_or(text).split('\n') {
            match line {
                "" => self.line(0),
                line => {
                    self.line(indent);
                    self.put(line);
                }
            }
        }
        self.text.push('\n');
        self.column = 0;
    }
}

fn go_number(number: &serde_json::Number) -> String {
    match number.as_f64().filter(|_| number.is_f64()) {
        Some(float) if float == float.trunc() && float.abs() < 1e21 => format!("{float:.0}"),
        _ => number.to_string(),
    }
}

/// Compares keys in Go's order: runs of digits as numbers, letters after all other characters.
fn natural(a: &str, b: &str) -> Ordering {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let Some(at) = (0..a.len().min(b.len())).find(|&i| a[i] != b[i]) else {
        return a.len().cmp(&b.len());
    };
    match (a[at].is_alphabetic(), b[at].is_alphabetic()) {
        (true, true) => return a[at].cmp(&b[at]),
        (true, false) => return Ordering::Greater,
        (false, true) => return Ordering::Less,
        (false, false) => {}
    }
    // If one key differs by a zero only, the digits before it decide the length of the number.
    let led = (a[at] == '0' || b[at] == '0')
        && a[..at].iter().rev().take_while(|c| c.is_ascii_digit()).any(|c| *c != '0');
    let run = |text: &[char]| {
        let digits = text[at..].iter().take_while(|c| c.is_ascii_digit());
        digits.fold((u128::from(led), 0), |(number, count), c| {
            (
                number.saturating_mul(10).saturating_add(c.to_digit(10).unwrap_or(0).into()),
                count + 1,
            )
        })
    };
    let ((an, ac), (bn, bc)) = (run(&a), run(&b));
    an.cmp(&bn).then(ac.cmp(&bc)).then(a[at].cmp(&b[at]))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reads_every_document_or_none() {
        let trees = parse_all("file", "# text\n---\na: 1\n--- # next\nb: 2\n---\n");
        assert_eq!(trees.unwrap(), [json!({"a": 1}), json!({"b": 2})]);
        for (text, words) in [
            ("a: 1\n--- b: 2\n", "yaml: line 2: only a comment may follow ---"),
            ("a: 1\n---\nb: [\n", "reading file: "),
        ] {
            let error = parse_all("file", text).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn quotes_scalars_as_go() {
        for (text, written) in [
            ("a b", "a b"),
            ("", "\"\""),
            ("yes", "\"yes\""),
            ("Off", "\"Off\""),
            ("oFF", "oFF"),
            ("1.34", "\"1.34\""),
            ("1.34.0", "1.34.0"),
            ("0x1f", "\"0x1f\""),
            ("12e3", "\"12e3\""),
            ("1:30", "\"1:30\""),
            ("::/0", "::/0"),
            ("a: b", "'a: b'"),
            ("# no", "'# no'"),
            ("*", "'*'"),
            ("it's", "it's"),
            ("'it'", "'''it'''"),
            ("- x", "'- x'"),
            ("-x", "-x"),
            (" x", "' x'"),
            ("a\tb", "\"a\\tb\""),
            ("2017-01-01T00:00:00Z", "\"2017-01-01T00:00:00Z\""),
            ("2017-01", "2017-01"),
            ("x\ny\n", "|\n    x\n    y"),
            ("x\ny", "|-\n    x\n    y"),
            (" x\ny\n", "|2\n     x\n    y"),
            ("x \ny\n", "\"x \\ny\\n\""),
        ] {
            let expected = format!("a:\n  b: {written}\n");
            assert_eq!(to_string(&json!({"a": {"b": text}})), expected);
        }
    }

    #[test]
    fn folds_long_lines() {
        let words = "word ".repeat(30);
        let text = to_string(&json!({"a": words.trim_end()}));
        assert!(text.lines().all(|l| l.len() < 86), "{text}");
        assert!(text.lines().skip(1).all(|l| l.starts_with("  word")), "{text}");
    }

    #[test]
    fn writes_block_style_with_keys_in_natural_order() {
        let tree = json!({"b10": [{"x": 1, "a": [[1, 2], []]}, {}], "b2": null, "b": {"c/d": true, "c-d": false, "cd": 1.5}});
        let text = "b:\n  c-d: false\n  c/d: true\n  cd: 1.5\nb2: null\nb10:\n- a:\n  - - 1\n    - 2\n  - []\n  x: 1\n- {}\n";
        assert_eq!(to_string(&tree), text);
    }

    #[test]
    fn output_parses_back() {
        proptest::proptest!(|(text in "[ -~\n\té]{0,100}", key in "[a-z0-9:# '\"-]{1,12}")| {
            let tree = json!({ &key: [&text, {"x": &text}] });
            let written = to_string(&tree);
            proptest::prop_assert_eq!(api_codec::from_yaml(written.as_bytes()).unwrap(), tree, "{}", written);
        });
    }
}
