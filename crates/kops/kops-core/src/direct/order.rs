//! The order of deletions: dependents first.

use crate::aws::Kind;

/// The order of deletion. Resources that vanish with others are not listed.
pub(super) const DELETION_ORDER: [Kind; 27] = [
    Kind::LifecycleHook,
    Kind::ScalingGroup,
    Kind::LaunchTemplate,
    Kind::Record,
    Kind::Listener,
    Kind::NetworkBalancer,
    Kind::TargetGroup,
    Kind::EventTarget,
    Kind::EventRule,
    Kind::Queue,
    Kind::InstanceProfile,
    Kind::RolePolicy,
    Kind::RolePolicyAttachment,
    Kind::OidcProvider,
    Kind::SshKey,
    Kind::Volume,
    Kind::NatGateway,
    Kind::ElasticIp,
    Kind::SecurityGroupRule,
    Kind::SecurityGroup,
    Kind::RouteTableAssociation,
    Kind::Subnet,
    Kind::RouteTable,
    Kind::InternetGateway,
    Kind::Vpc,
    Kind::DhcpOptions,
    Kind::Role,
];

/// Returns a kind's position in the order of deletion.
pub(super) fn rank(kind: Kind) -> usize {
    DELETION_ORDER.iter().position(|other| *other == kind).unwrap_or(DELETION_ORDER.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aws::ExistingResource;

    #[test]
    fn orders_every_kind_with_calls_for_its_deletion() {
        for kind in Kind::ALL {
            let rule = "sg-1 tcp 22-22 from sg-2";
            let calls = (kind.operations().delete)(rule, &ExistingResource::default());
            assert_eq!(calls.is_empty(), !DELETION_ORDER.contains(kind), "{kind:?}");
        }
    }
}
