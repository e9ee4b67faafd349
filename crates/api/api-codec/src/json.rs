//! The canonical JSON of stored objects.
//!
//! Stored bytes begin with [`STORED_PREFIX`] and contain neither kind, apiVersion nor resourceVersion, because those
//! depend on the request. Sending an object inserts them at a fixed position, so that a read copies bytes and parses
//! nothing.

use std::borrow::Cow;
use std::io::Write as _;

use serde::Deserialize;
use serde_json::{Map, Value};

/// The bytes that every stored object begins with.
pub const STORED_PREFIX: &[u8] = br#"{"metadata":{"#;

/// The members that are inserted into stored bytes besides the resourceVersion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form<'a> {
    /// An item in the list of a built-in kind: the list names the kind.
    Item,
    /// A single object, or an item in the list of a custom kind.
    Full { kind: &'a str, api_version: &'a str },
}

/// Encodes an object for the store. Without an object as metadata, the metadata is empty.
pub fn encode_stored(object: &Value) -> Vec<u8> {
    encode_managed(object, None)
}

/// Encodes an object like [`encode_stored`], with encoded `managedFields` instead of the object's own.
pub fn encode_managed(object: &Value, managed: Option<&[u8]>) -> Vec<u8> {
    let empty = Map::new();
    let members = object.as_object().unwrap_or(&empty);
    let metadata = members.get("metadata").and_then(Value::as_object).unwrap_or(&empty);
    let mut out = Vec::with_capacity(2048 + managed.map_or(0, <[u8]>::len));
    out.extend_from_slice(br#"{"metadata":"#);
    match managed {
        None => write_members(&mut out, b'{', metadata, |key| key != "resourceVersion"),
        Some(managed) => {
            out.extend_from_slice(br#"{"managedFields":"#);
            out.extend_from_slice(managed);
            let own = |key: &str| !matches!(key, "resourceVersion" | "managedFields");
            write_members(&mut out, b',', metadata, own);
        }
    }
    out.push(b'}');
    write_members(&mut out, b',', members, |key| {
        !matches!(key, "metadata" | "kind" | "apiVersion")
    });
    out.push(b'}');
    out
}

/// Writes the members that `keep` selects, without a closing brace. `first` precedes the first member. An opening brace
/// is written even if there are no members.
fn write_members(
    out: &mut Vec<u8>,
    first: u8,
    members: &Map<String, Value>,
    keep: impl Fn(&str) -> bool,
) {
    let mut separator = first;
    for (key, value) in members.iter().filter(|(key, _)| keep(key)) {
        out.push(separator);
        separator = b',';
        write_json(out, key);
        out.push(b':');
        write_json(out, value);
    }
    if separator == b'{' {
        out.push(b'{');
    }
}

fn write_json<T: serde::Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    // Writing strings and trees to memory cannot fail.
    let _ = serde_json::to_writer(out, value);
}

/// Appends a stored object in its sent form: with its resourceVersion, and with its kind if the form needs it.
pub fn splice(out: &mut Vec<u8>, stored: &[u8], resource_version: u64, form: Form<'_>) {
    let Some(rest) = stored.strip_prefix(STORED_PREFIX) else {
        debug_assert!(false, "these bytes were not written by encode_stored");
        out.extend_from_slice(stored);
        return;
    };
    out.reserve(stored.len() + 96);
    out.push(b'{');
    if let Form::Full { kind, api_version } = form {
        out.extend_from_slice(br#""kind":"#);
        write_json(out, kind);
        out.extend_from_slice(br#","apiVersion":"#);
        write_json(out, api_version);
        out.push(b',');
    }
    out.extend_from_slice(br#""metadata":{"resourceVersion":""#);
    let _ = write!(out, "{resource_version}");
    out.push(b'"');
    if rest.first() != Some(&b'}') {
        out.push(b',');
    }
    out.extend_from_slice(rest);
}

/// The kind and apiVersion of an object; empty if absent. The other members are skipped.
#[derive(Debug, Default, Deserialize)]
pub struct TypeMeta<'a> {
    /// The apiVersion, such as `apps/v1`.
    #[serde(default, borrow, rename = "apiVersion", deserialize_with = "text_or_null")]
    pub api_version: Cow<'a, str>,
    /// The kind, such as `Deployment`.
    #[serde(default, borrow, deserialize_with = "text_or_null")]
    pub kind: Cow<'a, str>,
}

fn text_or_null<'de: 'a, 'a, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Cow<'a, str>, D::Error> {
    struct Text;
    impl<'de> serde::de::Visitor<'de> for Text {
        type Value = Cow<'de, str>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a string")
        }

        fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
            Ok(Cow::Borrowed(text))
        }

        fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
            Ok(Cow::Owned(text.to_owned()))
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(Cow::Borrowed(""))
        }
    }
    deserializer.deserialize_any(Text)
}

