//! Rules of admission policies and their bindings. Every expression is compiled when a policy is written.

use std::collections::HashSet;

use api_meta::{ErrorList, FieldError, Path, Tree as _, validation};
use cel::Composition;
use serde_json::{Value, json};

use crate::{
    expressions::{ResultType, Scope},
    fields::{validate_label_selector, validate_one_of},
    strategy::Strategy,
};

const POLICY: Strategy =
    Strategy { generation: true, unconditional_update: false, ..Strategy::PLAIN };

pub(crate) static VALIDATING: Strategy = Strategy {
    status: Some(|| json!({})),
    check: check_validating,
    check_create: |policy, errors| check_conditions(policy, None, errors),
    check_update: |new, old, errors| check_conditions(new, Some(old), errors),
    check_status: |policy, _, _, errors| check_warnings(policy, errors),
    ..POLICY
};

pub(crate) static MUTATING: Strategy = Strategy {
    check: check_mutating,
    check_create: |policy, errors| check_conditions(policy, None, errors),
    check_update: |new, old, errors| check_conditions(new, Some(old), errors),
    ..POLICY
};

pub(crate) static VALIDATING_BINDING: Strategy = Strategy {
    check: |binding, errors| {
        check_binding(binding, errors);
        check_actions(binding.at("spec"), &Path::new("spec").child("validationActions"), errors);
    },
    ..POLICY
};

pub(crate) static MUTATING_BINDING: Strategy = Strategy {
    check: |binding, errors| {
        check_binding(binding, errors);
        let resources = binding.at("spec.matchResources");
        check_mutable(resources, &Path::new("spec").child("matchResources"), errors);
    },
    ..POLICY
};

const MAX_CONDITIONS: usize = 64;
const MAX_AUDIT_ANNOTATIONS: usize = 20;
const MAX_VALUE_EXPRESSION: usize = 5 * 1024;
const OPERATIONS: [&str; 5] = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
const MUTABLE: [&str; 4] = ["*", "CONNECT", "CREATE", "UPDATE"];

/// Validates the fields that both kinds of policies have.
fn check_policy(spec: &Value, errors: &mut ErrorList) {
    let path = Path::new("spec");
    validate_one_of(spec, "failurePolicy", &["Fail", "Ignore"], &path, errors);
    if spec.has("paramKind") {
        check_param_kind(spec.at("paramKind"), &path.child("paramKind"), errors);
    }
    let path = path.child("matchConstraints");
    if !spec.has("matchConstraints") {
        errors.push(FieldError::required(&path, ""));
        return;
    }
    check_match(spec.at("matchConstraints"), &path, errors);
    if spec.blank("matchConstraints.resourceRules") {
        errors.push(FieldError::required(&path.child("resourceRules"), ""));
    }
}

fn check_param_kind(kind: &Value, path: &Path, errors: &mut ErrorList) {
    let (version, at) = (kind.text("apiVersion"), path.child("apiVersion"));
    match version.split_once('/').unwrap_or(("", version)) {
        _ if version.is_empty() => errors.push(FieldError::required(&at, "")),
        (_, rest) if rest.contains('/') => {
            let detail = format!("unexpected GroupVersion string: {version}");
            errors.push(FieldError::invalid(&at, version, detail));
        }
        (group, number) => {
            let wrong = validation::dns1123_subdomain(group);
            if !group.is_empty() && !wrong.is_empty() {
                errors.push(FieldError::invalid(&at, group, wrong.join(",")));
            }
            let wrong = validation::dns1035_label(number);
            if number.is_empty() {
                errors.push(FieldError::invalid(&at, version, "version must be specified"));
            } else if !wrong.is_empty() {
                errors.push(FieldError::invalid(&at, number, wrong.join(",")));
            }
        }
    }
    let (kind, at) = (kind.text("kind"), path.child("kind"));
    let wrong = validation::dns1035_label(&kind.to_lowercase());
    if kind.is_empty() {
        errors.push(FieldError::required(&at, ""));
    } else if !wrong.is_empty() {
        let wrong = wrong.join(",");
        let detail = format!("may have mixed case, but should otherwise match: {wrong}");
        errors.push(FieldError::invalid(&at, kind, detail));
    }
}

