//! Rules of webhook configurations.

use std::collections::HashSet;

use api_meta::{ErrorList, FieldError, Path, Tree as _, validation};
use serde_json::Value;

use crate::{
    fields::{
        FieldRule,
        Rule::{IsOneOf, OneOf, Required, Selector},
        validate_one_of,
    },
    kinds::policies::validate_match_conditions,
    strategy::Strategy,
};

pub(crate) static MUTATING: Strategy = WEBHOOKS;
pub(crate) static VALIDATING: Strategy = WEBHOOKS;

const WEBHOOKS: Strategy = Strategy {
    generation: true,
    check: check_webhooks,
    check_create: |configuration, errors| check_conditions(configuration, None, errors),
    check_update: |new, old, errors| check_conditions(new, Some(old), errors),
    fields: WEBHOOK,
    unconditional_update: false,
    ..Strategy::PLAIN
};

fn check_webhooks(configuration: &Value, errors: &mut ErrorList) {
    let mut names = std::collections::HashSet::new();
    for (i, webhook) in configuration.items("webhooks").iter().enumerate() {
        let path = Path::new("webhooks").index(i);
        let name = webhook.text("name");
        for message in validation::dns1123_subdomain(name) {
            errors.push(FieldError::invalid(&path.child("name"), name, message));
        }
        if name.split('.').count() < 3 {
            let detail = "should be a domain with at least three segments separated by dots";
            errors.push(FieldError::invalid(&path.child("name"), name, detail));
        }
        if !names.insert(name) {
            errors.push(FieldError::duplicate(&path.child("name"), name));
        }
        check_webhook(webhook, &path, errors);
    }
}

/// Validates match conditions unless they are unchanged, because an older release may not have compiled them.
fn check_conditions(configuration: &Value, old: Option<&Value>, errors: &mut ErrorList) {
    let webhooks = configuration.items("webhooks");
    let were = old.map(|old| old.items("webhooks")).filter(|old| old.len() == webhooks.len());
    let same =
        |(new, old): (&Value, &Value)| new.at("matchConditions") == old.at("matchConditions");
    if were.is_some_and(|were| webhooks.iter().zip(were).all(same)) {
        return;
    }
    for (i, webhook) in webhooks.iter().enumerate() {
        validate_match_conditions(webhook, false, &Path::new("webhooks").index(i), errors);
    }
}

const WEBHOOK: &[FieldRule] = &[
    ("webhooks[].namespaceSelector", Selector),
    ("webhooks[].objectSelector", Selector),
    ("webhooks[].reinvocationPolicy", OneOf(&["IfNeeded", "Never"])),
    ("webhooks[].rules[].operations[]", IsOneOf(&["*", "CONNECT", "CREATE", "DELETE", "UPDATE"])),
    ("webhooks[].rules[].apiVersions[]", Required("")),
    ("webhooks[].rules[].resources[]", Required("")),
    ("webhooks[].rules[].scope", OneOf(&["*", "Cluster", "Namespaced"])),
    ("webhooks[].clientConfig.service.name", Required("")),
    ("webhooks[].clientConfig.service.namespace", Required("")),
];

