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
            let path = path.child(list).index(i);
            check_verbs(rule, &path.child("verbs"), errors);
            for (field, what) in WILDCARDS {
                check_wildcard(rule.at(*field), what, &path.child(field), errors);
            }
        }
    }
    for (i, rule) in rule.items("nonResourceRules").iter().enumerate() {
        let path = path.child("nonResourceRules").index(i).child("nonResourceURLs");
        check_urls(rule.items("nonResourceURLs"), &path, errors);
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

/// The lists that have no other items beside `*`, and the words for their items.
const WILDCARDS: &[(&str, &str)] = &[
    ("verbs", "verbs"),
    ("apiGroups", "api groups"),
    ("resources", "resources"),
    ("namespaces", "namespaces"),
    ("nonResourceURLs", "non-resource URLs"),
];

fn check_wildcard(list: &Value, what: &str, path: &Path, errors: &mut ErrorList) {
    let items = list.as_array().map_or(&[][..], Vec::as_slice);
    if items.len() > 1 && items.iter().any(|item| item == "*") {
        let detail = format!("if '*' is present, must not specify other {what}");
        errors.push(FieldError::invalid(path, list.clone(), detail));
    }
}

/// Validates URL paths. A `*` matches all URLs, and at the end of a path all below it.
fn check_urls(urls: &[Value], path: &Path, errors: &mut ErrorList) {
    for (i, url) in urls.iter().enumerate() {
        let url = url.as_str().unwrap_or_default();
        let detail = if url == "*" {
            continue;
        } else if url.is_empty() {
            "must not be empty"
        } else if !url.starts_with('/') {
            "must start with slash"
        } else if url.contains(' ') {
            "must not contain white-space"
        } else if url.contains("//") {
            "must not contain double slash"
        } else if url.strip_suffix("/*").unwrap_or(url).contains('*') {
            "wildcard can only do suffix matching"
        } else {
            continue;
        };
        errors.push(FieldError::invalid(&path.index(i), url, detail));
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
        check_level_type(level, &path, errors);
        crate::fields::check(level, LEVEL, &Path::new(""), errors);
        let path = path.child("limited").child("limitResponse");
        check_response(spec.at("limited.limitResponse"), &path, errors);
    },
    ..Strategy::PLAIN
};

/// Validates that a level has the member of its type, and not the other one.
fn check_level_type(level: &Value, path: &Path, errors: &mut ErrorList) {
    let spec = level.at("spec");
    let kind = spec.text("type");
    if kind.is_empty() {
        return;
    }
    if (kind == "Exempt") != (level.name() == "exempt") {
        let detail = "must be 'Exempt' if and only if `name` is 'exempt'";
        errors.push(FieldError::invalid(&path.child("type"), kind, detail));
    }
    if kind == "Exempt" && spec.has("limited") {
        let detail = "must be nil if the type is not Limited";
        errors.push(FieldError::forbidden(&path.child("limited"), detail));
    }
    if kind == "Limited" && spec.has("exempt") {
        let detail = "must be nil if the type is Limited";
        errors.push(FieldError::forbidden(&path.child("exempt"), detail));
    }
    if kind == "Limited" && !spec.has("limited") {
        let detail = "must not be empty when type is Limited";
        errors.push(FieldError::required(&path.child("limited"), detail));
    }
}

/// The maximum number of bits that choosing the queues of a flow may take.
const MAX_ENTROPY_BITS: f64 = 60.0;

/// The number of cards that is enough to exceed [`MAX_ENTROPY_BITS`].
const MAX_CARDS: i64 = 64;

fn check_response(response: &Value, path: &Path, errors: &mut ErrorList) {
    let path = path.child("queuing");
    match (response.text("type"), response.has("queuing")) {
        ("Queue", false) => {
            let detail = "must not be empty if limited.limitResponse.type is Limited";
            errors.push(FieldError::required(&path, detail));
        }
        ("Reject", true) => {
            let detail = "must be nil if limited.limitResponse.type is not Limited";
            errors.push(FieldError::forbidden(&path, detail));
        }
        ("Queue", true) => check_hand(response.at("queuing"), &path.child("handSize"), errors),
        _ => {}
    }
}

fn check_hand(queuing: &Value, path: &Path, errors: &mut ErrorList) {
    let (hand, queues) = (queuing.int("handSize"), queuing.int("queues"));
    if hand > queues {
        let detail = format!("should not be greater than queues ({queues})");
        errors.push(FieldError::invalid(path, hand, detail));
        return;
    }
    let cards = hand.clamp(0, MAX_CARDS);
    let bits: f64 = (0..cards).map(|dealt| ((queues - dealt) as f64).log2()).sum();
    if bits > MAX_ENTROPY_BITS {
        let detail = format!(
            "required entropy bits of deckSize {queues} and handSize {hand} should not be greater \
            than {MAX_ENTROPY_BITS}"
        );
        errors.push(FieldError::invalid(path, hand, detail));
    }
}

const MAX: i64 = i32::MAX as i64;
const MAX_QUEUES: i64 = 10_000_000;

const LEVEL: &[FieldRule] = &[
    ("spec.exempt.nominalConcurrencyShares", Within(0, MAX, "must be a non-negative integer")),
    ("spec.exempt.lendablePercent", Within(0, 100, "must be between 0 and 100, inclusive")),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::tests::errors;

    #[test]
    fn validates_levels_and_urls() {
        let level = |spec: Value| {
            errors(
                "flowcontrol.apiserver.k8s.io",
                "prioritylevelconfigurations",
                json!({ "spec": spec }),
            )
        };
        let queue = |queues: i64, hand: i64| {
            let queuing = json!({"queues": queues, "handSize": hand, "queueLengthLimit": 5});
            level(json!({"type": "Limited",
                "limited": {"limitResponse": {"type": "Queue", "queuing": queuing}}}))
        };
        assert_eq!(queue(64, 6), "[]");
        assert!(queue(65_536, 6).contains("required entropy bits of deckSize 65536"));
        assert!(queue(i64::from(i32::MAX), 2).contains("must not be greater than 10000000"));
        let reject = json!({"type": "Reject", "queuing": {}});
        let reject = level(json!({"type": "Limited", "limited": {"limitResponse": reject}}));
        assert!(reject.contains("queuing: Forbidden"), "{reject}");
        let exempt =
            level(json!({"type": "Exempt", "limited": {"limitResponse": {"type": "Reject"}}}));
        assert!(exempt.contains("spec.limited: Forbidden: must be nil"), "{exempt}");
        for (url, is_valid) in [
            ("*", true),
            ("/a/*", true),
            ("/", true),
            ("a", false),
            ("/a b", false),
            ("/a*", false),
        ] {
            let mut errors = ErrorList::new();
            check_urls(&[json!(url)], &Path::new("urls"), &mut errors);
            assert_eq!(errors.is_empty(), is_valid, "{url}");
        }
    }
}
