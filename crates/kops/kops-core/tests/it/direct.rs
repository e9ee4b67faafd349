//! Tests of the differences between a model and existing resources, with answers in AWS' format.

use std::collections::BTreeSet;

use kops_core::{
    direct::{
        Answers, Call, ExistingResources, Ids, Lifecycle, Phase, Plan, Scope, Selection,
        next_queries, plan, plan_creation, plan_deletion, update_calls,
    },
    model::aws::{Body, Kind, Model, Ref},
};
use serde_json::{Value, json};

use crate::resources::Small;

const NAME: &str = "small.example.com";

fn model() -> Model {
    Small::new().model().unwrap_or_else(|e| panic!("{e}"))
}

/// Answers all queries; most answers are empty.
fn answer_all(scope: &Scope, answer: impl Fn(&Call) -> Value) -> (ExistingResources, usize) {
    let mut answers = Answers::default();
    let mut count = 0;
    loop {
        let next = next_queries(scope, &answers);
        if next.is_empty() {
            return (ExistingResources::read(scope, &answers), count);
        }
        for call in next {
            assert!(count < 100, "the questions do not end");
            count += 1;
            let page = answer(&call);
            answers.add(call, vec![page]);
        }
    }
}

fn tags(name: &str) -> Value {
    json!([
        {"key": "Name", "value": name},
        {"key": "KubernetesCluster", "value": NAME},
        {"key": format!("kubernetes.io/cluster/{NAME}"), "value": "owned"},
    ])
}

fn vpc(id: &str) -> Value {
    json!({"vpcId": id, "cidrBlock": "10.0.0.0/16", "dhcpOptionsId": "dopt-1", "tagSet": tags(NAME),
        "ipv6CidrBlockAssociationSet": [{"ipv6CidrBlock": "2001:db8::/56"}],
        "cidrBlockAssociationSet": [{"cidrBlock": "10.0.0.0/16"}]})
}

fn permission(port: &str, range: &str) -> Value {
    json!({"ipProtocol": "tcp", "fromPort": port, "toPort": port, "groups": "", "ipRanges": [{"cidrIp": range}]})
}

/// Returns answers for part of a cluster: its VPC and the workers' security group.
fn some(call: &Call) -> Value {
    match call.operation {
        "DescribeVpcs" => json!({"vpcSet": [vpc("vpc-1")]}),
        "DescribeVpcAttribute" => json!({"enableDnsHostnames": {"value": "false"}}),
        "DescribeSecurityGroups" => json!({"securityGroupInfo": [{
            "groupId": "sg-1", "groupName": format!("nodes.{NAME}"), "vpcId": "vpc-1",
            "groupDescription": "Security group for nodes", "tagSet": tags(&format!("nodes.{NAME}")),
            "ipPermissions": [
                permission("22", "198.51.100.0/24"),
                permission("22", "0.0.0.0/0"),
                permission("30000", "0.0.0.0/0"),
            ],
        }]}),
        _ => Value::Null,
    }
}

fn of(plan: &Plan, verb: &str) -> Vec<String> {
    let changes = plan.changes.iter().filter(|change| change.verb == verb);
    changes.map(|change| format!("{}/{}", change.task(), change.name)).collect()
}

#[test]
fn plans_creation_of_everything_in_dependency_order() {
    let model = model();
    let (there, count) = answer_all(&Scope::of_model(NAME, &model), |_| Value::Null);
    assert!(there.is_empty() && count <= 40, "{count} questions");
    let plan = plan(&model, &there, &Selection::default()).unwrap();
    let (mut ids, mut made) = (plan.ids.clone(), BTreeSet::new());
    for change in &plan.changes {
        assert_eq!(change.verb, "create");
        let to = Ref::new(change.kind, change.name.clone());
        let resource = model.find(&to).unwrap();
        for other in resource.body.refs() {
            let is_there = model.find(other).is_some_and(|one| one.shared.is_some());
            assert!(is_there || made.contains(other), "{to:?} comes before {other:?}");
        }
        let making = plan_creation(resource, &ids).unwrap();
        let id = making.record_id(resource, &json!({}), &mut ids);
        // The fields left over have calls, and no call contains a placeholder of a missing ID.
        let later = update_calls(resource, &id, &there, &ids, &making.later).unwrap();
        assert_eq!(later.is_empty(), making.later.is_empty(), "{to:?}");
        for call in later.iter().chain([&making.call]) {
            let text = call.parameters.to_string();
            assert!(!text.contains("\"new "), "{to:?}: {text}");
        }
        made.insert(to);
    }
    let wanted = model
        .resources
        .values()
        .filter(|one| one.shared.is_none() && one.kind() != Kind::StoreObject);
    assert_eq!(made.len(), wanted.count());
}

