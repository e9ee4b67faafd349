//! Launch templates, scaling groups and their machines.

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use data_encoding::HEXLOWER;
use kops_api::Spec as _;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{
    Call, ExistingResource, Fields, Identity, Ids,
    fields::{fields, id, id_list, is_owned, put_tags, sorted, tags},
    look::Answers,
};
use crate::model::aws::{
    BlockDevice, Body, Disk, Distribution, Kind, LaunchTemplate, Resource, ScalingGroup,
    SpotOptions,
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
pub(super) fn groups(answers: &Answers) -> BTreeMap<String, Group> {
    let number = |text: &str| text.parse::<u64>().unwrap_or(0);
    let latest: BTreeMap<&str, u64> = answers
        .each("DescribeLaunchTemplates", "launchTemplates")
        .map(|one| (one.text("launchTemplateId"), number(one.text("latestVersionNumber"))))
        .collect();
    let mut all = BTreeMap::new();
    for one in answers.each("DescribeAutoScalingGroups", "AutoScalingGroups") {
        let template = one.text(template_path(one));
        let machine = |machine: &Value| Machine {
            id: machine.text("InstanceId").to_owned(),
            zone: machine.text("AvailabilityZone").to_owned(),
            state: machine.text("LifecycleState").to_owned(),
            healthy: machine.text("HealthStatus").eq_ignore_ascii_case("healthy"),
            version: number(machine.text("LaunchTemplate.Version")),
        };
        let name = one.text("AutoScalingGroupName").to_owned();
        let tags = tags(one.list("Tags"));
        let group = Group {
            name: name.clone(),
            instance_group: tags.get("kops.k8s.io/instancegroup").cloned().unwrap_or_default(),
            min: one.text("MinSize").to_owned(),
            max: one.text("MaxSize").to_owned(),
            desired: one.text("DesiredCapacity").to_owned(),
            latest: latest.get(template).copied().unwrap_or(0),
            machines: one.list("Instances").iter().map(machine).collect(),
        };
        all.insert(name, group);
    }
    all
}

/// Returns the path of the launch template's ID in a scaling group.
fn template_path(one: &Value) -> &'static str {
    if one.has("MixedInstancesPolicy.LaunchTemplate") {
        "MixedInstancesPolicy.LaunchTemplate.LaunchTemplateSpecification.LaunchTemplateId"
    } else {
        "LaunchTemplate.LaunchTemplateId"
    }
}

pub(super) fn collect(
    answers: &Answers,
    cluster: &str,
    to: &mut Vec<(Identity, ExistingResource)>,
) {
    let versions: BTreeMap<&str, &Value> = answers
        .each("DescribeLaunchTemplateVersions", "launchTemplateVersionSet")
        .map(|one| (one.text("launchTemplateId"), one))
        .collect();
    for one in answers.each("DescribeLaunchTemplates", "launchTemplates") {
        let (id, name) = (one.text("launchTemplateId"), one.text("launchTemplateName").to_owned());
        let tags = tags(one.list("tagSet"));
        let data = versions.get(id).and_then(|version| version.at("launchTemplateData"));
        let mut fields = data.map(template_fields).unwrap_or_default();
        put_tags(&mut fields, &tags);
        let owned = is_owned(&tags, cluster);
        let found = ExistingResource { id: id.to_owned(), fields, owned, around: String::new() };
        to.push(((Kind::LaunchTemplate, name), found));
    }
    for one in answers.each("DescribeAutoScalingGroups", "AutoScalingGroups") {
        let name = one.text("AutoScalingGroupName").to_owned();
        // A scaling group keeps its name until its deletion is complete.
        if !one.text("Status").is_empty() {
            continue;
        }
        let tags = tags(one.list("Tags"));
        let mut fields = group_fields(one);
        put_tags(&mut fields, &tags);
        let owned = is_owned(&tags, cluster);
        let found = ExistingResource { id: name.clone(), fields, owned, around: String::new() };
        to.push(((Kind::ScalingGroup, name), found));
    }
    for one in answers.each("DescribeLifecycleHooks", "LifecycleHooks") {
        let (group, hook) = (one.text("AutoScalingGroupName"), one.text("LifecycleHookName"));
        let text = |path: &str| one.text(path).to_owned();
        let fields = fields([
            ("Result", text("DefaultResult")),
            ("Heartbeat", text("HeartbeatTimeout")),
            ("Transition", text("LifecycleTransition")),
        ]);
        let found =
            ExistingResource { id: hook.to_owned(), fields, owned: true, around: group.to_owned() };
        to.push(((Kind::LifecycleHook, format!("{group}/{hook}")), found));
    }
}

