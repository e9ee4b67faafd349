//! `Policy` (audit.k8s.io/v1): parsing, validation and matching of rules.

use std::path::{Path as File, PathBuf};

use api_meta::{Attributes, ErrorList, FieldError, Path, validation};
use serde::Deserialize;
use serde_json::Value;

use crate::event::{Level, Stage, without_managed_fields};

/// The error for an invalid policy, in upstream's words.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    #[error("loading audit policy file: failed to read file path {path:?}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("loading audit policy file: failed decoding: {detail}: from file {}", path.display())]
    Decode { path: PathBuf, detail: String },
    #[error(
        "loading audit policy file: unknown group version field {found} in policy: from file {}",
        path.display()
    )]
    Kind { path: PathBuf, found: String },
    #[error("loading audit policy file: {told}: from file {}", path.display())]
    Invalid { path: PathBuf, told: String },
    #[error(
        "loading audit policy file: loaded illegal policy with 0 rules: from file {}",
        path.display()
    )]
    Empty { path: PathBuf },
}

/// An audit policy: ordered rules. The first match decides.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Policy {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    #[serde(rename = "metadata")]
    _metadata: Value,
    rules: Vec<Rule>,
    omit_stages: Vec<String>,
    omit_managed_fields: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Rule {
    level: String,
    users: Vec<String>,
    user_groups: Vec<String>,
    verbs: Vec<String>,
    resources: Vec<GroupResources>,
    namespaces: Vec<String>,
    #[serde(rename = "nonResourceURLs")]
    non_resource_urls: Vec<String>,
    omit_stages: Vec<String>,
    omit_managed_fields: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct GroupResources {
    group: String,
    resources: Vec<String>,
    resource_names: Vec<String>,
}

/// The audit settings of one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// The audit level.
    pub level: Level,
    /// The stages without events.
    pub omit_stages: Vec<Stage>,
    /// `true` if `managedFields` are removed from recorded objects.
    pub omit_managed_fields: bool,
}

impl Config {
    /// Returns an object as it is recorded.
    pub fn shown(&self, mut object: Value) -> Value {
        if self.omit_managed_fields {
            without_managed_fields(&mut object);
        }
        object
    }
}

impl Policy {
    /// Loads a policy file. A policy without rules is an error.
    pub fn load(path: &File) -> Result<Self, PolicyError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| PolicyError::Read { path: path.to_owned(), source })?;
        Self::parse(path, &text)
    }

    /// Parses a policy. As upstream, unknown fields cause a warning only. `path` is for messages.
    pub fn parse(path: &File, text: &str) -> Result<Self, PolicyError> {
        let path = path.to_owned();
        let tree = match api_config::yaml::parse(text) {
            Ok(tree) => tree,
            Err(error) => return Err(PolicyError::Decode { path, detail: error.to_string() }),
        };
        let (version, kind) = api_config::gvk(&tree);
        if (version, kind) != ("audit.k8s.io/v1", "Policy") {
            let found = format!("{version}, Kind={kind}");
            return Err(PolicyError::Kind { path, found });
        }
        let decoded = match api_config::decode::<Self>("Policy", tree) {
            Ok(decoded) => decoded,
            Err(error) => return Err(PolicyError::Decode { path, detail: error.to_string() }),
        };
        if let Some(warning) = decoded.warning() {
            tracing::warn!(%warning, "Audit policy contains errors, falling back to lenient decoding");
        }
        let errors = decoded.value.errors();
        if !errors.is_empty() {
            return Err(PolicyError::Invalid { path, told: api_meta::field::aggregate(&errors) });
        }
        if decoded.value.rules.is_empty() {
            return Err(PolicyError::Empty { path });
        }
        Ok(decoded.value)
    }

    fn errors(&self) -> ErrorList {
        let mut errors = ErrorList::new();
        validate_stages(&self.omit_stages, &Path::new("omitStages"), &mut errors);
        for (i, rule) in self.rules.iter().enumerate() {
            rule.validate(&Path::new("rules").index(i), &mut errors);
        }
        errors
    }

    /// Returns the settings of the first matching rule. Without a match, the request is not audited.
    pub fn evaluate(&self, request: &Attributes<'_>) -> Config {
        match self.rules.iter().find(|rule| rule.fits(request)) {
            Some(rule) => Config {
                level: level(&rule.level).unwrap_or_default(),
                omit_stages: stages(&rule.omit_stages, &self.omit_stages),
                omit_managed_fields: rule.omit_managed_fields.unwrap_or(self.omit_managed_fields),
            },
            None => Config::default(),
        }
    }
}

const LEVELS: [&str; 4] = ["None", "Metadata", "Request", "RequestResponse"];

fn level(name: &str) -> Option<Level> {
    [Level::None, Level::Metadata, Level::Request, Level::RequestResponse]
        .into_iter()
        .zip(LEVELS)
        .find_map(|(level, known)| (known == name).then_some(level))
}