#[test]
fn changes_differences_and_keeps_foreign_resources() {
    let model = model();
    let (there, _) = answer_all(&Scope::of_model(NAME, &model), some);
    let plan = plan(&model, &there, &Selection::default()).unwrap();
    assert_eq!(
        of(&plan, "modify"),
        [format!("VPCDHCPOptionsAssociation/{NAME}"), format!("VPC/{NAME}")]
            .into_iter()
            .rev()
            .collect::<Vec<_>>()
    );
    let vpc = plan.changes.iter().find(|change| change.kind == Kind::Vpc).unwrap();
    assert_eq!(vpc.details, [("DNSHostnames".to_owned(), "\"false\" -> \"true\"".to_owned())]);
    // An unwanted rule of the cluster's own ports is deleted; a Service's rule stays; the wanted rule exists.
    assert_eq!(of(&plan, "delete"), ["SecurityGroupRule/sg-1 tcp 22-22 from 0.0.0.0/0"]);
    let created = of(&plan, "create");
    assert!(!created.contains(&format!(
        "SecurityGroupRule/from-198.51.100.0/24-ingress-tcp-22to22-nodes.{NAME}"
    )));
    assert!(created.contains(&format!(
        "SecurityGroupRule/from-198.51.100.0/24-ingress-tcp-22to22-masters.{NAME}"
    )));
}

#[test]
fn rejects_immutable_and_duplicate_resources_up_front() {
    let model = model();
    let scope = Scope::of_model(NAME, &model);
    let (there, _) = answer_all(&scope, |call| match call.operation {
        "DescribeVpcs" => json!({"vpcSet": [vpc("vpc-1"), vpc("vpc-2")]}),
        _ => some(call),
    });
    let error = plan(&model, &there, &Selection::default()).unwrap_err().to_string();
    assert!(error.contains("names two resources in AWS, vpc-2 and vpc-1"), "{error}");
    let (there, _) = answer_all(&scope, |call| match call.operation {
        "DescribeVpcs" => {
            let mut other = vpc("vpc-1");
            other["cidrBlock"] = "10.1.0.0/16".into();
            json!({"vpcSet": [other]})
        }
        _ => some(call),
    });
    let error = plan(&model, &there, &Selection::default()).unwrap_err().to_string();
    assert!(error.contains("CIDR") && error.contains("cannot be changed in place"), "{error}");
}

#[test]
fn deletes_only_the_clusters_own_resources() {
    let (there, _) = answer_all(&Scope::of_deletion(NAME, "", ""), |call| match call.operation {
        "DescribeVolumes" => json!({"volumeSet": [
            {"volumeId": "vol-1", "tagSet": tags("pvc")},
            {"volumeId": "vol-2", "tagSet": tags("pvc")},
        ]}),
        "DescribeSubnets" => json!({"subnetSet": [
            {"subnetId": "subnet-1", "tagSet": [{"key": format!("kubernetes.io/cluster/{NAME}"), "value": "shared"}]},
        ]}),
        "GetAccountAuthorizationDetails" => json!({"RoleDetailList": [
            {"RoleName": format!("masters.{NAME}"), "Tags": ""},
        ]}),
        "ListInstanceProfiles" => json!({"InstanceProfiles": [
            {"InstanceProfileName": format!("masters.{NAME}"), "Roles": [{"RoleName": format!("masters.{NAME}")}]},
        ]}),
        "GetQueueUrl" => json!({"QueueUrl": "https://sqs/q"}),
        "GetQueueAttributes" => json!({"Attributes": {"QueueArn": "arn:q"}}),
        "ListRules" => json!({"Rules": [{"Name": format!("{NAME}-x"), "Arn": "arn:x"}]}),
        "DescribeLoadBalancers" => {
            json!({"LoadBalancers": [{"LoadBalancerArn": "arn:loadbalancer/a"}]})
        }
        "DescribeTags" => {
            json!({"TagDescriptions": [{"ResourceArn": "arn:loadbalancer/a", "Tags": [
            {"Key": format!("kubernetes.io/cluster/{NAME}"), "Value": "shared"},
            ]}]})
        }
        _ => some(call),
    });
    let all: Vec<_> =
        plan_deletion(&there).iter().map(|one| format!("{} {}", one.task(), one.id())).collect();
    let rules = [
        "SecurityGroupRule sg-1 tcp 22-22 from 0.0.0.0/0",
        "SecurityGroupRule sg-1 tcp 22-22 from 198.51.100.0/24",
        "SecurityGroupRule sg-1 tcp 30000-30000 from 0.0.0.0/0",
    ];
    assert_eq!(all[..2], ["EBSVolume vol-2", "EBSVolume vol-1"]);
    let all = all.get(2..).unwrap_or_default();
    assert_eq!(all[..3], rules);
    assert_eq!(all[3..], ["SecurityGroup sg-1", "VPC vpc-1"]);
}

