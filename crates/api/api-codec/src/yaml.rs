//! Reads and writes YAML like the Go packages of Kubernetes.
//!
//! [`from_yaml`] accepts what sigs.k8s.io/yaml accepts, and returns the same JSON. It is YAML 1.1: `0644` is octal,
//! `yes` is true, and keys of all scalar types become strings.

mod error;
mod read;
mod resolve;
mod scan;

use serde_json::Value;

pub use error::YamlError;
pub use read::YamlDocument;

/// Parses the first document of a text. The last of duplicate keys wins.
///
/// # Errors
///
/// Rejects what Go's YAML rejects, and documents that are too deep or need too much memory.
pub fn from_yaml(text: &[u8]) -> Result<Value, YamlError> {
    Ok(read::read(&characters(text)?, false)?.value)
}

/// Splits a text into its documents, at lines that begin with three dashes. Documents of white space are left out.
///
/// # Errors
///
/// As in kubectl, nothing but a comment may follow the dashes: [`from_yaml`] reads one document, so it would not see a
/// document that begins there.
pub fn yaml_documents(text: &str) -> Result<Vec<&str>, YamlError> {
    let (mut documents, mut from, mut at) = (Vec::new(), 0, 0);
    for (number, line) in text.split_inclusive('\n').enumerate() {
        if let Some(rest) = line.strip_prefix("---").map(str::trim_start) {
            if !rest.is_empty() && !rest.starts_with('#') {
                return Err(YamlError::at(number + 1, "only a comment may follow ---"));
            }
            documents.push(&text[from..at]);
            from = at + line.len();
        }
        at += line.len();
    }
    documents.push(&text[from..]);
    documents.retain(|document| !document.trim().is_empty());
    Ok(documents)
}

/// Parses the first document of a text like [`from_yaml`], and lists duplicate keys.
///
/// # Errors
///
/// Those of [`from_yaml`].
pub fn yaml_document(text: &[u8]) -> Result<YamlDocument, YamlError> {
    read::read(&characters(text)?, true)
}

/// Decodes a text in UTF-8, or in UTF-16 with a byte order mark.
fn characters(text: &[u8]) -> Result<std::borrow::Cow<'_, str>, YamlError> {
    let utf16 = |read: fn([u8; 2]) -> u16| {
        let units = text[2..].chunks_exact(2).map(|unit| read([unit[0], unit[1]]));
        let decoded: Result<String, _> = char::decode_utf16(units).collect();
        decoded.map_err(|_| YamlError::new("unexpected low surrogate area".to_owned()))
    };
    let decoded = match text {
        [0xFF, 0xFE, ..] => utf16(u16::from_le_bytes)?.into(),
        [0xFE, 0xFF, ..] => utf16(u16::from_be_bytes)?.into(),
        text => {
            let text = text.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(text);
            let decoded = std::str::from_utf8(text);
            decoded.map_err(|_| YamlError::new("invalid leading UTF-8 octet".to_owned()))?.into()
        }
    };
    let decoded: std::borrow::Cow<'_, str> = decoded;
    let is_allowed = |c: char| match c {
        '\t' | '\n' | '\r' | ' '..='~' | '\u{85}' => true,
        c => c >= '\u{A0}' && !matches!(c, '\u{FFFE}' | '\u{FFFF}'),
    };
    if decoded.chars().all(is_allowed) {
        Ok(decoded)
    } else {
        Err(YamlError::new("control characters are not allowed".to_owned()))
    }
}

