//! The part of a model that an update changes: lifecycles of kinds, phases and instance groups.

use std::{
    collections::{BTreeMap, BTreeSet},
    str::FromStr,
};

use crate::{
    aws::{Body, Kind, Ref, Resource},
    error::Error,
    model::aws::Model,
};

/// The tag with the instance group of a scaling group and of its parts.
const GROUP_TAG: &str = "kops.k8s.io/instancegroup";
/// The kinds of the resources that belong to one instance group.
const GROUP_KINDS: [Kind; 3] = [Kind::ScalingGroup, Kind::LaunchTemplate, Kind::LifecycleHook];

/// The treatment of a kind of resources by an update.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lifecycle {
    /// Creates, changes and deletes the resources.
    #[default]
    Sync,
    /// Leaves the resources alone.
    Ignore,
    /// Like `Sync`, but a call that AWS denies is only a warning.
    WarnIfInsufficientAccess,
    /// Fails unless the resources exist and equal the model.
    ExistsAndValidates,
    /// Fails unless the resources exist. Differences from the model are warnings.
    ExistsAndWarnIfChanges,
}

/// The lifecycles by upstream's names.
const LIFECYCLES: [(&str, Lifecycle); 5] = [
    ("Sync", Lifecycle::Sync),
    ("Ignore", Lifecycle::Ignore),
    ("WarnIfInsufficientAccess", Lifecycle::WarnIfInsufficientAccess),
    ("ExistsAndValidates", Lifecycle::ExistsAndValidates),
    ("ExistsAndWarnIfChanges", Lifecycle::ExistsAndWarnIfChanges),
];

impl FromStr for Lifecycle {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let found = LIFECYCLES.iter().find(|(name, _)| *name == text);
        found.map(|(_, lifecycle)| *lifecycle).ok_or_else(|| {
            let names = LIFECYCLES.map(|(name, _)| name).join(", ");
            let reason = format!("is an unknown lifecycle; available lifecycles: {names}");
            Error::value("--lifecycle-overrides", text, reason)
        })
    }
}

impl Lifecycle {
    /// Reports whether the resources are created and changed.
    pub fn is_applied(self) -> bool {
        matches!(self, Self::Sync | Self::WarnIfInsufficientAccess)
    }

    /// Returns the name.
    fn name(self) -> &'static str {
        LIFECYCLES.iter().find(|(_, one)| *one == self).map_or("", |(name, _)| name)
    }
}

/// A part of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The VPC, its subnets, gateways and routes.
    Network,
    /// Security groups, roles and SSH keys.
    Security,
    /// Everything else.
    Cluster,
}

impl Phase {
    /// Returns the phase that creates the resources of a kind.
    fn of(kind: Kind) -> Self {
        match kind {
            Kind::Vpc
            | Kind::VpcCidr
            | Kind::DhcpOptions
            | Kind::DhcpOptionsAssociation
            | Kind::InternetGateway
            | Kind::EgressOnlyGateway
            | Kind::Subnet
            | Kind::RouteTable
            | Kind::RouteTableAssociation
            | Kind::Route
            | Kind::ElasticIp
            | Kind::NatGateway => Self::Network,
            Kind::SecurityGroup
            | Kind::SecurityGroupRule
            | Kind::Role
            | Kind::RolePolicy
            | Kind::RolePolicyAttachment
            | Kind::InstanceProfile
            | Kind::OidcProvider
            | Kind::SshKey => Self::Security,
            _ => Self::Cluster,
        }
    }

    /// Returns the treatment of the resources of another phase.
    fn lifecycle_of(self, other: Self) -> Lifecycle {
        match (self, other) {
            _ if self == other => Lifecycle::Sync,
            (Self::Security, Self::Network) => Lifecycle::ExistsAndWarnIfChanges,
            (Self::Cluster, _) => Lifecycle::ExistsAndValidates,
            _ => Lifecycle::Ignore,
        }
    }
}

/// The part of a model that an update changes; by default the whole model.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// The only phase; `None` for all.
    pub phase: Option<Phase>,
    /// The lifecycles of kinds by upstream's name. They override those of the phase.
    pub overrides: BTreeMap<String, Lifecycle>,
    /// The only instance groups; `None` for all.
    pub groups: Option<BTreeSet<String>>,
    /// `true` to delete old load balancers and target groups.
    pub prune: bool,
}

impl Selection {
    /// Parses overrides of lifecycles: `Task=Lifecycle`.
    pub fn parse_overrides(texts: &[String]) -> Result<BTreeMap<String, Lifecycle>, Error> {
        let mut all = BTreeMap::new();
        for text in texts {
            let wrong = |reason: String| Error::value("--lifecycle-overrides", text, reason);
            let (task, lifecycle) = text.split_once('=').ok_or_else(|| {
                wrong("has the wrong syntax; the correct one is TaskName=lifecycleName".to_owned())
            })?;
            if !Kind::ALL.iter().any(|kind| kind.task() == task) {
                let names: BTreeSet<_> = Kind::ALL.iter().map(|kind| kind.task()).collect();
                let names = names.into_iter().collect::<Vec<_>>().join(", ");
                return Err(wrong(format!("names an unknown task; the tasks are {names}")));
            }
            all.insert(task.to_owned(), lifecycle.parse()?);
        }
        Ok(all)
    }

