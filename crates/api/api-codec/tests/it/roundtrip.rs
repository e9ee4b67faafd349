//! Tests that generated objects survive every encoding unchanged.

use api_codec::{from_yaml, protobuf, to_yaml};
use api_schema::{Fill, NodeId, Schema, Shape, decode, decode_value};
use proptest::prelude::*;
use serde_json::{Map, Value};

/// Generates values of a type from random numbers. No list or map is empty, because protobuf does not distinguish empty
/// from absent, neither here nor upstream.
struct Generator<'s> {
    schema: &'s Schema,
    numbers: std::vec::IntoIter<u32>,
}

impl Generator<'_> {
    /// Returns zero when the numbers are used up, which ends all growth.
    fn number(&mut self, below: u32) -> u32 {
        self.numbers.next().unwrap_or(0) % below
    }

    fn text(&mut self) -> String {
        const WORDS: [&str; 8] = ["", "a", "true", "0644", "1e3", "a: b", "é\n\"\\\u{1}", "~"];
        WORDS[self.number(8) as usize].to_owned()
    }

    fn value(&mut self, node: NodeId, depth: u32) -> Value {
        let node = self.schema.node(node);
        match &node.shape {
            Shape::Struct(body) => {
                let mut members = Map::new();
                for field in &body.fields {
                    let typed =
                        field.proto.is_empty() && matches!(&*field.name, "kind" | "apiVersion");
                    if depth > 0 && !typed && self.number(3) == 1 {
                        members.insert(field.name.to_string(), self.value(field.node, depth - 1));
                    }
                }
                members.into()
            }
            Shape::Map { value, .. } => {
                let count = 1 + self.number(2);
                (0..count)
                    .map(|n| (format!("k{n}"), self.value(*value, depth.saturating_sub(1))))
                    .collect::<Map<_, _>>()
                    .into()
            }
            Shape::List { item, .. } => {
                let count = 1 + self.number(2);
                (0..count).map(|_| self.value(*item, depth.saturating_sub(1))).collect()
            }
            Shape::String | Shape::Duration => self.text().into(),
            Shape::Integer { bits: 32, .. } => {
                i32::from_ne_bytes(self.number(u32::MAX).to_ne_bytes()).into()
            }
            Shape::Integer { .. } => (i64::from(self.number(u32::MAX)) - (1 << 40)).into(),
            Shape::Number => (f64::from(self.number(1000)) / 8.0 + 0.03).into(),
            Shape::Boolean => (self.number(2) == 1).into(),
            Shape::Bytes => ["", "YQ==", "AAEC/w=="][self.number(3) as usize].into(),
            Shape::Quantity => {
                ["0", "100m", "1Gi", "1500Mi", "12e6"][self.number(5) as usize].into()
            }
            Shape::IntOrString => {
                if self.number(2) == 0 {
                    self.number(70000).into()
                } else {
                    "25%".into()
                }
            }
            Shape::Time => "2024-01-02T03:04:05Z".into(),
            Shape::MicroTime => "2024-01-02T03:04:05.000678Z".into(),
            Shape::Any => match node.name.as_deref().unwrap_or_default().rsplit('.').next() {
                Some("JSONSchemaPropsOrBool") => (self.number(2) == 1).into(),
                Some("JSONSchemaPropsOrStringArray") => vec!["a", "b"].into(),
                Some("JSONSchemaPropsOrArray") => serde_json::json!({"type": "string"}),
                _ => serde_json::json!({"a": [1, null, {"b": "c"}]}),
            },
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn round_trips_every_kind_in_every_encoding(kind in 0..1000_usize, numbers in prop::collection::vec(any::<u32>(), 0..400)) {
        let schema = Schema::builtin();
        let kind = &schema.kinds[kind % schema.kinds.len()];
        let made = Generator { schema, numbers: numbers.into_iter() }.value(kind.node, 9);
        // The codec's output is canonical: decoding it again changes nothing.
        let canonical = decode_value(schema, kind.node, made, Fill::Zeroes).unwrap();
        prop_assert_eq!(canonical.findings(), Vec::<String>::new());
        let canonical = canonical.value;
        let again = |value| decode_value(schema, kind.node, value, Fill::Zeroes).unwrap().value;
        prop_assert_eq!(&again(canonical.clone()), &canonical);
        let json = serde_json::to_vec(&canonical).unwrap();
        prop_assert_eq!(&decode(schema, kind.node, &json, Fill::Zeroes).unwrap().value, &canonical);
        let yaml = to_yaml(&canonical).unwrap();
        prop_assert_eq!(&again(from_yaml(yaml.as_bytes()).unwrap()), &canonical);
        let node = schema.node(kind.node);
        // A few kinds have no protobuf (`version.Info`).
        if matches!(&node.shape, Shape::Struct(body) if body.fields.iter().any(|f| !f.proto.is_empty())) {
            let message = protobuf::value_to_message(schema, kind.node, &canonical).unwrap();
            let value = protobuf::message_to_value(schema, kind.node, &message).unwrap();
            prop_assert_eq!(&again(value), &canonical);
        }
    }
}