pub(super) fn wanted(resource: &Resource, ids: &Ids) -> Fields {
    match &resource.body {
        Body::LaunchTemplate(template) => template_wanted(resource, template, ids),
        Body::ScalingGroup(group) => group_wanted(group, ids),
        Body::LifecycleHook { result, heartbeat, transition, .. } => fields([
            ("Result", result.clone()),
            ("Heartbeat", heartbeat.to_string()),
            ("Transition", transition.clone()),
        ]),
        _ => Fields::new(),
    }
}

/// Returns a short digest of content.
fn digest(content: &[u8]) -> String {
    let sum = HEXLOWER.encode(&Sha256::digest(content));
    format!("sha256:{}", sum.get(..16).unwrap_or_default())
}

fn tag_text(tags: &BTreeMap<String, String>) -> String {
    tags.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}

fn device_text(device: &BlockDevice) -> String {
    let name = &device.device;
    match &device.disk {
        Disk::Own(own) => format!("{name} {own}"),
        Disk::Ebs(ebs) => {
            let number = |number: Option<i64>| number.map(|n| n.to_string()).unwrap_or_default();
            let (iops, throughput) = (number(ebs.iops), number(ebs.throughput));
            let key = ebs.key.as_deref().unwrap_or_default();
            let (encrypted, deleted) = (ebs.encrypted, ebs.deleted_with_machine);
            format!(
                "{name} {} {} {iops} {throughput} {encrypted} {key} {deleted}",
                ebs.size, ebs.class
            )
        }
    }
}

fn device_there(device: &Value) -> String {
    let name = device.text("deviceName");
    let Some(ebs) = device.at("ebs").filter(|ebs| ebs.is_object()) else {
        return format!("{name} {}", device.text("virtualName"));
    };
    let members = ["volumeSize", "volumeType", "iops", "throughput", "encrypted", "kmsKeyId"];
    let members = members.map(|member| ebs.text(member)).join(" ");
    format!("{name} {members} {}", ebs.text("deleteOnTermination"))
}

fn spot_text(spot: &SpotOptions) -> String {
    let minutes = spot.minutes.map(|minutes| minutes.to_string()).unwrap_or_default();
    format!("{} {minutes} {}", spot.price, spot.interruption.as_deref().unwrap_or_default())
}

fn template_wanted(own: &Resource, template: &LaunchTemplate, ids: &Ids) -> Fields {
    let metadata = &template.metadata;
    let text_or_empty = |text: &Option<String>| text.clone().unwrap_or_default();
    let flag = |flag: Option<bool>| flag.map(|flag| flag.to_string()).unwrap_or_default();
    let ipv6 = if metadata.ipv6 { "enabled" } else { "disabled" };
    let devices: Vec<_> = template.devices.iter().map(device_text).collect();
    fields([
        ("Image", template.image.clone()),
        ("MachineType", text_or_empty(&template.machine_type)),
        ("Profile", id(ids, &template.profile)),
        ("Key", template.key.as_ref().map(|key| id(ids, key)).unwrap_or_default()),
        ("Devices", devices.join("; ")),
        ("Optimized", flag(template.optimized)),
        ("CPUCredits", text_or_empty(&template.cpu_credits)),
        ("Monitoring", template.monitoring.to_string()),
        ("Metadata", format!("{} {} {ipv6}", metadata.hops, metadata.tokens)),
        ("PublicAddress", flag(template.public_address)),
        ("IPv6Addresses", template.ipv6_addresses.to_string()),
        ("SecurityGroups", id_list(ids, &template.security_groups)),
        ("Tenancy", text_or_empty(&template.tenancy)),
        ("Spot", template.spot.as_ref().map(spot_text).unwrap_or_default()),
        ("UserData", digest(&template.user_data)),
        ("MachineTags", tag_text(&own.tags)),
    ])
}