    /// Returns the lifecycle of a kind.
    pub fn lifecycle(&self, kind: Kind) -> Lifecycle {
        let of_phase = || self.phase.map(|phase| phase.lifecycle_of(Phase::of(kind)));
        self.overrides.get(kind.task()).copied().or_else(of_phase).unwrap_or_default()
    }

    /// Returns the lifecycle of the objects in the state store.
    pub fn store_lifecycle(&self) -> Lifecycle {
        self.lifecycle(Kind::StoreObject)
    }

    /// Reports whether an instance group is selected.
    pub fn has_group(&self, name: &str) -> bool {
        self.groups.as_ref().is_none_or(|groups| groups.contains(name))
    }

    /// Reports whether an object of the state store, by its full name, configures a group that is not selected.
    pub fn excludes_object(&self, name: &str) -> bool {
        let mut parts = name.rsplit('/');
        let (_, group, _, directory) = (parts.next(), parts.next(), parts.next(), parts.next());
        directory == Some("igconfig") && group.is_some_and(|group| !self.has_group(group))
    }

    /// Returns the lifecycle of a resource of a model.
    pub(super) fn lifecycle_in(&self, model: &Model, resource: &Resource) -> Lifecycle {
        let owner = match &resource.body {
            Body::LifecycleHook(hook) => model.find(&hook.group).unwrap_or(resource),
            _ => resource,
        };
        let group = owner.tags.get(GROUP_TAG).filter(|_| GROUP_KINDS.contains(&resource.kind()));
        match group {
            Some(group) if !self.has_group(group) => Lifecycle::Ignore,
            _ => self.lifecycle(resource.kind()),
        }
    }

    /// Reports whether existing resources of a kind are deleted once the model no longer has them.
    pub(super) fn deletes(&self, kind: Kind) -> bool {
        self.lifecycle(kind).is_applied() && (self.groups.is_none() || !GROUP_KINDS.contains(&kind))
    }
}

/// Returns the error for a resource that must exist.
pub(super) fn missing(resource: &Resource, lifecycle: Lifecycle) -> Error {
    let reason = format!("was not found, but its lifecycle is {}", lifecycle.name());
    Error::value(resource.kind().task(), &resource.name, reason)
}

/// Returns the error for a resource that must equal the model.
pub(super) fn differs(resource: &Resource, fields: &str) -> Error {
    let reason =
        format!("does not match: its lifecycle is ExistsAndValidates, but these differ: {fields}");
    Error::value(resource.kind().task(), &resource.name, reason)
}

/// Returns the error for a resource that needs one that is ignored and does not exist.
pub(super) fn needs_ignored(resource: &Resource, other: &Ref) -> Error {
    let reason = format!(
        "needs {} {:?}, which does not exist and is not selected by the flags of this update",
        other.kind.task(),
        other.name
    );
    Error::value(resource.kind().task(), &resource.name, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_have_upstreams_lifecycles() {
        let of = |phase| {
            let selection = Selection { phase, ..Selection::default() };
            [Kind::Vpc, Kind::SecurityGroup, Kind::ScalingGroup]
                .map(|kind| selection.lifecycle(kind))
        };
        use Lifecycle::{ExistsAndValidates, ExistsAndWarnIfChanges, Ignore, Sync};
        assert_eq!(of(None), [Sync; 3]);
        assert_eq!(of(Some(Phase::Network)), [Sync, Ignore, Ignore]);
        assert_eq!(of(Some(Phase::Security)), [ExistsAndWarnIfChanges, Sync, Ignore]);
        assert_eq!(of(Some(Phase::Cluster)), [ExistsAndValidates, ExistsAndValidates, Sync]);
    }

    #[test]
    fn parses_overrides_and_rejects_unknown_names() {
        let parse = |text: &str| Selection::parse_overrides(&[text.to_owned()]);
        let overrides = parse("SecurityGroup=Ignore").unwrap_or_else(|e| panic!("{e}"));
        let phase = Some(Phase::Security);
        let selection = Selection { phase, overrides, ..Selection::default() };
        assert_eq!(selection.lifecycle(Kind::SecurityGroup), Lifecycle::Ignore);
        assert_eq!(selection.lifecycle(Kind::Role), Lifecycle::Sync);
        for (hostile, reason) in [
            ("", "TaskName=lifecycleName"),
            ("SecurityGroup", "TaskName=lifecycleName"),
            ("=Ignore", "unknown task"),
            ("SecurityGroups=Ignore", "the tasks are AutoscalingGroup"),
            ("VPC=", "unknown lifecycle"),
            ("VPC=sync", "available lifecycles: Sync, Ignore"),
            ("VPC=Sync=Sync", "unknown lifecycle"),
        ] {
            let error = parse(hostile).expect_err(hostile).to_string();
            assert!(error.contains(reason), "{hostile}: {error}");
        }
    }

    #[test]
    fn excludes_the_objects_of_other_groups() {
        let groups = Some(["nodes".to_owned()].into());
        let selection = Selection { groups, ..Selection::default() };
        assert!(selection.excludes_object("a.b/igconfig/control-plane/cp/nodeupconfig.yaml"));
        for kept in [
            "a.b/igconfig/node/nodes/nodeupconfig.yaml",
            "a.b/addons/cp/x/y.yaml",
            "a.b/cluster-completed.spec",
            "",
        ] {
            assert!(!selection.excludes_object(kept), "{kept}");
        }
    }
}
