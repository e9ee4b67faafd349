//! What is asked of AWS, in bulk, and what is read of the answers.

use std::collections::BTreeMap;

use kops_api::Spec as _;
use serde_json::{Value, json};

use super::{Call, Found, Group, Identity, Scope, machines, network, serve};
use crate::model::aws::Kind;

/// As many resources' tags are told at once.
const TAGGED: usize = 20;

/// Calls and what they were answered with, a value for each page.
#[derive(Debug, Default)]
pub struct Answers(Vec<(Call, Vec<Value>)>);

impl Answers {
    /// Keeps an answer. What is not there is answered with nothing.
    pub fn add(&mut self, call: Call, pages: Vec<Value>) {
        self.0.push((call, pages));
    }

    fn has(&self, call: &Call) -> bool {
        self.0.iter().any(|(asked, _)| asked == call)
    }

    pub(super) fn of(&self, operation: &str) -> impl Iterator<Item = (&Value, &Value)> {
        let found = self.0.iter().filter(move |(call, _)| call.operation == operation);
        found.flat_map(|(call, pages)| pages.iter().map(move |page| (&call.parameters, page)))
    }

    /// What all answers to an operation list.
    pub(super) fn each<'a>(
        &'a self,
        operation: &str,
        list: &'a str,
    ) -> impl Iterator<Item = &'a Value> {
        self.of(operation).flat_map(move |(_, page)| page.list(list))
    }

    /// The answer about one thing that was asked about.
    pub(super) fn about(&self, operation: &str, parameter: &str, id: &str) -> Option<&Value> {
        let mut found = self.of(operation);
        found.find(|(parameters, _)| parameters.text(parameter) == id).map(|(_, page)| page)
    }
}

/// What is to be asked next; nothing once all is known.
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

/// What can be asked by the cluster's name.
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
    // What is asked for begins with a name, and a page has a hundred records from there on.
    for name in &scope.names {
        let asked = json!({"Id": scope.zone, "name": name, "maxitems": "10"});
        all.push(Call::new("route53", "ListResourceRecordSets", asked));
    }
    if scope.zone_is_private {
        all.push(Call::new("route53", "GetHostedZone", json!({"Id": scope.zone})));
    }
    all
}

/// What is asked about single things.
fn second(scope: &Scope, answers: &Answers) -> Vec<Call> {
    let mut all = Vec::new();
    for one in answers.each("DescribeVpcs", "vpcSet") {
        let asked = json!({"VpcId": one.text("vpcId"), "Attribute": "enableDnsHostnames"});
        all.push(Call::ec2("DescribeVpcAttribute", asked));
    }
    let balancers = answers.each("DescribeLoadBalancers", "LoadBalancers");
    let balancers = balancers.map(|one| one.text("LoadBalancerArn"));
    let targets = answers.each("DescribeTargetGroups", "TargetGroups");
    let arns: Vec<_> = balancers.chain(targets.map(|one| one.text("TargetGroupArn"))).collect();
    for some in arns.chunks(TAGGED) {
        all.push(Call::new("elbv2", "DescribeTags", json!({"ResourceArns": some})));
    }
    for one in answers.each("DescribeAutoScalingGroups", "AutoScalingGroups") {
        // Hooks are told of one group only, and those of a cluster without them are not asked for.
        if !scope.queue.is_empty() {
            let asked = json!({"AutoScalingGroupName": one.text("AutoScalingGroupName")});
            all.push(Call::new("autoscaling", "DescribeLifecycleHooks", asked));
        }
    }
    for (_, page) in answers.of("GetQueueUrl").filter(|(_, page)| page.has("QueueUrl")) {
        let names = ["MessageRetentionPeriod", "Policy", "QueueArn"];
        let asked = json!({"QueueUrl": page.text("QueueUrl"), "AttributeNames": names});
        all.push(Call::new("sqs", "GetQueueAttributes", asked));
        if scope.erases {
            all.push(Call::new("sqs", "ListQueueTags", json!({"QueueUrl": page.text("QueueUrl")})));
        }
    }
    if scope.erases {
        for rule in answers.each("ListRules", "Rules") {
            let asked = json!({"ResourceARN": rule.text("Arn")});
            all.push(Call::new("events", "ListTagsForResource", asked));
        }
    }
    let issuer = scope.issuer.trim_start_matches("https://");
    for one in answers.each("ListOpenIDConnectProviders", "OpenIDConnectProviderList") {
        let arn = one.text("Arn");
        if arn.split_once(":oidc-provider/").is_some_and(|(_, name)| name == issuer) {
            let asked = json!({"OpenIDConnectProviderArn": arn});
            all.push(Call::new("iam", "GetOpenIDConnectProvider", asked));
        }
    }
    all
}

/// What is asked about balancers that are the cluster's, and about its queue.
fn third(scope: &Scope, answers: &Answers) -> Vec<Call> {
    let mut all = Vec::new();
    for arn in serve::owned_arns(answers, scope) {
        if arn.contains(":loadbalancer/") {
            all.push(Call::new("elbv2", "DescribeListeners", json!({"LoadBalancerArn": arn})));
            let asked = json!({"LoadBalancerArn": arn});
            all.push(Call::new("elbv2", "DescribeLoadBalancerAttributes", asked));
        } else {
            let asked = json!({"TargetGroupArn": arn});
            all.push(Call::new("elbv2", "DescribeTargetGroupAttributes", asked));
        }
    }
    for (_, page) in answers.of("GetQueueAttributes") {
        let asked = json!({"TargetArn": page.text("Attributes.QueueArn")});
        all.push(Call::new("events", "ListRuleNamesByTarget", asked));
    }
    all
}

/// What is there of a cluster.
#[derive(Clone, Debug, Default)]
pub struct There {
    pub(super) all: BTreeMap<Identity, Found>,
    /// Identities that two things have.
    pub(super) doubled: Vec<(Identity, String)>,
    /// Its groups of machines, by their scaling groups' names.
    pub groups: BTreeMap<String, Group>,
}

impl There {
    /// Reads the answers to all questions.
    pub fn read(scope: &Scope, answers: &Answers) -> Self {
        let mut found = Vec::new();
        network::found(answers, &scope.cluster, &mut found);
        machines::found(answers, &scope.cluster, &mut found);
        serve::found(answers, scope, &mut found);
        let mut there = Self { groups: machines::groups(answers), ..Self::default() };
        for (identity, one) in found {
            let id = one.id.clone();
            // What is another's may be called what the cluster's is called.
            let named = [Kind::Vpc, Kind::Subnet, Kind::SecurityGroup].contains(&identity.0);
            if named && !one.owned {
                continue;
            }
            if let Some(other) = there.all.insert(identity.clone(), one)
                && other.id != id
            {
                there.doubled.push((identity.clone(), other.id.clone()));
                // A deletion finds both.
                let (kind, name) = identity;
                there.all.insert((kind, format!("{name} {}", other.id)), other);
            }
        }
        there
    }

    /// What is there, by what makes it one of its kind.
    pub fn find(&self, identity: &Identity) -> Option<&Found> {
        self.all.get(identity)
    }

    /// How many things there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}
