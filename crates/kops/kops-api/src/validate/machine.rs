//! Validates settings of machines: hooks, files, kernel parameters, volumes, user data, load balancers and warm pools.
//!
//! The first three exist both for a cluster's machines and for an instance group's.

use api_meta::{ErrorList, FieldError, Path, Tree as _};
use serde_json::Value;

use super::{paths::spec, values::arn_resource};
use crate::object::Object;

/// The longest name that AWS allows for a load balancer or a target group.
const LONGEST_BALANCER: usize = 32;

/// Validates the settings that clusters and instance groups share.
pub(super) fn validate_shared(tree: &Value, errors: &mut ErrorList) {
    for (number, hook) in tree.items("hooks").iter().enumerate() {
        validate_hook(hook, &spec("hooks").index(number), errors);
    }
    for (number, asset) in tree.items("fileAssets").iter().enumerate() {
        require(asset, &["name", "content"], "", &spec("fileAssets").index(number), errors);
    }
    for (number, parameter) in tree.texts("sysctlParameters").enumerate() {
        if !parameter.contains('=') {
            let at = spec("sysctlParameters").index(number);
            errors.push(FieldError::invalid(&at, parameter, "must contain a \"=\" character"));
        }
    }
}

/// Validates the settings that only instance groups have.
pub(super) fn validate_group(tree: &Value, errors: &mut ErrorList) {
    validate_shared(tree, errors);
    for (number, data) in tree.items("additionalUserData").iter().enumerate() {
        let at = spec("additionalUserData").index(number);
        require(data, &["name", "content"], "field must be set", &at, errors);
    }
    for (number, volume) in tree.items("volumes").iter().enumerate() {
        let at = spec("volumes").index(number);
        require(volume, &["device"], "device name required", &at, errors);
        let size = volume.int("size");
        if size <= 0 {
            errors.push(FieldError::invalid(&at.child("size"), size, "must be greater than zero"));
        }
    }
    for (number, mount) in tree.items("volumeMounts").iter().enumerate() {
        let at = spec("volumeMounts").index(number);
        require(mount, &["device"], "device name required", &at, errors);
        require(mount, &["filesystem"], "filesystem type required", &at, errors);
        require(mount, &["path"], "mount path required", &at, errors);
    }
    for (number, balancer) in tree.items("externalLoadBalancers").iter().enumerate() {
        validate_balancer(balancer, &spec("externalLoadBalancers").index(number), errors);
    }
}

fn require(tree: &Value, fields: &[&str], detail: &str, at: &Path, errors: &mut ErrorList) {
    for field in fields.iter().filter(|field| tree.text(field).is_empty()) {
        errors.push(FieldError::required(&at.child(field), detail));
    }
}

fn validate_hook(hook: &Value, at: &Path, errors: &mut ErrorList) {
    if hook.opt_flag("enabled") == Some(false) {
        return;
    }
    let (container, raw) = (hook.get("execContainer"), hook.flag("useRawManifest"));
    let manifest = !hook.text("manifest").is_empty();
    if container.is_none() && !manifest {
        let detail = "you must set either manifest or execContainer for a hook";
        errors.push(FieldError::required(at, detail));
    }
    if raw && !manifest {
        let detail = "you must set manifest when useRawManifest is true";
        errors.push(FieldError::required(at, detail));
    }
    for (field, detail) in [
        (
            "execContainer",
            "execContainer may not be used with useRawManifest (use manifest instead)",
        ),
        ("before", "before may not be used with useRawManifest"),
        ("requires", "requires may not be used with useRawManifest"),
    ] {
        if raw && hook.has(field) {
            errors.push(FieldError::forbidden(at, detail));
        }
    }
    if let Some(container) = container {
        let at = at.child("execContainer");
        require(container, &["image"], "image must be specified", &at, errors);
    }
}

fn validate_balancer(balancer: &Value, at: &Path, errors: &mut ErrorList) {
    if balancer.has("loadBalancerName") && balancer.has("targetGroupARN") {
        errors.push(FieldError::too_many(at, 2, 1));
    }
    let name = balancer.text("loadBalancerName");
    if name.len() > LONGEST_BALANCER {
        let detail = "Load Balancer name must have at most 32 characters";
        errors.push(FieldError::invalid(&at.child("loadBalancerName"), name, detail));
    }
    let Some(arn) = balancer.at("targetGroupARN").as_str() else { return };
    let at = at.child("targetGroupARN");
    let mut refuse = |value: &str, detail: &str| {
        errors.push(FieldError::invalid(&at, value, detail));
    };
    let Some(resource) = arn_resource(arn) else {
        return refuse(arn, "Target Group ARN must be a valid AWS ARN");
    };
    let [kind, name, _] = resource.split('/').collect::<Vec<_>>()[..] else {
        return refuse(
            arn,
            "Target Group ARN resource must be a valid AWS ARN resource such as \
             \"targetgroup/tg-name/1234567890123456\"",
        );
    };
    if kind != "targetgroup" {
        refuse(kind, "Target Group ARN resource type must be \"targetgroup\"");
    }
    if name.len() > LONGEST_BALANCER {
        refuse(name, "Target Group ARN resource name must have at most 32 characters");
    }
}

/// Validates the sizes of a warm pool, a cluster's default or a group's own.
pub(super) fn validate_pool_sizes(
    least: i64,
    most: Option<i64>,
    at: &Path,
    errors: &mut ErrorList,
) {
    let mut refuse =
        |field: &str, n, detail| errors.push(FieldError::invalid(&at.child(field), n, detail));
    match most {
        Some(most) if most < 0 => refuse("maxSize", most, "warm pool maxSize cannot be negative"),
        Some(most) if least > most => {
            refuse("maxSize", most, "warm pool maxSize cannot be set to lower than minSize");
        }
        _ => {}
    }
    if least < 0 {
        refuse("minSize", least, "warm pool minSize cannot be negative");
    }
}

/// Validates a group's warm pool, with the cluster's defaults filled in.
pub(super) fn validate_warm_pool(group: &Object, cluster: &Object, errors: &mut ErrorList) {
    let tree = &group.spec;
    let standing = ["ControlPlane", "Bastion"].contains(&tree.text("role"));
    let default = cluster.spec.opt_at("cloudProvider.aws.warmPool").filter(|_| !standing);
    let own = tree.get("warmPool");
    if own.is_none() && default.is_none() {
        return;
    }
    let size = |field: &str| {
        let of = |pool: Option<&Value>| pool.and_then(|pool| pool.opt_int(field));
        of(own).filter(|n| field == "maxSize" || *n != 0).or_else(|| of(default))
    };
    let (least, most) = (size("minSize").unwrap_or(0), size("maxSize"));
    let at = spec("warmPool");
    if most != Some(0) {
        if !["Node", "APIServer"].contains(&tree.text("role")) {
            let detail = "warm pool only allowed on instance groups with role Node or APIServer";
            errors.push(FieldError::forbidden(&at, detail));
        }
        if tree.has("maxPrice") {
            let detail = "warm pool cannot be used with spot instances";
            errors.push(FieldError::forbidden(&at, detail));
        }
    }
    validate_pool_sizes(least, most, &at, errors);
}