/// Returns the answer about the scaling groups of a model. Each has a tag that records its lifecycle hooks with this
/// timeout; `None` for no such tag.
fn scaling_groups(model: &Model, heartbeat: Option<i64>) -> Value {
    let hook_tag = |hook: &Body| {
        let Body::LifecycleHook(hook) = hook else { panic!("{hook:?}") };
        let key = format!("kops.k8s.io/lifecycle-hook/{}", hook.hook);
        let value = format!("{} {} {}", hook.result, heartbeat?, hook.transition);
        Some((hook.group.name.clone(), json!({"Key": key, "Value": value})))
    };
    let hooks: Vec<_> =
        model.of_kind(Kind::LifecycleHook).filter_map(|hook| hook_tag(&hook.body)).collect();
    let group = |group: &str| {
        let own = hooks.iter().filter(|(name, _)| name == group).map(|(_, tag)| tag.clone());
        let owner = json!({"Key": format!("kubernetes.io/cluster/{NAME}"), "Value": "owned"});
        let tags: Vec<_> = own.chain([owner]).collect();
        json!({"AutoScalingGroupName": group, "Tags": tags})
    };
    let groups: Vec<_> =
        model.of_kind(Kind::ScalingGroup).map(|resource| group(&resource.name)).collect();
    json!({"AutoScalingGroups": groups})
}

/// A cluster's model, its existing groups and hooks, and the number of calls that found them.
struct Comparison {
    model: Model,
    there: ExistingResources,
    calls: usize,
}

fn compare_groups(count: usize, heartbeat: Option<i64>) -> Comparison {
    let model = Small::with_groups(count).model().unwrap_or_else(|e| panic!("{e}"));
    let groups = scaling_groups(&model, heartbeat);
    let (there, calls) = answer_all(&Scope::of_model(NAME, &model), |call| match call.operation {
        "DescribeAutoScalingGroups" => groups.clone(),
        "GetQueueUrl" => json!({"QueueUrl": "https://sqs/q"}),
        "GetQueueAttributes" => json!({"Attributes": {"QueueArn": "arn:q"}}),
        _ => some(call),
    });
    Comparison { model, there, calls }
}

fn hook_changes(
    model: &Model,
    there: &ExistingResources,
) -> Vec<(&'static str, Vec<&'static str>)> {
    let plan = plan(model, there, &Selection::default()).unwrap_or_else(|e| panic!("{e}"));
    let changes = plan.changes.iter().filter(|change| change.kind == Kind::LifecycleHook);
    let calls = |change: &kops_core::direct::Change| {
        if change.verb == "delete" {
            return change.calls.clone();
        }
        let resource = model.find(&Ref::new(change.kind, change.name.clone()));
        let Some(resource) = resource else { panic!("no {}", change.name) };
        let mut calls = Vec::new();
        let mut later = change.fields.clone();
        if change.verb == "create" {
            let creation = plan_creation(resource, &plan.ids).unwrap_or_else(|e| panic!("{e}"));
            calls.push(creation.call);
            later = creation.later;
        }
        let later = update_calls(resource, &change.name, there, &plan.ids, &later);
        calls.extend(later.unwrap_or_else(|e| panic!("{e}")));
        calls
    };
    let operations = |change| calls(change).iter().map(|call| call.operation).collect();
    changes.map(|change| (change.verb, operations(change))).collect()
}

