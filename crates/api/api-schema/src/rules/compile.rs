//! Compiles the rules of a schema with upstream's error messages.

use std::{collections::BTreeMap, sync::Arc};

use api_meta::{ErrorList, FieldError, Path, Tree as _};
use cel::{Decl, Env, Program, Type, escape};
use serde_json::{Value, json};

use super::{
    declare::{MAX_REQUEST, declare, is_embedded_resource, keys},
    rule::{ExpressionError, Rule, Rules},
};

/// The limit on the estimated cost of a rule, over all values that it may be evaluated for.
const RULE_LIMIT: u64 = 10_000_000;
/// The limit on the estimated total cost of the rules of one version.
const TOTAL_LIMIT: u64 = 100_000_000;
const REASONS: [&str; 4] =
    ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];

/// Returns the rules of a schema, if it has any, and all errors. `path` is the schema's path.
pub(crate) fn compile(schema: &Value, path: &Path) -> (Option<Rules>, ErrorList) {
    if !has_rules(schema) {
        return (None, ErrorList::new());
    }
    let mut compiler = Compiler { errors: ErrorList::new(), total: 0, most_expensive: Vec::new() };
    let at = SchemaPosition {
        path: path.clone(),
        cardinality: Some(1),
        uncorrelatable: None,
        reported: true,
    };
    let decl = declare(schema, true, "selfType");
    let (rules, _) = compiler.schema(schema, schema, decl.map(Arc::new), at, "selfType");
    compiler.total(path);
    (rules, compiler.errors)
}

fn has_rules(schema: &Value) -> bool {
    let any = |key: &str| match &schema[key] {
        Value::Object(members) => members.values().any(has_rules),
        Value::Array(branches) => branches.iter().any(has_rules),
        _ => false,
    };
    schema["x-kubernetes-validations"].as_array().is_some_and(|rules| !rules.is_empty())
        || any("properties")
        || any("allOf")
        || ["items", "additionalProperties"]
            .iter()
            .any(|key| schema[*key].is_object() && has_rules(&schema[*key]))
}

/// The position of a schema in a definition.
#[derive(Clone)]
struct SchemaPosition {
    path: Path,
    /// The maximum number of values of this schema in an object; `None` if unbounded.
    cardinality: Option<u64>,
    /// The enclosing schema whose items cannot be correlated with their old values.
    uncorrelatable: Option<Path>,
    /// `true` if errors are reported. In conditions, upstream compiles rules only when it evaluates them.
    reported: bool,
}

struct Compiler {
    errors: ErrorList,
    total: u64,
    /// The most expensive rules, which are reported if the total cost is too high.
    most_expensive: Vec<(u64, Path)>,
}

