//! Reads and writes YAML like Kubernetes' components: YAML 1.1 scalars on input, sorted keys and block style on output.

use serde_json::Value;

use crate::error::Error;

/// Parses all non-empty documents.
pub fn parse_all(text: &str) -> Result<Vec<Value>, Error> {
    let options = serde_saphyr::options! {
        // The parser is recursive, and a level needs up to 30 kB of a thread's 2 MB stack in a debug build.
        budget: serde_saphyr::budget! { max_depth: 48 },
        legacy_octal_numbers: true,
        strict_booleans: false,
    };
    let documents: Vec<Value> = serde_saphyr::from_multiple_with_options(text, options)
        .map_err(|e| Error::Yaml(e.to_string()))?;
    Ok(documents.into_iter().filter(|d| !d.is_null()).collect())
}

/// Parses one document. An empty text is null.
pub fn parse(text: &str) -> Result<Value, Error> {
    let mut documents = parse_all(text)?;
    match documents.len() {
        0 => Ok(Value::Null),
        1 => Ok(documents.swap_remove(0)),
        n => Err(Error::Yaml(format!("expected one document, found {n}"))),
    }
}

/// Writes one document with sorted keys and without a document marker.
pub fn to_string(value: &impl serde::Serialize) -> Result<String, Error> {
    // The conversion to a `Value` sorts the keys, like Go's encoder.
    let value = serde_json::to_value(value).map_err(|e| Error::Emit(e.to_string()))?;
    let options = serde_saphyr::ser_options! {
        // Long lines, such as certificates, must not be folded.
        folded_wrap_chars: 1_000_000,
    };
    serde_saphyr::to_string_with_options(&value, options).map_err(|e| Error::Emit(e.to_string()))
}

/// Writes several documents with the separator of `kubeadm config print`.
pub fn to_string_all(values: &[Value]) -> Result<String, Error> {
    let documents = values.iter().map(to_string).collect::<Result<Vec<_>, _>>()?;
    Ok(documents.join("---\n"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn parses_scalars_like_kubernetes() {
        let cases = [
            ("1.36.0", json!("1.36.0")),
            ("\"0\"", json!("0")),
            ("0644", json!(420)),
            ("yes", json!(true)),
            ("off", json!(false)),
            ("~", Value::Null),
            ("null", Value::Null),
            ("-5", json!(-5)),
            ("1.5", json!(1.5)),
            ("10.96.0.0/12", json!("10.96.0.0/12")),
            ("4m0s", json!("4m0s")),
            ("18446744073709551615", json!(18446744073709551615u64)),
        ];
        for (text, value) in cases {
            assert_eq!(parse(&format!("a: {text}\n")).unwrap(), json!({ "a": value }), "{text}");
        }
    }

    #[test]
    fn round_trips_and_matches_upstream_format() {
        let value = json!({
            "b": ["x", {"k": "0", "c": "true"}], "a": {"z": null, "w": {}, "e": []},
            "text": "one\n  two\n", "long": "ab ".repeat(60), "stripped": "x\ny",
        });
        let text = to_string(&value).unwrap();
        assert_eq!(parse(&text).unwrap(), value);
        assert!(
            text.starts_with(
                "a:\n  e: []\n  w: {}\n  z: null\nb:\n- x\n- c: \"true\"\n  k: \"0\"\n"
            ),
            "{text}"
        );
        assert!(text.contains("text: |\n  one\n    two\n"), "{text}");
    }

    #[test]
    fn separates_documents() {
        let text = to_string_all(&[json!({"a": 1}), json!({"b": 2})]).unwrap();
        assert_eq!(text, "a: 1\n---\nb: 2\n");
        assert_eq!(
            parse_all(&format!("# a comment\n---\n{text}---\n")).unwrap(),
            [json!({"a": 1}), json!({"b": 2})]
        );
    }
}
