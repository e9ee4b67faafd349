//! The difference between a model and the existing resources.

use std::collections::BTreeSet;

use super::{
    Call, ExistingResource, ExistingResources, Identity, Ids,
    erase::{erase, rank},
    fields::{TAG, wanted},
    machines, make, network, serve,
};
use crate::{
    Error,
    model::aws::{Body, Kind, Model, Ref, Resource},
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
    pub told: Vec<(String, String)>,
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
const STALE: [Kind; 6] = [
    Kind::ScalingGroup,
    Kind::LifecycleHook,
    Kind::LaunchTemplate,
    Kind::RolePolicy,
    Kind::RolePolicyAttachment,
    Kind::SecurityGroupRule,
];
/// The ports of the rules that only kOps manages; rules of other ports may be the cloud controller's.
const OWN_PORTS: [&str; 3] = ["22-22", "443-443", "8443-8443"];

fn identity(resource: &Resource, ids: &Ids) -> Option<Identity> {
    let identity = match &resource.body {
        Body::LifecycleHook { .. } => machines::identity(resource, ids),
        Body::Listener(_)
        | Body::RolePolicy { .. }
        | Body::RolePolicyAttachment { .. }
        | Body::EventTarget { .. }
        | Body::Record { .. }
        | Body::ZoneAssociation { .. } => serve::identity(resource, ids),
        _ => network::identity(resource, ids),
    };
    Some((resource.kind(), identity?))
}

impl Change {
    /// Returns upstream's name of the kind.
    pub fn task(&self) -> &'static str {
        task(self.kind)
    }
}

/// Returns upstream's name of a kind.
pub(super) fn task(kind: Kind) -> &'static str {
    match kind {
        Kind::Vpc => "VPC",
        Kind::VpcCidr => "VPCCIDRBlock",
        Kind::DhcpOptions => "DHCPOptions",
        Kind::DhcpOptionsAssociation => "VPCDHCPOptionsAssociation",
        Kind::InternetGateway => "InternetGateway",
        Kind::EgressOnlyGateway => "EgressOnlyInternetGateway",
        Kind::Subnet => "Subnet",
        Kind::RouteTable => "RouteTable",
        Kind::RouteTableAssociation => "RouteTableAssociation",
        Kind::Route => "Route",
        Kind::ElasticIp => "ElasticIP",
        Kind::NatGateway => "NatGateway",
        Kind::SecurityGroup => "SecurityGroup",
        Kind::SecurityGroupRule => "SecurityGroupRule",
        Kind::Volume => "EBSVolume",
        Kind::Role => "IAMRole",
        Kind::RolePolicy | Kind::RolePolicyAttachment => "IAMRolePolicy",
        Kind::InstanceProfile => "IAMInstanceProfile",
        Kind::OidcProvider => "IAMOIDCProvider",
        Kind::SshKey => "SSHKey",
        Kind::LaunchTemplate => "LaunchTemplate",
        Kind::ScalingGroup => "AutoscalingGroup",
        Kind::LifecycleHook => "AutoscalingLifecycleHook",
        Kind::ClassicBalancer => "ClassicLoadBalancer",
        Kind::NetworkBalancer => "NetworkLoadBalancer",
        Kind::Listener => "NetworkLoadBalancerListener",
        Kind::TargetGroup => "TargetGroup",
        Kind::Zone | Kind::ZoneAssociation => "DNSZone",
        Kind::Record => "DNSName",
        Kind::Queue => "SQS",
        Kind::EventRule => "EventBridgeRule",
        Kind::EventTarget => "EventBridgeTarget",
        Kind::StoreObject => "ManagedFile",
    }
}

