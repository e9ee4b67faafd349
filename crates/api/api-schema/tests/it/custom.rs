//! Compares custom resources with upstream. `custom.jsonl` has schemas, values, and the answers of kube-apiserver
//! v1.36.2.
//!
//! A line is a schema with rows of four parts: a value of `spec.f`; the paths that strict validation reports as
//! unknown; the stored value (`=` if unchanged) or the causes of the rejection, where `spec.f number!object` means a
//! number instead of an object; and the answer to applying the value (for api-patch).

use api_meta::{GroupVersionKind, Path};
use api_schema::{Fill, Schema, apply_defaults, decode_value, validate};
use serde_json::{Value, json};

/// Expands the short form of a cause to `spec.f: Invalid value: …`.
fn cause(text: &str) -> String {
    match text.split_once('!').and_then(|(left, wanted)| Some((left.split_once(' ')?, wanted))) {
        Some(((path, given), wanted)) => {
            format!(
                "{path}: Invalid value: \"{given}\": {path} in body must be of type {wanted}: \"{given}\""
            )
        }
        None => text.to_owned(),
    }
}

/// Sorts the causes, because upstream iterates over maps in random order.
fn causes(all: impl Iterator<Item = String>) -> Value {
    let mut all: Vec<String> = all.collect();
    all.sort_unstable();
    json!({"causes": all})
}

fn answer(schema: &Schema, spec: Value, fill: Fill) -> (Value, Value) {
    let node = schema.kinds[0].node;
    let object = json!({"metadata": {"name": "x"}, "spec": spec});
    let decoded = decode_value(schema, node, object, fill).expect("within the budget");
    let mut filled = decoded.value.clone();
    apply_defaults(schema, node, &mut filled).expect("within the budget");
    assert_eq!(filled, decoded.value, "decoding fills in all defaults");
    let mut unknown: Vec<&str> = decoded.unknown().collect();
    unknown.sort_unstable();
    let errors = validate(schema, node, &decoded.value, None);
    let outcome = if errors.is_empty() {
        decoded.value["spec"].get("f").cloned().unwrap_or_else(|| "absent".into())
    } else {
        causes(errors.iter().map(ToString::to_string))
    };
    (json!(unknown), outcome)
}

/// Returns the expected outcome of a row.
fn expected(value: &Value, part: &Value) -> Value {
    match part {
        same if same == "=" => value.clone(),
        Value::Object(stored) if stored.contains_key("value") => stored["value"].clone(),
        Value::Object(refused) => {
            let all = refused["causes"].as_array().into_iter().flatten();
            causes(all.map(|text| cause(text.as_str().unwrap_or_default())))
        }
        absent => absent.clone(),
    }
}

#[test]
fn decodes_custom_values_like_upstream() {
    let (gvk, mut wrong) = (GroupVersionKind::new("g", "v1", "K"), Vec::new());
    for line in include_str!("custom.jsonl").lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let spec = json!({"type": "object", "properties": {"f": line["schema"]}});
        let open_api = json!({"type": "object", "properties": {"spec": spec}});
        let schema = Schema::from_crd(&open_api, &gvk, &Path::new("s")).unwrap();
        for row in line["rows"].as_array().unwrap() {
            let value = &row[0];
            let spec = if value == "absent" { json!({}) } else { json!({"f": value}) };
            let (unknown, outcome) = answer(&schema, spec.clone(), Fill::Defaults);
            let expected = expected(value, &row[2]);
            let mut known: Vec<&str> =
                row[1].as_array().unwrap().iter().filter_map(Value::as_str).collect();
            known.sort_unstable();
            if unknown != json!(known) {
                wrong.push(format!(
                    "{} {value}\n  unknown {unknown}, not {}",
                    line["schema"], row[1]
                ));
            }
            if outcome != expected {
                wrong.push(format!("{} {value}\n  {outcome}\n  not {expected}", line["schema"]));
            }
            // The answer to an apply differs in the nulls of the value.
            let applied = match &row[3] {
                same if same == "causes" => expected,
                causes if causes.get("causes").is_some() => self::expected(value, causes),
                _ => continue,
            };
            let (_, outcome) = answer(&schema, spec, Fill::Applied);
            if outcome != applied {
                wrong.push(format!(
                    "{} {value} applied\n  {outcome}\n  not {applied}",
                    line["schema"]
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}