/// Validates the MatchResources of a policy or binding.
fn check_match(resources: &Value, path: &Path, errors: &mut ErrorList) {
    validate_one_of(resources, "matchPolicy", &["Equivalent", "Exact"], path, errors);
    for selector in ["namespaceSelector", "objectSelector"] {
        if resources.has(selector) {
            validate_label_selector(resources.at(selector), &path.child(selector), errors);
        } else {
            errors.push(FieldError::required(&path.child(selector), ""));
        }
    }
    for list in ["resourceRules", "excludeResourceRules"] {
        for (i, rule) in resources.items(list).iter().enumerate() {
            check_rule(rule, &path.child(list).index(i), errors);
        }
    }
}

fn check_rule(rule: &Value, path: &Path, errors: &mut ErrorList) {
    let mut names = HashSet::new();
    for (i, name) in rule.items("resourceNames").iter().filter_map(Value::as_str).enumerate() {
        let path = path.child("resourceNames").index(i);
        let wrong = validation::path_segment_name(name).into_iter();
        errors.extend(wrong.map(|message| FieldError::invalid(&path, name, message)));
        if !names.insert(name) {
            errors.push(FieldError::duplicate(&path, name));
        }
    }
    check_operations(rule, path, errors);
    for (field, word) in [("apiGroups", "API groups"), ("apiVersions", "API versions")] {
        let (list, path) = (rule.items(field), path.child(field));
        if list.is_empty() {
            errors.push(FieldError::required(&path, ""));
        }
        validate_only_star(rule, field, word, &path, errors);
        let empty = list.iter().enumerate().filter(|(_, item)| field != "apiGroups" && *item == "");
        errors.extend(empty.map(|(i, _)| FieldError::required(&path.index(i), "")));
    }
    check_resources(rule, &path.child("resources"), errors);
    if let Some(scope) = rule.at("scope").as_str()
        && !["*", "Cluster", "Namespaced"].contains(&scope)
    {
        let allowed = ["*", "Cluster", "Namespaced"];
        errors.push(FieldError::not_supported(&path.child("scope"), scope, &allowed));
    }
}

fn validate_only_star(rule: &Value, field: &str, word: &str, path: &Path, errors: &mut ErrorList) {
    let list = rule.items(field);
    if list.len() > 1 && list.iter().any(|item| item == "*") {
        let detail = format!("if '*' is present, must not specify other {word}");
        errors.push(FieldError::invalid(path, rule.at(field).clone(), detail));
    }
}

fn check_operations(rule: &Value, path: &Path, errors: &mut ErrorList) {
    let (list, path) = (rule.items("operations"), path.child("operations"));
    if list.is_empty() {
        errors.push(FieldError::required(&path, ""));
    }
    validate_only_star(rule, "operations", "operations", &path, errors);
    for (i, operation) in list.iter().filter_map(Value::as_str).enumerate() {
        if !OPERATIONS.contains(&operation) {
            errors.push(FieldError::not_supported(&path.index(i), operation, &OPERATIONS));
        }
    }
}

fn check_resources(rule: &Value, path: &Path, errors: &mut ErrorList) {
    let list: Vec<&str> = rule.items("resources").iter().filter_map(Value::as_str).collect();
    if list.is_empty() {
        errors.push(FieldError::required(path, ""));
    }
    let (mut with_all, mut of_all) = (HashSet::new(), HashSet::new());
    for (i, entry) in list.iter().enumerate() {
        let path = path.index(i);
        if entry.is_empty() {
            errors.push(FieldError::required(&path, ""));
        }
        let Some((resource, sub)) = entry.split_once('/') else { continue };
        if with_all.contains(resource) {
            let detail = format!("if '{resource}/*' is present, must not specify {entry}");
            errors.push(FieldError::invalid(&path, *entry, detail));
        }
        if of_all.contains(sub) {
            let detail = format!("if '*/{sub}' is present, must not specify {entry}");
            errors.push(FieldError::invalid(&path, *entry, detail));
        }
        if sub == "*" {
            with_all.insert(resource);
        }
        if resource == "*" {
            of_all.insert(sub);
        }
    }
    let mut refuse = |detail: &str| {
        errors.push(FieldError::invalid(path, rule.at("resources").clone(), detail));
    };
    if list.len() > 1 && list.contains(&"*/*") {
        refuse("if '*/*' is present, must not specify other resources");
    }
    // As upstream: the last resource without a subresource decides.
    let plain = list.iter().rfind(|entry| !entry.is_empty() && !entry.contains('/'));
    if list.contains(&"*") && plain.is_some_and(|entry| *entry != "*") {
        refuse("if '*' is present, must not specify other resources without subresources");
    }
}