fn template_fields(data: &Value) -> Fields {
    let text = |path: &str| data.text(path).to_owned();
    let devices: Vec<_> = data.list("blockDeviceMappingSet").iter().map(device_there).collect();
    let interface = data.list("networkInterfaceSet").first().unwrap_or(&Value::Null);
    let or =
        |text: &str, other: &str| if text.is_empty() { other.to_owned() } else { text.to_owned() };
    let metadata = |member: &str| data.text(&format!("metadataOptions.{member}")).to_owned();
    let spot = data.at("instanceMarketOptions.spotOptions").filter(|spot| spot.is_object());
    let spot = spot.map(|spot| {
        ["maxPrice", "blockDurationMinutes", "instanceInterruptionBehavior"]
            .map(|one| spot.text(one))
            .join(" ")
    });
    let tagged =
        data.list("tagSpecificationSet").iter().find(|one| one.text("resourceType") == "instance");
    let groups = interface.list("groupSet").iter();
    let groups = groups.map(|group| group.as_str().unwrap_or(group.text("groupId")).to_owned());
    fields([
        ("Image", text("imageId")),
        ("MachineType", text("instanceType")),
        ("Profile", text("iamInstanceProfile.name")),
        ("Key", text("keyName")),
        ("Devices", devices.join("; ")),
        ("Optimized", text("ebsOptimized")),
        ("CPUCredits", text("creditSpecification.cpuCredits")),
        ("Monitoring", or(data.text("monitoring.enabled"), "false")),
        (
            "Metadata",
            format!(
                "{} {} {}",
                metadata("httpPutResponseHopLimit"),
                metadata("httpTokens"),
                metadata("httpProtocolIpv6")
            ),
        ),
        ("PublicAddress", interface.text("associatePublicIpAddress").to_owned()),
        ("IPv6Addresses", or(interface.text("ipv6AddressCount"), "0")),
        ("SecurityGroups", sorted(groups.collect())),
        ("Tenancy", text("placement.tenancy")),
        ("Spot", spot.unwrap_or_default()),
        ("UserData", digest(&STANDARD.decode(data.text("userData")).unwrap_or_default())),
        ("MachineTags", tagged.map(|one| tag_text(&tags(one.list("tagSet")))).unwrap_or_default()),
    ])
}

/// Returns the template and the instance mixture of a group as one text.
fn mixture_text(template: &str, mixed: Option<&Distribution>) -> String {
    let Some(mixed) = mixed else { return template.to_owned() };
    let number = |number: Option<i64>| number.map(|n| n.to_string()).unwrap_or_default();
    let text_or_empty = |text: &Option<String>| text.clone().unwrap_or_default();
    [
        template.to_owned(),
        mixed.types.join(","),
        number(mixed.on_demand_base),
        number(mixed.on_demand_above_base),
        text_or_empty(&mixed.on_demand_strategy),
        text_or_empty(&mixed.spot_strategy),
        number(mixed.spot_pools),
        mixed.spot_price.clone(),
    ]
    .join(" ")
}

fn mixture_there(one: &Value) -> String {
    let template = one.text(template_path(one)).to_owned();
    let Some(mixed) = one.at("MixedInstancesPolicy").filter(|mixed| mixed.is_object()) else {
        return template;
    };
    let types = mixed.list("LaunchTemplate.Overrides").iter().map(|one| one.text("InstanceType"));
    let types = types.collect::<Vec<_>>().join(",");
    let of = |member: &str| mixed.text(&format!("InstancesDistribution.{member}")).to_owned();
    [
        template,
        types,
        of("OnDemandBaseCapacity"),
        of("OnDemandPercentageAboveBaseCapacity"),
        of("OnDemandAllocationStrategy"),
        of("SpotAllocationStrategy"),
        of("SpotInstancePools"),
        of("SpotMaxPrice"),
    ]
    .join(" ")
}

fn group_wanted(group: &ScalingGroup, ids: &Ids) -> Fields {
    let mut all = fields([
        ("MinSize", group.min.to_string()),
        ("MaxSize", group.max.to_string()),
        ("Subnets", id_list(ids, &group.subnets)),
        ("Template", mixture_text(&id(ids, &group.template), group.mixed.as_ref())),
        ("Metrics", sorted(group.metrics.clone())),
        ("Suspended", sorted(group.suspended.clone())),
        ("Protected", group.protected.to_string()),
        ("TargetGroups", id_list(ids, &group.target_groups)),
        ("Lifetime", group.lifetime.to_string()),
    ]);
    all.extend(group.rebalanced.map(|flag| ("Rebalanced".to_owned(), flag.to_string())));
    all
}

