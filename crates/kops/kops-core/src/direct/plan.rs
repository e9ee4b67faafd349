//! The difference between a model and the existing resources.

use std::collections::BTreeSet;

use super::{existing::ExistingResources, order::rank};
use crate::{
    aws::{
        Body, Call, ExistingResource, Fields, Identity, Ids, Kind, Ref, Resource, Tags,
        fields::{TAG, put_tags},
        load_balancer::alias_of,
        operations::{Limit, Update},
    },
    error::Error,
    model::aws::Model,
};

/// The longest values shown; longer ones are shown as changed only.
const LONGEST: usize = 60;

/// A change of one resource.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// `create`, `modify` or `delete`.
    pub verb: &'static str,
    /// The resource's kind.
    pub kind: Kind,
    /// The resource's name.
    pub name: String,
    /// The fields to show, with their values or differences.
    pub details: Vec<(String, String)>,
    /// The differing fields; empty for creations and deletions.
    pub fields: Vec<String>,
    /// The calls of a deletion; empty for other changes.
    pub calls: Vec<Call>,
}

/// The ordered changes that turn the existing resources into a model.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The changes, in order.
    pub changes: Vec<Change>,
    /// The IDs of the existing resources.
    pub ids: Ids,
    /// The outdated machines by ID, with the difference from their group.
    pub outdated: Vec<(String, String)>,
}

/// The kinds that are deleted when the model no longer has them. Other kinds may hold data.
const PRUNED: [Kind; 6] = [
    Kind::ScalingGroup,
    Kind::LifecycleHook,
    Kind::LaunchTemplate,
    Kind::RolePolicy,
    Kind::RolePolicyAttachment,
    Kind::SecurityGroupRule,
];
/// The ports of the rules that only kOps manages; rules of other ports may be the cloud controller's.
const OWN_PORTS: [&str; 3] = ["22-22", "443-443", "8443-8443"];

impl Change {
    /// Returns upstream's name of the kind.
    pub fn task(&self) -> &'static str {
        self.kind.task()
    }
}

fn identity(resource: &Resource, ids: &Ids) -> Option<Identity> {
    let identity = resource.body.operations().identity(&resource.metadata(), ids);
    Some((resource.kind(), identity?))
}

/// Returns the desired fields of a resource.
fn desired_fields(resource: &Resource, ids: &Ids) -> Fields {
    let operations = resource.body.operations();
    let mut fields = operations.desired_fields(&resource.metadata(), ids);
    if operations.has_compared_tags() {
        put_tags(&mut fields, &resource.tags);
    }
    fields
}

/// Rejects resources that direct calls do not support.
fn validate_support(resource: &Resource) -> Result<(), Error> {
    let Some(Limit { feature, remedy }) = resource.body.operations().direct_limit() else {
        return Ok(());
    };
    let what = format!("{feature} ({:?}) with --target=direct", resource.name);
    Err(Error::Unsupported { what, remedy })
}

/// Compares a model with the existing resources. Changes that are impossible in place are rejected.
pub fn plan(model: &Model, existing: &ExistingResources) -> Result<Plan, Error> {
    let (mut plan, mut matched) = (Plan::default(), BTreeSet::new());
    for (to, resource) in ordered(model) {
        if let Some(id) = &resource.shared {
            plan.ids.insert(to.clone(), id.clone());
            continue;
        }
        if let Body::StoreObject(_) = resource.body {
            continue;
        }
        validate_support(resource)?;
        let identity = identity(resource, &plan.ids);
        if let Some(identity) = &identity {
            validate_single(existing, identity)?;
            matched.insert(identity.clone());
        }
        match identity.and_then(|identity| existing.find(&identity)) {
            None => plan.changes.push(creation(resource, &plan.ids)),
            Some(found) => {
                plan.ids.insert(to.clone(), found.id.clone());
                if resource.kind() == Kind::NetworkBalancer {
                    plan.ids.insert(alias_of(to), found.context.clone());
                }
                plan.changes.extend(modification(resource, found, &plan.ids)?);
            }
        }
    }
    add_deletions(existing, &matched, &mut plan);
    plan.outdated = outdated(model, existing, &plan);
    Ok(plan)
}

/// Returns the resources in an order in which each follows those it refers to.
fn ordered(model: &Model) -> Vec<(&Ref, &Resource)> {
    fn visit<'a>(
        model: &'a Model,
        to: &'a Ref,
        seen: &mut BTreeSet<&'a Ref>,
        all: &mut Vec<(&'a Ref, &'a Resource)>,
    ) {
        let Some((to, resource)) = model.resources.get_key_value(to) else { return };
        if !seen.insert(to) {
            return;
        }
        for other in resource.body.refs() {
            visit(model, other, seen, all);
        }
        all.push((to, resource));
    }
    let (mut seen, mut all) = (BTreeSet::new(), Vec::new());
    for to in model.resources.keys() {
        visit(model, to, &mut seen, &mut all);
    }
    all
}

