//! Validates instance groups.

use api_config::GoDuration;
use api_meta::{ErrorList, FieldError, Tree as _};
use serde_json::Value;

use super::{
    access, cluster, machine,
    paths::spec,
    provider::Provider,
    values::{arn_resource, validate_cloud_label},
};
use crate::object::Object;

/// AWS' shortest lifetime of machines, in seconds.
const SHORTEST_LIFE: i64 = 86_400;

pub(super) fn validate(group: &Object, of: Option<&Object>, errors: &mut ErrorList) {
    let tree = &group.spec;
    validate_sizes(tree, errors);
    let role = tree.text("role");
    if role.is_empty() {
        errors.push(FieldError::required(&spec("role"), "Role must be set"));
    }
    if tree.text("image").is_empty() && !of.is_some_and(is_bare) {
        errors.push(FieldError::forbidden(&spec("image"), "image must be specified."));
    }
    if tree.flag("containerd.gvisor.enabled") && role != "Node" {
        let detail = "gVisor can only be enabled on instance groups with role Node";
        errors.push(FieldError::forbidden(&spec("containerd.gvisor"), detail));
    }
    for field in ["iops", "throughput"] {
        let path = format!("rootVolume.{field}");
        if let Some(n) = tree.opt_int(&path).filter(|n| *n < 0) {
            errors.push(FieldError::invalid(
                &spec(&path),
                n,
                format!("{field} must be greater than 0"),
            ));
        }
    }
    if let Some(arn) = tree.at("iam.profile").as_str()
        && !arn_resource(arn).is_some_and(|resource| resource.starts_with("instance-profile/"))
    {
        let detail = "Instance Group IAM Instance Profile must be a valid aws arn such as \
                      arn:aws:iam::123456789012:instance-profile/KopsExampleRole";
        errors.push(FieldError::invalid(&spec("iam.profile"), arn, detail));
    }
    if let Some(update) = tree.get("rollingUpdate") {
        cluster::validate_rolling_update(
            update,
            role == "ControlPlane",
            &spec("rollingUpdate"),
            errors,
        );
    }
    validate_labels(group, errors);
    validate_taints(tree, errors);
    machine::validate_group(tree, errors);
    validate_aws(tree, errors);
    if tree.text("manager") == "Karpenter" {
        validate_karpenter(tree, of, errors);
    }
    if let Some(of) = of {
        validate_against_cluster(group, of, errors);
    }
}

fn is_bare(cluster: &Object) -> bool {
    let clouds = cluster.spec.at("cloudProvider").as_object();
    clouds.is_none_or(|clouds| clouds.is_empty())
}

fn validate_sizes(tree: &Value, errors: &mut ErrorList) {
    let (least, most) = (tree.opt_int("minSize"), tree.opt_int("maxSize"));
    if tree.text("role") == "ControlPlane" {
        if tree.items("subnets").is_empty() {
            let detail = "controlPlane InstanceGroup must specify at least one Subnet";
            errors.push(FieldError::required(&spec("subnets"), detail));
        }
        // An etcd member runs on one machine, so each has a group of its own.
        for (field, size, more) in
            [("minSize", least, ""), ("maxSize", most, ", add more InstanceGroups instead")]
        {
            if let Some(size) = size.filter(|size| *size > 1) {
                let detail = format!("controlPlane InstanceGroup must have {field} set to 1{more}");
                errors.push(FieldError::invalid(&spec(field), size, detail));
            }
        }
    }
    if let (Some(least), Some(most)) = (least, most)
        && most < least
    {
        let detail = "maxSize must be greater than or equal to minSize.";
        errors.push(FieldError::forbidden(&spec("maxSize"), detail));
    }
}

fn validate_labels(group: &Object, errors: &mut ErrorList) {
    const OWN: &str = "kops.k8s.io/instancegroup";
    let keys = |field: &str| {
        let members = group.spec.get(field).and_then(Value::as_object);
        members.into_iter().flatten().map(|(key, value)| (key.clone(), value.clone()))
    };
    for (key, _) in keys("nodeLabels").filter(|(key, _)| key.matches('/').count() > 1) {
        let detail = "Node label may only contain a single slash";
        errors.push(FieldError::invalid(&spec("nodeLabels"), key, detail));
    }
    for (key, value) in keys("cloudLabels") {
        if key == OWN && value != group.name() {
            let detail = "value must match instance group name";
            errors.push(FieldError::invalid(&spec("cloudLabels").child(OWN), key, detail));
        } else if key != OWN {
            validate_cloud_label(&key, errors);
        }
    }
}

/// Validates taints of the form `key[=value]:effect`.
fn validate_taints(tree: &Value, errors: &mut ErrorList) {
    let taints: Vec<&str> = tree.texts("taints").collect();
    for (number, taint) in taints.iter().enumerate() {
        let at = spec("taints").index(number);
        let (key, effect) = taint.split_once(':').unwrap_or((taint, ""));
        let name = key.split_once('=').map_or(key, |(name, _)| name);
        // The effect is not checked, as in upstream: the kubelet validates it.
        if name.is_empty() || key.matches('=').count() > 1 || effect.contains(':') {
            errors.push(FieldError::invalid(&at, *taint, "invalid taint value"));
        }
        if taints[..number].contains(taint) {
            errors.push(FieldError::duplicate(&at, *taint));
        }
    }
}

