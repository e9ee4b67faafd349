use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::Error;

/// What a component does about fields that it does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strictness {
    /// They are an error: kube-scheduler, `kubeadm config validate`, and our own kinds.
    Refuse,
    /// They are told in a warning: kubelet, kube-proxy and most of kubeadm.
    Warn,
}

/// A decoded kind and the paths of the fields that its type does not have.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoded<T> {
    pub value: T,
    pub unknown: Vec<String>,
}

impl<T> Decoded<T> {
    /// Turns unknown fields into an error where the component is strict, and leaves them for a warning elsewhere.
    pub fn checked(self, strictness: Strictness) -> Result<Self, Error> {
        match strictness {
            Strictness::Refuse if !self.unknown.is_empty() => {
                Err(Error::UnknownFields { fields: self.unknown })
            }
            _ => Ok(self),
        }
    }

    /// The warning to show for unknown fields that are let pass.
    pub fn warning(&self) -> Option<String> {
        let fields = self.unknown.clone();
        (!fields.is_empty()).then(|| Error::UnknownFields { fields }.to_string())
    }
}

/// Decodes `value`, an object of `kind`; a null counts as a field that is not there, as in Go.
pub fn decode<T: DeserializeOwned>(kind: &'static str, value: Value) -> Result<Decoded<T>, Error> {
    let mut unknown = Vec::new();
    let value = serde_ignored::deserialize(without_nulls(value), |path| {
        unknown.push(written(&path.to_string()));
    })
    .map_err(|e: serde_json::Error| Error::Decode { kind, reason: e.to_string() })?;
    Ok(Decoded { value, unknown })
}

/// Decodes a document that says itself of which kind and version it is; `served` are the `apiVersion`s that it may be of.
pub fn versioned<T: DeserializeOwned>(
    kind: &'static str,
    tree: Value,
    served: &[impl AsRef<str>],
    strictness: Strictness,
) -> Result<T, Error> {
    let (version, given) = gvk(&tree);
    if given != kind || !served.iter().any(|served| served.as_ref() == version) {
        let reason = match (given, version) {
            ("", _) => "Object 'Kind' is missing".to_owned(),
            (_, "") => "Object 'apiVersion' is missing".to_owned(),
            _ => format!("no kind \"{given}\" is registered for version \"{version}\""),
        };
        return Err(Error::Decode { kind, reason });
    }
    let decoded: Decoded<T> = decode(kind, tree)?;
    Ok(decoded.checked(strictness)?.value)
}

/// A path as upstream writes it: `jwt[0].issuer`. Unwrapping an Option adds a question mark to serde's, which is no part
/// of the field's name.
fn written(path: &str) -> String {
    let mut out = String::new();
    for part in path.split('.').filter(|part| *part != "?") {
        match part.bytes().all(|b| b.is_ascii_digit()) {
            true => out.extend(["[", part, "]"]),
            false if out.is_empty() => out.push_str(part),
            false => out.extend([".", part]),
        }
    }
    out
}

/// The object's `apiVersion` and `kind`, empty where they are missing.
pub fn gvk(value: &Value) -> (&str, &str) {
    let text = |field| value.get(field).and_then(Value::as_str).unwrap_or_default();
    (text("apiVersion"), text("kind"))
}

/// The object without the fields that are null; nulls in lists stay, as they have a place.
pub fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => Value::Object(
            fields
                .into_iter()
                .filter(|(_, v)| !v.is_null())
                .map(|(k, v)| (k, without_nulls(v)))
                .collect(),
        ),
        Value::Array(items) => Value::Array(items.into_iter().map(without_nulls).collect()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default)]
    struct Inner {
        a: i32,
    }

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default)]
    struct Outer {
        one: Option<Inner>,
        many: Vec<Inner>,
    }

    #[test]
    fn unknown_fields_are_named_by_path() {
        let value = json!({"one": {"a": 1, "b": 2}, "many": [{"c": 3}], "d": null, "e": 4});
        let decoded = decode::<Outer>("Outer", value).unwrap();
        assert_eq!(decoded.value, Outer { one: Some(Inner { a: 1 }), many: vec![Inner { a: 0 }] });
        assert_eq!(decoded.unknown, ["e", "many[0].c", "one.b"]);
        let error = decoded.checked(Strictness::Refuse).unwrap_err().to_string();
        assert!(
            error.starts_with(
                r#"strict decoding error: unknown field "e", unknown field "many[0].c""#
            ),
            "{error}"
        );
    }

    #[test]
    fn a_wrong_type_names_the_kind() {
        let error = decode::<Outer>("Outer", json!({"many": 3})).unwrap_err().to_string();
        assert!(error.starts_with("Outer: invalid type: integer `3`"), "{error}");
    }
}
