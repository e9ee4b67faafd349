//! Parses only the members of a stored object that selectors and indexes need. Parsing whole objects would make up half
//! of the work of a write.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// A tree of members to read. A member without members of its own is read whole. For a list, it applies to each item.
#[derive(Debug, Default)]
pub(crate) struct Projection(Vec<(Box<str>, Projection)>);

impl Projection {
    /// Builds a projection from dotted paths. Lists are not part of the paths.
    pub(crate) fn of<'a>(paths: impl IntoIterator<Item = &'a str>) -> Self {
        let mut projection = Self::default();
        for path in paths {
            let mut at = &mut projection;
            for member in path.split('.') {
                let known = at.0.iter().position(|(name, _)| **name == *member);
                let index = known.unwrap_or_else(|| {
                    at.0.push((member.into(), Self::default()));
                    at.0.len() - 1
                });
                at = &mut at.0[index].1;
            }
        }
        projection
    }

    /// Returns the projection of the whole object.
    pub(crate) fn whole() -> Self {
        Self::default()
    }

    /// Returns `true` if the whole object is read.
    pub(crate) fn is_whole(&self) -> bool {
        self.0.is_empty()
    }

    /// Parses an object and returns the projected members only.
    pub(crate) fn read(&self, json: &[u8]) -> Result<Value, serde_json::Error> {
        #[cfg(test)]
        super::parse_count::count();
        let mut deserializer = serde_json::Deserializer::from_slice(json);
        let value = self.deserialize(&mut deserializer)?;
        deserializer.end()?;
        Ok(value)
    }
}

impl<'de> DeserializeSeed<'de> for &Projection {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        if self.0.is_empty() {
            serde::Deserialize::deserialize(deserializer)
        } else {
            deserializer.deserialize_any(self)
        }
    }
}

impl<'de> Visitor<'de> for &Projection {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut kept = Map::new();
        while let Some(member) = map.next_key_seed(Member(&self.0))? {
            match member {
                Some((name, wanted)) => {
                    kept.insert(name.to_string(), map.next_value_seed(wanted)?);
                }
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(Value::Object(kept))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(self)? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    // A scalar in place of an object has no projected members.

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_str<E>(self, _: &str) -> Result<Value, E> {
        Ok(Value::Null)
    }
}

/// Looks up the name of a member without copying it.
struct Member<'a>(&'a [(Box<str>, Projection)]);

impl<'de, 'a> DeserializeSeed<'de> for Member<'a> {
    type Value = Option<&'a (Box<str>, Projection)>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'a> Visitor<'_> for Member<'a> {
    type Value = Option<&'a (Box<str>, Projection)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a member's name")
    }

    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        Ok(self.0.iter().find(|(wanted, _)| **wanted == *name))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reads_only_projected_members() {
        let wanted = Projection::of(["metadata.name", "metadata.labels", "spec.a.b", "kind"]);
        let table = [
            (json!({}), json!({})),
            (
                json!({"metadata": {"name": "n", "uid": "u", "labels": {"x.y/z": "1"}}, "kind": "K", "status": [1]}),
                json!({"metadata": {"name": "n", "labels": {"x.y/z": "1"}}, "kind": "K"}),
            ),
            (
                json!({"spec": {"a": {"b": [1, {"c": null}], "c": 1}}}),
                json!({"spec": {"a": {"b": [1, {"c": null}]}}}),
            ),
            (
                json!({"spec": [1, {"a": {"b": 2, "c": 3}}], "metadata": "text"}),
                json!({"spec": [null, {"a": {"b": 2}}], "metadata": null}),
            ),
            (
                json!({"metadata": null, "spec": {"a": 7}}),
                json!({"metadata": null, "spec": {"a": null}}),
            ),
        ];
        for (object, expected) in table {
            assert_eq!(wanted.read(object.to_string().as_bytes()).unwrap(), expected);
        }
        assert!(wanted.read(b"{\"metadata\":").is_err());
        assert!(wanted.read(b"{} {}").is_err());
    }
}