/// Parses kind and apiVersion from JSON. The error is the parser's.
pub fn type_meta(json: &[u8]) -> Result<TypeMeta<'_>, serde_json::Error> {
    serde_json::from_slice(json)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn sent(object: &Value, form: Form<'_>) -> Value {
        let mut out = Vec::new();
        splice(&mut out, &encode_stored(object), 7, form);
        serde_json::from_slice(&out).unwrap()
    }

    #[test]
    fn splices_members_into_stored_bytes() {
        let full = Form::Full { kind: "Pod", api_version: "v1" };
        for (object, stored, item) in [
            (json!({}), r#"{"metadata":{}}"#, json!({"metadata": {"resourceVersion": "7"}})),
            (
                json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"resourceVersion": "3"}, "spec": {"a": 1}}),
                r#"{"metadata":{},"spec":{"a":1}}"#,
                json!({"metadata": {"resourceVersion": "7"}, "spec": {"a": 1}}),
            ),
            (
                json!({"metadata": {"name": "a\"b", "uid": "u"}, "data": {"k": null}}),
                r#"{"metadata":{"name":"a\"b","uid":"u"},"data":{"k":null}}"#,
                json!({"metadata": {"name": "a\"b", "uid": "u", "resourceVersion": "7"}, "data": {"k": null}}),
            ),
        ] {
            assert_eq!(String::from_utf8(encode_stored(&object)).unwrap(), stored);
            assert_eq!(sent(&object, Form::Item), item);
            let mut with_kind = item;
            with_kind["kind"] = "Pod".into();
            with_kind["apiVersion"] = "v1".into();
            assert_eq!(sent(&object, full), with_kind);
        }
    }

    proptest! {
        #[test]
        fn round_trips_any_object(name in ".*", labels in prop::collection::btree_map(".*", ".*", 0..4), spec in ".*") {
            let object = json!({"metadata": {"name": name, "labels": labels}, "spec": spec});
            let stored = encode_stored(&object);
            prop_assert!(stored.starts_with(STORED_PREFIX));
            let mut expected = object.clone();
            expected["metadata"]["resourceVersion"] = "7".into();
            prop_assert_eq!(sent(&object, Form::Item), expected);
        }
    }

    #[test]
    fn accepts_encoded_managed_fields() {
        let text = json!([{"manager": "m"}]);
        for own in [json!({}), json!({"name": "a", "managedFields": [], "uid": "u"})] {
            let mut object = json!({"metadata": own, "spec": 1});
            let stored = encode_managed(&object, Some(text.to_string().as_bytes()));
            assert!(stored.starts_with(STORED_PREFIX));
            object["metadata"]["managedFields"] = text.clone();
            assert_eq!(serde_json::from_slice::<Value>(&stored).unwrap(), object);
        }
    }

    #[test]
    fn reads_only_kind_and_version() {
        let meta = type_meta(br#"{"spec":{"kind":"X"},"kind":"Pod","apiVersion":"v1"}"#).unwrap();
        assert_eq!((&*meta.api_version, &*meta.kind), ("v1", "Pod"));
        assert_eq!(type_meta(br#"{"kind":null}"#).unwrap().kind, "");
        assert!(type_meta(br#"{"kind":1}"#).is_err());
    }
}
