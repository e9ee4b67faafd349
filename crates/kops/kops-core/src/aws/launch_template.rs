//! Launch templates: the images, disks and networks of machines.

use std::collections::BTreeMap;

use api_meta::Tree as _;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use data_encoding::HEXLOWER;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{
    ec2::{Listing, delete, with_tags},
    family::*,
    fields::{fields, id, id_list, sorted, tag_pairs, tags},
    volume::Ebs,
};

const LAUNCH_TEMPLATES: Listing = Listing {
    operation: "DescribeLaunchTemplates",
    list: "launchTemplates",
    id: "launchTemplateId",
};

/// The most templates in one page, AWS' limit.
const PAGE: i64 = 200;

/// The template of a group's machines.
#[derive(Clone, Debug)]
pub struct LaunchTemplate {
    /// The image ID.
    pub image: String,
    /// The machine type; `None` if the scaling group names the types.
    pub machine_type: Option<String>,
    /// The instance profile.
    pub profile: Ref,
    /// The SSH key.
    pub key: Option<Ref>,
    /// The disks; the root disk is first.
    pub devices: Vec<BlockDevice>,
    /// `true` to force EBS optimization.
    pub optimized: Option<bool>,
    /// The CPU credit mode.
    pub cpu_credits: Option<String>,
    /// `true` for detailed monitoring.
    pub monitoring: bool,
    /// The metadata service.
    pub metadata: MetadataService,
    /// `Some` to force or forbid a public address.
    pub public_address: Option<bool>,
    /// The number of IPv6 addresses.
    pub ipv6_addresses: i64,
    /// The security groups.
    pub security_groups: Vec<Ref>,
    /// The tenancy.
    pub tenancy: Option<String>,
    /// The spot options; `None` for on-demand machines.
    pub spot: Option<SpotOptions>,
    /// A script, or several parts. Only the machine reads it, and it contains no private key.
    pub user_data: Vec<u8>,
}

/// A disk of a machine.
#[derive(Clone, Debug)]
pub struct BlockDevice {
    /// The device name, such as `/dev/xvda`.
    pub device: String,
    /// The disk.
    pub disk: Disk,
}

/// The disk of a device: an EBS volume, or an instance store by its name.
#[derive(Clone, Debug)]
pub enum Disk {
    /// An EBS volume.
    Ebs(Ebs),
    /// The name of an instance store.
    InstanceStore(String),
}

/// The options of a machine's metadata service.
#[derive(Clone, Debug)]
pub struct MetadataService {
    /// The hop limit of its answers.
    pub hops: i64,
    /// `required` or `optional`.
    pub tokens: String,
    /// `true` if it answers over IPv6.
    pub ipv6: bool,
}

/// The options of spot machines.
#[derive(Clone, Debug)]
pub struct SpotOptions {
    /// The highest price per hour, in dollars.
    pub price: String,
    /// The duration in minutes.
    pub minutes: Option<i64>,
    /// The behaviour at an interruption.
    pub interruption: Option<String>,
}

impl Operations for LaunchTemplate {
    fn queries(scope: &Scope, _answers: &Answers) -> Vec<Call> {
        let latest = json!({"LaunchTemplateVersion": ["$Latest"], "MaxResults": PAGE});
        let mut templates = LAUNCH_TEMPLATES.query(scope);
        templates.parameters.put("MaxResults", PAGE);
        vec![templates, Call::ec2("DescribeLaunchTemplateVersions", latest)]
    }

    fn find_existing(scope: &Scope, answers: &Answers) -> Vec<IdentifiedResource> {
        let versions: BTreeMap<&str, &Value> = answers
            .each("DescribeLaunchTemplateVersions", "launchTemplateVersionSet")
            .map(|version| (version.text("launchTemplateId"), version))
            .collect();
        let found = LAUNCH_TEMPLATES.items(answers).map(|item| {
            let version = versions.get(item.text("launchTemplateId"));
            let data = version.and_then(|version| version.get("launchTemplateData"));
            let fields = data.map(existing_fields).unwrap_or_default();
            let name = item.text("launchTemplateName").to_owned();
            (name, LAUNCH_TEMPLATES.existing(scope, item, fields))
        });
        found.collect()
    }

    fn delete(_identity: &str, found: &ExistingResource) -> Vec<Call> {
        delete("DeleteLaunchTemplate", "LaunchTemplateId", found)
    }

    fn refs(&self) -> Vec<&Ref> {
        self.security_groups.iter().chain([&self.profile]).chain(&self.key).collect()
    }

