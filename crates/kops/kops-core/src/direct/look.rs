//! The bulk queries about a cluster in AWS, and the parsed answers.

use std::collections::BTreeMap;

use kops_api::Spec as _;
use serde_json::{Value, json};

use super::{Call, ExistingResource, Group, Identity, Scope, machines, network, serve};
use crate::model::aws::Kind;

/// The most resources in one query for tags.
const TAGGED: usize = 20;

/// Calls and their answers, one value per page.
#[derive(Debug, Default)]
pub struct Answers(Vec<(Call, Vec<Value>)>);

impl Answers {
    /// Stores an answer. `pages` is empty if the resource does not exist.
    pub fn add(&mut self, call: Call, pages: Vec<Value>) {
        self.0.push((call, pages));
    }

    fn has(&self, call: &Call) -> bool {
        self.0.iter().any(|(request, _)| request == call)
    }

    pub(super) fn of(&self, operation: &str) -> impl Iterator<Item = (&Value, &Value)> {
        let found = self.0.iter().filter(move |(call, _)| call.operation == operation);
        found.flat_map(|(call, pages)| pages.iter().map(move |page| (&call.parameters, page)))
    }

    /// Returns the items of a list in all answers to an operation.
    pub(super) fn each<'a>(
        &'a self,
        operation: &str,
        list: &'a str,
    ) -> impl Iterator<Item = &'a Value> {
        self.of(operation).flat_map(move |(_, page)| page.list(list))
    }

    /// Returns the answer to the call with this parameter.
    pub(super) fn about(&self, operation: &str, parameter: &str, id: &str) -> Option<&Value> {
        let mut found = self.of(operation);
        found.find(|(parameters, _)| parameters.text(parameter) == id).map(|(_, page)| page)
    }
}

/// Returns the next queries; empty once everything is known.
pub fn questions(scope: &Scope, answers: &Answers) -> Vec<Call> {
    let mut all = first(scope);
    if all.iter().all(|call| answers.has(call)) {
        all.extend(second(scope, answers));
    }
    if all.iter().all(|call| answers.has(call)) {
        all.extend(third(scope, answers));
    }
    all.retain(|call| !answers.has(call));
    all
}

/// Returns the queries by the cluster's name.
fn first(scope: &Scope) -> Vec<Call> {
    let tag = format!("tag:kubernetes.io/cluster/{}", scope.cluster);
    let tagged = || json!({"Filter": [{"Name": tag, "Value": ["owned", "shared"]}]});
    let operations = [
        "DescribeVpcs",
        "DescribeDhcpOptions",
        "DescribeInternetGateways",
        "DescribeSubnets",
        "DescribeRouteTables",
        "DescribeAddresses",
        "DescribeNatGateways",
        "DescribeSecurityGroups",
        "DescribeVolumes",
        "DescribeKeyPairs",
        "DescribeLaunchTemplates",
    ];
    let mut all: Vec<Call> = operations.map(|operation| Call::ec2(operation, tagged())).into();
    let groups = json!({"Filters": [{"Name": tag, "Values": ["owned", "shared"]}]});
    all.push(Call::new("autoscaling", "DescribeAutoScalingGroups", groups));
    all.push(Call::ec2(
        "DescribeLaunchTemplateVersions",
        json!({"LaunchTemplateVersion": ["$Latest"]}),
    ));
    let roles = json!({"Filter": ["Role"]});
    all.push(Call::new("iam", "GetAccountAuthorizationDetails", roles));
    all.push(Call::new("iam", "ListInstanceProfiles", json!({})));
    all.push(Call::new("elbv2", "DescribeLoadBalancers", json!({})));
    all.push(Call::new("elbv2", "DescribeTargetGroups", json!({})));
    if !scope.queue.is_empty() {
        all.push(Call::new("sqs", "GetQueueUrl", json!({"QueueName": scope.queue})));
        all.push(Call::new(
            "events",
            "ListRules",
            json!({"NamePrefix": format!("{}-", scope.rules)}),
        ));
    }
    if !scope.issuer.is_empty() {
        all.push(Call::new("iam", "ListOpenIDConnectProviders", json!({})));
    }
    // The listing starts at the name, and would return a hundred records after it.
    for name in &scope.names {
        let request = json!({"Id": scope.zone, "name": name, "maxitems": "10"});
        all.push(Call::new("route53", "ListResourceRecordSets", request));
    }
    if scope.zone_is_private {
        all.push(Call::new("route53", "GetHostedZone", json!({"Id": scope.zone})));
    }
    all
}

