//! The machines of scaling groups, and the calls that replace them.

use std::collections::BTreeMap;

use api_meta::Tree as _;
use serde_json::{Value, json};

use super::{
    answers::Answers,
    call::Call,
    fields::{is_owned, tags},
    kind::Tags,
    launch_template::LaunchTemplate,
    operations::Operations as _,
    scaling_group::{ScalingGroup, autoscaling, items, template_path},
    scope::Scope,
};

/// The tag of a machine that was detached from its scaling group, with the name of the group.
const DETACHED: &str = "kops.k8s.io/detached-from-asg";
/// The states of machines that have not ended.
const LIVING: [&str; 4] = ["pending", "running", "stopping", "stopped"];

/// A machine of a scaling group.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Machine {
    /// The instance ID.
    pub id: String,
    /// The availability zone.
    pub zone: String,
    /// AWS' lifecycle state, such as `InService`.
    pub state: String,
    /// `true` if AWS reports the machine as healthy.
    pub healthy: bool,
    /// The version of the launch template that the machine was created from; zero if unknown.
    pub version: u64,
    /// `true` if it was detached from its group, which has replaced it.
    pub detached: bool,
}

/// A scaling group with its machines.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Group {
    /// The scaling group's name.
    pub name: String,
    /// The instance group's name, from the tag.
    pub instance_group: String,
    /// The smallest size.
    pub min: String,
    /// The largest size.
    pub max: String,
    /// The desired size.
    pub desired: String,
    /// The latest version of the launch template.
    pub latest: u64,
    /// The machines of the group.
    pub machines: Vec<Machine>,
}

impl Machine {
    /// Reports whether the machine was created from an older launch template.
    pub fn is_outdated(&self, group: &Group) -> bool {
        self.version != group.latest
    }

    /// Reports whether the machine is about to leave its group.
    pub fn is_ending(&self) -> bool {
        self.state.starts_with("Terminat")
    }
}

impl Group {
    /// Returns the calls that detach a machine. The tag comes first, so that an interrupted run finds the machine.
    pub fn detach_calls(&self, machine: &str) -> Vec<Call> {
        let tag = json!({"ResourceId": [machine], "Tag": [{"Key": DETACHED, "Value": self.name}]});
        let detach = json!({
            "AutoScalingGroupName": self.name, "InstanceIds": [machine], "ShouldDecrementDesiredCapacity": false,
        });
        vec![Call::ec2("CreateTags", tag), autoscaling("DetachInstances", detach)]
    }

    /// Returns the calls that end a machine. The group takes its members from their load balancers first, and replaces
    /// them.
    pub fn end_calls(&self, machine: &str) -> Vec<Call> {
        let is_member = |one: &Machine| one.id == machine && !one.detached;
        if !self.machines.iter().any(is_member) {
            return vec![Call::ec2("TerminateInstances", json!({"InstanceId": [machine]}))];
        }
        let request = json!({"InstanceId": machine, "ShouldDecrementDesiredCapacity": false});
        vec![autoscaling("TerminateInstanceInAutoScalingGroup", request)]
    }
}

/// Returns the queries about a cluster's scaling groups and their machines, including detached ones.
pub fn group_queries(cluster: &str) -> Vec<Call> {
    let (scope, none) = (Scope::of_name(cluster), Answers::default());
    let mut all = ScalingGroup::queries(&scope, &none);
    let templates = LaunchTemplate::queries(&scope, &none).into_iter();
    all.extend(templates.filter(|call| call.operation == "DescribeLaunchTemplates"));
    let filters = json!([
        {"Name": format!("tag:kubernetes.io/cluster/{cluster}"), "Value": ["owned"]},
        {"Name": "tag-key", "Value": [DETACHED]},
        {"Name": "instance-state-name", "Value": LIVING},
    ]);
    all.push(Call::ec2("DescribeInstances", json!({"Filter": filters})));
    all
}

/// Reports whether tags are those of a cluster's own machine or group. A shared resource belongs to another cluster.
fn is_of_cluster(tags: &Tags, cluster: &str) -> bool {
    is_owned(tags, cluster) && tags.get("KubernetesCluster").is_none_or(|name| name == cluster)
}

/// Returns a cluster's detached machines, with the names of their former groups.
fn detached(answers: &Answers, cluster: &str) -> impl Iterator<Item = (String, Machine)> {
    let all = answers.each("DescribeInstances", "reservationSet");
    let all = all.flat_map(|reservation| reservation.items("instancesSet"));
    all.filter_map(move |one| {
        let mut tags = tags(one.items("tagSet"));
        let group = tags.remove(DETACHED).filter(|_| is_of_cluster(&tags, cluster))?;
        let machine = Machine {
            id: one.text("instanceId").to_owned(),
            zone: one.text("placement.availabilityZone").to_owned(),
            state: "Detached".to_owned(),
            detached: true,
            ..Machine::default()
        };
        Some((group, machine))
    })
}

