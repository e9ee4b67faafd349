//! Runs `kops toolbox instance-selector`: creates instance groups of machine types with the wanted resources.

use api_meta::Tree as _;
use kops_api::{Object, VersionName};
use kops_core::{
    CloudName, Cluster as _,
    selector::{
        Bounds, FLEXIBLE_TYPES, Filters, GroupOptions, create_selected, parse_memory, parse_ratio,
        select,
    },
};
use kops_store::{Registry, read_channel};
use regex::Regex;
use serde_json::Value;

use crate::{
    change, environment::CommandEnvironment, error::Error, flags::SelectorFlags, get,
    input::read_text,
};

/// The most instance groups of one command.
const MOST_GROUPS: u32 = 16;
/// The memory in GiB for each virtual CPU of the first of several groups.
const FIRST_RATIO: u64 = 2;

pub(crate) fn run(
    registry: &Registry,
    flags: &SelectorFlags,
    name: &str,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let cluster = get::find_cluster(registry, name)?;
    if cluster.cloud() != CloudName::Aws {
        return Err(kops_store::Error::object(
            "cluster",
            name,
            "cannot select instance types from non-aws cluster",
        )
        .into());
    }
    let groups = create_groups(flags, &cluster)?;
    let shown = groups.clone();
    if !flags.dry_run {
        change::store_objects(registry, name, groups, context)?;
    }
    for group in &shown {
        if flags.dry_run && flags.output == "json" {
            writeln!(context.out, "{}", group.to_tree(VersionName::V1alpha2))?;
        } else {
            write!(context.out, "{}", group.to_yaml(VersionName::V1alpha2))?;
        }
    }
    Ok(())
}

fn create_groups(flags: &SelectorFlags, cluster: &Object) -> Result<Vec<Object>, Error> {
    let Some(table) = &flags.machine_types else {
        let problem = "is required: save the output of aws ec2 describe-instance-types";
        return Err(Error::Flag { flag: "--machine-types", problem });
    };
    let tree: Value = serde_json::from_str(&read_text(table)?)
        .map_err(|e| kops_api::Error::Yaml { what: table.clone(), cause: e.to_string() })?;
    let mut filters = filters(flags)?;
    if let Some(base) = &flags.base_instance_type {
        filters.resemble(&tree, base)?;
    }
    if flags.flexible {
        filters.set_flexible_defaults();
    }
    let count = flags.ig_count.unwrap_or(1);
    if count == 0 || count > MOST_GROUPS {
        return Err(Error::Flag { flag: "--ig-count", problem: "is not between 1 and 16" });
    }
    if flags.ig_count.is_some() && filters.ratio.is_none() {
        filters.ratio = Some(FIRST_RATIO);
    }
    let options = GroupOptions {
        min: flags.node_count_min,
        max: flags.node_count_max,
        subnets: flags.subnets.clone(),
        security_groups: flags.node_security_groups.clone(),
        volume_size: flags.node_volume_size,
        is_spot: flags.usage_class == "spot",
        autoscaler: flags.cluster_autoscaler,
    };
    let channel = read_channel(cluster.spec.text("channel"), false)?;
    let allowed = flags.allow_list.as_deref().or(flags.flexible.then_some(FLEXIBLE_TYPES));
    let allow = pattern("--allow-list", allowed)?;
    let deny = pattern("--deny-list", flags.deny_list.as_deref())?;
    let mut groups = Vec::new();
    for number in 1..=count {
        let mut types = select(&tree, &filters)?;
        types.retain(|name| {
            allow.as_ref().is_none_or(|allow| allow.is_match(name))
                && !deny.as_ref().is_some_and(|deny| deny.is_match(name))
        });
        types.truncate(flags.max_results);
        let name = match count {
            1 => flags.instance_group.clone(),
            _ => format!("{}{number}", flags.instance_group),
        };
        groups.push(create_selected(cluster, &name, &types, &options, &channel)?);
        filters.ratio = filters.ratio.map(|ratio| ratio.saturating_mul(2));
    }
    Ok(groups)
}

fn filters(flags: &SelectorFlags) -> Result<Filters, Error> {
    let bounds = |both: Option<u64>, min: Option<u64>, max: Option<u64>| Bounds {
        min: both.or(min),
        max: both.or(max),
    };
    let memory = |flag: &str, text: &Option<String>| {
        text.as_deref().map(|text| parse_memory(flag, text)).transpose()
    };
    let ratio = flags.vcpus_to_memory_ratio.as_deref();
    Ok(Filters {
        architecture: flags.cpu_architecture.clone(),
        usage_class: flags.usage_class.clone(),
        vcpus: bounds(flags.vcpus, flags.vcpus_min, flags.vcpus_max),
        memory: bounds(
            memory("--memory", &flags.memory)?,
            memory("--memory-min", &flags.memory_min)?,
            memory("--memory-max", &flags.memory_max)?,
        ),
        ratio: ratio.map(|text| parse_ratio("--vcpus-to-memory-ratio", text)).transpose()?,
        gpus: bounds(flags.gpus, flags.gpus_min, flags.gpus_max),
        gpu_memory: bounds(
            memory("--gpu-memory", &flags.gpu_memory)?,
            memory("--gpu-memory-min", &flags.gpu_memory_min)?,
            memory("--gpu-memory-max", &flags.gpu_memory_max)?,
        ),
        interfaces: bounds(
            flags.network_interfaces,
            flags.network_interfaces_min,
            flags.network_interfaces_max,
        ),
        burstable: flags.burst_support,
        ena: flags.ena_support,
        placement: flags.placement_group_strategy.clone(),
        bare_metal: None,
        fpga: None,
    })
}

fn pattern(flag: &'static str, text: Option<&str>) -> Result<Option<Regex>, Error> {
    let parsed = text.map(Regex::new).transpose();
    parsed.map_err(|cause| Error::Pattern { flag, cause })
}