/// Compares a model with the existing resources. Changes that are impossible in place are rejected.
pub fn plan(model: &Model, existing: &ExistingResources) -> Result<Plan, Error> {
    let (mut plan, mut met) = (Plan::default(), BTreeSet::new());
    for (to, resource) in ordered(model) {
        if let Some(id) = &resource.shared {
            plan.ids.insert(to.clone(), id.clone());
            continue;
        }
        if let Body::StoreObject { .. } = resource.body {
            continue;
        }
        make::check(resource)?;
        let identity = identity(resource, &plan.ids);
        if let Some(identity) = &identity {
            single(existing, identity)?;
            met.insert(identity.clone());
        }
        match identity.and_then(|identity| existing.find(&identity)) {
            None => plan.changes.push(created(resource, &plan.ids)),
            Some(found) => {
                plan.ids.insert(to.clone(), found.id.clone());
                if resource.kind() == Kind::NetworkBalancer {
                    plan.ids.insert(serve::alias_of(to), found.around.clone());
                }
                plan.changes.extend(modified(resource, found, &plan.ids)?);
            }
        }
    }
    stale(existing, &met, &mut plan);
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

fn single(existing: &ExistingResources, identity: &Identity) -> Result<(), Error> {
    let other = existing.doubled.iter().find(|(doubled, _)| doubled == identity);
    let (Some((_, other)), Some(found)) = (other, existing.find(identity)) else { return Ok(()) };
    let reason =
        format!("names two resources in AWS, {} and {other}; delete the unused one", found.id);
    Err(Error::value(&format!("{:?}", identity.0), &identity.1, reason))
}

fn created(resource: &Resource, ids: &Ids) -> Change {
    let fields = wanted(resource, ids).into_iter();
    let shown = fields.filter(|(name, value)| {
        !name.starts_with(TAG) && !value.is_empty() && value.len() <= LONGEST
    });
    Change {
        verb: "create",
        kind: resource.kind(),
        name: resource.name.clone(),
        told: shown.collect(),
        fields: Vec::new(),
        calls: Vec::new(),
    }
}

fn modified(
    resource: &Resource,
    found: &ExistingResource,
    ids: &Ids,
) -> Result<Option<Change>, Error> {
    let (mut shown, mut fields) = (Vec::new(), Vec::new());
    for (name, value) in wanted(resource, ids) {
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
    make::changes(resource, found, ids, &fields)?;
    let (kind, name) = (resource.kind(), resource.name.clone());
    Ok(Some(Change { verb: "modify", kind, name, told: shown, fields, calls: Vec::new() }))
}

fn difference(old: &str, new: &str) -> String {
    if old.len().max(new.len()) > LONGEST {
        "changed".to_owned()
    } else {
        format!("{old:?} -> {new:?}")
    }
}

/// Returns the calls that change fields of an existing resource.
pub fn changes(
    resource: &Resource,
    id: &str,
    existing: &ExistingResources,
    ids: &Ids,
    fields: &[String],
) -> Result<Vec<Call>, Error> {
    let found = identity(resource, ids).and_then(|identity| existing.find(&identity).cloned());
    let found = found
        .unwrap_or_else(|| ExistingResource { id: id.to_owned(), ..ExistingResource::default() });
    make::changes(resource, &found, ids, fields)
}

fn stale(existing: &ExistingResources, met: &BTreeSet<Identity>, plan: &mut Plan) {
    let mut all: Vec<_> = existing.all.iter().collect();
    all.sort_by_key(|(identity, _)| rank(identity.0));
    for (identity, found) in all {
        let (kind, name) = identity;
        let rule = *kind != Kind::SecurityGroupRule
            || (OWN_PORTS.iter().any(|ports| name.contains(&format!(" tcp {ports} from "))));
        if !STALE.contains(kind) || met.contains(identity) || !found.owned || !rule {
            continue;
        }
        let calls = erase(identity, found);
        let (told, fields, name) = (Vec::new(), Vec::new(), name.clone());
        plan.changes.push(Change { verb: "delete", kind: *kind, name, told, fields, calls });
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
            let fields = change.told.iter().filter(|(name, _)| !name.starts_with(TAG));
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
