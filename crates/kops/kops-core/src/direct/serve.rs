//! Load balancers, IAM, DNS records and events.

use std::collections::{BTreeMap, BTreeSet};

use kops_api::Spec as _;
use serde_json::Value;

use super::{
    ExistingResource, Fields, Identity, Ids, Scope,
    fields::{document, fields, id, id_list, is_owned, put_tags, sorted, tags},
    look::Answers,
};
use crate::model::aws::{Body, Kind, Ref, Resource, Tags};

/// Returns the tags of load balancers and target groups, by ARN.
fn balancer_tags(answers: &Answers) -> BTreeMap<&str, Tags> {
    let all = answers.each("DescribeTags", "TagDescriptions");
    all.map(|one| (one.text("ResourceArn"), tags(one.list("Tags")))).collect()
}

/// Returns the ARNs of the cluster's load balancers and target groups.
pub(super) fn owned_arns(answers: &Answers, scope: &Scope) -> Vec<String> {
    let tags = balancer_tags(answers);
    // A Service's load balancer belongs to the cloud controller; only a deletion includes it.
    let own = |tags: &Tags| {
        let of_service = tags.contains_key("kubernetes.io/service-name");
        is_owned(tags, &scope.cluster) && (scope.erases || !of_service)
    };
    tags.into_iter().filter(|(_, tags)| own(tags)).map(|(arn, _)| arn.to_owned()).collect()
}

pub(super) fn collect(
    answers: &Answers,
    scope: &Scope,
    to: &mut Vec<(Identity, ExistingResource)>,
) {
    balancers(answers, scope, to);
    rights(answers, scope, to);
    events(answers, scope, to);
    names(answers, scope, to);
}

fn attributes<'a>(
    answers: &'a Answers,
    operation: &str,
    parameter: &str,
    arn: &str,
) -> BTreeMap<&'a str, &'a str> {
    let answer = answers.about(operation, parameter, arn);
    let list = answer.map(|answer| answer.list("Attributes")).unwrap_or_default();
    list.iter().map(|one| (one.text("Key"), one.text("Value"))).collect()
}

fn balancers(answers: &Answers, scope: &Scope, to: &mut Vec<(Identity, ExistingResource)>) {
    let (own, tagged) = (owned_arns(answers, scope), balancer_tags(answers));
    let is_own = |arn: &str| own.iter().any(|one| one == arn);
    for one in answers.each("DescribeLoadBalancers", "LoadBalancers") {
        let arn = one.text("LoadBalancerArn");
        let Some(tags) = tagged.get(arn).filter(|_| is_own(arn)) else { continue };
        let set = attributes(answers, "DescribeLoadBalancerAttributes", "LoadBalancerArn", arn);
        let set = |key: &str| set.get(key).copied().unwrap_or_default().to_owned();
        let list = |path: &str, member: &str| {
            let items = one.list(path).iter();
            sorted(
                items.map(|item| item.as_str().unwrap_or(item.text(member)).to_owned()).collect(),
            )
        };
        let mut all = fields([
            ("Scheme", one.text("Scheme").to_owned()),
            ("Subnets", list("AvailabilityZones", "SubnetId")),
            ("SecurityGroups", list("SecurityGroups", "")),
            ("AddressType", one.text("IpAddressType").to_owned()),
            ("CrossZone", set("load_balancing.cross_zone.enabled")),
            (
                "Log",
                format!("{} {}", set("access_logs.s3.bucket"), set("access_logs.s3.prefix"))
                    .trim()
                    .to_owned(),
            ),
        ]);
        put_tags(&mut all, tags);
        let around = format!("{} {}", one.text("DNSName"), one.text("CanonicalHostedZoneId"));
        let name = tags.get("Name").cloned().unwrap_or_default();
        let found = ExistingResource { id: arn.to_owned(), fields: all, owned: true, around };
        to.push(((Kind::NetworkBalancer, name), found));
    }
    for one in answers.each("DescribeListeners", "Listeners") {
        let certificate = one.list("Certificates").first();
        let certificate = certificate.map(|one| one.text("CertificateArn")).unwrap_or_default();
        let action = one.list("DefaultActions").first();
        let action = action.map(|one| one.text("TargetGroupArn")).unwrap_or_default();
        let all = fields([
            ("Protocol", one.text("Protocol").to_owned()),
            ("TargetGroup", action.to_owned()),
            ("Certificate", certificate.to_owned()),
            ("Policy", one.text("SslPolicy").to_owned()),
        ]);
        let identity = format!("{} {}", one.text("LoadBalancerArn"), one.text("Port"));
        let found = ExistingResource {
            id: one.text("ListenerArn").to_owned(),
            fields: all,
            owned: true,
            ..ExistingResource::default()
        };
        to.push(((Kind::Listener, identity), found));
    }
    for one in answers.each("DescribeTargetGroups", "TargetGroups") {
        let arn = one.text("TargetGroupArn");
        let Some(tags) = tagged.get(arn).filter(|_| is_own(arn)) else { continue };
        let text = |path: &str| one.text(path).to_owned();
        let set = attributes(answers, "DescribeTargetGroupAttributes", "TargetGroupArn", arn);
        let set = |key: &str| set.get(key).copied().unwrap_or_default().to_owned();
        let thresholds =
            ["HealthyThresholdCount", "UnhealthyThresholdCount", "HealthCheckIntervalSeconds"];
        let mut all = fields([
            ("VPC", text("VpcId")),
            ("Port", text("Port")),
            ("Protocol", text("Protocol")),
            (
                "Health",
                format!("{} {}", text("HealthCheckProtocol"), text("HealthCheckPath"))
                    .trim()
                    .to_owned(),
            ),
            ("Thresholds", thresholds.map(|member| one.text(member)).join(" ")),
            ("Delay", set(DELAY)),
            ("Termination", set(TERMINATION)),
        ]);
        put_tags(&mut all, tags);
        let found = ExistingResource {
            id: arn.to_owned(),
            fields: all,
            owned: true,
            ..ExistingResource::default()
        };
        to.push(((Kind::TargetGroup, text("TargetGroupName")), found));
    }
}