#[test]
fn makes_no_call_per_group() {
    let few = compare_groups(2, Some(300)).calls;
    let Comparison { model, there, calls } = compare_groups(99, Some(300));
    assert_eq!(few, calls);
    assert!(calls <= 40, "{calls} calls");
    assert_eq!(there.groups.len(), 99);
    assert_eq!(model.of_kind(Kind::LifecycleHook).count(), 99);
    assert!(hook_changes(&model, &there).is_empty());
}

#[test]
fn queries_and_records_hooks_without_tags() {
    let few = compare_groups(2, Some(300)).calls;
    let Comparison { model, there, calls } = compare_groups(5, None);
    assert_eq!(calls, few + 5);
    let created = ("create", vec!["PutLifecycleHook", "CreateOrUpdateTags"]);
    assert_eq!(hook_changes(&model, &there), vec![created; 5]);
    // A tag with other properties is a difference.
    let Comparison { model, there, .. } = compare_groups(2, Some(299));
    let changed = ("modify", vec!["PutLifecycleHook", "CreateOrUpdateTags"]);
    assert_eq!(hook_changes(&model, &there), vec![changed; 2]);
    // A hook that exists without a tag is only recorded.
    let groups = scaling_groups(&model, None);
    let (there, _) = answer_all(&Scope::of_model(NAME, &model), |call| match call.operation {
        "DescribeAutoScalingGroups" => groups.clone(),
        "DescribeLifecycleHooks" => {
            let group = call.parameters["AutoScalingGroupName"].as_str().unwrap_or_default();
            let hook = format!("{}-NTHLifecycleHook", group.split('.').next().unwrap_or_default());
            json!({"LifecycleHooks": [{"AutoScalingGroupName": group, "LifecycleHookName": hook,
                "DefaultResult": "CONTINUE", "HeartbeatTimeout": "300",
                "LifecycleTransition": "autoscaling:EC2_INSTANCE_TERMINATING"}]})
        }
        _ => some(call),
    });
    assert_eq!(hook_changes(&model, &there), vec![("modify", vec!["CreateOrUpdateTags"]); 2]);
    // A recorded hook that is no longer wanted is deleted with its tag.
    let groups = scaling_groups(&model, Some(300));
    let model = model_without_hooks();
    let (there, _) = answer_all(&Scope::of_model(NAME, &model), |call| match call.operation {
        "DescribeAutoScalingGroups" => groups.clone(),
        _ => some(call),
    });
    let deleted = ("delete", vec!["DeleteLifecycleHook", "DeleteTags"]);
    assert_eq!(hook_changes(&model, &there), vec![deleted; 2]);
}

fn model_without_hooks() -> Model {
    let mut model = Small::with_groups(2).model().unwrap_or_else(|e| panic!("{e}"));
    model.resources.retain(|to, _| to.kind != Kind::LifecycleHook);
    model
}

#[test]
fn survives_hostile_answers() {
    let model = model();
    let scope = Scope::of_model(NAME, &model);
    for hostile in [
        json!([]),
        json!("x"),
        json!({"vpcSet": {"a": 1}}),
        json!({"vpcSet": [[], 1, {"tagSet": "x"}]}),
    ] {
        let (there, _) = answer_all(&scope, |_| hostile.clone());
        assert!(plan_deletion(&there).is_empty(), "{hostile}");
        let _: Ids =
            plan(&model, &there, &Selection::default()).map(|plan| plan.ids).unwrap_or_default();
    }
}

/// Returns the kinds of all planned changes of a part of the model.
fn kinds(plan: &Plan) -> BTreeSet<&'static str> {
    plan.changes.iter().map(|change| change.task()).collect()
}

#[test]
fn plans_only_the_selected_phase() {
    let model = model();
    let (nothing, _) = answer_all(&Scope::of_model(NAME, &model), |_| Value::Null);
    let of = |phase| Selection { phase: Some(phase), ..Selection::default() };
    let network = plan(&model, &nothing, &of(Phase::Network)).unwrap();
    let kinds = kinds(&network);
    assert!(kinds.contains("VPC") && kinds.contains("Subnet"), "{kinds:?}");
    for other in ["SecurityGroup", "IAMRole", "AutoscalingGroup", "NetworkLoadBalancer"] {
        assert!(!kinds.contains(other), "{other}");
    }
    // The network must exist before its security groups, and both before the machines.
    for (phase, lifecycle) in
        [(Phase::Security, "ExistsAndWarnIfChanges"), (Phase::Cluster, "ExistsAndValidates")]
    {
        let error = plan(&model, &nothing, &of(phase)).unwrap_err().to_string();
        let ending = format!("was not found, but its lifecycle is {lifecycle}");
        assert!(error.ends_with(&ending), "{error}");
    }
}

