//! The instance templates of groups.

use std::collections::BTreeMap;

use api_meta::Tree as _;
use kops_api::Object;
use serde_json::Value;

use super::{context::Context, graph::Model, names};
use crate::{
    error::Error,
    gce::{
        Accelerator, AliasRange, BootDisk, InstanceTemplate, Ref, Scheduling, operations::Labels,
    },
    model::{
        queries::{pairs, taint_labels, text_at},
        user_data::of_group,
    },
};

/// GCE's limit on one value of the metadata, in bytes.
const METADATA: usize = 256 * 1024;
const CLASS: &str = "pd-standard";
/// The user of the machines that has the SSH keys.
const ADMIN: &str = "admin";
/// The machine types with GPUs of their own, by family. They do not move to other hosts while they run.
const GPU_FAMILIES: [&str; 6] = ["a4x", "a4", "a3", "a2", "g2", "g4"];
/// The size of the range of a machine's Pods.
const POD_RANGE: i64 = 24;

const SCOPES: [&str; 4] = [
    "https://www.googleapis.com/auth/compute",
    "https://www.googleapis.com/auth/monitoring",
    "https://www.googleapis.com/auth/logging.write",
    "https://www.googleapis.com/auth/cloud-platform",
];
const STORE_WRITER: &str = "https://www.googleapis.com/auth/devstorage.read_write";
const STORE_READER: &str = "https://www.googleapis.com/auth/devstorage.read_only";
const DNS_WRITER: &str = "https://www.googleapis.com/auth/ndev.clouddns.readwrite";

pub(super) fn add(context: &Context<'_>, model: &mut Model, group: &Object) -> Result<Ref, Error> {
    let spec = &group.spec;
    let subnet = context.subnet_of(group)?;
    let name = names::template(group.name(), context.name);
    let machine_type = spec.text("machineType");
    if machine_type.is_empty() {
        let field = format!("spec.machineType of instance group {}", group.name());
        return Err(Error::Missing { field, hint: "" });
    }
    let role = spec.text("role");
    let is_public = ["Public", "Utility"].contains(&subnet.text("type")) || role == "Bastion";
    let accelerators = spec.items("guestAccelerators").iter().map(accelerator);
    let template = InstanceTemplate {
        prefix: names::template_prefix(&name),
        machine_type: machine_type.to_owned(),
        disk: boot_disk(context, group)?,
        scheduling: scheduling(spec),
        accelerators: accelerators.collect(),
        network: context.network(),
        subnet: context.subnet(subnet)?,
        is_public: spec.opt_flag("associatePublicIP").unwrap_or(is_public),
        alias_range: alias_range(context)?,
        account: context.account(group),
        scopes: scopes(role),
        labels: labels(context, group),
        metadata: metadata(context, group)?,
        tags: match role {
            "ControlPlane" => vec![context.tag("control-plane"), context.tag("master")],
            role => vec![context.tag(&role.to_lowercase())],
        },
    };
    Ok(model.add(name, template))
}

fn boot_disk(context: &Context<'_>, group: &Object) -> Result<BootDisk, Error> {
    let volume = group.spec.at("rootVolume");
    let usual = match group.spec.text("role") {
        "ControlPlane" => 64,
        "Bastion" => 32,
        _ => 128,
    };
    let positive = |field: &str| volume.opt_int(field).filter(|number| *number > 0);
    Ok(BootDisk {
        image: image_url(context, group)?,
        size: positive("size").unwrap_or(usual),
        class: text_at(volume, "type").unwrap_or_else(|| CLASS.to_owned()),
        iops: positive("iops").unwrap_or(0),
        throughput: positive("throughput").unwrap_or(0),
    })
}

/// Returns the URL of a group's image: `PROJECT/NAME`, or a name in the cluster's project.
fn image_url(context: &Context<'_>, group: &Object) -> Result<String, Error> {
    let image = group.spec.text("image");
    let (project, name) = image.split_once('/').unwrap_or((context.project, image));
    if project.is_empty() || name.is_empty() || name.contains('/') {
        let field = format!("spec.image of instance group {}", group.name());
        return Err(Error::value(&field, image, "is neither PROJECT/NAME nor NAME"));
    }
    let base = "https://www.googleapis.com/compute/v1/projects";
    Ok(format!("{base}/{project}/global/images/{name}"))
}