    fn desired_fields(&self, own: &Header<'_>, ids: &Ids) -> Fields {
        let metadata = &self.metadata;
        let text_or_empty = |text: &Option<String>| text.clone().unwrap_or_default();
        let flag = |flag: Option<bool>| flag.map(|flag| flag.to_string()).unwrap_or_default();
        let ipv6 = if metadata.ipv6 { "enabled" } else { "disabled" };
        let devices: Vec<_> = self.devices.iter().map(device_text).collect();
        fields([
            ("Image", self.image.clone()),
            ("MachineType", text_or_empty(&self.machine_type)),
            ("Profile", id(ids, &self.profile)),
            ("Key", self.key.as_ref().map(|key| id(ids, key)).unwrap_or_default()),
            ("Devices", devices.join("; ")),
            ("Optimized", flag(self.optimized)),
            ("CPUCredits", text_or_empty(&self.cpu_credits)),
            ("Monitoring", self.monitoring.to_string()),
            ("Metadata", format!("{} {} {ipv6}", metadata.hops, metadata.tokens)),
            ("PublicAddress", flag(self.public_address)),
            ("IPv6Addresses", self.ipv6_addresses.to_string()),
            ("SecurityGroups", id_list(ids, &self.security_groups)),
            ("Tenancy", text_or_empty(&self.tenancy)),
            ("Spot", self.spot.as_ref().map(spot_text).unwrap_or_default()),
            ("UserData", digest(&self.user_data)),
            ("MachineTags", tag_text(own.tags)),
        ])
    }

    fn create(&self, own: &Header<'_>, ids: &Ids) -> Result<Creation, Error> {
        let data = self.data(own.tags, ids);
        let request = json!({"LaunchTemplateName": own.name, "LaunchTemplateData": data});
        let request = with_tags(request, "launch-template", own.tags);
        let path = "launchTemplate.launchTemplateId";
        Ok(Creation::ec2("CreateLaunchTemplate", request, path))
    }

    fn change(&self, update: &Update<'_>) -> Result<Vec<Call>, Error> {
        let data = self.data(update.own.tags, update.ids);
        let request = json!({"LaunchTemplateId": update.id(), "LaunchTemplateData": data});
        Ok(vec![Call::ec2("CreateLaunchTemplateVersion", request)])
    }

    fn terraform(&self, own: &Header<'_>, writer: &mut Writer<'_>) -> Result<Block, Error> {
        let mut block = Block::default();
        block.blocks("block_device_mappings", self.devices.iter().map(device_block).collect());
        if let Some(credits) = &self.cpu_credits {
            let mut inner = Block::default();
            inner.text("cpu_credits", credits);
            block.block("credit_specification", inner);
        }
        block.opt_value("ebs_optimized", self.optimized.map(Expr::flag));
        let mut profile = Block::default();
        profile.value("name", writer.link(&self.profile));
        block.block("iam_instance_profile", profile).text("image_id", &self.image);
        if let Some(options) = &self.spot {
            block.block("instance_market_options", spot_block(options));
        }
        block.opt_value("instance_type", self.machine_type.as_ref().map(Expr::text));
        block.opt_value("key_name", self.key.as_ref().map(|key| writer.link(key)));
        let mut lifecycle = Block::default();
        lifecycle.flag("create_before_destroy", true);
        block
            .block("lifecycle", lifecycle)
            .block("metadata_options", metadata_block(&self.metadata));
        let mut monitoring = Block::default();
        monitoring.flag("enabled", self.monitoring);
        block.block("monitoring", monitoring).text("name", own.name);
        let mut interface = Block::default();
        interface.opt_value("associate_public_ip_address", self.public_address.map(Expr::flag));
        interface.flag("delete_on_termination", true);
        interface.int("ipv6_address_count", self.ipv6_addresses);
        interface.list("security_groups", writer.links(&self.security_groups));
        block.block("network_interfaces", interface);
        if let Some(tenancy) = &self.tenancy {
            let mut inner = Block::default();
            inner.text("tenancy", tenancy);
            block.block("placement", inner);
        }
        let tagged = ["instance", "volume", "network-interface"].map(|kind| {
            let mut inner = Block::default();
            inner.text("resource_type", kind).tags(own.tags);
            inner
        });
        block.blocks("tag_specifications", tagged.into()).tags(own.tags);
        if !self.user_data.is_empty() {
            let file = writer.binary_file(own.kind, own.name, "user_data", &self.user_data)?;
            block.value("user_data", file);
        }
        Ok(block)
    }
}