impl Compiler {
    /// Compiles the rules of `given` for values of `node`. The two differ only in conditions. Also returns whether the
    /// rules are well-formed.
    fn schema(
        &mut self,
        source: &Value,
        node: &Value,
        decl: Option<Arc<Decl>>,
        at: SchemaPosition,
        name: &str,
    ) -> (Option<Rules>, bool) {
        let mut formed = true;
        let mut below = |this: &mut Self, key: &str, step: Option<&str>, correlates: bool| {
            let (child, node) = match step {
                Some(step) => (&source[key][step], &node[key][step]),
                None => (&source[key], &node[key]),
            };
            if !child.is_object() || !node.is_object() || !has_rules(child) {
                return None;
            }
            let name = format!("{name}.{}", step.unwrap_or("@elem"));
            let path = at.path.child(key);
            let place = SchemaPosition {
                path: step.map_or_else(|| path.clone(), |step| path.key(step)),
                cardinality: at.cardinality.zip(elements(source)).map(|(a, b)| a.saturating_mul(b)),
                uncorrelatable: at
                    .uncorrelatable
                    .clone()
                    .or_else(|| (!correlates).then(|| at.path.clone())),
                reported: at.reported,
            };
            let known = match (key, step) {
                ("properties", Some(property)) => {
                    escape(property).and_then(|name| decl.as_deref()?.below(&name))
                }
                ("items", _) => decl.as_deref().and_then(|decl| decl.below("@items")),
                _ => decl.as_deref().and_then(|decl| decl.below("@values")),
            };
            // Expressions of enclosing schemas cannot refer to a property whose name cannot be escaped, but its own
            // rules can.
            let decl = known.cloned().or_else(|| declare(node, is_embedded_resource(node), &name));
            let decl = decl.map(Arc::new);
            let (rules, well) = this.schema(child, node, decl, place, &name);
            formed &= well;
            rules
        };
        let mut fields = BTreeMap::new();
        for property in source.pairs("properties").map(|(name, _)| name) {
            if let Some(rules) = below(self, "properties", Some(property), true) {
                fields.insert(property.as_str().into(), rules);
            }
        }
        let values = below(self, "additionalProperties", None, true).map(Box::new);
        let keyed = node["x-kubernetes-list-type"] == "map";
        let items = below(self, "items", None, keyed).map(Box::new);
        let mut all_of = Vec::new();
        for branch in source.items("allOf").iter().filter(|b| has_rules(b)) {
            let place = SchemaPosition { reported: false, ..at.clone() };
            all_of.extend(self.schema(branch, node, decl.clone(), place, name).0);
        }
        let Some(decl) = decl else { return (None, formed) };
        let given_rules = source["x-kubernetes-validations"].as_array().into_iter().flatten();
        let own: Vec<&Value> = given_rules.collect();
        formed &= self.validate_form(&own, node, &at);
        // Compile errors of a malformed schema would only be confusing.
        let reported = at.reported && formed;
        let rules = own.iter().enumerate().map(|(i, rule)| {
            let place = SchemaPosition { reported, ..at.clone() };
            self.rule(rule, node, &decl, &place, i)
        });
        let rules = rules.collect();
        let keys = keyed.then(|| keys(node).map(Box::from).collect());
        let kind = node.text("type").into();
        (Some(Rules { kind, decl, rules, fields, values, items, keys, all_of }), formed)
    }

    /// Validates the form of rules before their expressions are compiled.
    fn validate_form(&mut self, rules: &[&Value], node: &Value, at: &SchemaPosition) -> bool {
        let before = self.errors.len();
        for (i, rule) in rules.iter().enumerate().filter(|_| at.reported) {
            let place = |key: &str| at.path.child("x-kubernetes-validations").index(i).child(key);
            let lines = |text: &str| text.contains(['\n', '\r']);
            let (message, trimmed) = (rule.text("message"), rule.text("message").trim());
            if rule.text("rule").trim().is_empty() {
                self.errors.push(FieldError::required(&place("rule"), "rule is not specified"));
            } else if !message.is_empty() && trimmed.is_empty() {
                let detail = "must be non-empty if specified";
                self.errors.push(FieldError::invalid(&place("message"), message, detail));
            } else if lines(trimmed) {
                let detail = "must not contain line breaks";
                self.errors.push(FieldError::invalid(&place("message"), message, detail));
            } else if lines(rule.text("rule").trim()) && trimmed.is_empty() {
                let detail = "message must be specified if rule contains line breaks";
                self.errors.push(FieldError::required(&place("message"), detail));
            }
            let expression = rule.text("messageExpression");
            if !expression.is_empty() && expression.trim().is_empty() {
                let detail = "messageExpression must be non-empty if specified";
                self.errors.push(FieldError::required(&place("messageExpression"), detail));
            }
            if let Some(reason) = rule["reason"].as_str().filter(|r| !REASONS.contains(r)) {
                self.errors.push(FieldError::not_supported(&place("reason"), reason, &REASONS));
            }
            let field = rule.text("fieldPath");
            let wrong = if field.is_empty() {
                None
            } else if field.trim().is_empty() {
                Some("must be non-empty if specified")
            } else if lines(field) {
                Some("must not contain line breaks")
            } else {
                field_path(field, node).is_none().then_some("must be a valid path")
            };
            let wrong = wrong.map(|detail| FieldError::invalid(&place("fieldPath"), field, detail));
            self.errors.extend(wrong);
        }
        self.errors.len() == before
    }

