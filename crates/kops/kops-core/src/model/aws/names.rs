//! Upstream's names of AWS resources, and AWS' limits on them.

use api_meta::Tree as _;
use kops_api::Object;

use crate::names::{hashed, truncate};

/// Returns the prefix of the names of a role's resources.
pub(super) fn role_prefix(role: &str) -> &'static str {
    match role {
        "ControlPlane" => "masters",
        "APIServer" => "apiservers",
        "Bastion" => "bastions",
        _ => "nodes",
    }
}

/// Returns the name of a role's security group.
pub(super) fn security_group(cluster: &str, role: &str) -> String {
    let prefix = match role {
        "Bastion" => "bastion",
        "APIServer" => "masters",
        role => role_prefix(role),
    };
    format!("{prefix}.{cluster}")
}

/// Returns the name of a group's scaling group and launch template.
pub(super) fn scaling_group(cluster: &str, group: &Object) -> String {
    let name = group.name();
    match group.spec.text("role") {
        role @ ("ControlPlane" | "APIServer") => format!("{name}.{}.{cluster}", role_prefix(role)),
        _ => format!("{name}.{cluster}"),
    }
}

/// Returns the name of a role's IAM role and instance profile.
pub(super) fn iam(cluster: &str, role: &str) -> String {
    truncate(&format!("{}.{cluster}", role_prefix(role)), 64)
}

/// Returns the name of a service account's IAM role. The namespace may be a pattern.
pub(super) fn service_account(cluster: &str, namespace: &str, name: &str) -> String {
    let namespace = namespace.replace('*', "wildcard");
    truncate(&format!("{name}.{namespace}.sa.{cluster}"), 64)
}

/// Returns the name of a load balancer or target group, which AWS limits to 32 characters without dots.
pub(super) fn short(cluster: &str, prefix: &str) -> String {
    hashed(&format!("{prefix}-{}", cluster.replace('.', "-")), 32)
}

/// Returns the last part of an ARN's path.
pub(super) fn last_part(arn: &str) -> &str {
    arn.rsplit('/').next().unwrap_or(arn)
}
