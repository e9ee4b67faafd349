//! The calls that create and update resources.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use kops_api::Spec as _;
use serde_json::{Value, json};

use super::{
    Call, ExistingResource, Ids,
    fields::{TAG, id},
    machines::{group_call, template_data},
    network::{rule, via},
    serve::{DELAY, TERMINATION, alias, alias_of},
};
use crate::{
    Error,
    model::aws::{Balancer, Body, Kind, Ref, Resource, Tags},
};

/// The creation of a resource, and the work left after it.
#[derive(Clone, Debug)]
pub struct Creation {
    /// The call that creates the resource.
    pub call: Call,
    id: &'static str,
    /// The fields that are set after the creation.
    pub later: Vec<String>,
}

impl Creation {
    /// Records the ID in the answer to the creation under the resource's reference, and under further references that
    /// depend on it. Returns the ID.
    pub fn learn(&self, resource: &Resource, answer: &Value, ids: &mut Ids) -> String {
        let own = Ref::new(resource.kind(), resource.name.clone());
        let first = answer.list(self.id).first().unwrap_or(&Value::Null);
        let id = match &resource.body {
            Body::NetworkBalancer(_) => {
                let alias =
                    format!("{} {}", first.text("DNSName"), first.text("CanonicalHostedZoneId"));
                ids.insert(alias_of(&own), alias);
                first.text("LoadBalancerArn").to_owned()
            }
            Body::TargetGroup(_) => first.text("TargetGroupArn").to_owned(),
            Body::Listener(_) => first.text("ListenerArn").to_owned(),
            // A queue's own policy contains its ARN.
            Body::Queue { policy, .. } => {
                let policy: Value = serde_json::from_str(policy).unwrap_or_default();
                let statement = policy.list("Statement").first().unwrap_or(&Value::Null);
                statement.text("Resource").to_owned()
            }
            _ if self.id.is_empty() => resource.name.clone(),
            _ => answer.text(self.id).to_owned(),
        };
        ids.insert(own, id.clone());
        id
    }
}

/// Rejects resources that direct calls do not support.
pub(super) fn check(resource: &Resource) -> Result<(), Error> {
    let (what, remedy) = match &resource.body {
        Body::ClassicBalancer(_) => {
            ("a classic load balancer", "set spec.api.loadBalancer.class: Network")
        }
        Body::EgressOnlyGateway { .. } => ("a cluster with IPv6 alone", "use --target=terraform"),
        Body::Subnet(subnet) if !subnet.ipv6.is_empty() => {
            ("a subnet with a range of IPv6", "use --target=terraform")
        }
        Body::Zone => ("creating a DNS zone", "create it, and set its ID as spec.dnsZone"),
        Body::ScalingGroup(group) if group.warm_pool.is_some() => {
            ("a warm pool", "take spec.warmPool out")
        }
        Body::ScalingGroup(group) if !group.balancers.is_empty() => {
            ("a classic load balancer", "name target groups in spec.externalLoadBalancers")
        }
        _ => return Ok(()),
    };
    let what = format!("{what} ({:?}) with --target=direct", resource.name);
    Err(Error::Unsupported { what, remedy })
}

fn pairs(tags: &Tags) -> Vec<Value> {
    tags.iter().map(|(key, value)| json!({"Key": key, "Value": value})).collect()
}

/// Returns the tag specification of a new EC2 resource.
fn tagged(kind: &str, tags: &Tags) -> Value {
    json!([{"ResourceType": kind, "Tag": pairs(tags)}])
}

fn with_tags(mut parameters: Value, kind: &str, tags: &Tags) -> Value {
    if !tags.is_empty() {
        parameters.set("TagSpecification", tagged(kind, tags));
    }
    parameters
}