fn validate_single(existing: &ExistingResources, identity: &Identity) -> Result<(), Error> {
    let other = existing.duplicates.iter().find(|(other, _)| other == identity);
    let (Some((_, other)), Some(found)) = (other, existing.find(identity)) else { return Ok(()) };
    let reason =
        format!("names two resources in AWS, {} and {other}; delete the unused one", found.id);
    Err(Error::value(&format!("{:?}", identity.0), &identity.1, reason))
}

fn creation(resource: &Resource, ids: &Ids) -> Change {
    let fields = desired_fields(resource, ids).into_iter();
    let shown = fields.filter(|(name, value)| {
        !name.starts_with(TAG) && !value.is_empty() && value.len() <= LONGEST
    });
    Change {
        verb: "create",
        kind: resource.kind(),
        name: resource.name.clone(),
        details: shown.collect(),
        fields: Vec::new(),
        calls: Vec::new(),
    }
}

fn modification(
    resource: &Resource,
    found: &ExistingResource,
    ids: &Ids,
) -> Result<Option<Change>, Error> {
    let (mut shown, mut fields) = (Vec::new(), Vec::new());
    for (name, value) in desired_fields(resource, ids) {
        let old = found.fields.get(&name).map_or("", String::as_str);
        if old == value {
            continue;
        }
        shown.push((name.clone(), difference(old, &value)));
        fields.push(name);
    }
    if fields.is_empty() {
        return Ok(None);
    }
    // Reject impossible changes before any call is made.
    calls(resource, found, ids, &fields)?;
    let (kind, name) = (resource.kind(), resource.name.clone());
    Ok(Some(Change { verb: "modify", kind, name, details: shown, fields, calls: Vec::new() }))
}

fn difference(old: &str, new: &str) -> String {
    if old.len().max(new.len()) > LONGEST {
        "changed".to_owned()
    } else {
        format!("{old:?} -> {new:?}")
    }
}

/// Returns the calls that change fields of an existing resource.
pub fn update_calls(
    resource: &Resource,
    id: &str,
    existing: &ExistingResources,
    ids: &Ids,
    fields: &[String],
) -> Result<Vec<Call>, Error> {
    let found = identity(resource, ids).and_then(|identity| existing.find(&identity).cloned());
    let found = found
        .unwrap_or_else(|| ExistingResource { id: id.to_owned(), ..ExistingResource::default() });
    calls(resource, &found, ids, fields)
}

/// Returns the calls that change fields of an existing resource. Fields that cannot be changed are rejected.
fn calls(
    resource: &Resource,
    found: &ExistingResource,
    ids: &Ids,
    fields: &[String],
) -> Result<Vec<Call>, Error> {
    let (tags, fields): (Vec<_>, Vec<_>) =
        fields.iter().map(String::as_str).partition(|field| field.starts_with(TAG));
    let operations = resource.body.operations();
    let mut all = Vec::new();
    if !tags.is_empty() {
        let keys = tags.iter().filter_map(|field| field.strip_prefix(TAG));
        let tags: Tags = keys
            .filter_map(|key| Some((key.to_owned(), resource.tags.get(key)?.clone())))
            .collect();
        all.push(operations.set_tags(&found.id, &tags));
    }
    if !fields.is_empty() {
        let update = Update { own: resource.metadata(), found, ids, fields: &fields };
        all.extend(operations.change(&update)?);
    }
    Ok(all)
}

fn add_deletions(existing: &ExistingResources, matched: &BTreeSet<Identity>, plan: &mut Plan) {
    let mut all: Vec<_> = existing.all.iter().collect();
    all.sort_by_key(|(identity, _)| rank(identity.0));
    for (identity, found) in all {
        let (kind, name) = identity;
        let rule = *kind != Kind::SecurityGroupRule
            || (OWN_PORTS.iter().any(|ports| name.contains(&format!(" tcp {ports} from "))));
        if !PRUNED.contains(kind) || matched.contains(identity) || !found.owned || !rule {
            continue;
        }
        let calls = (kind.operations().delete)(name, found);
        let (details, fields, name) = (Vec::new(), Vec::new(), name.clone());
        plan.changes.push(Change { verb: "delete", kind: *kind, name, details, fields, calls });
    }
}

fn outdated(model: &Model, existing: &ExistingResources, plan: &Plan) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for resource in model.of_kind(Kind::ScalingGroup) {
        let (Body::ScalingGroup(body), Some(group)) =
            (&resource.body, existing.groups.get(&resource.name))
        else {
            continue;
        };
        let change = plan.changes.iter().find(|change| {
            change.kind == Kind::LaunchTemplate
                && change.name == body.template.name
                && change.verb == "modify"
        });
        let differs = change.map(|change| {
            let fields = change.details.iter().filter(|(name, _)| !name.starts_with(TAG));
            fields.map(|(name, value)| format!("{name} ({value})")).collect::<Vec<_>>().join(", ")
        });
        let differs = differs.filter(|text| !text.is_empty());
        for machine in &group.machines {
            let why = match &differs {
                Some(text) => text.clone(),
                None if machine.is_outdated(group) => format!(
                    "created from version {} of its launch template; the latest is {}",
                    machine.version, group.latest
                ),
                None => continue,
            };
            all.push((machine.id.clone(), why));
        }
    }
    all
}