/// Returns a cluster's own scaling groups by name, from the answers to [`group_queries`] or to those about all
/// resources. The queries also return shared groups, which are left out.
pub fn groups(answers: &Answers, cluster: &str) -> BTreeMap<String, Group> {
    let number = |text: &str| text.parse::<u64>().unwrap_or(0);
    let latest: BTreeMap<&str, u64> = answers
        .each("DescribeLaunchTemplates", "launchTemplates")
        .map(|one| (one.text("launchTemplateId"), number(one.text("latestVersionNumber"))))
        .collect();
    let mut all = BTreeMap::new();
    for one in items(answers) {
        let tags = tags(one.items("Tags"));
        if !is_of_cluster(&tags, cluster) {
            continue;
        }
        let template = one.text(template_path(one));
        let machine = |machine: &Value| Machine {
            id: machine.text("InstanceId").to_owned(),
            zone: machine.text("AvailabilityZone").to_owned(),
            state: machine.text("LifecycleState").to_owned(),
            healthy: machine.text("HealthStatus").eq_ignore_ascii_case("healthy"),
            version: number(machine.text("LaunchTemplate.Version")),
            detached: false,
        };
        let name = one.text("AutoScalingGroupName").to_owned();
        let group = Group {
            name: name.clone(),
            instance_group: tags.get("kops.k8s.io/instancegroup").cloned().unwrap_or_default(),
            min: one.text("MinSize").to_owned(),
            max: one.text("MaxSize").to_owned(),
            desired: one.text("DesiredCapacity").to_owned(),
            latest: latest.get(template).copied().unwrap_or(0),
            machines: one.items("Instances").iter().map(machine).collect(),
        };
        all.insert(name, group);
    }
    for (group, machine) in detached(answers, cluster) {
        let Some(group) = all.get_mut(&group) else { continue };
        // A run was interrupted between the two calls of a detachment: the machine is a member still.
        if !group.machines.iter().any(|member| member.id == machine.id) {
            group.machines.push(machine);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_own_groups_and_detached_machines_only() {
        const OWN: &str = "kubernetes.io/cluster/a.example.com";
        let mut answers = Answers::default();
        let queries = group_queries("a.example.com");
        let member = |id: &str| {
            let template = json!({"LaunchTemplateId": "lt-1", "Version": "1"});
            json!({"InstanceId": id, "LifecycleState": "InService", "LaunchTemplate": template})
        };
        let instance = |id: &str, group: &str, owner: &str| {
            json!({"instanceId": id, "tagSet": [
                {"key": DETACHED, "value": group}, {"key": OWN, "value": owner},
            ]})
        };
        let foreign = |name: &str, owner: &str, cluster: &str| {
            json!({"AutoScalingGroupName": name, "Instances": [member("i-9")], "Tags": [
                {"Key": OWN, "Value": owner}, {"Key": "KubernetesCluster", "Value": cluster},
            ]})
        };
        for call in queries {
            let page = match call.operation {
                "DescribeAutoScalingGroups" => json!({"AutoScalingGroups": [{
                    "AutoScalingGroupName": "g", "Instances": [member("i-1"), member("i-2")],
                    "LaunchTemplate": {"LaunchTemplateId": "lt-1"},
                    "Tags": [{"Key": OWN, "Value": "owned"}],
                }, foreign("shared", "shared", "b.example.com"), foreign("b", "owned", "b.example.com")]}),
                "DescribeLaunchTemplates" => json!({"launchTemplates": [
                    {"launchTemplateId": "lt-1", "latestVersionNumber": "2"},
                ]}),
                "DescribeInstances" => json!({"reservationSet": [{"instancesSet": [
                    instance("i-2", "g", "owned"), instance("i-3", "g", "owned"),
                    instance("i-4", "other", "owned"), instance("i-5", "g", "shared"), {},
                ]}]}),
                other => panic!("{other}"),
            };
            answers.add(call, vec![page]);
        }
        let groups = groups(&answers, "a.example.com");
        assert_eq!(groups.keys().collect::<Vec<_>>(), ["g"]);
        let group = &groups["g"];
        let seen: Vec<_> =
            group.machines.iter().map(|one| (one.id.as_str(), one.detached)).collect();
        assert_eq!(seen, [("i-1", false), ("i-2", false), ("i-3", true)]);
        assert!(group.machines.iter().all(|one| one.is_outdated(group)));
        let operations =
            |calls: Vec<Call>| -> Vec<&str> { calls.iter().map(|call| call.operation).collect() };
        assert_eq!(operations(group.detach_calls("i-1")), ["CreateTags", "DetachInstances"]);
        assert_eq!(operations(group.end_calls("i-1")), ["TerminateInstanceInAutoScalingGroup"]);
        assert_eq!(operations(group.end_calls("i-3")), ["TerminateInstances"]);
    }
}
