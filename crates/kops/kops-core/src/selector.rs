//! `toolbox instance-selector`: selects machine types of AWS by their resources, and creates instance groups of them.
//!
//! The table of machine types is the answer of AWS' `DescribeInstanceTypes`. Read [`select`] first.

use api_meta::Tree as _;
use kops_api::{Kind, Object};
use serde_json::{Value, json};

use crate::{channel::Channel, cluster::Cluster as _, error::Error, version::Version};

/// The bounds of a quantity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// The least value.
    pub min: Option<u64>,
    /// The greatest value.
    pub max: Option<u64>,
}

impl Bounds {
    fn holds(self, value: u64) -> bool {
        self.min.is_none_or(|min| value >= min) && self.max.is_none_or(|max| value <= max)
    }

    fn is_given(self) -> bool {
        self.min.is_some() || self.max.is_some()
    }
}

/// The wanted properties of machine types. Memory is in MiB.
#[derive(Clone, Debug, Default)]
pub struct Filters {
    /// The architecture: `amd64` or `arm64`.
    pub architecture: String,
    /// `spot` or `on-demand`.
    pub usage_class: String,
    /// The number of virtual CPUs.
    pub vcpus: Bounds,
    /// The memory.
    pub memory: Bounds,
    /// The memory in GiB for each virtual CPU, rounded up.
    pub ratio: Option<u64>,
    /// The number of GPUs.
    pub gpus: Bounds,
    /// The memory of all GPUs.
    pub gpu_memory: Bounds,
    /// The number of network interfaces.
    pub interfaces: Bounds,
    /// `Some` to want or reject burstable types.
    pub burstable: Option<bool>,
    /// `Some` to want or reject types with enhanced networking.
    pub ena: Option<bool>,
    /// The strategy of placement groups; empty for any.
    pub placement: String,
    /// `Some` to want or reject machines without a hypervisor.
    pub bare_metal: Option<bool>,
    /// `Some` to want or reject types with programmable hardware.
    pub fpga: Option<bool>,
}

/// The machine types that `--flexible` selects from, as a regular expression: current ones for general use.
pub const FLEXIBLE_TYPES: &str = r"^[cmr][3-9][agi]?\..*$|^t[2-9][gi]?\..*$";
/// The virtual CPUs that `--flexible` selects by default, and the memory in GiB for each.
const FLEXIBLE_VCPUS: u64 = 4;
const FLEXIBLE_RATIO: u64 = 2;
/// The range of resources that are similar to those of a base type, in tenths.
const SIMILAR: [u64; 2] = [9, 12];

impl Filters {
    /// Sets the unset filters of `--base-instance-type`: to resources that are similar to those of a machine type.
    pub fn resemble(&mut self, table: &Value, base: &str) -> Result<(), Error> {
        let mut types = table.items("InstanceTypes").iter();
        let found = types
            .find(|one| !base.is_empty() && one.text("InstanceType") == base)
            .ok_or_else(|| {
                Error::value(
                    "--base-instance-type",
                    base,
                    "is not a machine type of --machine-types",
                )
            })?;
        let similar = |path: &str| {
            let [min, max] = SIMILAR.map(|tenths| number(found, path).saturating_mul(tenths) / 10);
            Bounds { min: Some(min), max: Some(max) }
        };
        if !self.vcpus.is_given() {
            self.vcpus = similar(VCPUS);
        }
        if !self.memory.is_given() {
            self.memory = similar(MEMORY);
        }
        if !self.gpus.is_given() {
            let gpus = Some(gpus(found));
            self.gpus = Bounds { min: gpus, max: gpus };
        }
        self.bare_metal.get_or_insert(found.flag(BARE_METAL));
        self.fpga.get_or_insert(found.has(FPGA));
        Ok(())
    }

    /// Sets the unset filters of `--flexible`.
    pub fn set_flexible_defaults(&mut self) {
        if !self.memory.is_given() {
            self.ratio.get_or_insert(FLEXIBLE_RATIO);
            if !self.vcpus.is_given() {
                self.vcpus = Bounds { min: Some(FLEXIBLE_VCPUS), max: Some(FLEXIBLE_VCPUS) };
            }
        }
        self.bare_metal.get_or_insert(false);
        self.fpga.get_or_insert(false);
    }
}

/// The fields of a machine type.
const VCPUS: &str = "VCpuInfo.DefaultVCpus";
const MEMORY: &str = "MemoryInfo.SizeInMiB";
const BARE_METAL: &str = "BareMetal";
const FPGA: &str = "FpgaInfo";

