//! Rules of FlowSchemas and PriorityLevelConfigurations.

use api_meta::{ErrorList, FieldError, Path, Tree as _, validation};
use serde_json::{Value, json};

use crate::{
    fields::{
        FieldRule,
        Rule::{IsOneOf, Named, Required, TextIfAny, Within},
        validate_one_of,
    },
    strategy::Strategy,
};

pub(crate) static FLOW_SCHEMA: Strategy = Strategy {
    status: Some(|| json!({})),
    generation: true,
    check: |schema, errors| {
        let (spec, path) = (schema.at("spec"), Path::new("spec"));
        let precedence = spec.int("matchingPrecedence");
        let path_precedence = path.child("matchingPrecedence");
        if precedence < 1 {
            let detail = "must be a positive value";
            errors.push(FieldError::invalid(&path_precedence, precedence, detail));
        } else if precedence > 10_000 {
            let detail = "must not be greater than 10000";
            errors.push(FieldError::invalid(&path_precedence, precedence, detail));
        }
        if precedence == 1 && schema.name() != "exempt" {
            let detail = "only the schema named 'exempt' may have matchingPrecedence 1";
            errors.push(FieldError::invalid(&path_precedence, precedence, detail));
        }
        for (i, rule) in spec.items("rules").iter().enumerate() {
            check_rule(rule, &path.child("rules").index(i), errors);
        }
        if spec.has("distinguisherMethod")
            && !matches!(spec.text("distinguisherMethod.type"), "ByNamespace" | "ByUser")
        {
            let path = path.child("distinguisherMethod").child("type");
            let found = json!({"Type": spec.text("distinguisherMethod.type")});
            errors.push(FieldError::not_supported(&path, found, &["ByNamespace", "ByUser"]));
        }
        if spec.blank("priorityLevelConfiguration.name") {
            let path = path.child("priorityLevelConfiguration").child("name");
            errors.push(FieldError::required(&path, "must reference a priority level"));
        }
    },
    fields: &[("spec.priorityLevelConfiguration.name", TextIfAny(validation::dns1123_subdomain))],
    ..Strategy::PLAIN
};

const RULE: &[FieldRule] = &[
    ("subjects", Required("subjects must contain at least one value")),
    ("subjects[].kind", IsOneOf(&["Group", "ServiceAccount", "User"])),
    ("subjects[].user.name", Required("")),
    ("subjects[].group.name", Required("")),
    ("subjects[].serviceAccount.name", Named(account)),
    ("subjects[].serviceAccount.namespace", TextIfAny(validation::dns1123_label)),
    ("subjects[].serviceAccount.namespace", Required("must specify namespace for service account")),
    ("resourceRules[].verbs", Required("verbs must contain at least one value")),
    ("resourceRules[].apiGroups", Required("resource rules must supply at least one api group")),
    ("resourceRules[].resources", Required("resource rules must supply at least one resource")),
    ("nonResourceRules[].verbs", Required("verbs must contain at least one value")),
    (
        "nonResourceRules[].nonResourceURLs",
        Required("nonResourceURLs must contain at least one value"),
    ),
];

fn check_rule(rule: &Value, path: &Path, errors: &mut ErrorList) {
    crate::fields::check(rule, RULE, path, errors);
    for (i, subject) in rule.items("subjects").iter().enumerate() {
        let path = path.child("subjects").index(i);
        let members = [("User", "user"), ("Group", "group"), ("ServiceAccount", "serviceAccount")];
        for (kind, member) in members {
            if subject.text("kind") == kind && !subject.has(member) {
                let detail = format!("{member} is required when subject kind is '{kind}'");
                errors.push(FieldError::required(&path.child(member), detail));
            }
        }
    }
    for list in ["resourceRules", "nonResourceRules"] {
        for (i, rule) in rule.items(list).iter().enumerate() {
            check_verbs(rule, &path.child(list).index(i).child("verbs"), errors);
        }
    }
    for (i, rule) in rule.items("nonResourceRules").iter().enumerate() {
        let path = path.child("nonResourceRules").index(i).child("nonResourceURLs");
        for (j, url) in rule.items("nonResourceURLs").iter().enumerate() {
            let url = url.as_str().unwrap_or_default();
            if url.is_empty() {
                errors.push(FieldError::invalid(&path.index(j), "", "must not be empty"));
            } else if url != "*" && !url.starts_with('/') {
                errors.push(FieldError::invalid(&path.index(j), url, "must start with slash"));
            }
        }
    }
    for (i, rule) in rule.items("resourceRules").iter().enumerate() {
        for (j, namespace) in rule.items("namespaces").iter().enumerate() {
            let name = namespace.as_str().unwrap_or_default();
            let path = path.child("resourceRules").index(i).child("namespaces").index(j);
            if name != "*" {
                for message in validation::dns1123_label(name) {
                    let detail = format!(
                        "each member of this list must be '*' or a DNS-1123 label; {message}"
                    );
                    errors.push(FieldError::invalid(&path, name, detail));
                }
            }
        }
        if rule.blank("namespaces") && !rule.flag("clusterScope") {
            let path = path.child("resourceRules").index(i).child("namespaces");
            let detail =
                "resource rules that are not cluster scoped must supply at least one namespace";
            errors.push(FieldError::required(&path, detail));
        }
    }
    if rule.blank("resourceRules") && rule.blank("nonResourceRules") {
        let detail = "at least one of resourceRules and nonResourceRules has to be non-empty";
        errors.push(FieldError::required(path, detail));
    }
}

