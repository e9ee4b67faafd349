//! FlowSchemas and their matching of requests.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use api_meta::{Attributes, Tree as _, UserInfo, null_default};
use serde::Deserialize;
use serde_json::Value;

/// A compiled FlowSchema.
#[derive(Clone, Debug)]
pub(crate) struct Schema {
    pub(crate) name: Arc<str>,
    pub(crate) uid: Arc<str>,
    pub(crate) level: Arc<str>,
    pub(crate) precedence: i64,
    distinguisher: Distinguisher,
    rules: Vec<Rule>,
}

#[derive(Clone, Copy, Debug)]
enum Distinguisher {
    None,
    User,
    Namespace,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Rule {
    #[serde(default, deserialize_with = "null_default")]
    subjects: Vec<Subject>,
    #[serde(default, deserialize_with = "null_default")]
    resource_rules: Vec<ResourceRule>,
    #[serde(default, deserialize_with = "null_default")]
    non_resource_rules: Vec<PathRule>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Subject {
    user: Option<SubjectName>,
    group: Option<SubjectName>,
    service_account: Option<Account>,
}

#[derive(Clone, Debug, Deserialize)]
struct SubjectName {
    name: String,
}

#[derive(Clone, Debug, Deserialize)]
struct Account {
    namespace: String,
    name: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ResourceRule {
    verbs: Vec<String>,
    api_groups: Vec<String>,
    resources: Vec<String>,
    #[serde(default)]
    cluster_scope: bool,
    /// Empty for rules of cluster scope only, for which Go writes `null`.
    #[serde(default, deserialize_with = "null_default")]
    namespaces: Vec<String>,
}

#[derive(Clone, Debug, Deserialize)]
struct PathRule {
    verbs: Vec<String>,
    #[serde(rename = "nonResourceURLs")]
    urls: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    priority_level_configuration: SubjectName,
    #[serde(default = "usual_precedence")]
    matching_precedence: i64,
    distinguisher_method: Option<Method>,
    #[serde(default)]
    rules: Vec<Rule>,
}

#[derive(Deserialize)]
struct Method {
    r#type: String,
}

fn usual_precedence() -> i64 {
    1000
}

fn has(list: &[String], value: &str) -> bool {
    list.iter().any(|v| v == "*" || v == value)
}

impl Schema {
    pub(crate) fn read(object: &Value) -> Result<Self, serde_json::Error> {
        let spec = Spec::deserialize(&object["spec"])?;
        let distinguisher = match spec.distinguisher_method.as_ref().map(|m| m.r#type.as_str()) {
            Some("ByUser") => Distinguisher::User,
            Some("ByNamespace") => Distinguisher::Namespace,
            _ => Distinguisher::None,
        };
        Ok(Self {
            name: object.name().into(),
            uid: object.uid().into(),
            level: spec.priority_level_configuration.name.into(),
            precedence: spec.matching_precedence,
            distinguisher,
            rules: spec.rules,
        })
    }

    pub(crate) fn matches(&self, request: &Attributes<'_>) -> bool {
        self.rules.iter().any(|rule| {
            let concerns = if request.is_resource {
                rule.resource_rules.iter().any(|r| r.matches(request))
            } else {
                rule.non_resource_rules.iter().any(|r| r.matches(request))
            };
            concerns && rule.subjects.iter().any(|subject| subject.is(request.user))
        })
    }

    /// Returns the number of a request's flow within this schema. It is stable within the process.
    pub(crate) fn flow(&self, request: &Attributes<'_>) -> u64 {
        let mut hasher = DefaultHasher::new();
        let within = match self.distinguisher {
            Distinguisher::None => "",
            Distinguisher::User => &request.user.name,
            Distinguisher::Namespace => request.namespace,
        };
        (&self.name, within).hash(&mut hasher);
        hasher.finish()
    }
}

impl Subject {
    fn is(&self, user: &UserInfo) -> bool {
        let named = |wanted: &str, name: &str| wanted == "*" || wanted == name;
        self.user.as_ref().is_some_and(|u| named(&u.name, &user.name))
            || self.group.as_ref().is_some_and(|g| g.name == "*" || user.in_group(&g.name))
            || self.service_account.as_ref().is_some_and(|account| {
                user.as_service_account().is_some_and(|(namespace, name)| {
                    account.namespace == namespace && named(&account.name, name)
                })
            })
    }
}

impl ResourceRule {
    fn matches(&self, request: &Attributes<'_>) -> bool {
        let in_scope = match request.namespace {
            "" => self.cluster_scope,
            namespace => has(&self.namespaces, namespace),
        };
        let named = |rule: &String| match rule.split_once('/') {
            Some((resource, sub)) => resource == request.resource && sub == request.subresource,
            None => rule == "*" || request.subresource.is_empty() && rule == request.resource,
        };
        in_scope
            && has(&self.verbs, request.verb)
            && has(&self.api_groups, request.group)
            && self.resources.iter().any(named)
    }
}

impl PathRule {
    fn matches(&self, request: &Attributes<'_>) -> bool {
        let named = |url: &String| match url.strip_suffix('*') {
            Some(prefix) => request.path.starts_with(prefix),
            None => url == request.path,
        };
        has(&self.verbs, request.verb) && self.urls.iter().any(named)
    }
}
