//! The rules of roles: the requests that they allow, and the coverage of one rule by others.

use std::collections::BTreeMap;

use api_meta::{Attributes, go_quote, null_default};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A rule of a Role or ClusterRole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyRule {
    /// The API groups, or `*`.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "null_default")]
    pub api_groups: Vec<String>,
    /// The URL paths, or `*` for all. A trailing `*` matches a prefix.
    #[serde(
        rename = "nonResourceURLs",
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "null_default"
    )]
    pub non_resource_urls: Vec<String>,
    /// The object names; empty for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "null_default")]
    pub resource_names: Vec<String>,
    /// The resources, optionally with `/SUBRESOURCE`, or `*`.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "null_default")]
    pub resources: Vec<String>,
    /// The verbs, or `*`.
    #[serde(default, deserialize_with = "null_default")]
    pub verbs: Vec<String>,
}

const ALL: &str = "*";

fn has(list: &[String], value: &str) -> bool {
    list.iter().any(|v| v == ALL || v == value)
}

fn covers_all(owner: &[String], wanted: &[String]) -> bool {
    owner.iter().any(|o| o == ALL) || wanted.iter().all(|w| owner.contains(w))
}

impl PolicyRule {
    /// Reads the `rules` of a role, which may be absent.
    pub(crate) fn list(rules: &Value) -> Result<Vec<Self>, serde_json::Error> {
        Option::deserialize(rules).map(Option::unwrap_or_default)
    }

    /// Returns the rules of a cluster administrator: everything.
    pub(crate) fn full_authority() -> [Self; 2] {
        let all = || vec![ALL.to_owned()];
        [
            Self { verbs: all(), api_groups: all(), resources: all(), ..Self::default() },
            Self { verbs: all(), non_resource_urls: all(), ..Self::default() },
        ]
    }

    /// Reports whether the rule allows the request.
    pub fn allows(&self, request: &Attributes<'_>) -> bool {
        if !has(&self.verbs, request.verb) {
            return false;
        }
        if !request.is_resource {
            return self.non_resource_urls.iter().any(|rule| url_matches(rule, request.path));
        }
        has(&self.api_groups, request.group)
            && self
                .resources
                .iter()
                .any(|rule| resource_matches(rule, request.resource, request.subresource))
            && (self.resource_names.is_empty()
                || self.resource_names.iter().any(|n| n == request.name))
    }

    /// Reports whether this rule includes every permission of `other`, which has single permissions.
    fn covers(&self, other: &Self) -> bool {
        covers_all(&self.verbs, &other.verbs)
            && covers_all(&self.api_groups, &other.api_groups)
            && other.resources.iter().all(|r| {
                let (resource, subresource) = r.split_once('/').unwrap_or((r, ""));
                self.resources.iter().any(|rule| resource_matches(rule, resource, subresource))
            })
            && other
                .non_resource_urls
                .iter()
                .all(|u| self.non_resource_urls.iter().any(|rule| url_matches(rule, u)))
            && (self.resource_names.is_empty()
                || !other.resource_names.is_empty()
                    && other.resource_names.iter().all(|n| self.resource_names.contains(n)))
    }

    /// Splits the rule into single permissions.
    fn break_down(&self) -> Vec<Self> {
        let mut single = Vec::new();
        for verb in &self.verbs {
            let verbs = vec![verb.clone()];
            for group in &self.api_groups {
                for resource in &self.resources {
                    let rule = Self {
                        api_groups: vec![group.clone()],
                        resources: vec![resource.clone()],
                        verbs: verbs.clone(),
                        ..Self::default()
                    };
                    if self.resource_names.is_empty() {
                        single.push(rule.clone());
                    }
                    for name in &self.resource_names {
                        single.push(Self { resource_names: vec![name.clone()], ..rule.clone() });
                    }
                }
            }
            for url in &self.non_resource_urls {
                single.push(Self {
                    non_resource_urls: vec![url.clone()],
                    verbs: verbs.clone(),
                    ..Self::default()
                });
            }
        }
        single
    }

    /// Formats the rule in one line for escalation errors.
    pub fn compact(&self) -> String {
        let parts = [
            ("APIGroups", &self.api_groups),
            ("Resources", &self.resources),
            ("NonResourceURLs", &self.non_resource_urls),
            ("ResourceNames", &self.resource_names),
            ("Verbs", &self.verbs),
        ];
        let shown: Vec<String> = parts
            .iter()
            .filter(|(_, list)| !list.is_empty())
            .map(|(name, list)| format!("{name}:{}", quoted_list(list)))
            .collect();
        format!("{{{}}}", shown.join(", "))
    }
}

/// Formats a list as Go's `%q`.
pub(crate) fn quoted_list(list: &[String]) -> String {
    format!("[{}]", list.iter().map(|s| go_quote(s)).collect::<Vec<_>>().join(" "))
}

fn url_matches(rule: &str, path: &str) -> bool {
    rule == ALL
        || rule == path
        || rule.ends_with('*') && path.starts_with(rule.trim_end_matches('*'))
}

fn resource_matches(rule: &str, resource: &str, subresource: &str) -> bool {
    if rule == ALL {
        return true;
    }
    match rule.split_once('/') {
        None => subresource.is_empty() && rule == resource,
        Some((r, s)) => !subresource.is_empty() && s == subresource && (r == ALL || r == resource),
    }
}

/// Returns the permissions of `wanted` that `held` does not include. An empty result permits the grant.
pub fn uncovered(held: &[PolicyRule], wanted: &[PolicyRule]) -> Vec<PolicyRule> {
    let missing = wanted
        .iter()
        .flat_map(PolicyRule::break_down)
        .filter(|single| !held.iter().any(|rule| rule.covers(single)))
        .collect();
    compacted(missing)
}

