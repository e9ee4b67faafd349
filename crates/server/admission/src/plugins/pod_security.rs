//! PodSecurity: enforces the Pod Security Standards as the labels of a namespace say.

mod checks;
mod policy;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use api_config::{Strictness, versioned};
use api_meta::{
    FieldError, GroupKind, GroupResource, Path, Status, Tree as _, go_quote,
    validation::{dns1123_label, dns1123_subdomain},
};
use checks::Violation;
use policy::{Level, LevelVersion, Policy, violations};
use serde::Deserialize;
use serde_json::Value;

use crate::{
    configuration::ConfigurationError,
    request::{AdmissionResult, Outcome, Plugin, Request},
};

/// The PodSecurity plugin with its defaults and exemptions.
pub(crate) struct PodSecurity {
    defaults: Policy,
    exempt: Exemptions,
}

/// The accepted versions of `PodSecurityConfiguration`, which have the same fields.
const SERVED: [&str; 3] = [
    "pod-security.admission.config.k8s.io/v1",
    "pod-security.admission.config.k8s.io/v1beta1",
    "pod-security.admission.config.k8s.io/v1alpha1",
];

#[derive(Default, Deserialize)]
#[serde(default)]
struct Configuration {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    defaults: policy::Defaults,
    exemptions: Exemptions,
}

/// The users, namespaces and runtime classes that are exempt from all levels.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Exemptions {
    usernames: Vec<String>,
    namespaces: Vec<String>,
    runtime_classes: Vec<String>,
}

impl Exemptions {
    fn errors(&self) -> Vec<FieldError> {
        let mut errors = name_errors("namespaces", &self.namespaces, dns1123_label);
        errors.extend(name_errors("runtimeClasses", &self.runtime_classes, dns1123_subdomain));
        errors.extend(name_errors("usernames", &self.usernames, |name| match name {
            "" => vec!["username must not be empty".to_owned()],
            _ => Vec::new(),
        }));
        errors
    }
}

/// Validates a list of names, which must be unique.
fn name_errors(field: &str, names: &[String], check: fn(&str) -> Vec<String>) -> Vec<FieldError> {
    let (list, mut errors) = (Path::new("exemptions").child(field), Vec::new());
    for (index, name) in names.iter().enumerate() {
        let (at, wrong) = (list.index(index), check(name));
        if !wrong.is_empty() {
            errors.push(FieldError::invalid(&at, name.as_str(), wrong.join(", ")));
        } else if names[..index].contains(name) {
            errors.push(FieldError::duplicate(&at, name.as_str()));
        }
    }
    errors
}

impl PodSecurity {
    /// Reads a `PodSecurityConfiguration`; null means no configuration.
    pub(crate) fn configured(configuration: &Value) -> Result<Self, ConfigurationError> {
        let read: Configuration = match configuration {
            Value::Null => Configuration::default(),
            given => {
                versioned("PodSecurityConfiguration", given.clone(), &SERVED, Strictness::Refuse)?
            }
        };
        let (defaults, mut errors) = Policy::of_configuration(&read.defaults);
        errors.extend(read.exemptions.errors());
        if !errors.is_empty() {
            return Err(ConfigurationError::Invalid(errors));
        }
        Ok(Self { defaults, exempt: read.exemptions })
    }

    fn policy(&self, request: &Request<'_>) -> Policy {
        let namespace = request.objects.get(&GroupResource::NAMESPACES, "", request.namespace);
        self.defaults.with_labels(namespace.as_deref().unwrap_or(&Value::Null)).0
    }