/// Returns the creation of a resource.
pub fn makes(resource: &Resource, ids: &Ids, region: &str) -> Result<Creation, Error> {
    let (name, tags) = (resource.name.as_str(), &resource.tags);
    let id = |to: &Ref| id(ids, to);
    let ec2 = |operation, parameters, id, later: &[&str]| {
        let later = later.iter().map(|field| (*field).to_owned()).collect();
        Ok(Creation { call: Call::ec2(operation, parameters), id, later })
    };
    match &resource.body {
        Body::Vpc { cidr } => {
            let request = json!({"CidrBlock": cidr, "AmazonProvidedIpv6CidrBlock": true});
            ec2("CreateVpc", with_tags(request, "vpc", tags), "vpc.vpcId", &["DNSHostnames"])
        }
        Body::VpcCidr { vpc, cidr } => {
            ec2("AssociateVpcCidrBlock", json!({"VpcId": id(vpc), "CidrBlock": cidr}), "", &[])
        }
        Body::DhcpOptions { domain, servers } => {
            let all = [("domain-name", json!([domain])), ("domain-name-servers", json!(servers))];
            let all = all.map(|(key, value)| json!({"Key": key, "Value": value}));
            let request = with_tags(json!({"DhcpConfiguration": all}), "dhcp-options", tags);
            // Some servers ignore the tags of this call, so set them afterwards.
            let later = tags.keys().map(|key| format!("{TAG}{key}")).collect();
            let call = Call::ec2("CreateDhcpOptions", request);
            Ok(Creation { call, id: "dhcpOptions.dhcpOptionsId", later })
        }
        Body::DhcpOptionsAssociation { vpc, options } => {
            let request = json!({"VpcId": id(vpc), "DhcpOptionsId": id(options)});
            ec2("AssociateDhcpOptions", request, "", &[])
        }
        Body::InternetGateway { .. } => {
            let request = with_tags(json!({}), "internet-gateway", tags);
            ec2("CreateInternetGateway", request, "internetGateway.internetGatewayId", &["VPC"])
        }
        Body::Subnet(subnet) => {
            let request = json!({"VpcId": id(&subnet.vpc), "CidrBlock": subnet.cidr, "AvailabilityZone": subnet.zone});
            let later: &[&str] = if subnet.named_by_id { &["NamedByID"] } else { &[] };
            ec2("CreateSubnet", with_tags(request, "subnet", tags), "subnet.subnetId", later)
        }
        Body::RouteTable { vpc, .. } => {
            let request = with_tags(json!({"VpcId": id(vpc)}), "route-table", tags);
            ec2("CreateRouteTable", request, "routeTable.routeTableId", &[])
        }
        Body::RouteTableAssociation { table, subnet } => {
            let request = json!({"RouteTableId": id(table), "SubnetId": id(subnet)});
            ec2("AssociateRouteTable", request, "associationId", &[])
        }
        Body::Route { .. } => ec2("CreateRoute", route(resource, ids), "", &[]),
        Body::ElasticIp => {
            let request = with_tags(json!({"Domain": "vpc"}), "elastic-ip", tags);
            ec2("AllocateAddress", request, "allocationId", &[])
        }
        Body::NatGateway { address, subnet } => {
            let mut request = with_tags(json!({"SubnetId": id(subnet)}), "natgateway", tags);
            if let Some(address) = address {
                request.set("AllocationId", id(address));
            }
            ec2("CreateNatGateway", request, "natGateway.natGatewayId", &[])
        }
        Body::SecurityGroup { vpc, description } => {
            let request =
                json!({"VpcId": id(vpc), "GroupName": name, "GroupDescription": description});
            ec2("CreateSecurityGroup", with_tags(request, "security-group", tags), "groupId", &[])
        }
        Body::SecurityGroupRule(one) => {
            let call =
                permission("Authorize", &rule(ids, one)).ok_or_else(|| internal_error(resource))?;
            Ok(Creation { call, id: "", later: Vec::new() })
        }
        Body::Volume { zone, ebs } => {
            let mut request = json!({"AvailabilityZone": zone, "Size": ebs.size, "VolumeType": ebs.class,
                "Encrypted": ebs.encrypted, "Iops": ebs.iops, "Throughput": ebs.throughput});
            request.set_if("KmsKeyId", ebs.key.as_deref().map(Value::from).as_ref());
            ec2("CreateVolume", with_tags(request, "volume", tags), "volumeId", &[])
        }
        Body::SshKey { public } => {
            let request = json!({"KeyName": name, "PublicKeyMaterial": STANDARD.encode(public)});
            ec2("ImportKeyPair", with_tags(request, "key-pair", tags), "keyName", &[])
        }
        Body::LaunchTemplate(template) => {
            let data = template_data(template, tags, ids);
            let request = json!({"LaunchTemplateName": name, "LaunchTemplateData": data});
            let request = with_tags(request, "launch-template", tags);
            ec2("CreateLaunchTemplate", request, "launchTemplate.launchTemplateId", &[])
        }
        _ => make_outside_ec2(resource, ids, region),
    }
}