fn number(one: &Value, path: &str) -> u64 {
    one.at(path).as_u64().unwrap_or_default()
}

fn gpus(one: &Value) -> u64 {
    let counts = one.items("GpuInfo.Gpus").iter().map(|gpu| number(gpu, "Count"));
    counts.fold(0, u64::saturating_add)
}

/// Parses an amount of memory such as `4gb`, `4GiB` or `512` (MiB) into MiB.
pub fn parse_memory(field: &str, text: &str) -> Result<u64, Error> {
    let wrong = || Error::value(field, text, "is not an amount of memory such as 4gb or 512mb");
    let lower = text.trim().to_ascii_lowercase();
    let end = lower.find(|c: char| !c.is_ascii_digit()).unwrap_or(lower.len());
    let (number, unit) = lower.split_at(end);
    let factor: u64 = match unit.trim() {
        "" | "m" | "mb" | "mib" => 1,
        "g" | "gb" | "gib" => 1 << 10,
        "t" | "tb" | "tib" => 1 << 20,
        _ => return Err(wrong()),
    };
    number.parse::<u64>().ok().and_then(|n| n.checked_mul(factor)).ok_or_else(wrong)
}

/// Parses a ratio of virtual CPUs to memory in GiB, such as `1:2`.
pub fn parse_ratio(field: &str, text: &str) -> Result<u64, Error> {
    let parts = text.split_once(':').and_then(|(vcpus, memory)| {
        let (vcpus, memory) =
            (vcpus.trim().parse::<u64>().ok()?, memory.trim().parse::<u64>().ok()?);
        (vcpus > 0 && memory > 0).then(|| memory.div_ceil(vcpus))
    });
    parts.ok_or_else(|| Error::value(field, text, "is not a ratio such as 1:2"))
}

/// Returns the names of the machine types that match, sorted.
pub fn select(table: &Value, filters: &Filters) -> Result<Vec<String>, Error> {
    let types = table.items("InstanceTypes");
    if types.is_empty() {
        let remedy = "save the output of aws ec2 describe-instance-types";
        return Err(Error::Unsupported { what: "a table without InstanceTypes".into(), remedy });
    }
    let found = types.iter().filter(|one| matches(one, filters));
    let mut names: Vec<String> = found.map(|one| one.text("InstanceType").to_owned()).collect();
    names.retain(|name| !name.is_empty());
    names.sort();
    names.dedup();
    Ok(names)
}

fn matches(one: &Value, filters: &Filters) -> bool {
    let (vcpus, memory) = (number(one, VCPUS), number(one, MEMORY));
    let has = |path: &str, wanted: &str| one.texts(path).any(|item| item == wanted);
    let aws_architecture = if filters.architecture == "amd64" { "x86_64" } else { "arm64" };
    let gpus = gpus(one);
    let gpu_memory = number(one, "GpuInfo.TotalGpuMemoryInMiB");
    let is_ena = ["supported", "required"].contains(&one.text("NetworkInfo.EnaSupport"));
    let ratio = memory.div_ceil(1024).checked_div(vcpus);
    let ratio = ratio.map(|_| memory.div_ceil(vcpus.saturating_mul(1024)));
    has("ProcessorInfo.SupportedArchitectures", aws_architecture)
        && has("SupportedUsageClasses", &filters.usage_class)
        && filters.vcpus.holds(vcpus)
        && filters.memory.holds(memory)
        && filters.ratio.is_none_or(|wanted| ratio == Some(wanted))
        && filters.gpus.holds(gpus)
        && filters.gpu_memory.holds(gpu_memory)
        && (!filters.gpu_memory.is_given() || gpus > 0)
        && filters.interfaces.holds(number(one, "NetworkInfo.MaximumNetworkInterfaces"))
        && filters
            .burstable
            .is_none_or(|wanted| one.flag("BurstablePerformanceSupported") == wanted)
        && filters.ena.is_none_or(|wanted| is_ena == wanted)
        && filters.bare_metal.is_none_or(|wanted| one.flag(BARE_METAL) == wanted)
        && filters.fpga.is_none_or(|wanted| one.has(FPGA) == wanted)
        && (filters.placement.is_empty()
            || has("PlacementGroupInfo.SupportedStrategies", &filters.placement))
}