/// Returns the union of a rule's and the policy's stages.
fn stages(rule: &[String], policy: &[String]) -> Vec<Stage> {
    [Stage::RequestReceived, Stage::ResponseStarted, Stage::ResponseComplete, Stage::Panic]
        .into_iter()
        .filter(|stage| rule.iter().chain(policy).any(|named| named == stage.as_str()))
        .collect()
}

fn validate_stages(stages: &[String], path: &Path, errors: &mut ErrorList) {
    for (i, stage) in stages.iter().enumerate() {
        if !Stage::ALL.contains(&stage.as_str()) {
            let detail = format!("allowed stages are {}", Stage::ALL.join(","));
            errors.push(FieldError::invalid(&path.index(i), &**stage, detail));
        }
    }
}

impl Rule {
    fn validate(&self, path: &Path, errors: &mut ErrorList) {
        let at = path.child("level");
        match self.level.as_str() {
            "" => errors.push(FieldError::required(&at, "")),
            other if level(other).is_none() => {
                errors.push(FieldError::not_supported(&at, other, &LEVELS));
            }
            _ => {}
        }
        let urls = path.child("nonResourceURLs");
        for (i, url) in self.non_resource_urls.iter().enumerate().filter(|(_, url)| *url != "*") {
            let mut invalid = |detail: &str| {
                errors.push(FieldError::invalid(&urls.index(i), &**url, detail));
            };
            if !url.starts_with('/') {
                invalid("non-resource URL rules must begin with a '/' character");
            }
            if url.find('*').is_some_and(|star| star + 1 < url.len()) {
                invalid("non-resource URL wildcards '*' must be the final character of the rule");
            }
        }
        let resources = path.child("resources");
        for named in &self.resources {
            let problems = match named.group.as_str() {
                "" | "*" => Vec::new(),
                group => validation::dns1123_subdomain(group),
            };
            if !problems.is_empty() {
                let (group, told) = (resources.child("group"), problems.join(","));
                errors.push(FieldError::invalid(&group, &*named.group, told));
            }
            if !named.resource_names.is_empty() && named.resources.is_empty() {
                let (at, names) = (resources.child("resourceNames"), &*named.resource_names);
                let detail = "using resourceNames requires at least one resource";
                errors.push(FieldError::invalid(&at, names, detail));
            }
        }
        validate_stages(&self.omit_stages, &path.child("omitStages"), errors);
        let both = !self.resources.is_empty() || !self.namespaces.is_empty();
        if both && !self.non_resource_urls.is_empty() {
            let detail = "rules cannot apply to both regular resources and non-resource URLs";
            errors.push(FieldError::invalid(&urls, &*self.non_resource_urls, detail));
        }
    }

    fn fits(&self, request: &Attributes<'_>) -> bool {
        let any = |list: &[String], value: &str| list.is_empty() || list.iter().any(|v| v == value);
        let groups = &request.user.groups;
        let grouped = self.user_groups.is_empty()
            || groups.iter().any(|group| self.user_groups.contains(group));
        if !any(&self.users, &request.user.name) || !grouped || !any(&self.verbs, request.verb) {
            return false;
        }
        if !self.namespaces.is_empty() || !self.resources.is_empty() {
            return request.is_resource
                && any(&self.namespaces, request.namespace)
                && (self.resources.is_empty() || self.resources.iter().any(|r| r.fits(request)));
        }
        self.non_resource_urls.is_empty()
            || !request.is_resource
                && self.non_resource_urls.iter().any(|url| path_fits(request.path, url))
    }
}

fn path_fits(path: &str, url: &str) -> bool {
    url == path || url.strip_suffix('*').is_some_and(|prefix| path.starts_with(prefix))
}

impl GroupResources {
    fn fits(&self, request: &Attributes<'_>) -> bool {
        if self.group != request.group && self.group != "*" {
            return false;
        }
        if self.resources.is_empty() {
            return true;
        }
        let named = self.resource_names.is_empty()
            || self.resource_names.iter().any(|name| name == request.name);
        named && self.resources.iter().any(|resource| resource_fits(resource, request))
    }
}

/// Matches `pods`, `pods/log`, `pods/*`, `*/log` and `*`. A resource name does not match its subresources.
fn resource_fits(rule: &str, request: &Attributes<'_>) -> bool {
    match rule.split_once('/') {
        None => rule == "*" || rule == request.resource && request.subresource.is_empty(),
        // As upstream, `pods/*` matches the Pods themselves, too.
        Some((resource, "*")) => resource == request.resource,
        Some(("*", subresource)) => {
            !request.subresource.is_empty() && subresource == request.subresource
        }
        Some((resource, subresource)) => {
            resource == request.resource && subresource == request.subresource
        }
    }
}