/// Merges the verbs of rules that are otherwise equal, and sorts the rules.
fn compacted(rules: Vec<PolicyRule>) -> Vec<PolicyRule> {
    let mut by_object: BTreeMap<PolicyRule, Vec<String>> = BTreeMap::new();
    for rule in rules {
        let PolicyRule { verbs, .. } = rule.clone();
        let known = by_object.entry(PolicyRule { verbs: Vec::new(), ..rule }).or_default();
        for verb in verbs {
            if !known.contains(&verb) {
                known.push(verb);
            }
        }
    }
    by_object.into_iter().map(|(rule, verbs)| PolicyRule { verbs, ..rule }).collect()
}

#[cfg(test)]
mod tests {
    use api_meta::UserInfo;
    use proptest::{prelude::*, sample::subsequence};

    use super::*;

    fn rule(verbs: &[&str], groups: &[&str], resources: &[&str], names: &[&str]) -> PolicyRule {
        let own = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect();
        PolicyRule {
            api_groups: own(groups),
            non_resource_urls: vec![],
            resource_names: own(names),
            resources: own(resources),
            verbs: own(verbs),
        }
    }

    #[test]
    fn matches_like_upstream() {
        let user = UserInfo::default();
        let cases = [
            (rule(&["get"], &[""], &["pods"], &[]), "get", "", "pods", "", "x", true),
            (rule(&["get"], &[""], &["pods"], &[]), "get", "", "pods", "log", "x", false),
            (rule(&["get"], &[""], &["pods/log"], &[]), "get", "", "pods", "log", "x", true),
            (rule(&["get"], &[""], &["*/log"], &[]), "get", "", "pods", "log", "x", true),
            (rule(&["get"], &[""], &["*/log"], &[]), "get", "", "pods", "", "x", false),
            (rule(&["get"], &[""], &["*"], &[]), "get", "", "pods", "log", "x", true),
            (rule(&["get"], &["apps"], &["pods"], &[]), "get", "", "pods", "", "x", false),
            (rule(&["*"], &["*"], &["*"], &[]), "delete", "apps", "x", "", "", true),
            (rule(&["get"], &[""], &["pods"], &["a", "b"]), "get", "", "pods", "", "b", true),
            (rule(&["list"], &[""], &["pods"], &["a", "b"]), "list", "", "pods", "", "", false),
        ];
        for (rule, verb, group, resource, subresource, name, want) in cases {
            let request = Attributes::resource(&user, verb, group, resource)
                .with_subresource(subresource)
                .named(name);
            assert_eq!(rule.allows(&request), want, "{} on {request}", rule.compact());
        }
    }

    #[test]
    fn matches_urls() {
        let user = UserInfo::default();
        let cases = [
            ("/healthz", "/healthz", true),
            ("/healthz", "/healthz/etcd", false),
            ("/api/*", "/api/v1", true),
            ("/api/*", "/api", false),
            ("*", "/x", true),
        ];
        for (url, path, want) in cases {
            let rule = PolicyRule {
                non_resource_urls: vec![url.into()],
                verbs: vec!["get".into()],
                ..PolicyRule::default()
            };
            assert_eq!(rule.allows(&Attributes::path(&user, "get", path)), want, "{url} on {path}");
        }
    }

    #[test]
    fn returns_missing_permissions() {
        let held = [rule(&["get", "list"], &[""], &["pods", "*/status"], &[])];
        let wanted = [
            rule(&["get", "delete", "patch"], &[""], &["pods"], &[]),
            rule(&["get"], &[""], &["pods/status"], &["a"]),
            rule(&["get"], &["apps"], &["deployments"], &[]),
        ];
        let missing: Vec<String> =
            uncovered(&held, &wanted).iter().map(PolicyRule::compact).collect();
        assert_eq!(
            missing,
            [
                r#"{APIGroups:[""], Resources:["pods"], Verbs:["delete" "patch"]}"#,
                r#"{APIGroups:["apps"], Resources:["deployments"], Verbs:["get"]}"#
            ]
        );
    }

    fn some(of: &'static [&'static str]) -> impl Strategy<Value = Vec<String>> {
        subsequence(of.to_vec(), 0..=of.len())
            .prop_map(|l| l.into_iter().map(str::to_owned).collect())
    }

    fn any_rule() -> impl Strategy<Value = PolicyRule> {
        let names = prop_oneof![3 => Just(vec![]), 1 => some(&["a", "b"])];
        (
            some(&["get", "list", "*"]),
            some(&["", "apps", "*"]),
            some(&["pods", "pods/log", "*/log", "*"]),
            names,
        )
            .prop_map(|(verbs, api_groups, resources, resource_names)| PolicyRule {
                verbs,
                api_groups,
                resources,
                resource_names,
                ..PolicyRule::default()
            })
    }

    proptest! {
        /// A covered rule allows nothing beyond the covering rules.
        #[test]
        fn covering_is_sound(held in prop::collection::vec(any_rule(), 0..4), wanted in any_rule()) {
            prop_assume!(uncovered(&held, std::slice::from_ref(&wanted)).is_empty());
            let user = UserInfo::default();
            for verb in ["get", "list", "other"] {
                for group in ["", "apps", "other"] {
                    for (resource, sub) in [("pods", ""), ("pods", "log"), ("other", "log"), ("other", "")] {
                        for name in ["", "a", "b", "c"] {
                            let request = Attributes::resource(&user, verb, group, resource).with_subresource(sub).named(name);
                            if wanted.allows(&request) {
                                prop_assert!(held.iter().any(|r| r.allows(&request)), "{}", request);
                            }
                        }
                    }
                }
            }
        }
    }
}
