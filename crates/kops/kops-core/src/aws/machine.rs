//! The machines of scaling groups.

use std::collections::BTreeMap;

use api_meta::Tree as _;
use serde_json::Value;

use super::{
    answers::Answers,
    fields::tags,
    scaling_group::{items, template_path},
};

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
}

/// Returns a cluster's scaling groups by name.
pub(crate) fn groups(answers: &Answers) -> BTreeMap<String, Group> {
    let number = |text: &str| text.parse::<u64>().unwrap_or(0);
    let latest: BTreeMap<&str, u64> = answers
        .each("DescribeLaunchTemplates", "launchTemplates")
        .map(|one| (one.text("launchTemplateId"), number(one.text("latestVersionNumber"))))
        .collect();
    let mut all = BTreeMap::new();
    for one in items(answers) {
        let template = one.text(template_path(one));
        let machine = |machine: &Value| Machine {
            id: machine.text("InstanceId").to_owned(),
            zone: machine.text("AvailabilityZone").to_owned(),
            state: machine.text("LifecycleState").to_owned(),
            healthy: machine.text("HealthStatus").eq_ignore_ascii_case("healthy"),
            version: number(machine.text("LaunchTemplate.Version")),
        };
        let name = one.text("AutoScalingGroupName").to_owned();
        let tags = tags(one.items("Tags"));
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
    all
}