#[test]
fn compares_resources_by_their_lifecycle() {
    let model = model();
    let (there, _) = answer_all(&Scope::of_model(NAME, &model), some);
    let with = |task: &str, lifecycle| Selection {
        overrides: [(task.to_owned(), lifecycle)].into(),
        ..Selection::default()
    };
    let vpc = |plan: &Plan| of(plan, "modify").contains(&format!("VPC/{NAME}"));
    let warned = plan(&model, &there, &with("VPC", Lifecycle::ExistsAndWarnIfChanges)).unwrap();
    assert!(!vpc(&warned));
    let warning = format!("VPC/{NAME} differs and is not changed: DNSHostnames");
    assert!(warned.warnings[0].starts_with(&warning), "{:?}", warned.warnings);
    let error = plan(&model, &there, &with("VPC", Lifecycle::ExistsAndValidates)).unwrap_err();
    assert!(error.to_string().contains("DNSHostnames (\"false\" -> \"true\")"), "{error}");
    let ignored = plan(&model, &there, &with("VPC", Lifecycle::Ignore)).unwrap();
    assert!(!vpc(&ignored) && ignored.warnings.is_empty());
    let optional = plan(&model, &there, &with("VPC", Lifecycle::WarnIfInsufficientAccess)).unwrap();
    assert!(vpc(&optional));
    assert!(optional.changes.iter().all(|c| c.is_optional == (c.kind == Kind::Vpc)));
    // A subnet cannot be created for a VPC that is not.
    let (nothing, _) = answer_all(&Scope::of_model(NAME, &model), |_| Value::Null);
    let error = plan(&model, &nothing, &with("VPC", Lifecycle::Ignore)).unwrap_err().to_string();
    assert!(error.contains("needs VPC") && error.contains("not selected"), "{error}");
}

#[test]
fn leaves_unselected_groups_alone() {
    let model = model();
    let (nothing, _) = answer_all(&Scope::of_model(NAME, &model), |_| Value::Null);
    let templates = |groups: Option<&[&str]>| {
        let groups = groups.map(|all| all.iter().map(|name| (*name).to_owned()).collect());
        let plan = plan(&model, &nothing, &Selection { groups, ..Selection::default() }).unwrap();
        let of_group = [Kind::ScalingGroup, Kind::LaunchTemplate, Kind::LifecycleHook];
        let changes = plan.changes.iter().filter(|change| of_group.contains(&change.kind));
        changes.map(|change| change.name.clone()).collect::<BTreeSet<_>>()
    };
    let all = templates(None);
    let groups: Vec<_> = model.of_kind(Kind::ScalingGroup).collect();
    assert!(groups.len() > 1, "{all:?}");
    let own = groups[0].tags["kops.k8s.io/instancegroup"].as_str();
    let selected = templates(Some(&[own]));
    assert!(selected.contains(&groups[0].name) && selected.len() < all.len(), "{selected:?}");
    assert!(!selected.contains(&groups[1].name));
    assert!(templates(Some(&[])).is_empty());
}

#[test]
fn deletes_old_load_balancers_only_with_prune() {
    let model = model();
    let arn = "arn:aws:elasticloadbalancing:us-test-1:1:loadbalancer/net/old/1";
    let answer = |call: &Call| match call.operation {
        "DescribeLoadBalancers" if call.parameters.get("Names").is_none() => {
            json!({"LoadBalancers": [{"LoadBalancerArn": arn, "Type": "network"}]})
        }
        "DescribeTags" => json!({"TagDescriptions": [{"ResourceArn": arn, "Tags": [
            {"Key": "Name", "Value": "old"}, {"Key": "KubernetesCluster", "Value": NAME},
            {"Key": format!("kubernetes.io/cluster/{NAME}"), "Value": "owned"},
        ]}]}),
        _ => Value::Null,
    };
    let (there, _) = answer_all(&Scope::of_model(NAME, &model), answer);
    let deleted = |prune| {
        of(&plan(&model, &there, &Selection { prune, ..Selection::default() }).unwrap(), "delete")
    };
    assert!(deleted(false).is_empty());
    assert_eq!(deleted(true), ["NetworkLoadBalancer/old"]);
}