/// Validates that mutating policies match only creates, updates and connections.
fn check_mutable(resources: &Value, path: &Path, errors: &mut ErrorList) {
    let path = path.child("resourceRules").child("operations");
    for rule in resources.items("resourceRules") {
        for operation in rule.items("operations").iter().filter_map(Value::as_str) {
            if !MUTABLE.contains(&operation) {
                errors.push(FieldError::not_supported(&path, operation, &MUTABLE));
            }
        }
    }
}

/// Validates the match conditions of a policy, unless they and `paramKind` are unchanged.
fn check_conditions(policy: &Value, old: Option<&Value>, errors: &mut ErrorList) {
    let same = |old: &Value| {
        ["spec.paramKind", "spec.matchConditions"].iter().all(|at| policy.at(at) == old.at(at))
    };
    if !old.is_some_and(same) {
        let spec = policy.at("spec");
        validate_match_conditions(spec, spec.has("paramKind"), &Path::new("spec"), errors);
    }
}

/// Validates the `matchConditions` of a webhook or policy.
pub(super) fn validate_match_conditions(
    holder: &Value,
    params: bool,
    path: &Path,
    errors: &mut ErrorList,
) {
    let (list, path) = (holder.items("matchConditions"), path.child("matchConditions"));
    if list.len() > MAX_CONDITIONS {
        errors.push(FieldError::too_many(&path, list.len(), MAX_CONDITIONS));
    }
    let scope = Scope { params, authorizer: true, composition: None };
    let mut names = HashSet::new();
    for (i, condition) in list.iter().enumerate() {
        let path = path.index(i);
        let expression = condition.text("expression").trim();
        let at = path.child("expression");
        if expression.is_empty() {
            errors.push(FieldError::required(&at, ""));
        } else if list.len() <= MAX_CONDITIONS {
            validate_expression(&scope, expression, ResultType::Bool, &at, errors);
        }
        let (name, at) = (condition.text("name"), path.child("name"));
        if name.is_empty() {
            errors.push(FieldError::required(&at, ""));
            continue;
        }
        let wrong = validation::qualified_name(name).into_iter();
        errors.extend(wrong.map(|message| FieldError::invalid(&at, name, message)));
        if !names.insert(name) {
            errors.push(FieldError::duplicate(&at, name));
        }
    }
}

fn validate_expression(
    scope: &Scope<'_>,
    text: &str,
    result: ResultType,
    path: &Path,
    errors: &mut ErrorList,
) {
    if let Err(detail) = scope.compile(text, result) {
        errors.push(FieldError::invalid(path, text, detail.to_string()));
    }
}

/// Validates the variables of a policy and returns their composition for the other expressions.
fn check_variables(spec: &Value, errors: &mut ErrorList) -> Composition {
    let mut composition = Composition::default();
    for (i, variable) in spec.items("variables").iter().enumerate() {
        let path = Path::new("spec").child("variables").index(i);
        let (name, at) = (variable.text("name"), path.child("name"));
        if name.trim().is_empty() {
            errors.push(FieldError::required(&at, "name is not specified"));
        } else if !is_identifier(name) {
            errors.push(FieldError::invalid(&at, name, "must be a valid CEL identifier"));
        }
        let (expression, at) = (variable.text("expression"), path.child("expression"));
        if expression.trim().is_empty() {
            errors.push(FieldError::required(&at, "expression is not specified"));
            continue;
        }
        let scope = scope(spec, Some(&composition));
        let program = scope.compile(expression, ResultType::Anything);
        if let Err(detail) = &program {
            errors.push(FieldError::invalid(&at, expression, detail.to_string()));
        }
        composition.add(name, program);
    }
    composition
}

fn scope<'c>(spec: &Value, composition: Option<&'c Composition>) -> Scope<'c> {
    Scope { params: spec.has("paramKind"), authorizer: true, composition }
}

fn is_identifier(name: &str) -> bool {
    let legal = |c: char| c.is_ascii_alphanumeric() || c == '_';
    name.chars().all(legal)
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && !cel::is_reserved(name)
}