/// Returns the queries about single resources of the first answers.
fn second(scope: &Scope, answers: &Answers) -> Vec<Call> {
    let mut all = Vec::new();
    for one in answers.each("DescribeVpcs", "vpcSet") {
        let request = json!({"VpcId": one.text("vpcId"), "Attribute": "enableDnsHostnames"});
        all.push(Call::ec2("DescribeVpcAttribute", request));
    }
    let balancers = answers.each("DescribeLoadBalancers", "LoadBalancers");
    let balancers = balancers.map(|one| one.text("LoadBalancerArn"));
    let targets = answers.each("DescribeTargetGroups", "TargetGroups");
    let arns: Vec<_> = balancers.chain(targets.map(|one| one.text("TargetGroupArn"))).collect();
    for some in arns.chunks(TAGGED) {
        all.push(Call::new("elbv2", "DescribeTags", json!({"ResourceArns": some})));
    }
    for one in answers.each("DescribeAutoScalingGroups", "AutoScalingGroups") {
        // Hooks are queried per group, and only clusters with a queue have them.
        if !scope.queue.is_empty() {
            let request = json!({"AutoScalingGroupName": one.text("AutoScalingGroupName")});
            all.push(Call::new("autoscaling", "DescribeLifecycleHooks", request));
        }
    }
    for (_, page) in answers.of("GetQueueUrl").filter(|(_, page)| page.has("QueueUrl")) {
        let names = ["MessageRetentionPeriod", "Policy", "QueueArn"];
        let request = json!({"QueueUrl": page.text("QueueUrl"), "AttributeNames": names});
        all.push(Call::new("sqs", "GetQueueAttributes", request));
        if scope.erases {
            all.push(Call::new("sqs", "ListQueueTags", json!({"QueueUrl": page.text("QueueUrl")})));
        }
    }
    if scope.erases {
        for rule in answers.each("ListRules", "Rules") {
            let request = json!({"ResourceARN": rule.text("Arn")});
            all.push(Call::new("events", "ListTagsForResource", request));
        }
    }
    let issuer = scope.issuer.trim_start_matches("https://");
    for one in answers.each("ListOpenIDConnectProviders", "OpenIDConnectProviderList") {
        let arn = one.text("Arn");
        if arn.split_once(":oidc-provider/").is_some_and(|(_, name)| name == issuer) {
            let request = json!({"OpenIDConnectProviderArn": arn});
            all.push(Call::new("iam", "GetOpenIDConnectProvider", request));
        }
    }
    all
}

/// Returns the queries about the cluster's load balancers, target groups and queue.
fn third(scope: &Scope, answers: &Answers) -> Vec<Call> {
    let mut all = Vec::new();
    for arn in serve::owned_arns(answers, scope) {
        if arn.contains(":loadbalancer/") {
            all.push(Call::new("elbv2", "DescribeListeners", json!({"LoadBalancerArn": arn})));
            let request = json!({"LoadBalancerArn": arn});
            all.push(Call::new("elbv2", "DescribeLoadBalancerAttributes", request));
        } else {
            let request = json!({"TargetGroupArn": arn});
            all.push(Call::new("elbv2", "DescribeTargetGroupAttributes", request));
        }
    }
    for (_, page) in answers.of("GetQueueAttributes") {
        let request = json!({"TargetArn": page.text("Attributes.QueueArn")});
        all.push(Call::new("events", "ListRuleNamesByTarget", request));
    }
    all
}

/// The existing resources of a cluster.
#[derive(Clone, Debug, Default)]
pub struct ExistingResources {
    pub(super) all: BTreeMap<Identity, ExistingResource>,
    /// Identities shared by two resources, with the ID of the first one.
    pub(super) doubled: Vec<(Identity, String)>,
    /// The scaling groups with their machines, by name.
    pub groups: BTreeMap<String, Group>,
}

impl ExistingResources {
    /// Parses the answers to all queries.
    pub fn read(scope: &Scope, answers: &Answers) -> Self {
        let mut found = Vec::new();
        network::collect(answers, &scope.cluster, &mut found);
        machines::collect(answers, &scope.cluster, &mut found);
        serve::collect(answers, scope, &mut found);
        let mut existing = Self { groups: machines::groups(answers), ..Self::default() };
        for (identity, one) in found {
            let id = one.id.clone();
            // A resource of another owner may have the name of one of the cluster's.
            let named = [Kind::Vpc, Kind::Subnet, Kind::SecurityGroup].contains(&identity.0);
            if named && !one.owned {
                continue;
            }
            if let Some(other) = existing.all.insert(identity.clone(), one)
                && other.id != id
            {
                existing.doubled.push((identity.clone(), other.id.clone()));
                // A deletion must find both.
                let (kind, name) = identity;
                existing.all.insert((kind, format!("{name} {}", other.id)), other);
            }
        }
        existing
    }

    /// Returns the resource with this identity.
    pub fn find(&self, identity: &Identity) -> Option<&ExistingResource> {
        self.all.get(identity)
    }

    /// Returns the number of resources.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Reports whether there are no resources.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}
