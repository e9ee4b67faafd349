//! Calls and answers that load balancers, listeners and target groups have in common.

use std::collections::BTreeMap;

use api_meta::Tree as _;
use serde_json::{Value, json};

use super::{
    answers::Answers,
    call::Call,
    fields::{is_owned, tag_pairs, tags},
    kind::Tags,
    scope::Scope,
};

/// The most resources in one query for tags.
const TAGGED: usize = 20;

/// Returns a call of the load balancing API.
pub(super) fn elbv2(operation: &'static str, parameters: Value) -> Call {
    Call::new("elbv2", operation, parameters)
}

/// Returns the network load balancers in the answers.
pub(super) fn balancer_items(answers: &Answers) -> impl Iterator<Item = &Value> {
    answers.each("DescribeLoadBalancers", "LoadBalancers")
}

/// Returns the target groups in the answers.
pub(super) fn target_group_items(answers: &Answers) -> impl Iterator<Item = &Value> {
    answers.each("DescribeTargetGroups", "TargetGroups")
}

/// Returns the queries for the tags of load balancers and target groups, once both are known.
pub(super) fn tag_queries(answers: &Answers) -> Vec<Call> {
    if !["DescribeLoadBalancers", "DescribeTargetGroups"]
        .iter()
        .all(|one| answers.has_operation(one))
    {
        return Vec::new();
    }
    let balancers = balancer_items(answers).map(|one| one.text("LoadBalancerArn"));
    let groups = target_group_items(answers).map(|one| one.text("TargetGroupArn"));
    let arns: Vec<_> = balancers.chain(groups).collect();
    let query = |arns| elbv2("DescribeTags", json!({"ResourceArns": arns}));
    arns.chunks(TAGGED).map(query).collect()
}

/// Returns the tags of the cluster's load balancers and target groups, by ARN.
pub(super) fn own_tags<'a>(scope: &Scope, answers: &'a Answers) -> BTreeMap<&'a str, Tags> {
    let all = answers.each("DescribeTags", "TagDescriptions");
    let mut all: BTreeMap<_, _> =
        all.map(|one| (one.text("ResourceArn"), tags(one.items("Tags")))).collect();
    // A Service's load balancer belongs to the cloud controller; only a deletion includes it.
    all.retain(|_, tags| {
        let of_service = tags.contains_key("kubernetes.io/service-name");
        is_owned(tags, &scope.cluster) && (scope.for_deletion || !of_service)
    });
    all
}

/// Returns the ARNs of the cluster's load balancers.
pub(super) fn own_balancers<'a>(
    scope: &Scope,
    answers: &'a Answers,
) -> impl Iterator<Item = &'a str> {
    own_tags(scope, answers).into_keys().filter(|arn| arn.contains(":loadbalancer/"))
}

/// Returns the attributes in the answer about an ARN.
pub(super) fn attributes<'a>(
    answers: &'a Answers,
    operation: &str,
    parameter: &str,
    arn: &str,
) -> BTreeMap<&'a str, &'a str> {
    let answer = answers.about(operation, parameter, arn);
    let list = answer.map(|answer| answer.items("Attributes")).unwrap_or_default();
    list.iter().map(|one| (one.text("Key"), one.text("Value"))).collect()
}

/// Returns attributes in the form of calls.
pub(super) fn attribute_pairs(pairs: Vec<(&str, String)>) -> Vec<Value> {
    pairs.into_iter().map(|(key, value)| json!({"Key": key, "Value": value})).collect()
}

/// Returns the call that sets the tags of a load balancer or target group.
pub(super) fn add_tags(arn: &str, tags: &Tags) -> Call {
    elbv2("AddTags", json!({"ResourceArns": [arn], "Tags": tag_pairs(tags)}))
}