/// The attributes of a target group.
pub(super) const DELAY: &str = "deregistration_delay.timeout_seconds";
pub(super) const TERMINATION: &str = "deregistration_delay.connection_termination.enabled";

/// Decodes a document from IAM, which escapes it for a URL.
fn decode_document(text: &str) -> String {
    // IAM does not escape spaces as plus signs.
    let decoded = api_meta::query_decode(&text.replace('+', "%2B"));
    document(&decoded.unwrap_or_else(|| text.to_owned()))
}

fn rights(answers: &Answers, scope: &Scope, to: &mut Vec<(Identity, ExistingResource)>) {
    let mut own = BTreeSet::new();
    for one in answers.each("GetAccountAuthorizationDetails", "RoleDetailList") {
        let (name, tags) = (one.text("RoleName"), tags(one.list("Tags")));
        if !is_owned(&tags, &scope.cluster) {
            continue;
        }
        own.insert(name);
        let boundary = one.text("PermissionsBoundary.PermissionsBoundaryArn").to_owned();
        let assumed = decode_document(one.text("AssumeRolePolicyDocument"));
        let mut all = fields([("Assumed", assumed), ("Boundary", boundary)]);
        put_tags(&mut all, &tags);
        let arn = one.text("Arn").to_owned();
        let found = ExistingResource { id: name.to_owned(), fields: all, owned: true, around: arn };
        to.push(((Kind::Role, name.to_owned()), found));
        let mut put = |kind, id: &str, all| {
            let found = ExistingResource {
                id: id.to_owned(),
                fields: all,
                owned: true,
                around: name.to_owned(),
            };
            to.push(((kind, format!("{name}/{id}")), found));
        };
        for policy in one.list("RolePolicyList") {
            let all = fields([("Document", decode_document(policy.text("PolicyDocument")))]);
            put(Kind::RolePolicy, policy.text("PolicyName"), all);
        }
        for policy in one.list("AttachedManagedPolicies") {
            put(Kind::RolePolicyAttachment, policy.text("PolicyArn"), Fields::new());
        }
    }
    for one in answers.each("ListInstanceProfiles", "InstanceProfiles") {
        let name = one.text("InstanceProfileName").to_owned();
        let role = one.list("Roles").first().map(|role| role.text("RoleName")).unwrap_or_default();
        // An interrupted run may leave a profile without a role; it is identified by its name.
        let owned = own.contains(role) || (role.is_empty() && own.contains(name.as_str()));
        let all = fields([("Role", role.to_owned())]);
        let found =
            ExistingResource { id: name.clone(), fields: all, owned, around: role.to_owned() };
        to.push(((Kind::InstanceProfile, name), found));
    }
    for (parameters, page) in answers.of("GetOpenIDConnectProvider") {
        let list = |path: &str| {
            let items = page.list(path).iter().filter_map(serde_json::Value::as_str);
            sorted(items.map(str::to_owned).collect())
        };
        let all =
            fields([("Audiences", list("ClientIDList")), ("Thumbprints", list("ThumbprintList"))]);
        let owned = is_owned(&tags(page.list("Tags")), &scope.cluster);
        let arn = parameters.text("OpenIDConnectProviderArn").to_owned();
        let identity = (Kind::OidcProvider, scope.cluster.clone());
        to.push((
            identity,
            ExistingResource { id: arn, fields: all, owned, ..ExistingResource::default() },
        ));
    }
}