fn check_validating(policy: &Value, errors: &mut ErrorList) {
    let (spec, path) = (policy.at("spec"), Path::new("spec"));
    check_policy(spec, errors);
    let composition = check_variables(spec, errors);
    // As upstream: `variables` is declared only if the policy has variables.
    let composition = Some(&composition).filter(|composition| !composition.is_empty());
    let scope = scope(spec, composition);
    if spec.blank("validations") && spec.blank("auditAnnotations") {
        let detail = "validations or auditAnnotations must contain at least one item";
        for list in ["validations", "auditAnnotations"] {
            errors.push(FieldError::required(&path.child(list), detail));
        }
        return;
    }
    for (i, validation) in spec.items("validations").iter().enumerate() {
        check_validation(validation, &scope, &path.child("validations").index(i), errors);
    }
    let (annotations, path) = (spec.items("auditAnnotations"), path.child("auditAnnotations"));
    if annotations.len() > MAX_AUDIT_ANNOTATIONS {
        let detail = format!("must not have more than {MAX_AUDIT_ANNOTATIONS} auditAnnotations");
        let annotations = spec.at("auditAnnotations").clone();
        errors.push(FieldError::invalid(&path, annotations, detail));
    }
    let (name, mut keys) = (policy.text("metadata.name"), HashSet::new());
    for (i, annotation) in annotations.iter().enumerate() {
        check_annotation(annotation, name, &scope, &path.index(i), errors);
        let key = annotation.text("key");
        if !keys.insert(key) {
            errors.push(FieldError::duplicate(&path.index(i).child("key"), key));
        }
    }
}

fn check_validation(validation: &Value, scope: &Scope<'_>, path: &Path, errors: &mut ErrorList) {
    let (expression, at) = (validation.text("expression"), path.child("expression"));
    if expression.trim().is_empty() {
        errors.push(FieldError::required(&at, "expression is not specified"));
    } else {
        validate_expression(scope, expression, ResultType::Bool, &at, errors);
    }
    let (expression, at) = (validation.text("messageExpression"), path.child("messageExpression"));
    if !expression.trim().is_empty() {
        let scope = Scope { authorizer: false, ..*scope };
        validate_expression(&scope, expression, ResultType::Text, &at, errors);
    } else if !expression.is_empty() {
        errors.push(FieldError::invalid(&at, expression, "must be non-empty if specified"));
    }
    let (message, at) = (validation.text("message"), path.child("message"));
    if !message.is_empty() && message.trim().is_empty() {
        errors.push(FieldError::invalid(&at, message, "must be non-empty if specified"));
    } else if message.trim().contains(['\n', '\r']) {
        errors.push(FieldError::invalid(&at, message, "must not contain line breaks"));
    }
    const REASONS: [&str; 3] = ["Forbidden", "Invalid", "RequestEntityTooLarge"];
    if let Some(reason) = validation.at("reason").as_str().filter(|r| !REASONS.contains(r)) {
        errors.push(FieldError::not_supported(&path.child("reason"), reason, &REASONS));
    }
}

fn check_annotation(
    annotation: &Value,
    policy: &str,
    scope: &Scope<'_>,
    path: &Path,
    errors: &mut ErrorList,
) {
    let (key, at) = (annotation.text("key"), path.child("key"));
    if policy.is_empty() {
        errors.push(FieldError::invalid(&at, key, "requires metadata.name be non-empty"));
    } else {
        let name = format!("{policy}/{key}");
        let wrong = validation::qualified_name(&name).into_iter();
        errors.extend(wrong.map(|message| FieldError::invalid(&at, name.as_str(), message)));
    }
    let (text, at) = (annotation.text("valueExpression"), path.child("valueExpression"));
    let trimmed = text.trim();
    if trimmed.is_empty() {
        errors.push(FieldError::required(&at, "valueExpression is not specified"));
    } else if trimmed.len() > MAX_VALUE_EXPRESSION {
        let detail = format!("must not exceed {MAX_VALUE_EXPRESSION} bytes in length");
        errors.push(FieldError::required(&at, detail));
    } else if let Err(detail) = scope.compile(trimmed, ResultType::Annotation) {
        errors.push(FieldError::invalid(&at, text, detail.to_string()));
    }
}

fn check_mutating(policy: &Value, errors: &mut ErrorList) {
    let (spec, path) = (policy.at("spec"), Path::new("spec"));
    check_policy(spec, errors);
    check_mutable(spec.at("matchConstraints"), &path.child("matchConstraints"), errors);
    let composition = check_variables(spec, errors);
    let scope = scope(spec, Some(&composition));
    if spec.blank("mutations") {
        let detail = "mutations must contain at least one item";
        errors.push(FieldError::required(&path.child("mutations"), detail));
    }
    for (i, mutation) in spec.items("mutations").iter().enumerate() {
        check_mutation(mutation, &scope, &path.child("mutations").index(i), errors);
    }
    validate_one_of(spec, "reinvocationPolicy", &["IfNeeded", "Never"], &path, errors);
}