fn check_webhook(webhook: &Value, path: &Path, errors: &mut ErrorList) {
    let versions = webhook.items("admissionReviewVersions");
    let versions_path = path.child("admissionReviewVersions");
    if versions.is_empty() {
        let detail = "must specify one of v1, v1beta1";
        errors.push(FieldError::required(&versions_path, detail));
    } else if !versions.iter().any(|v| matches!(v.as_str(), Some("v1" | "v1beta1"))) {
        errors.push(FieldError::invalid(
            &versions_path,
            webhook.at("admissionReviewVersions").clone(),
            "must include at least one of v1, v1beta1",
        ));
    }
    for (i, version) in webhook.texts("admissionReviewVersions").enumerate() {
        for message in validation::dns1035_label(version) {
            errors.push(FieldError::invalid(&versions_path.index(i), version, message));
        }
    }
    validate_one_of(webhook, "failurePolicy", &["Fail", "Ignore"], path, errors);
    validate_one_of(webhook, "matchPolicy", &["Equivalent", "Exact"], path, errors);
    validate_one_of(webhook, "sideEffects", &["None", "NoneOnDryRun"], path, errors);
    let seconds = webhook.int("timeoutSeconds");
    if !(1..=30).contains(&seconds) {
        let detail = "the timeout value must be between 1 and 30 seconds";
        errors.push(FieldError::invalid(&path.child("timeoutSeconds"), seconds, detail));
    }
    let client = path.child("clientConfig");
    if webhook.has("clientConfig.url") == webhook.has("clientConfig.service") {
        let detail = "exactly one of url or service is required";
        errors.push(FieldError::required(&client, detail));
    }
    check_client(webhook.at("clientConfig"), &client, errors);
    let mut seen = HashSet::new();
    for (i, version) in versions.iter().enumerate().filter(|(_, v)| !seen.insert(*v)) {
        let path = versions_path.index(i);
        errors.push(FieldError::invalid(&path, version.clone(), "duplicate version"));
    }
    for (i, rule) in webhook.items("rules").iter().enumerate() {
        let path = path.child("rules").index(i);
        for (field, word) in [
            ("operations", "operations"),
            ("apiGroups", "API groups"),
            ("apiVersions", "API versions"),
            ("resources", ""),
        ] {
            let list = rule.items(field);
            if list.is_empty() {
                errors.push(FieldError::required(&path.child(field), ""));
            } else if list.len() > 1 && !word.is_empty() && list.iter().any(|item| item == "*") {
                let detail = format!("if '*' is present, must not specify other {word}");
                let found = rule.at(field).clone();
                errors.push(FieldError::invalid(&path.child(field), found, detail));
            }
        }
    }
}

/// Validates the address of a webhook: a URL or a Service.
pub(super) fn check_client(client: &Value, path: &Path, errors: &mut ErrorList) {
    const FORM: &str = "desired format: https://host[/path]";
    if let Some(url) = client.at("url").as_str() {
        let path = path.child("url");
        let (scheme, rest) = url.split_once("://").unwrap_or(("", ""));
        if scheme != "https" {
            let detail = format!("'https' is the only allowed URL scheme; {FORM}");
            errors.push(FieldError::invalid(&path, scheme, detail));
        }
        let (rest, fragment) = rest.split_once('#').unwrap_or((rest, ""));
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let authority = rest.split('/').next().unwrap_or_default();
        let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
        if host.is_empty() {
            let detail = format!("host must be specified; {FORM}");
            errors.push(FieldError::invalid(&path, "", detail));
        }
        for (part, part_name) in [
            (user, "user information is"),
            (fragment, "fragments are"),
            (query, "query parameters are"),
        ] {
            if !part.is_empty() {
                let detail = format!("{part_name} not permitted in the URL");
                errors.push(FieldError::invalid(&path, part, detail));
            }
        }
    }
    let (service, path) = (client.at("service"), path.child("service"));
    if let Some(port) = service.opt_int("port")
        && !(1..=65535).contains(&port)
    {
        let detail = "port is not valid: must be between 1 and 65535, inclusive";
        errors.push(FieldError::invalid(&path.child("port"), port, detail));
    }
    if let Some(text) = service.at("path").as_str().filter(|text| !text.is_empty()) {
        check_url_path(text, &path.child("path"), errors);
    }
}

fn check_url_path(text: &str, path: &Path, errors: &mut ErrorList) {
    if !text.starts_with('/') {
        errors.push(FieldError::invalid(path, text, "must start with a '/'"));
    }
    if text == "/" {
        return;
    }
    // As upstream: the first character is skipped, whatever it is.
    let mut chars = text.chars();
    chars.next();
    let rest = chars.as_str();
    let steps: Vec<&str> = rest.strip_suffix('/').unwrap_or(rest).split('/').collect();
    for (i, step) in steps.iter().enumerate() {
        if step.is_empty() {
            let detail = format!("segment[{i}] may not be empty");
            errors.push(FieldError::invalid(path, text, detail));
            continue;
        }
        for message in validation::dns1123_subdomain(step) {
            let detail = format!("segment[{i}]: {message}");
            errors.push(FieldError::invalid(path, text, detail));
        }
    }
}
