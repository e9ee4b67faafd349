//! Removes secrets from texts and objects.

use aho_corasick::{AhoCorasick, MatchKind};
use api_meta::Tree as _;
use data_encoding::BASE64;
use regex::Regex;
use serde_json::{Value, json};

/// The replacement of a secret.
const REDACTED: &str = "<redacted>";
/// The length below which a value is no secret worth the name, and would occur by chance.
const SHORTEST: usize = 6;

/// Forms of credentials: JSON Web Tokens, bootstrap tokens, PEM blocks of keys, bearer tokens, passwords in URLs and
/// assignments. containerd logs its configuration with the credentials of registries (`auth`) as quoted JSON.
const FORMS: [(&str, &str); 6] = [
    (r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*", REDACTED),
    (r"\b[a-z0-9]{6}\.[a-z0-9]{16}\b", REDACTED),
    (r"-----BEGIN [A-Z ]*PRIVATE KEY-----[^-]*-----END [A-Z ]*PRIVATE KEY-----", REDACTED),
    (r"(?i)(bearer )[A-Za-z0-9._~+/=-]+", "${1}<redacted>"),
    (r"(://[^/\s:@]+:)[^/\s@]+@", "${1}<redacted>@"),
    (
        r#"(?i)((?:password|passwd|secret|token|apikey|api_key|\bauth)\\*["']?\s*[=:]\s*\\*["']?)[^\s"',}]+"#,
        "${1}<redacted>",
    ),
];

/// Replaces the values of Secrets, and texts that look like credentials.
pub(super) struct Redactor {
    values: Option<AhoCorasick>,
    forms: Vec<(Regex, &'static str)>,
}

impl Redactor {
    /// Creates a redactor of these values, also in base64.
    pub(super) fn new(values: Vec<Vec<u8>>) -> Self {
        let mut patterns: Vec<Vec<u8>> = Vec::new();
        for value in values {
            let trimmed = value.trim_ascii().to_vec();
            for plain in [value, trimmed].into_iter().filter(|value| value.len() >= SHORTEST) {
                patterns.push(BASE64.encode(&plain).into_bytes());
                // A value of several lines is shown with escapes or line by line.
                // Binary values occur in base64 only.
                let text = std::str::from_utf8(&plain).unwrap_or_default().as_bytes();
                let lines = text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
                patterns.extend(lines.filter(|line| line.len() >= SHORTEST).map(<[u8]>::to_vec));
            }
        }
        patterns.sort();
        patterns.dedup();
        let longest =
            AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&patterns);
        let forms = FORMS.iter().filter_map(|(form, by)| Some((Regex::new(form).ok()?, *by)));
        Self { values: longest.ok().filter(|_| !patterns.is_empty()), forms: forms.collect() }
    }

    /// Returns the text without secrets.
    pub(super) fn text(&self, text: &str) -> String {
        let mut text = match &self.values {
            Some(values) => values.replace_all(text, &vec![REDACTED; values.patterns_len()]),
            None => text.to_owned(),
        };
        for (form, by) in &self.forms {
            text = form.replace_all(&text, *by).into_owned();
        }
        text
    }
}

/// Removes the fields of an object in which users put secrets: values of environment variables, and annotations that
/// repeat the object.
pub(super) fn strip(object: &mut Value) {
    if let Some(metadata) = object.at_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
        metadata.remove("annotations");
    }
    hide_environment(object);
}

/// Replaces the values of environment variables wherever a Pod or a template of one is.
fn hide_environment(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                match field {
                    Value::Array(items) if name == "env" => {
                        let values = items.iter_mut().filter_map(|item| item.get_mut("value"));
                        values.for_each(|value| *value = json!(REDACTED));
                    }
                    other => hide_environment(other),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(hide_environment),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_values_of_secrets_in_every_form() {
        let key =
            "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIAbcdefghijk\n-----END EC PRIVATE KEY-----\n";
        let redactor =
            Redactor::new(vec![b"hunter2-is-long\n".to_vec(), key.into(), b"abc".to_vec()]);
        for secret in ["hunter2-is-long", "aHVudGVyMi1pcy1sb25n", "MHcCAQEEIAbcdefghijk"] {
            let text = redactor.text(&format!("before {secret} after abc"));
            assert!(!text.contains(secret), "{text}");
            assert!(text.starts_with("before ") && text.ends_with(" after abc"), "{text}");
        }
    }

    #[test]
    fn replaces_credentials_by_form() {
        let redactor = Redactor::new(Vec::new());
        for (text, expected) in [
            ("token eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ4In0.c2ln end", "token <redacted> end"),
            ("join --token abcdef.0123456789abcdef now", "join --token <redacted> now"),
            ("Authorization: Bearer abc.def-123", "Authorization: Bearer <redacted>"),
            ("https://user:pass@example.com/x", "https://user:<redacted>@example.com/x"),
            ("password=hello next", "password=<redacted> next"),
            ("{\"password\": \"hello\", \"a\": 1}", "{\"password\": \"<redacted>\", \"a\": 1}"),
            (r#"config="{\"auth\":\"dXNlcjpwYXNz\"}""#, r#"config="{\"auth\":\"<redacted>"}""#),
            ("auth = \"dXNlcjpwYXNz\"", "auth = \"<redacted>\""),
            ("nothing to hide at 10.0.0.1:6443", "nothing to hide at 10.0.0.1:6443"),
        ] {
            assert_eq!(redactor.text(text), expected);
        }
        let key = "-----BEGIN PRIVATE KEY-----\nMIGH\n-----END PRIVATE KEY-----";
        assert_eq!(redactor.text(key), "<redacted>");
    }

    #[test]
    fn strips_environment_and_annotations() {
        let container = json!({"name": "c", "env": [{"name": "PASSWORD", "value": "x"}, {"name": "REF", "valueFrom": {}}]});
        let mut object = json!({"metadata": {"name": "p", "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "x"}},
            "spec": {"template": {"spec": {"containers": [container]}}}});
        strip(&mut object);
        let text = object.to_string();
        assert!(
            !text.contains("\"x\"") && text.contains("valueFrom") && !text.contains("annotations"),
            "{text}"
        );
    }

    #[test]
    fn redacts_large_text_within_seconds() {
        let secrets = (0..5000).map(|n| format!("secret-value-{n:06}").into_bytes()).collect();
        let redactor = Redactor::new(secrets);
        let text = "a line of a log with secret-value-004999 in it\n".repeat(100_000);
        let start = std::time::Instant::now();
        assert!(!redactor.text(&text).contains("secret-value"));
        assert!(start.elapsed().as_secs() < 60, "{:?}", start.elapsed());
    }
}
