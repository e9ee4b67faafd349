use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::Error;

/// The treatment of unknown fields by a component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strictness {
    /// An unknown field is an error: kube-scheduler, `kubeadm config validate`, and Windlass's own kinds.
    Refuse,
    /// An unknown field is a warning: kubelet, kube-proxy and most of kubeadm.
    Warn,
}

/// A decoded object and the paths of its unknown fields.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoded<T> {
    /// The object.
    pub value: T,
    /// The paths of the unknown fields.
    pub unknown: Vec<String>,
}

impl<T> Decoded<T> {
    /// Turns unknown fields into an error if the component is strict.
    pub fn checked(self, strictness: Strictness) -> Result<Self, Error> {
        match strictness {
            Strictness::Refuse if !self.unknown.is_empty() => {
                Err(Error::UnknownFields { fields: self.unknown })
            }
            _ => Ok(self),
        }
    }

    /// Returns the warning about unknown fields, if there are any.
    pub fn warning(&self) -> Option<String> {
        let fields = self.unknown.clone();
        (!fields.is_empty()).then(|| Error::UnknownFields { fields }.to_string())
    }
}

/// Decodes an object of `kind`. A null counts as an absent field, as in Go.
pub fn decode<T: DeserializeOwned>(kind: &'static str, value: Value) -> Result<Decoded<T>, Error> {
    let mut unknown = Vec::new();
    let value = serde_ignored::deserialize(without_nulls(value), |path| {
        unknown.push(upstream_path(&path.to_string()));
    })
    .map_err(|e: serde_json::Error| Error::Decode { kind, reason: e.to_string() })?;
    Ok(Decoded { value, unknown })
}

/// Decodes a document that names its kind and version. `served` are the accepted `apiVersion`s.
pub fn versioned<T: DeserializeOwned>(
    kind: &'static str,
    tree: Value,
    served: &[impl AsRef<str>],
    strictness: Strictness,
) -> Result<T, Error> {
    let (version, actual) = gvk(&tree);
    if actual != kind || !served.iter().any(|served| served.as_ref() == version) {
        let reason = match (actual, version) {
            ("", _) => "Object 'Kind' is missing".to_owned(),
            (_, "") => "Object 'apiVersion' is missing".to_owned(),
            _ => format!("no kind \"{actual}\" is registered for version \"{version}\""),
        };
        return Err(Error::Decode { kind, reason });
    }
    let decoded: Decoded<T> = decode(kind, tree)?;
    Ok(decoded.checked(strictness)?.value)
}

/// Formats a path like upstream: `jwt[0].issuer`. serde adds a question mark for each `Option`, which is removed.
fn upstream_path(path: &str) -> String {
    let mut out = String::new();
    for part in path.split('.').filter(|part| *part != "?") {
        if part.bytes().all(|b| b.is_ascii_digit()) {
            out.extend(["[", part, "]"]);
        } else if out.is_empty() {
            out.push_str(part);
        } else {
            out.extend([".", part]);
        }
    }
    out
}

/// Returns the object's `apiVersion` and `kind`; empty if absent.
pub fn gvk(value: &Value) -> (&str, &str) {
    let text = |field| value.get(field).and_then(Value::as_str).unwrap_or_default();
    (text("apiVersion"), text("kind"))
}

/// Checks the object's `apiVersion` and `kind`, and decodes it. Unknown fields are returned.
pub(crate) fn decode_kind<T: DeserializeOwned>(
    version: &'static str,
    kind: &'static str,
    value: Value,
) -> Result<Decoded<T>, Error> {
    match gvk(&value) {
        found if found == (version, kind) => decode(kind, value),
        (found_version, found) => Err(Error::WrongKind {
            expected: kind,
            group: version,
            found: format!("{found} of {found_version}"),
        }),
    }
}

/// Removes null fields from the object. Nulls in lists stay, because they have a position.
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
    fn reports_unknown_fields_by_path() {
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
    fn names_kind_in_type_errors() {
        let error = decode::<Outer>("Outer", json!({"many": 3})).unwrap_err().to_string();
        assert!(error.starts_with("Outer: invalid type: integer `3`"), "{error}");
    }
}