fn scheduling(spec: &Value) -> Scheduling {
    let family = spec.text("machineType").split('-').next().unwrap_or_default();
    let preemptible = spec.text("gcpProvisioningModel") == "SPOT";
    let has_gpu = GPU_FAMILIES.contains(&family) || !spec.items("guestAccelerators").is_empty();
    Scheduling { preemptible, migrates: !preemptible && !has_gpu }
}

fn accelerator(accelerator: &Value) -> Accelerator {
    Accelerator {
        class: accelerator.text("acceleratorType").to_owned(),
        count: accelerator.int("acceleratorCount"),
    }
}

/// Returns the range of a machine's Pods, if Pods have addresses of the network.
fn alias_range(context: &Context<'_>) -> Result<Option<AliasRange>, Error> {
    if !context.has_alias_ranges() {
        return Ok(None);
    }
    let bits = context.spec.opt_int("kubeControllerManager.nodeCIDRMaskSize").unwrap_or(POD_RANGE);
    Ok(Some(AliasRange { name: context.resource_name("pods")?, size: format!("/{bits}") }))
}

/// Returns the scopes of a role. etcd's backups are written by control planes.
fn scopes(role: &str) -> Vec<&'static str> {
    let store = if role == "ControlPlane" { STORE_WRITER } else { STORE_READER };
    let dns = ["ControlPlane", "APIServer"].contains(&role).then_some(DNS_WRITER);
    SCOPES.into_iter().chain([store]).chain(dns).collect()
}

/// Returns the labels of machines: the user's, the taints for the cluster autoscaler, and those of the cluster.
fn labels(context: &Context<'_>, group: &Object) -> Labels {
    let mut labels: Labels = pairs(context.spec.opt_at("cloudLabels")).collect();
    labels.extend(pairs(group.spec.opt_at("cloudLabels")));
    labels.extend(taint_labels(group));
    let roles: &[&str] = match group.spec.text("role") {
        "ControlPlane" => &["control-plane", "master"],
        "APIServer" => &["apiserver"],
        "Bastion" => &["bastion"],
        _ => &["node"],
    };
    for role in roles {
        labels.insert(format!("k8s-io-role-{role}"), (*role).to_owned());
    }
    labels.insert("k8s-io-instance-group".to_owned(), group.name().to_owned());
    labels.extend([context.cluster_label()]);
    labels
}

fn metadata(
    context: &Context<'_>,
    group: &Object,
) -> Result<BTreeMap<&'static str, String>, Error> {
    let mut metadata = BTreeMap::from([
        ("cluster-name", context.name.to_owned()),
        ("kops-k8s-io-instance-group-name", group.name().to_owned()),
    ]);
    let data = of_group(context.cluster, group, &context.inputs.node, METADATA)?;
    if !data.is_empty() {
        let is_startup = context.spec.flag("cloudProvider.gce.useStartupScript");
        metadata.insert(if is_startup { "startup-script" } else { "user-data" }, data);
    }
    if group.spec.text("role") == "Node" {
        metadata.insert("kube-env", autoscaler_variables(group));
    }
    let keys = context.inputs.ssh_keys.iter();
    let keys: Vec<String> = keys.map(|key| format!("{ADMIN}: {}", key.trim_end())).collect();
    if !keys.is_empty() {
        metadata.insert("ssh-keys", keys.join("\n"));
    }
    Ok(metadata)
}

/// Returns the properties of a future Node for the cluster autoscaler.
fn autoscaler_variables(group: &Object) -> String {
    let system = if group.spec.text("image").starts_with("cos-cloud/") { "cos" } else { "ubuntu" };
    let mut out = format!("AUTOSCALER_ENV_VARS: os_distribution={system};arch=amd64;os=linux");
    let labels: BTreeMap<_, _> = pairs(group.spec.opt_at("nodeLabels")).collect();
    let labels: Vec<_> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    if !labels.is_empty() {
        out.push_str(&format!(";node_labels={}", labels.join(",")));
    }
    let taints: Vec<&str> = group.spec.texts("taints").collect();
    if !taints.is_empty() {
        out.push_str(&format!(";node_taints={}", taints.join(",")));
    }
    out
}