fn check_mutation(mutation: &Value, scope: &Scope<'_>, path: &Path, errors: &mut ErrorList) {
    validate_one_of(mutation, "patchType", &["ApplyConfiguration", "JSONPatch"], path, errors);
    let ty = mutation.text("patchType");
    let (field, other, result) = match ty {
        "JSONPatch" => ("jsonPatch", "applyConfiguration", ResultType::Patch),
        "ApplyConfiguration" => ("applyConfiguration", "jsonPatch", ResultType::Configuration),
        _ => return,
    };
    let at = path.child(field);
    if !mutation.has(field) {
        let detail = format!("must be specified when patchType is {ty}");
        errors.push(FieldError::required(&at, detail));
    } else {
        let expression = mutation.at(field).text("expression").trim();
        match expression {
            "" => errors.push(FieldError::required(&at.child("expression"), "")),
            text => validate_expression(scope, text, result, &at.child("expression"), errors),
        }
    }
    if mutation.has(other) {
        let detail = format!("must not be specified when patchType is {ty}");
        errors.push(FieldError::invalid(&path.child(other), format!("{{{other}}}"), detail));
    }
}

fn check_binding(binding: &Value, errors: &mut ErrorList) {
    let (spec, path) = (binding.at("spec"), Path::new("spec"));
    let (policy, at) = (spec.text("policyName"), path.child("policyName"));
    if policy.is_empty() {
        errors.push(FieldError::required(&at, ""));
    } else {
        let wrong = validation::dns1123_subdomain(policy).into_iter();
        errors.extend(wrong.map(|message| FieldError::invalid(&at, policy, message)));
    }
    if spec.has("paramRef") {
        check_param_ref(spec.at("paramRef"), &path.child("paramRef"), errors);
    }
    if spec.has("matchResources") {
        check_match(spec.at("matchResources"), &path.child("matchResources"), errors);
    }
}

fn check_param_ref(reference: &Value, path: &Path, errors: &mut ErrorList) {
    const BOTH: &str = "name and selector are mutually exclusive";
    let (name, selected) = (reference.text("name"), reference.has("selector"));
    if !name.is_empty() {
        let at = path.child("name");
        let wrong = validation::path_segment_name(name).into_iter();
        errors.extend(wrong.map(|message| FieldError::invalid(&at, name, message)));
        if selected {
            errors.push(FieldError::forbidden(&at, BOTH));
        }
    }
    if selected {
        let at = path.child("selector");
        validate_label_selector(reference.at("selector"), &at, errors);
        if !name.is_empty() {
            errors.push(FieldError::forbidden(&at, BOTH));
        }
    }
    if name.is_empty() && !selected {
        errors.push(FieldError::required(path, "one of name or selector must be specified"));
    }
    validate_one_of(reference, "parameterNotFoundAction", &["Deny", "Allow"], path, errors);
}

fn check_actions(spec: &Value, path: &Path, errors: &mut ErrorList) {
    const ACTIONS: [&str; 3] = ["Audit", "Deny", "Warn"];
    let list = spec.items("validationActions").iter().filter_map(Value::as_str);
    let mut seen = HashSet::new();
    for (i, action) in list.enumerate() {
        if !ACTIONS.contains(&action) {
            errors.push(FieldError::not_supported(&path.index(i), action, &ACTIONS));
        }
        if !seen.insert(action) {
            errors.push(FieldError::duplicate(&path.index(i), action));
        }
    }
    if seen.contains("Deny") && seen.contains("Warn") {
        let detail = "must not contain both Deny and Warn (repeating the same validation failure \
            information in the API response and headers serves no purpose)";
        errors.push(FieldError::invalid(path, spec.at("validationActions").clone(), detail));
    }
    if seen.is_empty() {
        errors.push(FieldError::required(path, "at least one validation action is required"));
    }
}

/// Validates the warnings that the type checker wrote to the status.
fn check_warnings(policy: &Value, errors: &mut ErrorList) {
    let path = Path::new("status").child("typeChecking").child("expressionWarnings");
    let warnings = policy.items("status.typeChecking.expressionWarnings");
    for (i, warning) in warnings.iter().enumerate() {
        for field in ["warning", "fieldRef"] {
            if warning.text(field).trim().is_empty() {
                errors.push(FieldError::required(&path.index(i).child(field), ""));
            }
        }
    }
}