    /// Returns the reason why a request is exempt, as the audit log names it.
    fn exemption(&self, request: &Request<'_>, pod: &Value) -> Option<&'static str> {
        let listed =
            |list: &[String], name: &str| !name.is_empty() && list.iter().any(|n| n == name);
        if listed(&self.exempt.namespaces, request.namespace) {
            Some("namespace")
        } else if listed(&self.exempt.usernames, &request.user.name) {
            Some("user")
        } else if listed(&self.exempt.runtime_classes, pod.text("spec.runtimeClassName")) {
            Some("runtimeClass")
        } else {
            None
        }
    }
}

const AUDIT_PREFIX: &str = "pod-security.kubernetes.io/";

impl Plugin for PodSecurity {
    fn validate(
        &self,
        request: &Request<'_>,
        object: &Value,
        outcome: &mut Outcome,
    ) -> AdmissionResult {
        if !(request.creates() || request.updates()) {
            return Ok(());
        }
        if request.is(&GroupResource::NAMESPACES) {
            return self.check_namespace(request, object, outcome);
        }
        if request.is(&GroupResource::PODS)
            || request.is_sub(&GroupResource::PODS, "ephemeralcontainers")
        {
            if request.old.is_some_and(|old| !is_significant(old, object)) {
                return Ok(());
            }
            return self.check_pod(request, object, outcome);
        }
        if let (Some(template), "") = (template_of(request, object), request.subresource)
            && self.exemption(request, template).is_none()
        {
            advise(&self.policy(request), template, outcome);
        }
        Ok(())
    }
}

/// Returns the Pod template of a workload object.
fn template_of<'o>(request: &Request<'_>, object: &'o Value) -> Option<&'o Value> {
    let way = match (request.resource.group.as_ref(), request.resource.resource.as_ref()) {
        ("", "podtemplates") => "template",
        ("batch", "cronjobs") => "spec.jobTemplate.spec.template",
        ("", "replicationcontrollers")
        | ("apps", "replicasets" | "deployments" | "statefulsets" | "daemonsets")
        | ("batch", "jobs") => "spec.template",
        _ => return None,
    };
    Some(object.at(way)).filter(|template| !template.is_null())
}

/// Reports whether an update changes the images or ephemeral containers. Other fields that the checks read are
/// immutable.
fn is_significant(old: &Value, new: &Value) -> bool {
    let images = |pod: &Value| -> Vec<String> {
        ["spec.initContainers", "spec.containers", "spec.ephemeralContainers"]
            .iter()
            .flat_map(|list| pod.items(list))
            .map(|c| c.text("image").to_owned())
            .collect()
    };
    images(old) != images(new)
}

fn describe(level: LevelVersion, found: &[Violation]) -> String {
    let list: Vec<String> = found
        .iter()
        .map(|v| {
            if v.detail.is_empty() {
                v.reason.clone()
            } else {
                format!("{} ({})", v.reason, v.detail)
            }
        })
        .collect();
    format!("violate PodSecurity {}: {}", go_quote(&level.to_string()), list.join(", "))
}

/// Adds warnings and audit annotations, which reject nothing.
fn advise(policy: &Policy, pod: &Value, outcome: &mut Outcome) {
    let audited = violations(policy.audit, pod);
    if !audited.is_empty() {
        let text = format!("would {}", describe(policy.audit, &audited));
        outcome.audit.insert(format!("{AUDIT_PREFIX}audit-violations"), text);
    }
    let warned = violations(policy.warn, pod);
    if !warned.is_empty() {
        outcome.warnings.push(format!("would {}", describe(policy.warn, &warned)));
    }
}

impl PodSecurity {
    fn check_pod(
        &self,
        request: &Request<'_>,
        pod: &Value,
        outcome: &mut Outcome,
    ) -> Result<(), Status> {
        if let Some(by) = self.exemption(request, pod) {
            outcome.audit.insert(format!("{AUDIT_PREFIX}exempt"), by.into());
            return Ok(());
        }
        let policy = self.policy(request);
        outcome.audit.insert(format!("{AUDIT_PREFIX}enforce-policy"), policy.enforce.to_string());
        let found = violations(policy.enforce, pod);
        if !found.is_empty() {
            let cause = describe(policy.enforce, &found).replacen("violate", "violates", 1);
            return Err(request.forbidden(pod, cause));
        }
        advise(&policy, pod, outcome);
        Ok(())
    }

    fn check_namespace(
        &self,
        request: &Request<'_>,
        namespace: &Value,
        outcome: &mut Outcome,
    ) -> Result<(), Status> {
        let (policy, errors) = self.defaults.with_labels(namespace);
        let (before, errors_before) = match request.old.map(|old| self.defaults.with_labels(old)) {
            Some((policy, errors)) => (Some(policy), errors),
            None => (None, Vec::new()),
        };
        if !errors.is_empty() && errors != errors_before {
            return Err(Status::invalid(
                &GroupKind::new("", "Namespace"),
                request.object_name(namespace),
                &errors,
            ));
        }
        let name = request.object_name(namespace);
        let stricter = before.is_some_and(|before| before.enforce != policy.enforce)
            && policy.enforce.level > Level::Privileged
            && !self.exempt.namespaces.iter().any(|n| n == name);
        if stricter {
            outcome.warnings.extend(existing_pods(request, name, policy.enforce));
        }
        Ok(())
    }
}

/// Returns a warning per reason for which running Pods would no longer be admitted.
fn existing_pods(request: &Request<'_>, namespace: &str, level: LevelVersion) -> Vec<String> {
    let mut by_reason: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for pod in request.objects.list(&GroupResource::PODS, namespace) {
        let found = violations(level, &pod);
        if !found.is_empty() {
            let reasons: Vec<String> = found.into_iter().map(|v| v.reason).collect();
            by_reason.entry(reasons.join(", ")).or_default().push(pod.name().to_owned());
        }
    }
    if by_reason.is_empty() {
        return Vec::new();
    }
    let mut lines: Vec<String> = by_reason
        .into_iter()
        .map(|(reasons, mut names)| {
            names.sort();
            match names.as_slice() {
                [one] => format!("{one}: {reasons}"),
                [first, rest @ ..] => {
                    let pods = if rest.len() == 1 { "pod" } else { "pods" };
                    format!("{first} (and {} other {pods}): {reasons}", rest.len())
                }
                [] => reasons,
            }
        })
        .collect();
    lines.sort();
    let head = format!(
        "existing pods in namespace {} violate the new PodSecurity enforce level {}",
        go_quote(namespace),
        go_quote(&level.to_string())
    );
    lines.insert(0, head);
    lines
}
