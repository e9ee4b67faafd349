//! Which requests a rule of somebody else's is about: by operation, resource and scope, and by the labels of objects and
//! their namespaces. Webhooks and policies are matched alike.

use api_meta::{
    GroupResource, GroupVersionKind, GroupVersionResource, LabelSelector, Selector, Status,
    Tree as _,
};
use serde::Deserialize as _;
use serde_json::Value;

use crate::{Operation, Request};

/// A resource under one of the names that it is served by, and the kind that it shows there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    pub resource: GroupVersionResource,
    pub kind: GroupVersionKind,
}

impl Shown {
    fn as_made(request: &Request<'_>) -> Self {
        Self { resource: request.resource.clone(), kind: request.kind.clone() }
    }
}

/// One of `rules`: a request matches if each list has what it is, or `*`.
#[derive(Clone, Debug)]
pub struct Rule {
    operations: Vec<String>,
    groups: Vec<String>,
    versions: Vec<String>,
    /// Resource and subresource; the latter is empty for the resource itself.
    resources: Vec<(String, String)>,
    scope: Scope,
    /// The objects that it is about; all, where it names none. Webhooks' rules never do.
    names: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    All,
    Cluster,
    Namespaced,
    /// What no release of upstream's has.
    Unknown,
}

impl Rule {
    /// The rules at a pointer into an object.
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

    /// Whether the request is one of these, were it made for this resource.
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
        // A request about a Namespace names it as its namespace too.
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

/// The first of `rules` that the request matches as it was made, otherwise as one of the `equivalents` would have been
/// made: what of it is then shown.
pub(crate) fn first_match(
    rules: &[Rule],
    request: &Request<'_>,
    equivalents: impl FnOnce() -> Vec<Shown>,
) -> Option<Shown> {
    if rules.iter().any(|rule| rule.matches(request, request.resource)) {
        return Some(Shown::as_made(request));
    }
    // Operation and scope do not change with the resource's name, and most requests match neither.
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

/// MatchResources: what a policy or its binding is about.
#[derive(Clone, Debug)]
pub struct MatchResources {
    rules: Vec<Rule>,
    excluded: Vec<Rule>,
    selectors: Selectors,
    /// `matchPolicy: Equivalent`: rules are also about what they name otherwise.
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

    /// As what they are about a request, if they are. Without rules they are about all.
    pub fn find(
        &self,
        request: &Request<'_>,
        object: &Value,
        equivalents: &dyn Fn() -> Vec<Shown>,
    ) -> Result<Option<Shown>, Status> {
        let others = || if self.equivalent { equivalents() } else { Vec::new() };
        let found = match self.rules.is_empty() {
            true => Some(Shown::as_made(request)),
            false => first_match(&self.rules, request, others),
        };
        let Some(shown) = found else { return Ok(None) };
        if !self.excluded.is_empty() && first_match(&self.excluded, request, others).is_some() {
            return Ok(None);
        }
        Ok(self.selectors.match_request(request, object)?.then_some(shown))
    }
}

/// `namespaceSelector` and `objectSelector`.
#[derive(Clone, Debug)]
pub struct Selectors {
    namespace: Result<Selector, String>,
    object: Result<Selector, String>,
}

impl Selectors {
    /// Those of an object that has both.
    pub fn of(object: &Value) -> Self {
        Self {
            namespace: label_selector(&object["namespaceSelector"]),
            object: label_selector(&object["objectSelector"]),
        }
    }

    /// Whether both match. An error of one is none where the other does not match.
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
        // Nothing exempts what is in no namespace.
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

    /// Looks at the object and at what it was before, so that nobody gets around a webhook by taking a label away.
    fn on_object(&self, request: &Request<'_>, object: &Value) -> Result<bool, Status> {
        let selector = self.object.as_ref().map_err(Status::internal)?;
        if selector.is_everything() {
            return Ok(true);
        }
        // The options of a connection have no labels, not even none.
        let labelled = |object: &&Value| object.is_object();
        let new = Some(object).filter(|_| request.operation != Operation::Connect);
        let both = [new, request.old];
        Ok(both.into_iter().flatten().filter(labelled).any(|object| selects(selector, object)))
    }
}

fn selects(selector: &Selector, object: &Value) -> bool {
    selector.matches_json(object["metadata"]["labels"].as_object())
}

/// A LabelSelector of an object; none selects nothing, an empty one everything.
fn label_selector(selector: &Value) -> Result<Selector, String> {
    let read = Option::<LabelSelector>::deserialize(selector).map_err(|e| e.to_string())?;
    LabelSelector::selector_of(read.as_ref()).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests;