/// Returns the creation of a resource outside EC2.
fn make_outside_ec2(resource: &Resource, ids: &Ids, region: &str) -> Result<Creation, Error> {
    let (name, tags) = (resource.name.as_str(), &resource.tags);
    let id = |to: &Ref| id(ids, to);
    let made = |service, operation, parameters, id, later: &[&str]| {
        let later = later.iter().map(|field| (*field).to_owned()).collect();
        Ok(Creation { call: Call::new(service, operation, parameters), id, later })
    };
    match &resource.body {
        Body::ScalingGroup(group) => {
            let mut request = group_call(name, group, ids);
            let all = pairs(tags).into_iter().map(|tag| group_tag(name, tag));
            request.set("Tags", all.collect::<Vec<_>>());
            if !group.target_groups.is_empty() {
                let arns: Vec<_> = group.target_groups.iter().map(id).collect();
                request.set("TargetGroupARNs", arns);
            }
            let later: &[&str] =
                if group.suspended.is_empty() { &["Metrics"] } else { &["Metrics", "Suspended"] };
            made("autoscaling", "CreateAutoScalingGroup", request, "", later)
        }
        Body::LifecycleHook { group, hook, result, heartbeat, transition } => {
            let request = json!({"AutoScalingGroupName": id(group), "LifecycleHookName": hook,
                "DefaultResult": result, "HeartbeatTimeout": heartbeat, "LifecycleTransition": transition});
            made("autoscaling", "PutLifecycleHook", request, "", &[])
        }
        Body::NetworkBalancer(one) => {
            let mut later = vec!["CrossZone"];
            later.extend(one.log.as_ref().map(|_| "Log"));
            made("elbv2", "CreateLoadBalancer", balancer(one, tags, ids), "LoadBalancers", &later)
        }
        Body::TargetGroup(one) => {
            let mut request = json!({"Name": name, "VpcId": id(&one.vpc), "Port": one.port, "Protocol": one.protocol,
                "TargetType": "instance", "Tags": pairs(tags)});
            health(&mut request, one.health.protocol, one.health.path);
            made("elbv2", "CreateTargetGroup", request, "TargetGroups", &["Delay", "Termination"])
        }
        Body::Listener(_) => {
            made("elbv2", "CreateListener", listener(resource, ids), "Listeners", &[])
        }
        Body::Role { assumed, boundary, .. } => {
            let mut request =
                json!({"RoleName": name, "AssumeRolePolicyDocument": assumed, "Tags": pairs(tags)});
            request.set_if("PermissionsBoundary", boundary.as_deref().map(Value::from).as_ref());
            made("iam", "CreateRole", request, "", &[])
        }
        Body::RolePolicy { role, document } => {
            let request =
                json!({"RoleName": role.name, "PolicyName": name, "PolicyDocument": document});
            made("iam", "PutRolePolicy", request, "", &[])
        }
        Body::RolePolicyAttachment { role, policy } => {
            let request = json!({"RoleName": role.name, "PolicyArn": policy});
            made("iam", "AttachRolePolicy", request, "", &[])
        }
        Body::InstanceProfile { .. } => {
            let request = json!({"InstanceProfileName": name, "Tags": pairs(tags)});
            made("iam", "CreateInstanceProfile", request, "", &["Role"])
        }
        Body::OidcProvider { url, audiences, thumbprints } => {
            let request = json!({
                "Url": url, "ClientIDList": audiences, "ThumbprintList": thumbprints, "Tags": pairs(tags),
            });
            made("iam", "CreateOpenIDConnectProvider", request, "OpenIDConnectProviderArn", &[])
        }
        Body::Queue { retention, policy } => {
            let set = json!({"MessageRetentionPeriod": retention.to_string(), "Policy": policy});
            let request = json!({"QueueName": name, "Attributes": set, "tags": tags});
            made("sqs", "CreateQueue", request, "QueueUrl", &[])
        }
        Body::EventRule { pattern } => {
            let request = json!({"Name": name, "EventPattern": pattern, "Tags": pairs(tags)});
            made("events", "PutRule", request, "", &[])
        }
        Body::EventTarget { rule, queue } => {
            let request = json!({"Rule": rule.name, "Targets": [{"Id": "1", "Arn": id(queue)}]});
            made("events", "PutTargets", request, "", &[])
        }
        Body::Record { .. } => {
            made("route53", "ChangeResourceRecordSets", record(resource, ids), "", &[])
        }
        Body::ZoneAssociation { zone, vpc } => {
            let vpc = json!({"VPCId": id(vpc), "VPCRegion": region});
            let request = json!({"Id": id(zone).trim_start_matches("/hostedzone/"), "VPC": vpc});
            made("route53", "AssociateVPCWithHostedZone", request, "", &[])
        }
        _ => Err(internal_error(resource)),
    }
}

