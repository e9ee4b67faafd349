//! The difference between a model and the existing resources.

use std::collections::BTreeSet;

use super::{
    existing::ExistingResources,
    lifecycle::{Lifecycle, Selection, differs, missing, needs_ignored},
    order::rank,
};
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
    /// `true` if a call that AWS denies is only a warning.
    pub is_optional: bool,
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
    /// The differences of resources that are only compared.
    pub warnings: Vec<String>,
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
/// The kinds that are deleted only with `--prune`: clients may still use old load balancers.
const DEFERRED: [Kind; 3] = [Kind::Listener, Kind::NetworkBalancer, Kind::TargetGroup];
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

/// Compares the selected part of a model with the existing resources. Changes that are impossible in place are
/// rejected.
pub fn plan(
    model: &Model,
    existing: &ExistingResources,
    selection: &Selection,
) -> Result<Plan, Error> {
    let (mut plan, mut matched) = (Plan::default(), BTreeSet::new());
    let mut ignored = BTreeSet::new();
    for (to, resource) in ordered(model) {
        if let Some(id) = &resource.shared {
            plan.ids.insert(to.clone(), id.clone());
            continue;
        }
        if let Body::StoreObject(_) = resource.body {
            continue;
        }
        let lifecycle = selection.lifecycle_in(model, resource);
        if lifecycle != Lifecycle::Ignore {
            validate_support(resource)?;
        }
        let identity = identity(resource, &plan.ids);
        if let Some(identity) = &identity {
            validate_single(existing, identity)?;
            matched.insert(identity.clone());
        }
        let found = identity.and_then(|identity| existing.find(&identity));
        if let Some(found) = found {
            plan.ids.insert(to.clone(), found.id.clone());
            if resource.kind() == Kind::NetworkBalancer {
                plan.ids.insert(alias_of(to), found.context.clone());
            }
        } else if lifecycle == Lifecycle::Ignore {
            ignored.insert(to);
        }
        if lifecycle.is_applied()
            && let Some(other) = resource.body.refs().into_iter().find(|to| ignored.contains(to))
        {
            return Err(needs_ignored(resource, other));
        }
        add_change(resource, found, lifecycle, &mut plan)?;
    }
    add_deletions(existing, &matched, selection, &mut plan);
    plan.outdated = outdated(model, existing, &plan);
    Ok(plan)
}

/// Adds the change of a resource that its lifecycle permits.
fn add_change(
    resource: &Resource,
    found: Option<&ExistingResource>,
    lifecycle: Lifecycle,
    plan: &mut Plan,
) -> Result<(), Error> {
    if lifecycle == Lifecycle::Ignore {
        return Ok(());
    }
    let is_optional = lifecycle == Lifecycle::WarnIfInsufficientAccess;
    let Some(found) = found else {
        if !lifecycle.is_applied() {
            return Err(missing(resource, lifecycle));
        }
        plan.changes.push(Change { is_optional, ..creation(resource, &plan.ids) });
        return Ok(());
    };
    let differences = differences(resource, found, &plan.ids);
    if differences.is_empty() {
        return Ok(());
    }
    let shown = || {
        let shown = differences.iter().map(|(name, value)| format!("{name} ({value})"));
        shown.collect::<Vec<_>>().join(", ")
    };
    match lifecycle {
        Lifecycle::ExistsAndValidates => return Err(differs(resource, &shown())),
        Lifecycle::ExistsAndWarnIfChanges => {
            let (task, name) = (resource.kind().task(), &resource.name);
            plan.warnings.push(format!("{task}/{name} differs and is not changed: {}", shown()));
        }
        _ => {
            let change = modification(resource, found, &plan.ids, differences)?;
            plan.changes.push(Change { is_optional, ..change });
        }
    }
    Ok(())
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
        is_optional: false,
    }
}

/// Returns the fields of an existing resource that differ from the desired ones, with the differences.
fn differences(resource: &Resource, found: &ExistingResource, ids: &Ids) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for (name, value) in desired_fields(resource, ids) {
        let old = found.fields.get(&name).map_or("", String::as_str);
        if old != value {
            all.push((name, difference(old, &value)));
        }
    }
    all
}

fn modification(
    resource: &Resource,
    found: &ExistingResource,
    ids: &Ids,
    details: Vec<(String, String)>,
) -> Result<Change, Error> {
    let fields: Vec<String> = details.iter().map(|(name, _)| name.clone()).collect();
    // Reject impossible changes before any call is made.
    calls(resource, found, ids, &fields)?;
    Ok(Change {
        verb: "modify",
        kind: resource.kind(),
        name: resource.name.clone(),
        details,
        fields,
        calls: Vec::new(),
        is_optional: false,
    })
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

fn add_deletions(
    existing: &ExistingResources,
    matched: &BTreeSet<Identity>,
    selection: &Selection,
    plan: &mut Plan,
) {
    let mut all: Vec<_> = existing.all.iter().collect();
    all.sort_by_key(|(identity, _)| rank(identity.0));
    for (identity, found) in all {
        let (kind, name) = identity;
        let rule = *kind != Kind::SecurityGroupRule
            || (OWN_PORTS.iter().any(|ports| name.contains(&format!(" tcp {ports} from "))));
        let is_pruned = PRUNED.contains(kind) || (selection.prune && DEFERRED.contains(kind));
        let is_kept = matched.contains(identity) || !selection.deletes(*kind);
        if !is_pruned || is_kept || !found.owned || !rule {
            continue;
        }
        plan.changes.push(Change {
            verb: "delete",
            kind: *kind,
            name: name.clone(),
            details: Vec::new(),
            fields: Vec::new(),
            calls: (kind.operations().delete)(name, found),
            is_optional: selection.lifecycle(*kind) == Lifecycle::WarnIfInsufficientAccess,
        });
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