impl LaunchTemplate {
    /// Returns the template's data in the form of calls.
    fn data(&self, tags: &Tags, ids: &Ids) -> Value {
        let metadata = &self.metadata;
        let groups: Vec<_> = self.security_groups.iter().map(|to| id(ids, to)).collect();
        let interface = json!({
            "DeviceIndex": 0,
            "AssociatePublicIpAddress": self.public_address,
            "DeleteOnTermination": true,
            "Ipv6AddressCount": Some(self.ipv6_addresses).filter(|count| *count > 0),
            "SecurityGroupId": groups,
        });
        let pairs = tag_pairs(tags);
        let tagged = ["instance", "volume", "network-interface"];
        let tagged = tagged.map(|kind| json!({"ResourceType": kind, "Tag": pairs}));
        let spot = self.spot.as_ref().map(|spot| {
            let options = json!({"MaxPrice": spot.price, "BlockDurationMinutes": spot.minutes,
                "InstanceInterruptionBehavior": spot.interruption});
            json!({"MarketType": "spot", "SpotOptions": options})
        });
        json!({
            "ImageId": self.image,
            "InstanceType": self.machine_type,
            "IamInstanceProfile": {"Name": id(ids, &self.profile)},
            "KeyName": self.key.as_ref().map(|key| id(ids, key)),
            "BlockDeviceMapping": self.devices.iter().map(device_data).collect::<Vec<_>>(),
            "EbsOptimized": self.optimized,
            "CreditSpecification": self.cpu_credits.as_ref().map(|credits| json!({"CpuCredits": credits})),
            "Monitoring": {"Enabled": self.monitoring},
            "MetadataOptions": {
                "HttpEndpoint": "enabled",
                "HttpProtocolIpv6": if metadata.ipv6 { "enabled" } else { "disabled" },
                "HttpPutResponseHopLimit": metadata.hops,
                "HttpTokens": metadata.tokens,
            },
            "NetworkInterface": [interface],
            "Placement": self.tenancy.as_ref().map(|tenancy| json!({"Tenancy": tenancy})),
            "InstanceMarketOptions": spot,
            "TagSpecification": tagged,
            "UserData": STANDARD.encode(&self.user_data),
        })
    }
}

fn device_data(device: &BlockDevice) -> Value {
    match &device.disk {
        Disk::InstanceStore(name) => json!({"DeviceName": device.device, "VirtualName": name}),
        Disk::Ebs(ebs) => json!({"DeviceName": device.device, "Ebs": {
            "VolumeSize": ebs.size, "VolumeType": ebs.class, "Iops": ebs.iops, "Throughput": ebs.throughput,
            "Encrypted": ebs.encrypted, "KmsKeyId": ebs.key, "DeleteOnTermination": ebs.deleted_with_machine,
        }}),
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
        Disk::InstanceStore(store) => format!("{name} {store}"),
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

fn existing_device(device: &Value) -> String {
    let name = device.text("deviceName");
    let Some(ebs) = Some(device.at("ebs")).filter(|ebs| ebs.is_object()) else {
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

fn existing_fields(data: &Value) -> Fields {
    let text = |path: &str| data.text(path).to_owned();
    let devices: Vec<_> = data.items("blockDeviceMappingSet").iter().map(existing_device).collect();
    let interface = data.items("networkInterfaceSet").first().unwrap_or(&Value::Null);
    let or =
        |text: &str, other: &str| if text.is_empty() { other.to_owned() } else { text.to_owned() };
    let metadata = |member: &str| data.text(&format!("metadataOptions.{member}")).to_owned();
    let spot = Some(data.at("instanceMarketOptions.spotOptions")).filter(|spot| spot.is_object());
    let spot = spot.map(|spot| {
        ["maxPrice", "blockDurationMinutes", "instanceInterruptionBehavior"]
            .map(|one| spot.text(one))
            .join(" ")
    });
    let tagged =
        data.items("tagSpecificationSet").iter().find(|one| one.text("resourceType") == "instance");
    let groups = interface.items("groupSet").iter();
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
        ("MachineTags", tagged.map(|one| tag_text(&tags(one.items("tagSet")))).unwrap_or_default()),
    ])
}

fn device_block(device: &BlockDevice) -> Block {
    let mut block = Block::default();
    block.text("device_name", &device.device);
    match &device.disk {
        Disk::InstanceStore(name) => drop(block.text("virtual_name", name)),
        Disk::Ebs(disk) => {
            let mut ebs = Block::default();
            ebs.flag("delete_on_termination", disk.deleted_with_machine);
            disk.set_arguments(&mut ebs, "volume_");
            block.block("ebs", ebs);
        }
    }
    block
}

fn spot_block(options: &SpotOptions) -> Block {
    let (mut block, mut inner) = (Block::default(), Block::default());
    inner.opt_value("block_duration_minutes", options.minutes.map(Expr::int));
    inner
        .opt_value("instance_interruption_behavior", options.interruption.as_ref().map(Expr::text));
    inner.text("max_price", &options.price);
    block.text("market_type", "spot").block("spot_options", inner);
    block
}

fn metadata_block(metadata: &MetadataService) -> Block {
    let mut block = Block::default();
    let ipv6 = if metadata.ipv6 { "enabled" } else { "disabled" };
    block.text("http_endpoint", "enabled").text("http_protocol_ipv6", ipv6);
    block.int("http_put_response_hop_limit", metadata.hops);
    block.text("http_tokens", &metadata.tokens);
    block
}