fn events(answers: &Answers, scope: &Scope, to: &mut Vec<(Identity, ExistingResource)>) {
    let owned = |answer: Option<&Value>, pairs: bool| {
        let Some(answer) = answer else { return false };
        let tags: Tags = if pairs {
            tags(answer.list("Tags"))
        } else {
            let members = answer.at("Tags").and_then(Value::as_object).into_iter().flatten();
            members
                .map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned()))
                .collect()
        };
        is_owned(&tags, &scope.cluster)
    };
    for (parameters, page) in answers.of("GetQueueAttributes") {
        let url = parameters.text("QueueUrl");
        let set = |name: &str| page.text(&format!("Attributes.{name}")).to_owned();
        let all = fields([
            ("Retention", set("MessageRetentionPeriod")),
            ("Policy", document(&set("Policy"))),
        ]);
        let owned = owned(answers.about("ListQueueTags", "QueueUrl", url), false);
        let found =
            ExistingResource { id: set("QueueArn"), fields: all, owned, around: url.to_owned() };
        to.push(((Kind::Queue, scope.queue.clone()), found));
    }
    let targeted: BTreeSet<&str> =
        answers.of("ListRuleNamesByTarget").flat_map(|(_, page)| page.texts("RuleNames")).collect();
    for rule in answers.each("ListRules", "Rules") {
        let (name, arn) = (rule.text("Name"), rule.text("Arn"));
        let all = fields([("Pattern", document(rule.text("EventPattern")))]);
        let owned = owned(answers.about("ListTagsForResource", "ResourceARN", arn), true);
        let found = |all| ExistingResource {
            id: name.to_owned(),
            fields: all,
            owned,
            around: arn.to_owned(),
        };
        to.push(((Kind::EventRule, name.to_owned()), found(all)));
        if targeted.contains(name) {
            to.push(((Kind::EventTarget, name.to_owned()), found(Fields::new())));
        }
    }
}

/// Normalizes a DNS name.
pub(super) fn dns(name: &str) -> String {
    name.trim_end_matches('.').replace("\\052", "*").to_lowercase()
}

fn names(answers: &Answers, scope: &Scope, to: &mut Vec<(Identity, ExistingResource)>) {
    let pages = answers.of("ListResourceRecordSets");
    for (parameters, one) in pages.flat_map(|(parameters, page)| {
        page.list("ResourceRecordSets").iter().map(move |one| (parameters, one))
    }) {
        let (name, class) = (dns(one.text("Name")), one.text("Type"));
        if !scope.names.iter().any(|own| dns(own) == name) || !["A", "AAAA"].contains(&class) {
            continue;
        }
        let alias = format!(
            "{} {}",
            dns(one.text("AliasTarget.DNSName")),
            one.text("AliasTarget.HostedZoneId")
        );
        let all = fields([("Alias", alias)]);
        let identity = format!("{name} {class}");
        // A deletion needs the whole record and its zone.
        let mut whole = one.clone();
        whole.set("zone", parameters.text("Id"));
        let around = whole.to_string();
        let found = ExistingResource { id: identity.clone(), fields: all, owned: true, around };
        to.push(((Kind::Record, identity), found));
    }
    for (_, page) in answers.of("GetHostedZone") {
        for vpc in page.list("VPCs") {
            let id = vpc.text("VPCId").to_owned();
            let found = ExistingResource { id: id.clone(), ..ExistingResource::default() };
            to.push(((Kind::ZoneAssociation, id), found));
        }
    }
}

