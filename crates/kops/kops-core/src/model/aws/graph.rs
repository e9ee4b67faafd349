//! The model of a cluster: resources by identity, and the references between them.

use std::collections::BTreeMap;

use super::resource::{Body, Kind, Peer, Ref, Resource, RouteTarget, Tags};
use crate::Error;

/// All resources of a cluster in AWS.
#[derive(Clone, Debug, Default)]
pub struct Model {
    /// The AWS region.
    pub region: String,
    /// The resources by reference.
    pub resources: BTreeMap<Ref, Resource>,
    /// References that two parts of the model added.
    doubled: Vec<Ref>,
}

impl Model {
    /// Returns an empty model.
    pub(crate) fn of(region: &str) -> Self {
        Self { region: region.to_owned(), ..Self::default() }
    }

    /// Adds a resource that the cluster creates, and returns its reference.
    pub(crate) fn add(&mut self, name: impl Into<String>, tags: Tags, body: Body) -> Ref {
        self.put(Resource { name: name.into(), shared: None, tags, body })
    }

    /// Adds a resource, which exists already if it has an ID.
    pub(crate) fn put(&mut self, resource: Resource) -> Ref {
        let id = Ref::new(resource.kind(), resource.name.clone());
        if self.resources.insert(id.clone(), resource).is_some() {
            self.doubled.push(id.clone());
        }
        id
    }

    /// Returns a reference to an existing resource, which several parts may add.
    pub(crate) fn add_existing(&mut self, name: impl Into<String>, id: &str, body: Body) -> Ref {
        let (name, shared) = (name.into(), Some(id.to_owned()));
        let to = Ref::new(body.kind(), name.clone());
        let made = || Resource { name, shared, tags: Tags::new(), body };
        self.resources.entry(to.clone()).or_insert_with(made);
        to
    }

    /// Returns the resource of a reference.
    pub fn find(&self, to: &Ref) -> Option<&Resource> {
        self.resources.get(to)
    }

    /// Returns the resources of a kind, sorted by name.
    pub fn of_kind(&self, kind: Kind) -> impl Iterator<Item = &Resource> {
        self.resources.iter().filter(move |(id, _)| id.kind == kind).map(|(_, one)| one)
    }

    /// Checks that names are unique and that every reference has a target.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if let Some(Ref { kind, name }) = self.doubled.first() {
            let reason = format!(
                "is the name of two resources ({kind:?}); rename their objects in the spec"
            );
            return Err(Error::value("the model", name, reason));
        }
        for (id, resource) in &self.resources {
            if let Some(lost) = resource.body.refs().into_iter().find(|to| self.find(to).is_none())
            {
                let reason =
                    format!("refers to {:?} {:?}, which does not exist", lost.kind, lost.name);
                return Err(Error::value(&format!("{:?}", id.kind), &id.name, reason));
            }
        }
        Ok(())
    }
}

impl Body {
    /// Returns the resources that must exist before this one.
    pub fn refs(&self) -> Vec<&Ref> {
        match self {
            Self::VpcCidr { vpc, .. }
            | Self::InternetGateway { vpc }
            | Self::EgressOnlyGateway { vpc }
            | Self::RouteTable { vpc, .. }
            | Self::SecurityGroup { vpc, .. } => vec![vpc],
            Self::Subnet(subnet) => vec![&subnet.vpc],
            Self::TargetGroup(group) => vec![&group.vpc],
            Self::DhcpOptionsAssociation { vpc, options } => vec![vpc, options],
            Self::RouteTableAssociation { table, subnet } => vec![table, subnet],
            Self::Route { table, via, .. } => {
                [Some(table), via.made()].into_iter().flatten().collect()
            }
            Self::NatGateway { address, subnet } => address.iter().chain([subnet]).collect(),
            Self::SecurityGroupRule(rule) => match &rule.peer {
                Peer::Group(peer) => vec![&rule.group, peer],
                _ => vec![&rule.group],
            },
            Self::RolePolicy { role, .. } | Self::RolePolicyAttachment { role, .. } => vec![role],
            Self::InstanceProfile { role } => role.iter().collect(),
            Self::LaunchTemplate(template) => template
                .security_groups
                .iter()
                .chain([&template.profile])
                .chain(&template.key)
                .collect(),
            Self::ScalingGroup(group) => {
                let balancers = group.balancers.iter().chain(&group.target_groups);
                balancers.chain(&group.subnets).chain([&group.template]).collect()
            }
            Self::LifecycleHook { group, .. } => vec![group],
            Self::ClassicBalancer(one) | Self::NetworkBalancer(one) => {
                let subnets = one.subnets.iter().map(|mapping| &mapping.subnet);
                subnets.chain(&one.security_groups).collect()
            }
            Self::Listener(listener) => vec![&listener.balancer, &listener.group],
            Self::ZoneAssociation { zone, vpc } => vec![zone, vpc],
            Self::Record { zone, to, .. } => vec![zone, to],
            Self::EventTarget { rule, queue } => vec![rule, queue],
            Self::Vpc { .. }
            | Self::DhcpOptions { .. }
            | Self::ElasticIp
            | Self::Volume { .. }
            | Self::Role { .. }
            | Self::OidcProvider { .. }
            | Self::SshKey { .. }
            | Self::Zone
            | Self::Queue { .. }
            | Self::EventRule { .. }
            | Self::StoreObject { .. } => Vec::new(),
        }
    }
}

impl RouteTarget {
    /// Returns the reference, if the target is a resource of the model.
    pub fn made(&self) -> Option<&Ref> {
        match self {
            Self::Internet(to) | Self::EgressOnly(to) | Self::Nat(to) => Some(to),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_rejects_duplicate_names_and_lost_references() {
        let mut model = Model::default();
        let vpc = model.add("a", Tags::new(), Body::Vpc { cidr: "10.0.0.0/8".to_owned() });
        let options = Ref::new(Kind::DhcpOptions, "a");
        let body = Body::DhcpOptionsAssociation { vpc, options };
        let mut lost = model.clone();
        lost.add("a", Tags::new(), body);
        let error = lost.check().expect_err("a lost reference").to_string();
        assert!(error.contains("refers to DhcpOptions \"a\", which does not exist"), "{error}");
        assert!(model.check().is_ok());
        model.add("a", Tags::new(), Body::Vpc { cidr: String::new() });
        let error = model.check().expect_err("two of a name").to_string();
        assert!(error.contains("is the name of two resources (Vpc)"), "{error}");
    }
}