/// The properties of a new instance group.
#[derive(Clone, Debug, Default)]
pub struct GroupOptions {
    /// The smallest size.
    pub min: u32,
    /// The largest size.
    pub max: u32,
    /// The subnets; empty for all of the cluster.
    pub subnets: Vec<String>,
    /// Additional security groups.
    pub security_groups: Vec<String>,
    /// The size of disks in GiB.
    pub volume_size: Option<u32>,
    /// `true` for spot machines.
    pub is_spot: bool,
    /// `true` to add the tags that cluster-autoscaler discovers.
    pub autoscaler: bool,
}

/// Creates an instance group of workers with the selected machine types.
pub fn create_selected(
    cluster: &Object,
    name: &str,
    types: &[String],
    options: &GroupOptions,
    channel: &Channel,
) -> Result<Object, Error> {
    let Some(first) = types.first() else {
        let reason = "has no machine types: no instance types were returned because the criteria \
                      specified was too narrow";
        return Err(Error::value("instance group", name, reason));
    };
    let mut group = Object::new(Kind::InstanceGroup, name);
    let spec = &mut group.spec;
    spec.put("role", "Node");
    spec.put("subnets", subnets(cluster, &options.subnets)?);
    spec.put("minSize", options.min);
    spec.put("maxSize", options.max);
    if let Some(size) = options.volume_size {
        spec.put("rootVolume.size", size);
    }
    if !options.security_groups.is_empty() {
        spec.put("additionalSecurityGroups", options.security_groups.clone());
    }
    spec.put("machineType", first.clone());
    spec.put("mixedInstancesPolicy.instances", types.to_vec());
    if options.is_spot {
        spec.put("mixedInstancesPolicy.onDemandBase", 0);
        spec.put("mixedInstancesPolicy.onDemandAboveBase", 0);
        spec.put("mixedInstancesPolicy.spotAllocationStrategy", "capacity-optimized");
    }
    if options.autoscaler {
        let own = format!("k8s.io/cluster-autoscaler/{}", cluster.name());
        spec.put("cloudLabels", json!({"k8s.io/cluster-autoscaler/enabled": "1", own: "1"}));
    }
    let version: Option<Version> = cluster.spec.text("kubernetesVersion").parse().ok();
    let architecture = crate::machine_types::architecture(first);
    let image = version.and_then(|v| channel.image(cluster.cloud().word(), &v, architecture));
    if let Some(image) = image {
        spec.put("image", image);
    }
    spec.put("nodeLabels", json!({"kops.k8s.io/instancegroup": name}));
    group.metadata.put("labels", json!({"kops.k8s.io/cluster": cluster.name()}));
    Ok(group)
}