fn internal_error(resource: &Resource) -> Error {
    Error::Unsupported {
        what: format!("{:?} {:?} with --target=direct", resource.kind(), resource.name),
        remedy: "this is a bug; please report it",
    }
}

fn route(resource: &Resource, ids: &Ids) -> Value {
    let Body::Route { table, to, via: one } = &resource.body else { return Value::Null };
    let destination =
        if to.contains(':') { "DestinationIpv6CidrBlock" } else { "DestinationCidrBlock" };
    let (parameter, target) = via(ids, one);
    json!({"RouteTableId": id(ids, table), destination: to, parameter: target})
}

/// Parses a rule's identity and returns its call; `verb` is `Authorize` or `Revoke`.
pub(super) fn permission(verb: &str, rule: &str) -> Option<Call> {
    let mut parts = rule.split(' ');
    let (group, protocol, ports, direction, peer) =
        (parts.next()?, parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let mut one = json!({"IpProtocol": protocol});
    if let Some((from, to)) = ports.rsplit_once('-').filter(|_| ports != "all") {
        one.set("FromPort", from);
        one.set("ToPort", to);
    }
    let (list, member) = match peer {
        _ if peer.starts_with("sg-") => ("Groups", "GroupId"),
        _ if peer.starts_with("pl-") => ("PrefixListIds", "PrefixListId"),
        _ if peer.contains(':') => ("Ipv6Ranges", "CidrIpv6"),
        _ => ("IpRanges", "CidrIp"),
    };
    one.set(list, json!([{member: peer}]));
    let operation = match (verb, direction) {
        ("Authorize", "from") => "AuthorizeSecurityGroupIngress",
        ("Authorize", _) => "AuthorizeSecurityGroupEgress",
        (_, "from") => "RevokeSecurityGroupIngress",
        _ => "RevokeSecurityGroupEgress",
    };
    Some(Call::ec2(operation, json!({"GroupId": group, "IpPermissions": [one]})))
}

fn balancer(one: &Balancer, tags: &Tags, ids: &Ids) -> Value {
    let mapping = |mapping: &crate::model::aws::Mapping| {
        let mut request = json!({"SubnetId": id(ids, &mapping.subnet)});
        request.set_if("AllocationId", mapping.allocation.as_deref().map(Value::from).as_ref());
        request.set_if("PrivateIPv4Address", mapping.address.as_deref().map(Value::from).as_ref());
        request
    };
    let groups: Vec<_> = one.security_groups.iter().map(|to| id(ids, to)).collect();
    json!({
        "Name": one.short,
        "Type": "network",
        "Scheme": if one.internal { "internal" } else { "internet-facing" },
        "IpAddressType": if one.dual_stack { "dualstack" } else { "ipv4" },
        "SubnetMappings": one.subnets.iter().map(mapping).collect::<Vec<_>>(),
        "SecurityGroups": groups,
        "Tags": pairs(tags),
    })
}

fn health(request: &mut Value, protocol: &str, path: Option<&str>) {
    request.set("HealthCheckProtocol", protocol);
    request.set_if("HealthCheckPath", path.map(Value::from).as_ref());
    request.set("HealthyThresholdCount", 2);
    request.set("UnhealthyThresholdCount", 2);
    request.set("HealthCheckIntervalSeconds", 10);
}

fn listener(resource: &Resource, ids: &Ids) -> Value {
    let Body::Listener(one) = &resource.body else { return Value::Null };
    let action = json!([{"Type": "forward", "TargetGroupArn": id(ids, &one.group)}]);
    let mut request = json!({
        "LoadBalancerArn": id(ids, &one.balancer), "Port": one.port, "Protocol": "TCP", "DefaultActions": action,
    });
    if let Some((certificate, policy)) = &one.tls {
        request.set("Protocol", "TLS");
        request.set("Certificates", json!([{"CertificateArn": certificate}]));
        request.set("SslPolicy", policy.as_str());
    }
    request
}

fn record(resource: &Resource, ids: &Ids) -> Value {
    let Body::Record { zone, name, class, to } = &resource.body else { return Value::Null };
    let alias = alias(ids, to);
    let (target, target_zone) = alias.split_once(' ').unwrap_or((&alias, ""));
    let alias =
        json!({"HostedZoneId": target_zone, "DNSName": target, "EvaluateTargetHealth": false});
    let set = json!({"Name": name, "Type": class, "AliasTarget": alias});
    let change = json!({"Action": "UPSERT", "ResourceRecordSet": set});
    let zone = id(ids, zone);
    json!({"Id": zone.trim_start_matches("/hostedzone/"), "ChangeBatch": {"Changes": {"Change": [change]}}})
}

fn group_tag(name: &str, mut tag: Value) -> Value {
    tag.set("ResourceId", name);
    tag.set("ResourceType", "auto-scaling-group");
    tag.set("PropagateAtLaunch", true);
    tag
}

/// Returns the calls that change fields of an existing resource. Fields that cannot be changed are rejected.
pub(super) fn changes(
    resource: &Resource,
    found: &ExistingResource,
    ids: &Ids,
    fields: &[String],
) -> Result<Vec<Call>, Error> {
    let (tags, own): (Vec<_>, Vec<_>) = fields.iter().partition(|field| field.starts_with(TAG));
    let mut all = Vec::new();
    if !tags.is_empty() {
        let keys = tags.iter().filter_map(|field| field.strip_prefix(TAG));
        let tags: Tags = keys
            .filter_map(|key| Some((key.to_owned(), resource.tags.get(key)?.clone())))
            .collect();
        all.push(tag_call(resource, &found.id, &tags));
    }
    let own: Vec<&str> = own.into_iter().map(String::as_str).collect();
    if !own.is_empty() {
        all.extend(change_calls(resource, found, ids, &own)?);
    }
    Ok(all)
}

fn tag_call(resource: &Resource, id: &str, tags: &Tags) -> Call {
    let pairs = pairs(tags);
    match resource.kind() {
        Kind::ScalingGroup => {
            let all: Vec<_> = pairs.into_iter().map(|tag| group_tag(id, tag)).collect();
            Call::new("autoscaling", "CreateOrUpdateTags", json!({"Tags": all}))
        }
        Kind::NetworkBalancer | Kind::TargetGroup => {
            Call::new("elbv2", "AddTags", json!({"ResourceArns": [id], "Tags": pairs}))
        }
        Kind::Role => Call::new("iam", "TagRole", json!({"RoleName": id, "Tags": pairs})),
        _ => Call::ec2("CreateTags", json!({"ResourceId": [id], "Tag": pairs})),
    }
}

fn change_calls(
    resource: &Resource,
    found: &ExistingResource,
    ids: &Ids,
    fields: &[&str],
) -> Result<Vec<Call>, Error> {
    let fixed = |allowed: &[&str]| match fields.iter().find(|field| !allowed.contains(*field)) {
        None => Ok(()),
        Some(field) => {
            let what = format!("{:?} {}: {field}", resource.kind(), resource.name);
            let reason =
                "cannot be changed in place: revert the change, or delete the resource first";
            Err(Error::value(&what, found.fields.get(*field).cloned().unwrap_or_default(), reason))
        }
    };
    let has = |field: &str| fields.contains(&field);
    let own = found.id.as_str();
    let iam = |operation, parameters| Ok(vec![Call::new("iam", operation, parameters)]);
    match &resource.body {
        Body::Vpc { .. } => {
            fixed(&["DNSHostnames"])?;
            let request = json!({"VpcId": own, "EnableDnsHostnames": {"Value": true}});
            Ok(vec![Call::ec2("ModifyVpcAttribute", request)])
        }
        Body::InternetGateway { vpc } => {
            // A gateway attached to another VPC is not taken from it.
            if !found.around.is_empty() {
                fixed(&[])?;
            }
            let request = json!({"InternetGatewayId": own, "VpcId": id(ids, vpc)});
            Ok(vec![Call::ec2("AttachInternetGateway", request)])
        }
        Body::Subnet(_) => {
            fixed(&["NamedByID"])?;
            // The compared attribute is set last, because it stands for both.
            let set = [
                json!({"SubnetId": own, "PrivateDnsHostnameTypeOnLaunch": "resource-name"}),
                json!({"SubnetId": own, "EnableResourceNameDnsARecordOnLaunch": {"Value": true}}),
            ];
            Ok(set.map(|request| Call::ec2("ModifySubnetAttribute", request)).into())
        }
        Body::RouteTableAssociation { table, .. } => {
            let request = json!({"AssociationId": own, "RouteTableId": id(ids, table)});
            Ok(vec![Call::ec2("ReplaceRouteTableAssociation", request)])
        }
        Body::Route { .. } => Ok(vec![Call::ec2("ReplaceRoute", route(resource, ids))]),
        Body::Volume { ebs, .. } => {
            fixed(&["Size", "Type", "IOPS", "Throughput"])?;
            let request = json!({"VolumeId": own, "Size": ebs.size, "VolumeType": ebs.class,
                "Iops": ebs.iops, "Throughput": ebs.throughput});
            Ok(vec![Call::ec2("ModifyVolume", request)])
        }
        Body::LaunchTemplate(template) => {
            let data = template_data(template, &resource.tags, ids);
            let request = json!({"LaunchTemplateId": own, "LaunchTemplateData": data});
            Ok(vec![Call::ec2("CreateLaunchTemplateVersion", request)])
        }
        Body::ScalingGroup(group) => {
            Ok(super::machines::group_changes(resource, group, found, ids, fields))
        }
        Body::Role { assumed, boundary, .. } => {
            let mut calls = Vec::new();
            if has("Assumed") {
                let request = json!({"RoleName": own, "PolicyDocument": assumed});
                calls.push(Call::new("iam", "UpdateAssumeRolePolicy", request));
            }
            if has("Boundary") {
                calls.push(match boundary {
                    Some(arn) => {
                        let request = json!({"RoleName": own, "PermissionsBoundary": arn});
                        Call::new("iam", "PutRolePermissionsBoundary", request)
                    }
                    None => {
                        Call::new("iam", "DeleteRolePermissionsBoundary", json!({"RoleName": own}))
                    }
                });
            }
            Ok(calls)
        }
        Body::InstanceProfile { role: Some(role) } => {
            // A profile with another role belongs to another owner.
            if !found.around.is_empty() {
                fixed(&[])?;
            }
            let request = json!({"InstanceProfileName": resource.name, "RoleName": role.name});
            iam("AddRoleToInstanceProfile", request)
        }
        Body::NetworkBalancer(_) | Body::TargetGroup(_) | Body::Listener(_) => {
            balancer_changes(resource, found, ids, fields, &fixed)
        }
        Body::Queue { retention, policy } => {
            let set = json!({"MessageRetentionPeriod": retention.to_string(), "Policy": policy});
            let request = json!({"QueueUrl": found.around, "Attributes": set});
            Ok(vec![Call::new("sqs", "SetQueueAttributes", request)])
        }
        // Putting a rule again replaces it. AWS applies tags only to new rules.
        Body::EventRule { pattern } => {
            let request = json!({"Name": own, "EventPattern": pattern});
            Ok(vec![Call::new("events", "PutRule", request)])
        }
        Body::DhcpOptionsAssociation { .. }
        | Body::LifecycleHook { .. }
        | Body::RolePolicy { .. }
        | Body::Record { .. } => Ok(vec![makes(resource, ids, "")?.call]),
        _ => {
            fixed(&[])?;
            Ok(Vec::new())
        }
    }
}

fn balancer_changes(
    resource: &Resource,
    found: &ExistingResource,
    ids: &Ids,
    fields: &[&str],
    fixed: &dyn Fn(&[&str]) -> Result<(), Error>,
) -> Result<Vec<Call>, Error> {
    let (own, has) = (found.id.as_str(), |field: &str| fields.contains(&field));
    let call = |operation, parameters| Call::new("elbv2", operation, parameters);
    let set = |pairs: Vec<(&str, String)>| -> Vec<Value> {
        pairs.into_iter().map(|(key, value)| json!({"Key": key, "Value": value})).collect()
    };
    let mut calls = Vec::new();
    match &resource.body {
        Body::NetworkBalancer(one) => {
            fixed(&["Subnets", "SecurityGroups", "CrossZone", "Log"])?;
            let whole = balancer(one, &Tags::new(), ids);
            if has("Subnets") {
                let request =
                    json!({"LoadBalancerArn": own, "SubnetMappings": whole.at("SubnetMappings")});
                calls.push(call("SetSubnets", request));
            }
            if has("SecurityGroups") {
                let request =
                    json!({"LoadBalancerArn": own, "SecurityGroups": whole.at("SecurityGroups")});
                calls.push(call("SetSecurityGroups", request));
            }
            if has("CrossZone") || has("Log") {
                let mut pairs =
                    vec![("load_balancing.cross_zone.enabled", one.cross_zone.to_string())];
                pairs.push(("access_logs.s3.enabled", one.log.is_some().to_string()));
                if let Some((bucket, prefix, _)) = &one.log {
                    pairs.push(("access_logs.s3.bucket", bucket.clone()));
                    pairs.extend(prefix.clone().map(|prefix| ("access_logs.s3.prefix", prefix)));
                }
                let request = json!({"LoadBalancerArn": own, "Attributes": set(pairs)});
                calls.push(call("ModifyLoadBalancerAttributes", request));
            }
        }
        Body::TargetGroup(one) => {
            fixed(&["Health", "Thresholds", "Delay", "Termination"])?;
            if has("Health") || has("Thresholds") {
                let mut request = json!({"TargetGroupArn": own});
                health(&mut request, one.health.protocol, one.health.path);
                calls.push(call("ModifyTargetGroup", request));
            }
            if has("Delay") || has("Termination") {
                let pairs = vec![(DELAY, "30".to_owned()), (TERMINATION, "true".to_owned())];
                let request = json!({"TargetGroupArn": own, "Attributes": set(pairs)});
                calls.push(call("ModifyTargetGroupAttributes", request));
            }
        }
        _ => {
            let mut request = listener(resource, ids);
            request.remove("LoadBalancerArn");
            request.set("ListenerArn", own);
            calls.push(call("ModifyListener", request));
        }
    }
    Ok(calls)
}
