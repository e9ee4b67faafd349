//! Validates an `AuthorizationConfiguration` with upstream's messages.

use std::collections::BTreeSet;

use api_config::{
    AuthorizationConfiguration, GoDuration,
    authorization::{ConnectionInfo, WebhookConfiguration},
};
use api_meta::{ErrorList, FieldError, Path, validation::dns1123_subdomain};

use super::webhook::Conditions;

/// The types of authorizers, in the order of upstream's messages.
pub const TYPES: [&str; 6] = ["ABAC", "AlwaysAllow", "AlwaysDeny", "Node", "RBAC", "Webhook"];
const MAX_CONDITIONS: usize = 64;
const MAX_TIMEOUT: GoDuration = GoDuration::from_secs(30);

/// Validates the fields of a configuration.
pub fn errors(config: &AuthorizationConfiguration) -> ErrorList {
    let (root, mut errors) = (Path::new("authorizers"), ErrorList::new());
    if config.authorizers.is_empty() {
        let detail = "at least one authorization mode must be defined";
        errors.push(FieldError::required(&root, detail));
    }
    let (mut types, mut names) = (BTreeSet::new(), BTreeSet::new());
    for (i, authorizer) in config.authorizers.iter().enumerate() {
        let (at, kind, name) = (root.index(i), authorizer.kind.as_str(), authorizer.name.as_str());
        let wrong = match kind {
            "" => Some(FieldError::required(&at.child("type"), "")),
            _ if !TYPES.contains(&kind) => {
                Some(FieldError::not_supported(&at.child("type"), kind, &TYPES))
            }
            _ if kind != "Webhook" && types.contains(kind) => {
                Some(FieldError::duplicate(&at.child("type"), kind))
            }
            _ => None,
        };
        if let Some(wrong) = wrong {
            errors.push(wrong);
            continue;
        }
        types.insert(kind);
        let at_name = at.child("name");
        if name.is_empty() {
            errors.push(FieldError::required(&at_name, ""));
        } else if !names.insert(name) {
            errors.push(FieldError::duplicate(&at_name, name));
        } else {
            let wrong = dns1123_subdomain(name);
            if !wrong.is_empty() {
                let detail = format!("authorizer name is invalid: {}", wrong.join(", "));
                errors.push(FieldError::invalid(&at_name, name, detail));
            }
        }
        let at_webhook = at.child("webhook");
        match (&authorizer.webhook, kind) {
            (None, "Webhook") => {
                errors.push(FieldError::required(&at_webhook, "required when type=Webhook"));
            }
            // Upstream omits the webhook from the path of its fields.
            (Some(webhook), "Webhook") => validate_webhook(webhook, &at, &mut errors),
            (Some(_), _) => {
                let detail = "may only be specified when type=Webhook";
                errors.push(FieldError::invalid(&at_webhook, "non-null", detail));
            }
            (None, _) => {}
        }
    }
    errors
}

/// Validates the combination of authorizers. `required` are the types that the server started with.
pub fn chain_errors(config: &AuthorizationConfiguration, required: &[String]) -> Vec<String> {
    let mut errors = Vec::new();
    let own = config.authorizers.iter().filter(|a| a.kind != "Webhook");
    for authorizer in own.clone() {
        let (kind, name, wanted) =
            (&authorizer.kind, &authorizer.name, authorizer.kind.to_lowercase());
        if *name != wanted {
            errors.push(format!("expected name {wanted} for authorizer {kind} instead of {name}"));
        }
    }
    let missing = required.iter().filter(|kind| !own.clone().any(|a| a.kind == **kind));
    let missing: BTreeSet<&str> = missing.map(String::as_str).collect();
    if !missing.is_empty() {
        let missing: Vec<_> = missing.into_iter().collect();
        errors.push(format!("missing required types: [{}]", missing.join(" ")));
    }
    errors
}

fn validate_webhook(webhook: &WebhookConfiguration, at: &Path, errors: &mut ErrorList) {
    let duration = |field: &str, value: GoDuration, most: Option<GoDuration>, detail: &str| {
        let at = at.child(field);
        if value.is_zero() {
            Some(FieldError::required(&at, ""))
        } else if value.nanos() < 0 || most.is_some_and(|most| value > most) {
            Some(FieldError::invalid(&at, value.to_string(), detail))
        } else {
            None
        }
    };
    let most = Some(MAX_TIMEOUT);
    errors.extend(duration("timeout", webhook.timeout, most, "must be > 0s and <= 30s"));
    errors.extend(duration("authorizedTTL", webhook.authorized_ttl, None, "must be > 0s"));
    errors.extend(duration("unauthorizedTTL", webhook.unauthorized_ttl, None, "must be > 0s"));
    let chosen = |field: &str, value: &str, known: &[&str]| {
        let at = at.child(field);
        match value {
            "" => Some(FieldError::required(&at, "")),
            value if !known.contains(&value) => Some(FieldError::not_supported(&at, value, known)),
            _ => None,
        }
    };
    let version = &webhook.subject_access_review_version;
    errors.extend(chosen("subjectAccessReviewVersion", version, &["v1", "v1beta1"]));
    let (version, field) = (
        webhook.match_condition_subject_access_review_version.as_str(),
        "matchConditionSubjectAccessReviewVersion",
    );
    if !version.is_empty() {
        errors.extend(chosen(field, version, &["v1"]));
    } else if !webhook.match_conditions.is_empty() {
        let detail = "required if match conditions are specified";
        errors.push(FieldError::required(&at.child(field), detail));
    }
    errors.extend(chosen("failurePolicy", &webhook.failure_policy, &["NoOpinion", "Deny"]));
    validate_connection(&webhook.connection_info, &at.child("connectionInfo"), errors);
    errors.extend(conditions(webhook, at).err().into_iter().flatten());
}