/// Writes one document.
pub fn to_yaml(value: &Value) -> Result<String, YamlError> {
    serde_saphyr::to_string(value).map_err(|e| YamlError::new(e.to_string()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn resolves_scalars_of_yaml_1_1() {
        let text = "mode: 0644\non: yes\nquoted: \"0644\"\nlist: [1, 1.5, ~, off]\n80: x\n";
        let value = from_yaml(text.as_bytes()).unwrap();
        let expected = json!({"mode": 420, "true": true, "quoted": "0644", "list": [1, 1.5, null, false], "80": "x"});
        for (key, value) in value.as_object().unwrap() {
            let key = if key == "on" { "true" } else { key };
            assert_eq!(&expected[key], value, "{key}");
        }
    }

    #[test]
    fn splits_documents_at_dashes() {
        for (text, documents) in [
            ("", &[][..]),
            ("a: 1\n", &["a: 1\n"]),
            (
                "# text\n---\na: 1\n---   # next\nb: 2\n---\n\n---\r\n",
                &["# text\n", "a: 1\n", "b: 2\n"],
            ),
            ("---\r\na: 1\r\n---\t\r\nb: 2", &["a: 1\r\n", "b: 2"]),
            ("a: |\n  x\n  ---\n  y\n", &["a: |\n  x\n  ---\n  y\n"]),
        ] {
            assert_eq!(yaml_documents(text).unwrap(), documents, "{text:?}");
        }
        for (text, line) in
            [("--- a: 1\n", 1), ("a: 1\n--- {b: 2}\n", 2), ("a: 1\n----\nb: 2\n", 2)]
        {
            let words = format!("yaml: line {line}: only a comment may follow ---");
            assert_eq!(yaml_documents(text).unwrap_err().cause(), words, "{text:?}");
        }
        assert_eq!(yaml_documents(&"---\na: 1\n".repeat(100_000)).unwrap().len(), 100_000);
        assert_eq!(
            from_yaml(b"a: 1\n--- # next\nb: 2\n").unwrap(),
            json!({"a": 1}),
            "one document"
        );
    }

    #[test]
    fn reports_duplicate_keys() {
        let text = b"a: 1\nb:\n  c: 1\n  c: 2\na: 2\n";
        let lines =
            ["line 4: key \"c\" already set in map", "line 5: key \"a\" already set in map"];
        let document = yaml_document(text).unwrap();
        assert_eq!(document.duplicates, lines);
        assert_eq!(document.value, json!({"a": 2, "b": {"c": 2}}));
        assert_eq!(from_yaml(text).unwrap(), document.value);
        assert!(yaml_document(b"a: 1\nb: 2\n").unwrap().duplicates.is_empty());
    }

    #[test]
    fn parses_its_own_output() {
        let value = json!({"a": "yes", "b": "0644", "c": ["1", 1, "", "x: y", "# no", "multi\nline\n"],
            "d": {"e": {}, "f": [], "g": null, "on": "~"}, "h": "1e3", "i": "0x1f", "j": " lead", "k": "null"});
        assert_eq!(from_yaml(to_yaml(&value).unwrap().as_bytes()).unwrap(), value);
    }

    /// The verdicts are Go's: of 10,000 nodes, 99 of 100 may come from aliases.
    #[test]
    fn rejects_excessive_aliases() {
        let text = |items: usize, aliases: usize| {
            let (items, aliases) = (vec!["x"; items].join(","), vec!["*a"; aliases].join(","));
            format!("a: &a [{items}]\nb: [{aliases}]\n")
        };
        let value = from_yaml(text(50, 40).as_bytes()).unwrap();
        assert_eq!(value["b"][39][49], "x");
        let refused = from_yaml(text(1000, 300).as_bytes()).unwrap_err();
        assert_eq!(refused.cause(), "yaml: document contains excessive aliasing");
    }

    #[test]
    fn rejects_bombs_and_malformed_texts() {
        let bomb = format!(
            "a0: &a0 [x]\n{}",
            (1..30)
                .map(|i| format!("a{i}: &a{i} [*a{0}, *a{0}, *a{0}]\n", i - 1))
                .collect::<String>()
        );
        let deep = "[".repeat(100_000);
        for text in ["a: [", "a: b: c", "a: '", bomb.as_str(), deep.as_str()] {
            assert!(from_yaml(text.as_bytes()).is_err(), "{:.40}", text);
        }
    }
}