    fn rule(
        &mut self,
        source: &Value,
        node: &Value,
        decl: &Arc<Decl>,
        at: &SchemaPosition,
        i: usize,
    ) -> Rule {
        let optional_old = source["optionalOldSelf"] == true;
        let env = Env::default().variable("self", (**decl).clone());
        let env = if optional_old {
            env.optional_variable("oldSelf", (**decl).clone())
        } else {
            env.variable("oldSelf", (**decl).clone())
        };
        let program = compile_rule(&env, source.text("rule"));
        let uses_old = program.as_ref().is_ok_and(|program| program.uses(1));
        let place = at.path.child("x-kubernetes-validations").index(i);
        let mut message_expression = None;
        if at.reported {
            self.check_rule(source, &program, decl, at, &place);
            self.correlation(source, &program, at, &place);
        }
        let text = source.text("messageExpression");
        if program.is_ok() && !text.is_empty() {
            match compile_message(&env, text) {
                Ok(program) => {
                    if at.reported {
                        let place = place.child("messageExpression");
                        self.cost(
                            "estimated messageExpression cost",
                            program.estimate().max,
                            &place,
                        );
                    }
                    message_expression = Some((text.into(), program));
                }
                Err(detail) if at.reported => {
                    let place = place.child("messageExpression");
                    self.errors.push(FieldError::invalid(
                        &place,
                        rule_value(source),
                        detail.to_string(),
                    ));
                }
                Err(_) => {}
            }
        }
        Rule {
            text: source.text("rule").into(),
            message: source.text("message").into(),
            reason: source["reason"].as_str().map(Box::from),
            field_path: field_path(source.text("fieldPath"), node).map(Box::from),
            optional_old,
            program,
            uses_old,
            message_expression,
        }
    }

    fn check_rule(
        &mut self,
        source: &Value,
        program: &Result<Program, ExpressionError>,
        decl: &Decl,
        at: &SchemaPosition,
        place: &Path,
    ) {
        match program {
            Ok(program) => {
                let count = at.cardinality.unwrap_or(MAX_REQUEST / (decl.min_serialized + 1));
                let cost = program.estimate().max.saturating_mul(count);
                self.cost("estimated rule cost", cost, &place.child("rule"));
            }
            Err(detail) => {
                let place = place.child("rule");
                self.errors.push(FieldError::invalid(
                    &place,
                    rule_value(source),
                    detail.to_string(),
                ));
            }
        }
    }

    fn correlation(
        &mut self,
        source: &Value,
        program: &Result<Program, ExpressionError>,
        at: &SchemaPosition,
        place: &Path,
    ) {
        let uses_old = program.as_ref().is_ok_and(|program| program.uses(1));
        if uses_old {
            if let Some(within) = &at.uncorrelatable {
                let detail = format!(
                    "oldSelf cannot be used on the uncorrelatable portion of the schema within {within}"
                );
                let text = source["rule"].clone();
                self.errors.push(FieldError::invalid(&place.child("rule"), text, detail));
            }
        } else if !source["optionalOldSelf"].is_null() {
            let detail = "may not be set if oldSelf is not used in rule";
            let value = source["optionalOldSelf"].clone();
            self.errors.push(FieldError::invalid(&place.child("optionalOldSelf"), value, detail));
        }
    }

    fn cost(&mut self, what: &str, cost: u64, place: &Path) {
        if cost > RULE_LIMIT {
            self.errors.push(FieldError::forbidden(place, budget_message(what, cost, RULE_LIMIT)));
        }
        self.total = self.total.saturating_add(cost);
        // Only rules over a hundredth of the total limit are reported.
        if cost >= TOTAL_LIMIT / 100 {
            self.most_expensive.push((cost, place.clone()));
            self.most_expensive.sort_by_key(|(cost, _)| std::cmp::Reverse(*cost));
            self.most_expensive.truncate(4);
        }
    }

