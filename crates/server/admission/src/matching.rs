//! Matches requests against the rules of webhooks and policies: operation, resource, scope, and the labels of objects
//! and namespaces.

use std::sync::Arc;

use api_meta::{
    GroupResource, GroupVersionKind, GroupVersionResource, LabelSelector, Selector, SelectorError,
    Status, Tree as _,
};
use serde::Deserialize as _;
use serde_json::Value;

use crate::request::{Operation, Request};

/// A resource in one of its served group versions, and its kind there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatchedResource {
    /// The resource.
    pub resource: GroupVersionResource,
    /// The kind of its objects.
    pub kind: GroupVersionKind,
}

impl MatchedResource {
    fn as_made(request: &Request<'_>) -> Self {
        Self { resource: request.resource.clone(), kind: request.kind.clone() }
    }
}

/// An entry of `rules`. It matches a request if each list contains the request's value or `*`.
#[derive(Clone, Debug)]
pub struct Rule {
    operations: Vec<String>,
    groups: Vec<String>,
    versions: Vec<String>,
    /// Resource and subresource; the latter is empty for the resource itself.
    resources: Vec<(String, String)>,
    scope: Scope,
    /// The object names that the rule matches; empty for all. Rules of webhooks have none.
    names: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    All,
    Cluster,
    Namespaced,
    /// A scope that no upstream release has.
    Unknown,
}

impl Rule {
    /// Reads the rules at a pointer into an object.
    pub fn all(object: &Value, pointer: &str) -> Vec<Self> {
        object.items(pointer).iter().map(Self::of).collect()
    }

    fn of(rule: &Value) -> Self {
        let list = |pointer| rule.texts(pointer);
        let texts = |pointer| list(pointer).map(str::to_owned).collect();
        let split = |resource: &str| {
            let (resource, sub) = resource.split_once('/').unwrap_or((resource, ""));
            (resource.to_owned(), sub.to_owned())
        };
        Self {
            operations: texts("operations"),
            groups: texts("apiGroups"),
            versions: texts("apiVersions"),
            resources: list("resources").map(split).collect(),
            scope: match rule.text("scope") {
                "" | "*" => Scope::All,
                "Cluster" => Scope::Cluster,
                "Namespaced" => Scope::Namespaced,
                _ => Scope::Unknown,
            },
            names: texts("resourceNames"),
        }
    }

    /// Reports whether the rule would match the request if it were made for `resource`.
    pub fn matches(&self, request: &Request<'_>, resource: &GroupVersionResource) -> bool {
        let subresource = request.subresource;
        self.in_scope(request, resource)
            && has(&self.operations, request.operation.name())
            && has(&self.groups, &resource.group)
            && has(&self.versions, &resource.version)
            && self.resources.iter().any(|(name, sub)| {
                (name == "*" || *name == *resource.resource) && (sub == "*" || sub == subresource)
            })
            && (self.names.is_empty() || self.names.iter().any(|name| name == request.name))
    }

    fn in_scope(&self, request: &Request<'_>, resource: &GroupVersionResource) -> bool {
        // A request for a Namespace also has the Namespace's name as its namespace.
        let is_namespace = resource.group.is_empty() && resource.resource == "namespaces";
        let in_namespace = !is_namespace && !request.namespace.is_empty();
        match self.scope {
            Scope::All => true,
            Scope::Cluster => !in_namespace,
            Scope::Namespaced => in_namespace,
            Scope::Unknown => false,
        }
    }
}

fn has(list: &[String], wanted: &str) -> bool {
    list.iter().any(|item| item == "*" || item == wanted)
}

/// Returns the resource for which one of `rules` matches the request. The request's own resource takes precedence over
/// the `equivalents`.
pub(crate) fn first_match(
    rules: &[Rule],
    request: &Request<'_>,
    equivalents: impl FnOnce() -> Vec<MatchedResource>,
) -> Option<MatchedResource> {
    if rules.iter().any(|rule| rule.matches(request, request.resource)) {
        return Some(MatchedResource::as_made(request));
    }
    // Operation and scope are the same for all equivalents, and most requests match neither.
    let may = |rule: &&Rule| {
        rule.in_scope(request, request.resource) && has(&rule.operations, request.operation.name())
    };
    let candidates: Vec<&Rule> = rules.iter().filter(may).collect();
    if candidates.is_empty() {
        return None;
    }
    let equivalents = equivalents();
    let of_rule = |rule: &&Rule| {
        let mut found = equivalents.iter().filter(|e| e.resource != *request.resource);
        found.find(|e| rule.matches(request, &e.resource)).cloned()
    };
    candidates.iter().find_map(of_rule)
}

