//! Validation of a Pod's spec.

use std::collections::HashSet;

use api_meta::{ErrorList, FieldError, Path, Tree as _, validation};
use serde_json::Value;

use super::{containers, isolation, placement, security, volumes};
use crate::fields::{
    FieldRule,
    Rule::{OneOf, Text},
    check_ip, validate_one_of, validate_optional_one_of,
};

pub(super) fn check(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let names = volumes::check(spec.items("volumes"), &path.child("volumes"), errors);
    containers::check(spec, &names, path, errors);
    validate_claims(spec, path, errors);
    validate_enums(spec, path, errors);
    validate_numbers(spec, path, errors);
    validate_texts(spec, path, errors);
    security::check_pod(spec, path, errors);
    isolation::check_pod(spec, path, errors);
    placement::check(spec, path, errors);
    if spec.has("schedulingGroup") && !spec.has("schedulingGroup.podGroupName") {
        let detail = "must specify one of: `podGroupName`";
        errors.push(FieldError::invalid(&path.child("schedulingGroup"), "", detail));
    }
    for (i, alias) in spec.items("hostAliases").iter().enumerate() {
        let ip = alias.text("ip");
        check_ip(ip, &path.child("hostAliases").index(i).child("ip"), errors);
    }
    check_dns(spec, path, errors);
    crate::fields::check(spec, FIELDS, path, errors);
}

const FIELDS: &[FieldRule] = &[
    ("dnsConfig.searches[]", Text(search_domain)),
    ("hostAliases[].hostnames[]", Text(validation::dns1123_subdomain)),
    ("resourceClaims[].resourceClaimName", Text(validation::dns1123_subdomain)),
    ("resourceClaims[].resourceClaimTemplateName", Text(validation::dns1123_subdomain)),
    ("schedulingGroup.podGroupName", Text(validation::dns1123_subdomain)),
    ("securityContext.supplementalGroupsPolicy", OneOf(&["Merge", "Strict"])),
];

/// The longest host name that Linux allows.
const MAX_HOST_NAME: usize = 64;

/// Validates the ResourceClaims of a Pod: each has a unique name and one source.
fn validate_claims(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let mut names = HashSet::new();
    for (i, claim) in spec.items("resourceClaims").iter().enumerate() {
        let (path, name) = (path.child("resourceClaims").index(i), claim.text("name"));
        if name.is_empty() {
            errors.push(FieldError::required(&path.child("name"), ""));
        } else if !names.insert(name) {
            errors.push(FieldError::duplicate(&path.child("name"), name));
        } else {
            for message in validation::dns1123_label(name) {
                errors.push(FieldError::invalid(&path.child("name"), name, message));
            }
        }
        let sources = ["resourceClaimName", "resourceClaimTemplateName"];
        let detail = match sources.map(|source| claim.has(source)) {
            [true, true] => {
                "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"
            }
            [false, false] => {
                "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
            }
            _ => continue,
        };
        errors.push(FieldError::invalid(&path, claim.clone(), detail));
    }
}

/// Validates a DNS search domain. It may be a dot, end in a dot, and have labels that start with an underscore.
fn search_domain(text: &str) -> Vec<String> {
    if text == "." {
        return Vec::new();
    }
    validation::dns1123_subdomain_with_underscore(text.strip_suffix('.').unwrap_or(text))
}

fn validate_enums(spec: &Value, path: &Path, errors: &mut ErrorList) {
    validate_one_of(spec, "restartPolicy", &["Always", "OnFailure", "Never"], path, errors);
    validate_one_of(
        spec,
        "dnsPolicy",
        &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"],
        path,
        errors,
    );
    validate_optional_one_of(
        spec,
        "preemptionPolicy",
        &["PreemptLowerPriority", "Never"],
        path,
        errors,
    );
    if spec.has("os") {
        validate_one_of(spec.at("os"), "name", &["linux", "windows"], &path.child("os"), errors);
    }
}

fn validate_numbers(spec: &Value, path: &Path, errors: &mut ErrorList) {
    if let Some(seconds) = spec.opt_int("activeDeadlineSeconds")
        && !(1..=i64::from(i32::MAX)).contains(&seconds)
    {
        errors.push(FieldError::invalid(
            &path.child("activeDeadlineSeconds"),
            seconds,
            "must be between 1 and 2147483647, inclusive",
        ));
    }
}

fn validate_texts(spec: &Value, path: &Path, errors: &mut ErrorList) {
    type Rule = fn(&str) -> Vec<String>;
    let rules: [(&str, Rule); 6] = [
        ("serviceAccountName", validation::dns1123_subdomain),
        ("nodeName", validation::dns1123_subdomain),
        ("hostname", validation::dns1123_label),
        ("subdomain", validation::dns1123_label),
        ("priorityClassName", validation::dns1123_subdomain),
        ("runtimeClassName", validation::dns1123_subdomain),
    ];
    for (field, rule) in rules {
        let text = spec.text(field);
        if !text.is_empty() {
            for message in rule(text) {
                errors.push(FieldError::invalid(&path.child(field), text, message));
            }
        }
    }
    if let Some(name) = spec.at("hostnameOverride").as_str() {
        let path = path.child("hostnameOverride");
        if name.len() > MAX_HOST_NAME {
            errors.push(FieldError::too_long(&path, MAX_HOST_NAME));
        }
        for message in validation::dns1123_subdomain(name) {
            errors.push(FieldError::invalid(&path, name, message));
        }
    }
    let mut seen = HashSet::new();
    for (i, gate) in spec.items("schedulingGates").iter().enumerate() {
        let (path, name) = (path.child("schedulingGates").index(i), gate.text("name"));
        for message in validation::qualified_name(name) {
            errors.push(FieldError::invalid(&path, name, message));
        }
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(&path, name));
        }
    }
    for (i, gate) in spec.items("readinessGates").iter().enumerate() {
        let path = path.child("readinessGates").index(i).child("conditionType");
        for message in validation::qualified_name(gate.text("conditionType")) {
            errors.push(FieldError::invalid(&path, gate.text("conditionType"), message));
        }
    }
}

fn check_dns(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let (config, path) = (spec.at("dnsConfig"), path.child("dnsConfig"));
    let servers = config.items("nameservers");
    if spec.text("dnsPolicy") == "None" {
        if config.is_null() {
            let detail = "must provide `dnsConfig` when `dnsPolicy` is None";
            errors.push(FieldError::required(&path, detail));
            return;
        }
        if servers.is_empty() {
            let detail = "must provide at least one DNS nameserver when `dnsPolicy` is None";
            errors.push(FieldError::required(&path.child("nameservers"), detail));
        }
    }
    if servers.len() > 3 {
        let detail = "must not have more than 3 nameservers";
        let list = config.at("nameservers").clone();
        errors.push(FieldError::invalid(&path.child("nameservers"), list, detail));
    }
    for (i, server) in servers.iter().enumerate() {
        let text = server.as_str().unwrap_or_default();
        check_ip(text, &path.child("nameservers").index(i), errors);
    }
    if config.items("searches").len() > 32 {
        let detail = "must not have more than 32 search paths";
        let list = config.at("searches").clone();
        errors.push(FieldError::invalid(&path.child("searches"), list, detail));
    }
    for (i, option) in config.items("options").iter().enumerate() {
        if option.text("name").is_empty() {
            let path = path.child("options").index(i);
            errors.push(FieldError::required(&path, "must not be empty"));
        }
    }
}
