//! Conversions of v1alpha2 that are more than renamed or moved fields: the cloud as a string, roles as map keys, OIDC
//! as flags of the API server. Also the defaults that reading fills in.

use api_meta::{FieldError, Path, Tree as _};
use serde_json::{Map, Value, json};

/// The clouds of v1alpha2, with their fields.
const CLOUDS: [(&str, &str); 8] = [
    ("aws", "aws"),
    ("azure", "azure"),
    ("digitalocean", "do"),
    ("gce", "gce"),
    ("hetzner", "hetzner"),
    ("linode", "linode"),
    ("openstack", "openstack"),
    ("scaleway", "scaleway"),
];

/// The OIDC settings that correspond: API server flags, and fields of `authentication.oidc`.
const OIDC: [(&str, &str); 5] = [
    ("oidcClientID", "clientID"),
    ("oidcGroupsPrefix", "groupsPrefix"),
    ("oidcIssuerURL", "issuerURL"),
    ("oidcUsernameClaim", "usernameClaim"),
    ("oidcUsernamePrefix", "usernamePrefix"),
];

/// Completes the hub's spec of a cluster with v1alpha2's special fields. `old` is the spec as it was written.
pub(crate) fn to_hub(old: &Value, spec: &mut Value, at: &Path, problems: &mut Vec<FieldError>) {
    cloud_to_hub(old, spec, at, problems);
    for policies in ["additionalPolicies", "externalPolicies"] {
        rename(spec.get_mut(policies), "master", "control-plane");
    }
    if old.flag("externalDns.disable") {
        spec.put("externalDNS.provider", "none");
    }
    let Some(flags) = old.get("kubeAPIServer") else { return };
    for (flag, name) in OIDC {
        spec.put_some(&format!("authentication.oidc.{name}"), flags.get(flag));
    }
    if let Some(groups) = flags.at("oidcGroupsClaim").as_str() {
        spec.put("authentication.oidc.groupsClaims", groups.split(',').collect::<Vec<_>>());
    }
    let claims = flags.texts("oidcRequiredClaim");
    let claims: Map<_, _> = claims
        .filter_map(|claim| claim.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.into()))
        .collect();
    if !claims.is_empty() {
        spec.put("authentication.oidc.requiredClaims", claims);
    }
}

fn cloud_to_hub(old: &Value, spec: &mut Value, at: &Path, problems: &mut Vec<FieldError>) {
    let named = old.text("cloudProvider");
    let cloud = CLOUDS.iter().find(|(name, _)| *name == named).map(|(_, field)| *field);
    if cloud.is_none() && !named.is_empty() {
        let at = at.child("cloudProvider");
        problems.push(FieldError::not_supported(&at, named, &CLOUDS.map(|(name, _)| name)));
    }
    let clouds = spec.at("cloudProvider").as_object().cloned().unwrap_or_default();
    for (other, settings) in clouds {
        // The settings of these two clouds are ignored for other clouds.
        let ignored = ["azure", "openstack"].contains(&other.as_str());
        if Some(other.as_str()) == cloud {
            continue;
        }
        spec.remove(&format!("cloudProvider.{other}"));
        if !ignored && let Some(field) = settings.as_object().and_then(|s| s.keys().next()) {
            let detail = format!(
                "{field} supports only {}, and the cluster's cloud is {named:?}",
                other.to_uppercase()
            );
            problems.push(FieldError::forbidden(&at.child("cloudProvider"), detail));
        }
    }
    if let Some(cloud) = cloud {
        spec.put_default(&format!("cloudProvider.{cloud}"), json!({}));
    }
}

/// Sets v1alpha2's special fields from the hub's spec of a cluster.
pub(crate) fn from_hub(spec: &Value, old: &mut Value) {
    let cloud = spec.at("cloudProvider").as_object().and_then(|c| c.keys().next());
    if let Some((name, _)) = CLOUDS.iter().find(|(_, field)| cloud.is_some_and(|c| c == field)) {
        old.put("cloudProvider", *name);
    }
    for policies in ["additionalPolicies", "externalPolicies"] {
        rename(old.get_mut(policies), "control-plane", "master");
    }
    if spec.text("externalDNS.provider") == "none" {
        old.remove("externalDns.provider");
        old.put("externalDns.disable", true);
    }
    let Some(oidc) = spec.opt_at("authentication.oidc") else { return };
    old.put_default("kubeAPIServer", json!({}));
    for (flag, name) in OIDC {
        old.put_some(&format!("kubeAPIServer.{flag}"), oidc.get(name));
    }
    if oidc.has("groupsClaims") {
        let claims: Vec<&str> = oidc.texts("groupsClaims").collect();
        old.put("kubeAPIServer.oidcGroupsClaim", claims.join(","));
    }
    if let Some(claims) = oidc.at("requiredClaims").as_object() {
        let claims = claims.iter();
        let claims: Vec<_> = claims
            .map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default()))
            .collect();
        old.put("kubeAPIServer.oidcRequiredClaim", claims);
    }
}

/// Sets the defaults of fields that the cluster does not set.
pub(crate) fn default(spec: &mut Value) {
    if spec.text("networking.topology.dns").is_empty() {
        spec.put("networking.topology.dns", "Public");
    }
    if !spec.has("authorization.rbac") && !spec.has("authorization.alwaysAllow") {
        spec.put("authorization.rbac", json!({}));
    }
    if spec.has("networking.flannel") && spec.text("networking.flannel.backend").is_empty() {
        spec.put("networking.flannel.backend", "udp");
    }
}

fn rename(members: Option<&mut Value>, from: &str, to: &str) {
    if let Some(members) = members.and_then(Value::as_object_mut)
        && let Some(value) = members.remove(from)
    {
        members.insert(to.to_owned(), value);
    }
}