fn group_fields(one: &Value) -> Fields {
    let text = |path: &str| one.text(path).to_owned();
    let list = |path: &str, member: &str| {
        let texts = one.list(path).iter().map(|item| item.as_str().unwrap_or(item.text(member)));
        sorted(texts.map(str::to_owned).collect())
    };
    let subnets = one.text("VPCZoneIdentifier").split(',').map(|one| one.trim().to_owned());
    let lifetime = one.text("MaxInstanceLifetime");
    fields([
        ("MinSize", text("MinSize")),
        ("MaxSize", text("MaxSize")),
        ("Subnets", sorted(subnets.collect())),
        ("Template", mixture_there(one)),
        ("Metrics", list("EnabledMetrics", "Metric")),
        ("Suspended", list("SuspendedProcesses", "ProcessName")),
        ("Protected", text("NewInstancesProtectedFromScaleIn")),
        ("TargetGroups", list("TargetGroupARNs", "")),
        ("Lifetime", if lifetime.is_empty() { "0".to_owned() } else { lifetime.to_owned() }),
        ("Rebalanced", text("CapacityRebalance")),
    ])
}

/// Returns the identifying value of a resource; `None` if it depends on one that does not exist.
pub(super) fn identity(resource: &Resource, ids: &Ids) -> Option<String> {
    match &resource.body {
        Body::LifecycleHook { group, hook, .. } => Some(format!("{}/{hook}", ids.get(group)?)),
        _ => Some(resource.name.clone()),
    }
}

/// Returns a launch template's data in the form of calls.
pub(super) fn template_data(
    template: &LaunchTemplate,
    tags: &BTreeMap<String, String>,
    ids: &Ids,
) -> Value {
    let metadata = &template.metadata;
    let groups: Vec<_> = template.security_groups.iter().map(|to| id(ids, to)).collect();
    let interface = json!({
        "DeviceIndex": 0,
        "AssociatePublicIpAddress": template.public_address,
        "DeleteOnTermination": true,
        "Ipv6AddressCount": Some(template.ipv6_addresses).filter(|count| *count > 0),
        "SecurityGroupId": groups,
    });
    let pairs: Vec<_> =
        tags.iter().map(|(key, value)| json!({"Key": key, "Value": value})).collect();
    let tagged = ["instance", "volume", "network-interface"];
    let tagged = tagged.map(|kind| json!({"ResourceType": kind, "Tag": pairs}));
    let spot = template.spot.as_ref().map(|spot| {
        let options = json!({"MaxPrice": spot.price, "BlockDurationMinutes": spot.minutes,
            "InstanceInterruptionBehavior": spot.interruption});
        json!({"MarketType": "spot", "SpotOptions": options})
    });
    json!({
        "ImageId": template.image,
        "InstanceType": template.machine_type,
        "IamInstanceProfile": {"Name": id(ids, &template.profile)},
        "KeyName": template.key.as_ref().map(|key| id(ids, key)),
        "BlockDeviceMapping": template.devices.iter().map(device_data).collect::<Vec<_>>(),
        "EbsOptimized": template.optimized,
        "CreditSpecification": template.cpu_credits.as_ref().map(|credits| json!({"CpuCredits": credits})),
        "Monitoring": {"Enabled": template.monitoring},
        "MetadataOptions": {
            "HttpEndpoint": "enabled",
            "HttpProtocolIpv6": if metadata.ipv6 { "enabled" } else { "disabled" },
            "HttpPutResponseHopLimit": metadata.hops,
            "HttpTokens": metadata.tokens,
        },
        "NetworkInterface": [interface],
        "Placement": template.tenancy.as_ref().map(|tenancy| json!({"Tenancy": tenancy})),
        "InstanceMarketOptions": spot,
        "TagSpecification": tagged,
        "UserData": STANDARD.encode(&template.user_data),
    })
}