/// Validates the name of a service account; `*` means all accounts of the namespace.
fn account(name: &str) -> Vec<String> {
    if name == "*" { Vec::new() } else { validation::dns1123_subdomain(name) }
}

fn check_verbs(rule: &Value, path: &Path, errors: &mut ErrorList) {
    const VERBS: [&str; 9] = [
        "create",
        "delete",
        "deletecollection",
        "get",
        "list",
        "patch",
        "proxy",
        "update",
        "watch",
    ];
    let verbs: Vec<&str> =
        rule.items("verbs").iter().map(|v| v.as_str().unwrap_or_default()).collect();
    if !verbs.contains(&"*") && verbs.iter().any(|verb| !VERBS.contains(verb)) {
        errors.push(FieldError::not_supported(path, json!(verbs), &VERBS));
    }
}

pub(crate) static PRIORITY_LEVEL: Strategy = Strategy {
    status: Some(|| json!({})),
    generation: true,
    own_defaults: |level| match level.text("spec.type") {
        "Exempt" => {
            level.set_default("spec.exempt.nominalConcurrencyShares", 0);
            level.set_default("spec.exempt.lendablePercent", 0);
        }
        "Limited" if level.has("spec.limited") => {
            level.set_default("spec.limited.nominalConcurrencyShares", 30);
            level.set_default("spec.limited.lendablePercent", 0);
            if level.has("spec.limited.limitResponse.queuing") {
                level.set_default("spec.limited.limitResponse.queuing.queues", 64);
                level.set_default("spec.limited.limitResponse.queuing.handSize", 8);
                level.set_default("spec.limited.limitResponse.queuing.queueLengthLimit", 50);
            }
        }
        _ => {}
    },
    check: |level, errors| {
        let (spec, path) = (level.at("spec"), Path::new("spec"));
        validate_one_of(spec, "type", &["Exempt", "Limited"], &path, errors);
        let limited = path.child("limited");
        if spec.text("type") == "Limited" && !spec.has("limited") {
            let detail = "must not be empty when type is Limited";
            errors.push(FieldError::required(&limited, detail));
        }
        let response = spec.at("limited.limitResponse");
        let queuing = limited.child("limitResponse").child("queuing");
        if response.text("type") == "Queue" && !response.has("queuing") {
            let detail = "must not be empty if limited.limitResponse.type is Limited";
            errors.push(FieldError::required(&queuing, detail));
        }
        let (hand, queues) = (response.int("queuing.handSize"), response.int("queuing.queues"));
        if response.has("queuing") && hand > queues {
            let detail = format!("should not be greater than queues ({queues})");
            errors.push(FieldError::invalid(&queuing.child("handSize"), hand, detail));
        } else if response.has("queuing") && queues > 0 && entropy_bits(queues, hand) > 60.0 {
            let detail = format!(
                "required entropy bits of deckSize {queues} and handSize {hand} should not be \
                 greater than 60"
            );
            errors.push(FieldError::invalid(&queuing.child("handSize"), hand, detail));
        }
    },
    fields: LEVEL,
    ..Strategy::PLAIN
};

const MAX: i64 = i32::MAX as i64;

/// The maximum number of queues of a level.
const MAX_QUEUES: i64 = 10_000_000;

/// Returns the number of bits of a flow's hash that deal its hand of queues.
fn entropy_bits(queues: i64, hand: i64) -> f64 {
    ((queues as f64).log2() * hand as f64).ceil()
}

const LEVEL: &[FieldRule] = &[
    ("spec.limited.nominalConcurrencyShares", Within(0, MAX, "must be a non-negative integer")),
    ("spec.limited.lendablePercent", Within(0, 100, "must be between 0 and 100, inclusive")),
    (
        "spec.limited.borrowingLimitPercent",
        Within(0, MAX, "if specified, must be a non-negative integer"),
    ),
    ("spec.limited.limitResponse.type", IsOneOf(&["Queue", "Reject"])),
    ("spec.limited.limitResponse.queuing.queues", Within(1, MAX, "must be positive")),
    (
        "spec.limited.limitResponse.queuing.queues",
        Within(i64::MIN, MAX_QUEUES, "must not be greater than 10000000"),
    ),
    ("spec.limited.limitResponse.queuing.handSize", Within(1, MAX, "must be positive")),
    ("spec.limited.limitResponse.queuing.queueLengthLimit", Within(1, MAX, "must be positive")),
];