/// MatchResources: the requests that a policy or its binding applies to.
#[derive(Clone, Debug)]
pub struct MatchResources {
    rules: Vec<Rule>,
    excluded: Vec<Rule>,
    selectors: Selectors,
    /// `matchPolicy: Equivalent`: rules also match the other versions and groups of a resource.
    equivalent: bool,
}

impl MatchResources {
    /// Reads `matchConstraints` or `matchResources`.
    pub fn of(object: &Value) -> Self {
        Self {
            rules: Rule::all(object, "resourceRules"),
            excluded: Rule::all(object, "excludeResourceRules"),
            selectors: Selectors::of(object),
            equivalent: object.text("matchPolicy") == "Equivalent",
        }
    }

    /// Returns the resource as which the request matches, or `None`. Without rules every request matches.
    pub fn find(
        &self,
        request: &Request<'_>,
        object: &Value,
        equivalents: &dyn Fn() -> Vec<MatchedResource>,
    ) -> Result<Option<MatchedResource>, Status> {
        let others = || if self.equivalent { equivalents() } else { Vec::new() };
        let found = if self.rules.is_empty() {
            Some(MatchedResource::as_made(request))
        } else {
            first_match(&self.rules, request, others)
        };
        let Some(shown) = found else { return Ok(None) };
        if !self.excluded.is_empty() && first_match(&self.excluded, request, others).is_some() {
            return Ok(None);
        }
        Ok(self.selectors.match_request(request, object)?.then_some(shown))
    }
}

/// The `namespaceSelector` and `objectSelector` of a webhook or policy.
#[derive(Clone, Debug)]
pub struct Selectors {
    namespace: Result<Selector, LabelSelectorError>,
    object: Result<Selector, LabelSelectorError>,
}

impl Selectors {
    /// Reads both selectors of an object.
    pub fn of(object: &Value) -> Self {
        Self {
            namespace: label_selector(&object["namespaceSelector"]),
            object: label_selector(&object["objectSelector"]),
        }
    }

    /// Reports whether both selectors match. A selector that does not match wins over an error of the other.
    pub(crate) fn match_request(
        &self,
        request: &Request<'_>,
        object: &Value,
    ) -> Result<bool, Status> {
        let (namespace, own) =
            (self.in_namespace(request, object), self.on_object(request, object));
        if matches!(namespace, Ok(false)) || matches!(own, Ok(false)) {
            return Ok(false);
        }
        Ok(namespace? && own?)
    }

    fn in_namespace(&self, request: &Request<'_>, object: &Value) -> Result<bool, Status> {
        let is_namespace = request.resource.resource == "namespaces";
        // Cluster-scoped objects match every namespace selector.
        if request.namespace.is_empty() && !is_namespace {
            return Ok(true);
        }
        let selector = self.namespace.as_ref().map_err(Status::internal)?;
        if selector.is_everything() {
            return Ok(true);
        }
        let written = matches!(request.operation, Operation::Create | Operation::Update);
        if is_namespace && request.subresource.is_empty() && written {
            return Ok(selects(selector, object));
        }
        let namespace = request.objects.get(&GroupResource::NAMESPACES, "", request.namespace);
        let namespace = namespace
            .ok_or_else(|| Status::not_found(&GroupResource::NAMESPACES, request.namespace))?;
        Ok(selects(selector, &namespace))
    }

    /// Checks the new and the old object, so that removing a label does not bypass a webhook.
    fn on_object(&self, request: &Request<'_>, object: &Value) -> Result<bool, Status> {
        let selector = self.object.as_ref().map_err(Status::internal)?;
        if selector.is_everything() {
            return Ok(true);
        }
        // The options of a connection have no labels, so no object selector matches them.
        let labelled = |object: &&Value| object.is_object();
        let new = Some(object).filter(|_| request.operation != Operation::Connect);
        let both = [new, request.old];
        Ok(both.into_iter().flatten().filter(labelled).any(|object| selects(selector, object)))
    }
}

fn selects(selector: &Selector, object: &Value) -> bool {
    selector.matches_json(object.at("metadata.labels").as_object())
}

/// The reason why a LabelSelector is invalid.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LabelSelectorError {
    #[error(transparent)]
    Decode(Arc<serde_json::Error>),
    #[error(transparent)]
    Selector(#[from] SelectorError),
}

/// Parses a LabelSelector. A missing one selects nothing, an empty one everything.
pub(crate) fn label_selector(selector: &Value) -> Result<Selector, LabelSelectorError> {
    let selector = Option::<LabelSelector>::deserialize(selector);
    let selector = selector.map_err(|error| LabelSelectorError::Decode(Arc::new(error)))?;
    Ok(LabelSelector::selector_of(selector.as_ref())?)
}

#[cfg(test)]
mod tests;
