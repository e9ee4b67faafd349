//! Plans the deletion of a cluster's resources.

use kops_api::Spec as _;
use serde_json::{Value, json};

use super::{Call, ExistingResource, ExistingResources, Identity, make::permission, plan::task};
use crate::model::aws::Kind;

/// The order of deletion: dependents first. Resources that vanish with others are not listed.
const ORDER: [Kind; 23] = [
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
];
/// The kinds that are deleted after `ORDER`.
const LAST: [Kind; 4] = [Kind::InternetGateway, Kind::Vpc, Kind::DhcpOptions, Kind::Role];

/// Returns a kind's position in the order of deletion.
pub(super) fn rank(kind: Kind) -> usize {
    let mut all = ORDER.iter().chain(&LAST);
    all.position(|own| *own == kind).unwrap_or(ORDER.len())
}

/// The deletion of one resource.
#[derive(Clone, Debug)]
pub struct Deletion {
    identity: Identity,
    found: ExistingResource,
    calls: Vec<Call>,
}

impl Deletion {
    /// Returns upstream's name of the kind.
    pub fn task(&self) -> &'static str {
        task(self.identity.0)
    }

    /// Returns the identifying value of the resource.
    pub fn name(&self) -> &str {
        &self.identity.1
    }

    /// Returns the resource's ID in AWS.
    pub fn id(&self) -> &str {
        &self.found.id
    }

    /// Returns the calls that delete the resource.
    pub fn calls(&self) -> &[Call] {
        &self.calls
    }
}

/// Returns the deletions of a cluster's own resources, in order.
pub fn erasures(existing: &ExistingResources) -> Vec<Deletion> {
    let mut all = Vec::new();
    for kind in ORDER.into_iter().chain(LAST) {
        for (identity, found) in
            existing.all.iter().filter(|((own, _), one)| *own == kind && one.owned)
        {
            let calls = erase(identity, found);
            if !calls.is_empty() {
                let (identity, found) = (identity.clone(), found.clone());
                all.push(Deletion { identity, found, calls });
            }
        }
    }
    all
}

/// Returns the calls that delete one resource.
pub(super) fn erase(identity: &Identity, found: &ExistingResource) -> Vec<Call> {
    let (kind, name) = identity;
    let (id, around) = (found.id.as_str(), found.around.as_str());
    let ec2 = |operation, parameter: &str| vec![Call::ec2(operation, json!({parameter: id}))];
    let iam = |operation, parameters| Call::new("iam", operation, parameters);
    let one = |service, operation, parameters| vec![Call::new(service, operation, parameters)];
    match kind {
        Kind::ScalingGroup => {
            let request = json!({"AutoScalingGroupName": id, "ForceDelete": true});
            one("autoscaling", "DeleteAutoScalingGroup", request)
        }
        Kind::LifecycleHook => {
            let request = json!({"AutoScalingGroupName": around, "LifecycleHookName": id});
            one("autoscaling", "DeleteLifecycleHook", request)
        }
        Kind::LaunchTemplate => ec2("DeleteLaunchTemplate", "LaunchTemplateId"),
        Kind::Listener => one("elbv2", "DeleteListener", json!({"ListenerArn": id})),
        Kind::NetworkBalancer => one("elbv2", "DeleteLoadBalancer", json!({"LoadBalancerArn": id})),
        Kind::TargetGroup => one("elbv2", "DeleteTargetGroup", json!({"TargetGroupArn": id})),
        Kind::EventTarget => one("events", "RemoveTargets", json!({"Rule": id, "Ids": ["1"]})),
        Kind::EventRule => one("events", "DeleteRule", json!({"Name": id})),
        Kind::Queue => one("sqs", "DeleteQueue", json!({"QueueUrl": around})),
        Kind::InstanceProfile => {
            let mut calls = Vec::new();
            if !around.is_empty() {
                let request = json!({"InstanceProfileName": id, "RoleName": around});
                calls.push(iam("RemoveRoleFromInstanceProfile", request));
            }
            calls.push(iam("DeleteInstanceProfile", json!({"InstanceProfileName": id})));
            calls
        }
        Kind::RolePolicy => {
            vec![iam("DeleteRolePolicy", json!({"RoleName": around, "PolicyName": id}))]
        }
        Kind::RolePolicyAttachment => {
            vec![iam("DetachRolePolicy", json!({"RoleName": around, "PolicyArn": id}))]
        }
        Kind::Role => vec![iam("DeleteRole", json!({"RoleName": id}))],
        Kind::OidcProvider => {
            vec![iam("DeleteOpenIDConnectProvider", json!({"OpenIDConnectProviderArn": id}))]
        }
        Kind::SshKey => ec2("DeleteKeyPair", "KeyName"),
        Kind::Volume => ec2("DeleteVolume", "VolumeId"),
        Kind::NatGateway => ec2("DeleteNatGateway", "NatGatewayId"),
        Kind::ElasticIp => ec2("ReleaseAddress", "AllocationId"),
        Kind::SecurityGroupRule => permission("Revoke", name).into_iter().collect(),
        Kind::SecurityGroup => ec2("DeleteSecurityGroup", "GroupId"),
        Kind::RouteTableAssociation => ec2("DisassociateRouteTable", "AssociationId"),
        Kind::Subnet => ec2("DeleteSubnet", "SubnetId"),
        Kind::RouteTable => ec2("DeleteRouteTable", "RouteTableId"),
        Kind::InternetGateway => {
            let mut calls = ec2("DeleteInternetGateway", "InternetGatewayId");
            if !around.is_empty() {
                let request = json!({"InternetGatewayId": id, "VpcId": around});
                calls.insert(0, Call::ec2("DetachInternetGateway", request));
            }
            calls
        }
        Kind::Vpc => ec2("DeleteVpc", "VpcId"),
        Kind::DhcpOptions => ec2("DeleteDhcpOptions", "DhcpOptionsId"),
        Kind::Record => {
            let record: Value = serde_json::from_str(around).unwrap_or_default();
            let alias = json!({
                "HostedZoneId": record.text("AliasTarget.HostedZoneId"),
                "DNSName": record.text("AliasTarget.DNSName"),
                "EvaluateTargetHealth": record.text("AliasTarget.EvaluateTargetHealth"),
            });
            let mut set = json!({"Name": record.text("Name"), "Type": record.text("Type")});
            if record.has("AliasTarget") {
                set.set("AliasTarget", alias);
            } else {
                set.set("TTL", record.text("TTL"));
                set.set(
                    "ResourceRecords",
                    json!({"ResourceRecord": record.list("ResourceRecords")}),
                );
            }
            let change = json!({"Action": "DELETE", "ResourceRecordSet": set});
            let request = json!({"Id": record.text("zone"), "ChangeBatch": {"Changes": {"Change": [change]}}});
            one("route53", "ChangeResourceRecordSets", request)
        }
        _ => Vec::new(),
    }
}