/// Returns the identifying value of a resource; `None` while it depends on one that does not exist.
pub(super) fn identity(resource: &Resource, ids: &Ids) -> Option<String> {
    let known = |to: &Ref| ids.get(to);
    match &resource.body {
        Body::Listener(one) => Some(format!("{} {}", known(&one.balancer)?, one.port)),
        Body::RolePolicy { role, .. } => Some(format!("{}/{}", role.name, resource.name)),
        Body::RolePolicyAttachment { role, policy } => Some(format!("{}/{policy}", role.name)),
        Body::EventTarget { rule, .. } => Some(rule.name.clone()),
        Body::Record { name, class, .. } => Some(format!("{} {class}", dns(name))),
        Body::ZoneAssociation { vpc, .. } => known(vpc).cloned(),
        _ => Some(resource.name.clone()),
    }
}

pub(super) fn wanted(resource: &Resource, ids: &Ids) -> Fields {
    match &resource.body {
        Body::NetworkBalancer(one) => {
            let subnets: Vec<Ref> =
                one.subnets.iter().map(|mapping| mapping.subnet.clone()).collect();
            let log = one.log.as_ref().map(|(bucket, prefix, _)| {
                format!("{bucket} {}", prefix.as_deref().unwrap_or_default()).trim().to_owned()
            });
            fields([
                ("Scheme", if one.internal { "internal" } else { "internet-facing" }.to_owned()),
                ("Subnets", id_list(ids, &subnets)),
                ("SecurityGroups", id_list(ids, &one.security_groups)),
                ("AddressType", if one.dual_stack { "dualstack" } else { "ipv4" }.to_owned()),
                ("CrossZone", one.cross_zone.to_string()),
                ("Log", log.unwrap_or_default()),
            ])
        }
        Body::Listener(one) => {
            let mut all = fields([
                ("Protocol", if one.tls.is_some() { "TLS" } else { "TCP" }.to_owned()),
                ("TargetGroup", id(ids, &one.group)),
            ]);
            if let Some((certificate, policy)) = &one.tls {
                all.extend(fields([
                    ("Certificate", certificate.clone()),
                    ("Policy", policy.clone()),
                ]));
            }
            all
        }
        Body::TargetGroup(one) => {
            let path = one.health.path.unwrap_or_default();
            fields([
                ("VPC", id(ids, &one.vpc)),
                ("Port", one.port.to_string()),
                ("Protocol", one.protocol.to_owned()),
                ("Health", format!("{} {path}", one.health.protocol).trim().to_owned()),
                ("Thresholds", "2 2 10".to_owned()),
                ("Delay", "30".to_owned()),
                ("Termination", "true".to_owned()),
            ])
        }
        Body::Role { assumed, boundary, .. } => {
            let boundary = boundary.clone().unwrap_or_default();
            fields([("Assumed", document(assumed)), ("Boundary", boundary)])
        }
        Body::RolePolicy { document: text, .. } => fields([("Document", document(text))]),
        Body::InstanceProfile { role: Some(role) } => fields([("Role", role.name.clone())]),
        Body::OidcProvider { audiences, thumbprints, .. } => fields([
            ("Audiences", sorted(audiences.clone())),
            ("Thumbprints", sorted(thumbprints.clone())),
        ]),
        Body::Record { to, .. } => fields([("Alias", alias(ids, to))]),
        Body::Queue { retention, policy } => {
            fields([("Retention", retention.to_string()), ("Policy", document(policy))])
        }
        Body::EventRule { pattern } => fields([("Pattern", document(pattern))]),
        _ => Fields::new(),
    }
}

/// Returns a load balancer's DNS name and hosted zone. They are stored under a reference of their own.
pub(super) fn alias(ids: &Ids, to: &Ref) -> String {
    match ids.get(&alias_of(to)) {
        Some(alias) => {
            let (name, zone) = alias.split_once(' ').unwrap_or((alias, ""));
            format!("{} {zone}", dns(name))
        }
        None => id(ids, to),
    }
}

/// Returns the reference under which a load balancer's DNS name is stored.
pub(super) fn alias_of(to: &Ref) -> Ref {
    Ref::new(Kind::Record, format!("alias of {}", to.name))
}