fn validate_connection(connection: &ConnectionInfo, at: &Path, errors: &mut ErrorList) {
    const KINDS: [&str; 2] = ["InClusterConfig", "KubeConfigFile"];
    let (at_file, file) = (at.child("kubeConfigFile"), connection.kube_config_file.as_deref());
    let at_kind = at.child("type");
    let wrong = match (connection.kind.as_str(), file) {
        ("", _) => FieldError::required(&at_kind, ""),
        ("InClusterConfig", Some(file)) => {
            FieldError::invalid(&at_file, file, "can only be set when type=KubeConfigFile")
        }
        // InClusterConfig would call this server itself.
        ("InClusterConfig", None) => {
            FieldError::forbidden(&at_kind, "InClusterConfig is not allowed for kube-apiserver")
        }
        ("KubeConfigFile", None | Some("")) => FieldError::required(&at_file, ""),
        ("KubeConfigFile", Some(file)) if !file.starts_with('/') => {
            FieldError::invalid(&at_file, file, "must be an absolute path")
        }
        ("KubeConfigFile", Some(_)) => return,
        (kind, file) => {
            let shown = serde_json::json!({"Type": kind, "KubeConfigFile": file});
            FieldError::not_supported(&at_kind, shown, &KINDS)
        }
    };
    errors.push(wrong);
}

/// Compiles the match conditions of a webhook. `at` is the path of its authorizer.
pub fn conditions(webhook: &WebhookConfiguration, at: &Path) -> Result<Conditions, ErrorList> {
    let (at, given) = (at.child("matchConditions"), &webhook.match_conditions);
    if given.len() > MAX_CONDITIONS {
        return Err([FieldError::too_many(&at, given.len(), MAX_CONDITIONS)].into());
    }
    let (mut seen, mut errors, mut conditions) =
        (BTreeSet::new(), ErrorList::new(), Conditions::default());
    for (i, condition) in given.iter().enumerate() {
        let (at, text) = (at.index(i).child("expression"), condition.expression.as_str());
        if text.trim().is_empty() {
            errors.push(FieldError::required(&at, ""));
        } else if !seen.insert(text) {
            errors.push(FieldError::duplicate(&at, text));
        } else if let Err(error) = conditions.add(condition) {
            errors.push(FieldError::invalid(&at, text, error.to_string()));
        }
    }
    if errors.is_empty() { Ok(conditions) } else { Err(errors) }
}

#[cfg(test)]
mod tests {
    use api_meta::aggregate;

    use super::*;

    fn told(authorizers: &str) -> String {
        let text = format!(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers: {authorizers}\n"
        );
        let config = AuthorizationConfiguration::parse(&text).unwrap();
        match errors(&config) {
            errors if errors.is_empty() => chain_errors(&config, &["Node".to_owned()]).join("; "),
            errors => aggregate(&errors),
        }
    }

    /// The expected messages were recorded from kube-apiserver v1.36.2.
    #[test]
    fn reports_errors_in_upstream_words() {
        let webhook = |more: &str| {
            format!(
                "[{{type: Webhook, name: w, webhook: {{timeout: 3s, subjectAccessReviewVersion: v1, failurePolicy: Deny, connectionInfo: {{type: KubeConfigFile, kubeConfigFile: /f}}{more}}}}}]"
            )
        };
        for (given, wanted) in [
            ("[]", "authorizers: Required value: at least one authorization mode must be defined"),
            ("[{name: a}]", "authorizers[0].type: Required value"),
            (
                "[{type: Foo, name: foo}]",
                "authorizers[0].type: Unsupported value: \"Foo\": supported values: \"ABAC\", \"AlwaysAllow\", \"AlwaysDeny\", \"Node\", \"RBAC\", \"Webhook\"",
            ),
            (
                "[{type: Node, name: node}, {type: Node, name: b}]",
                "authorizers[1].type: Duplicate value: \"Node\"",
            ),
            ("[{type: Node, name: node}]", ""),
            ("[{type: Node, name: nod}]", "expected name node for authorizer Node instead of nod"),
            ("[{type: RBAC, name: rbac}]", "missing required types: [Node]"),
            (
                "[{type: Webhook, name: w}]",
                "authorizers[0].webhook: Required value: required when type=Webhook",
            ),
            (
                "[{type: Node, name: node, webhook: {}}]",
                "authorizers[0].webhook: Invalid value: \"non-null\": may only be specified when type=Webhook",
            ),
            (
                "[{type: Webhook, name: w, webhook: {}}]",
                "[authorizers[0].timeout: Required value, authorizers[0].subjectAccessReviewVersion: Required value, authorizers[0].failurePolicy: Required value, authorizers[0].connectionInfo.type: Required value]",
            ),
            (&webhook(""), "missing required types: [Node]"),
            (
                &webhook(", matchConditions: [{expression: 'true'}]"),
                "authorizers[0].matchConditionSubjectAccessReviewVersion: Required value: required if match conditions are specified",
            ),
            (
                &webhook(
                    ", matchConditionSubjectAccessReviewVersion: v1, matchConditions: [{expression: request.user}, {expression: ' '}]",
                ),
                "[authorizers[0].matchConditions[0].expression: Invalid value: \"request.user\": must evaluate to bool but got string, authorizers[0].matchConditions[1].expression: Required value]",
            ),
        ] {
            assert_eq!(told(given), wanted, "{given}");
        }
    }
}