fn validate_aws(tree: &Value, errors: &mut ErrorList) {
    let groups: Vec<&str> = tree.texts("additionalSecurityGroups").collect();
    access::validate_security_groups(&groups, &spec("additionalSecurityGroups"), errors);
    if let Some(minutes) = tree.opt_int("spotDurationInMinutes")
        && !(60..=360).step_by(60).any(|n| n == minutes)
    {
        let allowed = ["60", "120", "180", "240", "300", "360"];
        errors.push(FieldError::not_supported(
            &spec("spotDurationInMinutes"),
            minutes.to_string(),
            &allowed,
        ));
    }
    let life = tree.text("maxInstanceLifetime");
    if let Ok(duration) = life.parse::<GoDuration>() {
        let seconds = duration.nanos() / 1_000_000_000;
        if seconds != 0 && seconds < SHORTEST_LIFE {
            let detail =
                format!("max instance lifetime must be greater than {SHORTEST_LIFE} or equal to 0");
            errors.push(FieldError::invalid(&spec("maxInstanceLifetime"), life, detail));
        }
    }
    let hops = "instanceMetadata.httpPutResponseHopLimit";
    if let Some(n) = tree.opt_int(hops).filter(|n| !(1..=64).contains(n)) {
        let detail = "HTTPPutResponseLimit must be a value between 1 and 64";
        errors.push(FieldError::invalid(&spec(hops), n, detail));
    }
    let most = tree.int("maxSize");
    for (field, most, limit) in
        [("onDemandBase", most, "max size"), ("onDemandAboveBase", 100, "100")]
    {
        let path = format!("mixedInstancesPolicy.{field}");
        match tree.opt_int(&path) {
            Some(n) if n < 0 => {
                errors.push(FieldError::invalid(&spec(&path), n, "cannot be less than zero"))
            }
            Some(n) if n > most => {
                errors.push(FieldError::invalid(
                    &spec(&path),
                    n,
                    format!("cannot be greater than {limit}"),
                ));
            }
            _ => {}
        }
    }
}

fn validate_karpenter(tree: &Value, of: Option<&Object>, errors: &mut ErrorList) {
    if of.is_some_and(|of| !of.spec.has("cloudProvider.aws")) {
        let detail = "Karpenter InstanceGroups are only supported on AWS";
        errors.push(FieldError::forbidden(&spec("manager"), detail));
    }
    if tree.text("role") != "Node" {
        errors.push(FieldError::forbidden(
            &spec("role"),
            "Karpenter InstanceGroups must have role Node",
        ));
    }
    for field in ["minSize", "maxSize"] {
        if let Some(n) = tree.opt_int(field).filter(|n| *n <= 0) {
            errors.push(FieldError::invalid(&spec(field), n, "must be greater than zero"));
        }
    }
    let image = tree.text("image");
    let wrong = match image.split_once(':') {
        Some(("ssm", rest)) => rest.is_empty(),
        _ if image.contains("://") => true,
        _ => image.split_once('/').is_some_and(|(owner, name)| owner.is_empty() || name.is_empty()),
    };
    if wrong {
        let detail = "must be an AMI id, ssm:PARAMETER, a name or OWNER/NAME";
        errors.push(FieldError::invalid(&spec("image"), image, detail));
    }
    // The last entry for the gate counts; without any gates it is on.
    let gates = of.map(|of| of.spec.text("karpenter.featureGates")).unwrap_or_default();
    let last = gates
        .split(',')
        .filter_map(|gate| gate.trim().split_once('='))
        .rfind(|(name, _)| *name == "StaticCapacity");
    let on = gates.is_empty() || last.is_some_and(|(_, value)| value == "true");
    if tree.has("minSize") && !on {
        let detail = "minSize requires the StaticCapacity feature gate of Karpenter";
        errors.push(FieldError::forbidden(&spec("minSize"), detail));
    }
}

/// Validates a group against its cluster.
fn validate_against_cluster(group: &Object, of: &Object, errors: &mut ErrorList) {
    let (tree, cluster) = (&group.spec, &of.spec);
    let provider = Provider::of(of);
    if provider.is("aws") {
        machine::validate_warm_pool(group, of, errors);
    } else if !tree.items("volumes").is_empty() {
        let detail = "instancegroup volumes are only available with aws at present";
        errors.push(FieldError::forbidden(&spec("volumes"), detail));
    }
    if provider.is("gce") && tree.items("zones").is_empty() {
        errors.push(FieldError::required(&spec("zones"), "zones should be specified"));
    }
    if tree.text("role") == "ControlPlane" {
        for etcd in cluster.items("etcdClusters") {
            let own = |member: &Value| member.text("instanceGroup") == group.name();
            if !etcd.items("etcdMembers").iter().any(own) {
                let detail = format!(
                    "InstanceGroup {:?} with role ControlPlane must have a member in etcd cluster {:?}",
                    group.name(),
                    etcd.text("name")
                );
                errors.push(FieldError::forbidden(&spec("metadata.name"), detail));
            }
        }
    }
    if tree.text("role") == "APIServer" {
        if !cluster.has("cloudProvider.aws") && !cluster.has("cloudProvider.gce") {
            let detail = "APIServer role only supported on AWS and GCE";
            errors.push(FieldError::forbidden(&spec("role"), detail));
        }
        if cluster.text("networking.topology.dns") == "None" {
            let detail = "APIServer cannot be used with topology.dns.type=None";
            errors.push(FieldError::forbidden(&spec("role"), detail));
        }
    }
    for (number, name) in tree.texts("subnets").enumerate() {
        if !cluster.items("networking.subnets").iter().any(|subnet| subnet.text("name") == name) {
            errors.push(FieldError::not_found(&spec("subnets").index(number), name));
        }
    }
    if let Some(containerd) = tree.get("containerd") {
        super::cluster::validate_runtime(containerd, cluster, false, &spec("containerd"), errors);
    }
}