    fn total(&mut self, path: &Path) {
        if self.total <= TOTAL_LIMIT {
            return;
        }
        for (_, place) in std::mem::take(&mut self.most_expensive) {
            let detail = "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
            self.errors.push(FieldError::forbidden(&place, detail));
        }
        let what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
        self.errors
            .push(FieldError::forbidden(path, budget_message(what, self.total, TOTAL_LIMIT)));
    }
}

fn compile_rule(env: &Env, text: &str) -> Result<Program, ExpressionError> {
    let program = Program::compile(env, text).map_err(ExpressionError::Rule)?;
    if *program.result() == Type::Bool { Ok(program) } else { Err(ExpressionError::RuleType) }
}

fn compile_message(env: &Env, text: &str) -> Result<Program, ExpressionError> {
    let program = Program::compile(env, text).map_err(ExpressionError::Message)?;
    if *program.result() == Type::String { Ok(program) } else { Err(ExpressionError::MessageType) }
}

fn budget_message(what: &str, cost: u64, limit: u64) -> String {
    let by = cost as f64 / limit as f64;
    let factor = if by > 100.0 {
        "more than 100x".to_owned()
    } else if by < 1.5 {
        format!("{by:.6}x")
    } else {
        format!("{by:.1}x")
    };
    format!(
        "{what} exceeds budget by factor of {factor} (try simplifying the rule, or adding \
        maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)"
    )
}

/// Returns the factor by which a schema multiplies the values below it, or `None` if it is unbounded.
fn elements(schema: &Value) -> Option<u64> {
    let bound = |key: &str| schema[key].as_i64().map(|n| u64::try_from(n).unwrap_or(0));
    match schema["type"].as_str() {
        Some("object") if !schema["additionalProperties"].is_null() => bound("maxProperties"),
        Some("array") => bound("maxItems"),
        _ => Some(1),
    }
}

/// Returns a path of fields and keys below a schema (`.spec.labels['a.b']`) as errors show it, or `None` if the schema
/// has no such path.
fn field_path(text: &str, schema: &Value) -> Option<String> {
    let (mut rest, mut schema, mut path) = (text, schema, Path::new(""));
    while !rest.is_empty() {
        let name: String;
        if let Some(after) = rest.strip_prefix("['") {
            let end = closing_quote(after)?;
            name = unescaped(&after[..end])?;
            rest = after[end + 1..].strip_prefix(']')?;
        } else {
            let after = rest.strip_prefix('.')?;
            let end = after.find(['.', '[', ']']).unwrap_or(after.len());
            name = after[..end].to_owned();
            rest = &after[end..];
        }
        if schema["properties"].is_object() {
            schema = schema["properties"].get(&name)?;
            path = path.child(&name);
        } else if schema["additionalProperties"].is_object() {
            schema = &schema["additionalProperties"];
            path = path.key(&name);
        } else {
            return None;
        }
    }
    Some(path.as_str().to_owned()).filter(|path| !path.is_empty())
}

fn closing_quote(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.char_indices().find_map(|(at, c)| {
        let ends = c == '\'' && !escaped;
        escaped = c == '\\' && !escaped;
        ends.then_some(at)
    })
}

fn unescaped(text: &str) -> Option<String> {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        out.push(match c {
            '\\' => match chars.next()? {
                'a' => '\u{7}',
                'b' => '\u{8}',
                'f' => '\u{c}',
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                'v' => '\u{b}',
                c @ ('\'' | '\\') => c,
                _ => return None,
            },
            c => c,
        });
    }
    Some(out)
}

/// Returns a rule as upstream's compile errors show it.
fn rule_value(rule: &Value) -> Value {
    json!({
        "Rule": rule.text("rule"),
        "Message": rule.text("message"),
        "MessageExpression": rule.text("messageExpression"),
        "Reason": rule["reason"],
        "FieldPath": rule.text("fieldPath"),
        "OptionalOldSelf": rule["optionalOldSelf"],
    })
}