fn device_data(device: &BlockDevice) -> Value {
    match &device.disk {
        Disk::Own(own) => json!({"DeviceName": device.device, "VirtualName": own}),
        Disk::Ebs(ebs) => json!({"DeviceName": device.device, "Ebs": {
            "VolumeSize": ebs.size, "VolumeType": ebs.class, "Iops": ebs.iops, "Throughput": ebs.throughput,
            "Encrypted": ebs.encrypted, "KmsKeyId": ebs.key, "DeleteOnTermination": ebs.deleted_with_machine,
        }}),
    }
}

/// Returns the parameters shared by the creation and the update of a scaling group.
pub(super) fn group_call(name: &str, group: &ScalingGroup, ids: &Ids) -> Value {
    let subnets: Vec<_> = group.subnets.iter().map(|to| id(ids, to)).collect();
    let template = json!({"LaunchTemplateId": id(ids, &group.template), "Version": "$Latest"});
    let mut request = json!({
        "AutoScalingGroupName": name,
        "MinSize": group.min,
        "MaxSize": group.max,
        "VPCZoneIdentifier": subnets.join(","),
        "NewInstancesProtectedFromScaleIn": group.protected,
        "MaxInstanceLifetime": group.lifetime,
        "CapacityRebalance": group.rebalanced,
    });
    match &group.mixed {
        None => request.set("LaunchTemplate", template),
        Some(mixed) => {
            let types: Vec<_> =
                mixed.types.iter().map(|name| json!({"InstanceType": name})).collect();
            let policy = json!({
                "LaunchTemplate": {"LaunchTemplateSpecification": template, "Overrides": types},
                "InstancesDistribution": {
                    "OnDemandBaseCapacity": mixed.on_demand_base,
                    "OnDemandPercentageAboveBaseCapacity": mixed.on_demand_above_base,
                    "OnDemandAllocationStrategy": mixed.on_demand_strategy,
                    "SpotAllocationStrategy": mixed.spot_strategy,
                    "SpotInstancePools": mixed.spot_pools,
                    "SpotMaxPrice": mixed.spot_price,
                },
            });
            request.set("MixedInstancesPolicy", policy);
        }
    }
    request
}

/// Returns the calls that update a scaling group.
pub(super) fn group_changes(
    own: &Resource,
    group: &ScalingGroup,
    found: &ExistingResource,
    ids: &Ids,
    changed: &[&str],
) -> Vec<Call> {
    let has = |field: &str| changed.contains(&field);
    let name = own.name.as_str();
    let call = |operation, parameters| Call::new("autoscaling", operation, parameters);
    let mut calls = Vec::new();
    let apart = ["Metrics", "Suspended", "TargetGroups"];
    if changed.iter().any(|field| !apart.contains(field)) {
        calls.push(call("UpdateAutoScalingGroup", group_call(name, group, ids)));
    }
    if has("Metrics") {
        let request = json!({"AutoScalingGroupName": name, "Granularity": "1Minute", "Metrics": group.metrics});
        calls.push(call("EnableMetricsCollection", request));
    }
    // The items to remove and the items to add.
    let both = |field: &str, wanted: &[String]| {
        let old = found
            .fields
            .get(field)
            .map_or("", String::as_str)
            .split(',')
            .filter(|one| !one.is_empty());
        let gone: Vec<String> = old
            .clone()
            .filter(|one| !wanted.iter().any(|own| own == one))
            .map(str::to_owned)
            .collect();
        let new: Vec<String> =
            wanted.iter().filter(|one| !old.clone().any(|own| own == *one)).cloned().collect();
        (gone, new)
    };
    if has("Suspended") {
        let (gone, new) = both("Suspended", &group.suspended);
        for (operation, some) in [("ResumeProcesses", gone), ("SuspendProcesses", new)] {
            if !some.is_empty() {
                let request = json!({"AutoScalingGroupName": name, "ScalingProcesses": some});
                calls.push(call(operation, request));
            }
        }
    }
    if has("TargetGroups") {
        let wanted: Vec<_> = group.target_groups.iter().map(|to| id(ids, to)).collect();
        let (gone, new) = both("TargetGroups", &wanted);
        for (operation, some) in
            [("AttachLoadBalancerTargetGroups", new), ("DetachLoadBalancerTargetGroups", gone)]
        {
            if !some.is_empty() {
                let request = json!({"AutoScalingGroupName": name, "TargetGroupARNs": some});
                calls.push(call(operation, request));
            }
        }
    }
    calls
}
