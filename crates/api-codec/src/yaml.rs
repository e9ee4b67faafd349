//! YAML in and out, read as Go's YAML 1.1 parsers read it.

use api_meta::{
    Budget, JsonError,
    budget::{MAX_YAML_DEPTH, Tree},
};
use serde::de::DeserializeSeed as _;
use serde_json::Value;
use serde_saphyr::DuplicateKeyPolicy;

/// Why a text is no YAML, with the place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("error converting YAML to JSON: yaml: {0}")]
pub struct YamlError(String);

/// Reads one document. `0644` is octal and `yes` is true, as upstream has it; of equal keys the last one counts.
pub fn from_yaml(text: &[u8]) -> Result<Value, YamlError> {
    // Most of what is said to be YAML is JSON, which is read faster, and deeper.
    match Budget::object().json(text) {
        Ok(value) => return Ok(value),
        Err(JsonError::Exceeded(exceeded)) => return Err(YamlError(exceeded.to_string())),
        Err(JsonError::Syntax(_)) => {}
    }
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_depth: MAX_YAML_DEPTH },
        duplicate_keys: DuplicateKeyPolicy::LastWins,
        legacy_octal_numbers: true,
        strict_booleans: false,
        with_snippet: false,
    };
    // A few aliases can stand for more than there is memory: what they stand for counts.
    let mut budget = Budget::object();
    let read = serde_saphyr::with_deserializer_from_slice_with_options(text, options, |yaml| {
        Tree(&mut budget).deserialize(yaml)
    });
    read.map_err(|error| match budget.exceeded() {
        Some(exceeded) => YamlError(exceeded.to_string()),
        None => YamlError(error.to_string()),
    })
}

/// The first key that a mapping has twice, in the words of Go's YAML: `line 3: key "a" already set in map`.
pub fn yaml_duplicate(text: &[u8]) -> Option<String> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_depth: MAX_YAML_DEPTH },
        duplicate_keys: DuplicateKeyPolicy::Error,
        with_snippet: false,
    };
    let mut budget = Budget::object();
    let read = serde_saphyr::with_deserializer_from_slice_with_options(text, options, |yaml| {
        Tree(&mut budget).deserialize(yaml)
    });
    match read.err()?.without_snippet() {
        serde_saphyr::Error::DuplicateMappingKey { key, location } => {
            let key = key.as_deref().unwrap_or_default();
            Some(format!("line {}: key {key:?} already set in map", location.line()))
        }
        _ => None,
    }
}

/// Writes one document.
pub fn to_yaml(value: &Value) -> Result<String, YamlError> {
    serde_saphyr::to_string(value).map_err(|e| YamlError(e.to_string()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn scalars_are_those_of_yaml_1_1() {
        let text = "mode: 0644\non: yes\nquoted: \"0644\"\nlist: [1, 1.5, ~, off]\n80: x\n";
        let value = from_yaml(text.as_bytes()).unwrap();
        let expected = json!({"mode": 420, "true": true, "quoted": "0644", "list": [1, 1.5, null, false], "80": "x"});
        for (key, value) in value.as_object().unwrap() {
            let key = if key == "on" { "true" } else { key };
            assert_eq!(&expected[key], value, "{key}");
        }
    }

    #[test]
    fn a_key_that_comes_twice_is_named() {
        let text = b"a: 1\nb:\n  c: 1\n  c: 2\na: 2\n";
        assert_eq!(yaml_duplicate(text).unwrap(), "line 4: key \"c\" already set in map");
        assert_eq!(from_yaml(text).unwrap(), json!({"a": 2, "b": {"c": 2}}));
        assert_eq!(yaml_duplicate(b"a: 1\nb: 2\n"), None);
    }

    #[test]
    fn what_is_written_reads_back() {
        let value = json!({"a": "yes", "b": "0644", "c": ["1", 1, "", "x: y", "# no", "multi\nline\n"],
            "d": {"e": {}, "f": [], "g": null, "on": "~"}, "h": "1e3", "i": "0x1f", "j": " lead", "k": "null"});
        assert_eq!(from_yaml(to_yaml(&value).unwrap().as_bytes()).unwrap(), value);
    }

    #[test]
    fn bombs_and_nonsense_are_errors() {
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
