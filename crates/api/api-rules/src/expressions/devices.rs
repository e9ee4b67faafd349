//! Device selectors: CEL expressions over the variable `device`.
//!
//! They are compiled when a DeviceClass or ResourceClaim is written, and again for the allocation of devices.

use std::sync::{Arc, OnceLock};

use api_meta::{ErrorList, FieldError, Path, Tree as _};
use cel::{Decl, Env, Field, Object, Program, Shape, Type};
use serde_json::Value;

use super::ExpressionError;

/// The cost limit of one evaluation, estimated and actual (`CELSelectorExpressionMaxCost`).
pub const MAX_COST: u64 = 1_000_000;
/// The maximum length of an expression (`CELSelectorExpressionMaxLength`).
const MAX_LENGTH: usize = 10 * 1024;
/// The maximum number of selectors of a request or class (`DeviceSelectorsMaxSize`).
const MAX_SELECTORS: usize = 32;
/// The API's limits, which bound the estimated costs.
const MAX_DRIVER: u64 = 63;
const MAX_ATTRIBUTES: u64 = 32;
const MAX_TEXT: u64 = 64;

/// Returns the environment that declares `device`, and the variable's type.
fn environment() -> &'static (Env, Arc<Object>) {
    static ENVIRONMENT: OnceLock<(Env, Arc<Object>)> = OnceLock::new();
    ENVIRONMENT.get_or_init(|| {
        let by_domain = |value: Decl| {
            let by_name = Decl::new(Shape::Map(Arc::new(value)), MAX_ATTRIBUTES, 2);
            Decl::new(Shape::Map(Arc::new(by_name)), MAX_ATTRIBUTES, 2)
        };
        let quantity = Shape::Computed(Type::Opaque("kubernetes.Quantity"));
        let fields = [
            ("driver", Decl::new(Shape::String, MAX_DRIVER, 2)),
            ("allowMultipleAllocations", Decl::new(Shape::Bool, 1, 4)),
            ("attributes", by_domain(Decl::new(Shape::Any, MAX_TEXT, 1))),
            ("capacity", by_domain(Decl::new(quantity, 1, 2))),
        ];
        let fields = fields.map(|(name, decl)| Field { name: name.into(), key: name.into(), decl });
        let device = Object::new("kubernetes.DRADevice", fields.to_vec());
        let decl = Decl::new(Shape::Object(device.clone()), u64::MAX, 2);
        (Env::default().with_bindings().variable("device", decl), device)
    })
}

/// Returns the type of `device`.
pub fn device() -> &'static Arc<Object> {
    &environment().1
}

/// Compiles a selector.
pub fn compile(text: &str) -> Result<Program, ExpressionError> {
    let program = Program::compile(&environment().0, text).map_err(ExpressionError::Compilation)?;
    match program.result() {
        Type::Bool | Type::Dyn => Ok(program),
        other => Err(ExpressionError::SelectorType(other.name().to_owned())),
    }
}

/// Validates the field `selectors` of a class or request.
pub(crate) fn check_selectors(owner: &Value, path: &Path, errors: &mut ErrorList) {
    let (selectors, path) = (owner.items("selectors"), path.child("selectors"));
    if selectors.len() > MAX_SELECTORS {
        errors.push(FieldError::too_many(&path, selectors.len(), MAX_SELECTORS));
        return;
    }
    for (i, selector) in selectors.iter().enumerate() {
        let path = path.index(i).child("cel");
        match selector.opt_text("cel.expression") {
            None if selector.has("cel") => {
                errors.push(FieldError::required(&path.child("expression"), ""));
            }
            None => errors.push(FieldError::required(&path, "")),
            Some(text) => errors.extend(expression_error(text, &path.child("expression"))),
        }
    }
}

fn expression_error(text: &str, path: &Path) -> Option<FieldError> {
    if text.len() > MAX_LENGTH {
        return Some(FieldError::too_long(path, MAX_LENGTH));
    }
    match compile(text) {
        Err(error) => Some(FieldError::invalid(path, text, error.to_string())),
        Ok(program) if program.estimate().max > MAX_COST => {
            Some(FieldError::forbidden(path, "too complex, exceeds cost limit"))
        }
        Ok(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn errors(selectors: Value) -> Vec<String> {
        let mut errors = ErrorList::new();
        check_selectors(&json!({ "selectors": selectors }), &Path::new("spec"), &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn accepts_selectors_of_the_documentation() {
        for text in [
            "device.driver == \"gpu.example.com\"",
            "device.attributes[\"gpu.example.com\"].model == \"a\" && device.capacity[\"gpu.example.com\"].memory.compareTo(quantity(\"1Gi\")) >= 0",
            "cel.bind(a, device.attributes[\"gpu.example.com\"], has(a.model))",
            "device.attributes[\"gpu.example.com\"].flag",
        ] {
            assert_eq!(errors(json!([{"cel": {"expression": text}}])), [""; 0], "{text}");
        }
    }

    #[test]
    fn rejects_selector_that_cannot_be_evaluated() {
        let long = format!("device.driver == \"{}\"", "a".repeat(MAX_LENGTH));
        let domains = "device.attributes.all(a, device.attributes.all(b, device.attributes.all(c, \
            device.attributes.all(d, device.attributes.all(e, device.attributes.all(f, a == b))))))";
        for (text, expected) in [
            (
                "device.nonsense",
                "spec.selectors[0].cel.expression: Invalid value: \"device.nonsense\": compilation failed: ERROR:",
            ),
            ("device.driver ==", "compilation failed: ERROR:"),
            ("device.driver", "must evaluate to bool or the unknown type, not string"),
            ("1 + 1", "must evaluate to bool or the unknown type, not int"),
            (&long, "spec.selectors[0].cel.expression: Too long: may not be more than 10240 bytes"),
            (
                domains,
                "spec.selectors[0].cel.expression: Forbidden: too complex, exceeds cost limit",
            ),
            ("", "spec.selectors[0].cel.expression: Required value"),
        ] {
            let found = errors(json!([{"cel": {"expression": text}}]));
            assert!(found.len() == 1 && found[0].contains(expected), "{found:?}");
        }
        assert_eq!(errors(json!([{}])), ["spec.selectors[0].cel: Required value"]);
        let many = vec![json!({"cel": {"expression": "true"}}); MAX_SELECTORS + 1];
        let found = errors(many.into());
        assert_eq!(found, ["spec.selectors: Too many: 33: must have at most 32 items"]);
    }
}
