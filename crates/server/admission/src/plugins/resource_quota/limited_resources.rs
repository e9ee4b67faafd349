//! Resources that may only be used in namespaces with a quota that counts them.

use std::{collections::BTreeSet, sync::Arc};

use api_config::{Strictness, versioned};
use api_meta::{FieldError, GroupResource, Path, Quantity, Tree as _};
use api_rules::{
    amounts::Amounts,
    quota::{ScopeTerm, in_scope, scopes_of},
};
use serde::Deserialize;
use serde_json::Value;

use crate::configuration::ConfigurationError;

/// The kinds and API versions of this configuration that upstream reads.
const SERVED: [(&str, &str); 4] = [
    ("ResourceQuotaConfiguration", "apiserver.config.k8s.io/v1"),
    ("Configuration", "resourcequota.admission.k8s.io/v1beta1"),
    ("Configuration", "resourcequota.admission.k8s.io/v1alpha1"),
    ("Configuration", "apiserver.config.k8s.io/v1"),
];

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Configuration {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    limited_resources: Vec<LimitedResource>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct LimitedResource {
    api_group: String,
    resource: String,
    match_contains: Vec<String>,
    match_scopes: Vec<MatchScope>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct MatchScope {
    scope_name: String,
    operator: String,
    values: Vec<String>,
}

/// The configured resources that need a quota.
#[derive(Default)]
pub(super) struct LimitedResources {
    /// The substrings of limited resource names, by resource.
    names: Vec<(GroupResource, Vec<String>)>,
    scopes: Vec<ScopeTerm>,
}

/// The resources or scopes of an object that no quota covers, as a message.
pub(super) enum UncoveredUsage {
    Resources(String),
    Scopes(String),
}

impl LimitedResources {
    pub(super) fn configured(configuration: &Value) -> Result<Self, ConfigurationError> {
        if configuration.is_null() {
            return Ok(Self::default());
        }
        let kind = match configuration.text("kind") {
            "Configuration" => "Configuration",
            _ => "ResourceQuotaConfiguration",
        };
        let served = SERVED.iter().filter(|(of, _)| *of == kind).map(|(_, version)| *version);
        let served: Vec<&str> = served.collect();
        let read: Configuration =
            versioned(kind, configuration.clone(), &served, Strictness::Refuse)?;
        let mut errors = Vec::new();
        let mut limited = Self::default();
        for (index, of) in read.limited_resources.into_iter().enumerate() {
            if of.resource.is_empty() {
                let at = Path::new("limitedResources").index(index).child("resource");
                errors.push(FieldError::required(&at, ""));
            }
            let resource = GroupResource::new(of.api_group, of.resource);
            limited.names.push((resource, of.match_contains));
            limited.scopes.extend(of.match_scopes.into_iter().map(|scope| ScopeTerm {
                name: scope.scope_name,
                operator: scope.operator,
                values: scope.values,
            }));
        }
        if errors.is_empty() { Ok(limited) } else { Err(ConfigurationError::Invalid(errors)) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Returns an error if an object that uses `usage` needs a quota and has none.
    pub(super) fn check_covered(
        &self,
        resource: &GroupResource,
        object: &Value,
        usage: &Amounts,
        quotas: &[Arc<Value>],
    ) -> Result<(), UncoveredUsage> {
        if self.is_empty() {
            return Ok(());
        }
        let used = usage.iter().filter(|(_, amount)| **amount > Quantity::ZERO);
        let mut missing: BTreeSet<&str> = used
            .map(|(name, _)| name.as_str())
            .filter(|name| {
                self.names.iter().any(|(of, parts)| {
                    of == resource && parts.iter().any(|part| name.contains(part.as_str()))
                })
            })
            .collect();
        for quota in quotas.iter().filter(|quota| in_scope(quota, resource, object)) {
            let hard = quota.at("status.hard");
            missing.retain(|name| hard.get(*name).is_none());
        }
        if !missing.is_empty() {
            let missing: Vec<&str> = missing.into_iter().collect();
            let cause = format!("insufficient quota to consume: {}", missing.join(","));
            return Err(UncoveredUsage::Resources(cause));
        }
        let covered: BTreeSet<&str> =
            quotas.iter().flat_map(|quota| scopes_of(quota, resource, object)).collect();
        let uncovered: Vec<String> = self
            .scopes
            .iter()
            .filter(|term| term.matches(resource, object) && !covered.contains(term.name.as_str()))
            .map(|term| format!("{{{} {} [{}]}}", term.name, term.operator, term.values.join(" ")))
            .collect();
        match uncovered.as_slice() {
            [] => Ok(()),
            terms => Err(UncoveredUsage::Scopes(format!(
                "insufficient quota to match these scopes: [{}]",
                terms.join(" ")
            ))),
        }
    }
}