/// Returns the wanted subnets, which must be the cluster's, or all of the cluster.
fn subnets(cluster: &Object, wanted: &[String]) -> Result<Vec<String>, Error> {
    let own = cluster.spec.items("networking.subnets").iter();
    let own: Vec<String> = own.map(|subnet| subnet.text("name").to_owned()).collect();
    if wanted.is_empty() {
        return Ok(own);
    }
    if let Some(other) = wanted.iter().find(|name| !own.contains(name)) {
        return Err(Error::value("--subnets", other, "error subnets must exist in the cluster"));
    }
    let utility = wanted.iter().filter(|name| name.starts_with("utility-")).count();
    if utility != 0 && utility != wanted.len() {
        let reason = "error instance group cannot span public and private subnets";
        return Err(Error::value("--subnets", wanted.join(","), reason));
    }
    Ok(wanted.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A change of the filters, and the selected types.
    type Case = (fn(&mut Filters), &'static [&'static str]);

    fn table() -> Value {
        let one = |name: &str, vcpus: u64, memory: u64, more: Value| {
            let mut one = json!({
                "InstanceType": name, "VCpuInfo": {"DefaultVCpus": vcpus}, "MemoryInfo": {"SizeInMiB": memory},
                "ProcessorInfo": {"SupportedArchitectures": ["x86_64"]}, "SupportedUsageClasses": ["on-demand", "spot"],
                "NetworkInfo": {"MaximumNetworkInterfaces": 3, "EnaSupport": "required"},
                "BurstablePerformanceSupported": false,
            });
            for (key, value) in more.as_object().into_iter().flatten() {
                one.put(key.as_str(), value.clone());
            }
            one
        };
        let arm = json!({"ProcessorInfo": {"SupportedArchitectures": ["arm64"]}});
        let gpu = json!({"GpuInfo": {"Gpus": [{"Count": 4}], "TotalGpuMemoryInMiB": 65536}, "SupportedUsageClasses": ["spot"]});
        let burst = json!({"BurstablePerformanceSupported": true, "NetworkInfo": {"MaximumNetworkInterfaces": 8}});
        json!({"InstanceTypes": [
            one("m5.large", 2, 8192, json!({})), one("c5.large", 2, 4096, json!({})), one("m6g.large", 2, 8192, arm),
            one("g4dn.12xlarge", 48, 196_608, gpu), one("t3.medium", 2, 4096, burst), json!({}), json!("x"),
        ]})
    }

    #[test]
    fn selects_machine_types_by_resources() {
        let two = Bounds { min: Some(2), max: Some(2) };
        let cases: [Case; 9] = [
            (
                |f| f.vcpus = Bounds { min: None, max: Some(2) },
                &["c5.large", "m5.large", "t3.medium"],
            ),
            (|f| f.architecture = "arm64".into(), &["m6g.large"]),
            (|f| f.memory = Bounds { min: Some(8192), max: Some(9000) }, &["m5.large"]),
            (|f| f.ratio = Some(2), &["c5.large", "t3.medium"]),
            (|f| f.burstable = Some(true), &["t3.medium"]),
            (|f| f.ena = Some(false), &["t3.medium"]),
            (|f| f.interfaces = Bounds { min: Some(4), max: None }, &["t3.medium"]),
            (|f| f.gpus = Bounds { min: Some(1), max: None }, &[]),
            (
                |f| {
                    f.usage_class = "spot".into();
                    f.gpu_memory = Bounds { min: Some(1), max: None };
                },
                &["g4dn.12xlarge"],
            ),
        ];
        for (number, (change, names)) in cases.into_iter().enumerate() {
            let mut filters = Filters {
                architecture: "amd64".into(),
                usage_class: "on-demand".into(),
                ..Filters::default()
            };
            change(&mut filters);
            let found = select(&table(), &filters).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(found, names, "case {number}");
        }
        assert!(two.holds(2) && !two.holds(3));
        assert!(select(&json!({"InstanceTypes": 7}), &Filters::default()).is_err());
    }

    #[test]
    fn selects_types_similar_to_a_base_type() {
        let like = |base: &str| {
            let mut filters = Filters {
                architecture: "amd64".into(),
                usage_class: "on-demand".into(),
                ..Filters::default()
            };
            filters.resemble(&table(), base)?;
            select(&table(), &filters)
        };
        assert_eq!(like("t3.medium").unwrap_or_else(|e| panic!("{e}")), ["c5.large", "t3.medium"]);
        assert_eq!(like("m5.large").unwrap_or_else(|e| panic!("{e}")), ["m5.large"]);
        for hostile in ["", "m5.*", "x1.large"] {
            let error = like(hostile).expect_err(hostile).to_string();
            assert!(error.contains("is not a machine type of --machine-types"), "{error}");
        }
        // Given bounds stay.
        let mut filters =
            Filters { memory: Bounds { min: Some(1), max: None }, ..Filters::default() };
        filters.resemble(&table(), "m5.large").unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(filters.memory, Bounds { min: Some(1), max: None });
        assert_eq!(filters.vcpus, Bounds { min: Some(1), max: Some(2) });
    }

    #[test]
    fn flexible_defaults_leave_given_filters() {
        let mut filters = Filters::default();
        filters.set_flexible_defaults();
        assert_eq!(filters.vcpus, Bounds { min: Some(4), max: Some(4) });
        assert_eq!(
            (filters.ratio, filters.bare_metal, filters.fpga),
            (Some(2), Some(false), Some(false))
        );
        let memory = Bounds { min: Some(4096), max: None };
        let mut filters = Filters { memory, ..Filters::default() };
        filters.set_flexible_defaults();
        assert_eq!((filters.vcpus, filters.ratio), (Bounds::default(), None));
    }

    #[test]
    fn parses_amounts() {
        for (text, want) in [
            ("4gb", Some(4096)),
            ("512", Some(512)),
            ("1 TiB", Some(1 << 20)),
            ("-1", None),
            ("gb", None),
            ("4kb", None),
            ("99999999999999999999gb", None),
            ("18446744073709551615tb", None),
        ] {
            assert_eq!(parse_memory("--memory", text).ok(), want, "{text}");
        }
        for (text, want) in [
            ("1:2", Some(2)),
            ("2:3", Some(2)),
            ("1:0", None),
            ("0:1", None),
            ("2", None),
            ("a:b", None),
        ] {
            assert_eq!(parse_ratio("--ratio", text).ok(), want, "{text}");
        }
    }
}
