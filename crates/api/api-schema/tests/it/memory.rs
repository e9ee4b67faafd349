//! Bounds the memory of custom kinds' schemas. Clusters have hundreds of them.

use api_meta::{GroupVersionKind, Path};
use api_schema::Schema;
use fuzz::heap::{CountingAllocator, growth};
use serde_json::{Map, Value, json};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// A type like those of large definitions: most of its text is descriptions.
fn structure(number: usize) -> Value {
    let description =
        "The time after which the object is deleted. It is optional, and must be unique.";
    let member = |at: usize| {
        let text = json!({"type": "string", "description": description});
        let bounded = json!({"type": "string", "maxLength": at + 9, "pattern": "^[a-z0-9]{0,63}$"});
        (format!("member{at}"), if at.is_multiple_of(6) { bounded } else { text })
    };
    let members: Map<String, Value> = (number..number + 12).map(member).collect();
    json!({"type": "object", "description": description, "properties": members})
}

#[test]
fn bounds_memory_of_custom_kind() {
    let kinds = (0..70).map(|at| (format!("own{at}"), structure(at)));
    let repeated = (0..700).map(|at| (format!("repeated{at}"), structure(at % 5)));
    let properties: Map<String, Value> = kinds.chain(repeated).collect();
    let open_api = json!({"type": "object", "properties": properties});
    let json = open_api.to_string().len() as isize;
    let build = || {
        Schema::from_crd(&open_api, &GroupVersionKind::new("g", "v1", "K"), &Path::new("s"))
            .unwrap()
    };
    // The first schema loads tables that all share.
    drop(build());
    let (schema, live) = growth(build);
    assert!(live > 0 && live < json / 4, "{live} bytes for {json} bytes of JSON");
    // Patterns are compiled when they are needed.
    let node = schema.kinds[0].node;
    let object = json!({"own0": {"member0": "x"}});
    let (errors, more) = growth(|| api_schema::validate(&schema, node, &object, None));
    assert!(errors.is_empty() && more > 1000, "{errors:?} {more}");
}
