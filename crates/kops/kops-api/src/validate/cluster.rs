//! Validates the control plane's components, etcd, the runtime and the rest of a cluster's spec.

use api_meta::{ErrorList, FieldError, IntOrString, Path, Tree as _};
use serde_json::Value;

use super::{
    paths::spec,
    values::{parse_version, validate_cloud_label},
};

pub(super) fn validate(tree: &Value, complete: bool, errors: &mut ErrorList) {
    validate_etcd(tree, errors);
    validate_api_server(tree, complete, errors);
    if let Some(containerd) = tree.get("containerd") {
        validate_runtime(containerd, tree, true, &spec("containerd"), errors);
    }
    let labels = tree.at("cloudLabels").as_object();
    for (key, _) in labels.into_iter().flatten() {
        validate_cloud_label(key, errors);
    }
    if tree.flag("kubeDNS.nodeLocalDNS.enabled") {
        validate_node_local_dns(tree, errors);
    }
    if let Some(update) = tree.get("rollingUpdate") {
        validate_rolling_update(update, false, &spec("rollingUpdate"), errors);
    }
    for (number, addon) in tree.items("addons").iter().enumerate() {
        let manifest = addon.text("manifest");
        // Machines download the manifest, and cannot read the user's files.
        if manifest.starts_with("file:") {
            let at = spec("addons").index(number).child("manifest");
            errors.push(FieldError::invalid(
                &at,
                manifest,
                "manifest must be readable by the machines: a file is not",
            ));
        }
    }
    if let Some(repository) = tree.at("assets.fileRepository").as_str() {
        validate_file_repository(repository, errors);
    }
    if tree.opt_flag("cloudProvider.aws.ebsCSIDriver.enabled") == Some(false) {
        let at = spec("cloudProvider.aws.ebsCSIDriver.enabled");
        errors.push(FieldError::forbidden(&at, "must not be disabled"));
    }
    let blocks = tree.opt_flag("cloudProvider.openstack.blockStorage.createStorageClass");
    if let (Some(ours), Some(theirs)) = (tree.opt_flag("cloudConfig.manageStorageClasses"), blocks)
        && ours != theirs
    {
        let detail = "Management of storage classes and OpenStack block storage classes are both specified but \
                      disagree";
        errors.push(FieldError::forbidden(&spec("cloudConfig.manageStorageClasses"), detail));
    }
}

/// Validates the etcd clusters. An even number of members tolerates no more failures than one fewer.
fn validate_etcd(tree: &Value, errors: &mut ErrorList) {
    let clusters = tree.items("etcdClusters");
    if clusters.is_empty() {
        errors.push(FieldError::required(&spec("etcdClusters"), ""));
    }
    for (number, etcd) in clusters.iter().enumerate() {
        let at = spec("etcdClusters").index(number);
        let name = etcd.text("name");
        validate_etcd_version(etcd, clusters[0].text("version"), &at.child("version"), errors);
        if clusters[..number].iter().any(|other| other.text("name") == name) {
            errors.push(FieldError::duplicate(&at.child("name"), name));
        }
        let members = etcd.items("etcdMembers");
        let at = at.child("etcdMembers");
        if members.is_empty() {
            errors.push(FieldError::required(&at, "No members defined in etcd cluster"));
        } else if members.len() % 2 == 0 {
            let detail = "Should be an odd number of control-plane-zones for quorum. Use --zones and \
                          --control-plane-zones to declare node zones and control-plane zones separately";
            errors.push(FieldError::invalid(&at, members.len(), detail));
        }
        for (number, member) in members.iter().enumerate() {
            let at = at.index(number);
            let name = member.text("name");
            for field in ["name", "instanceGroup"].iter().filter(|f| member.text(f).is_empty()) {
                errors.push(FieldError::required(
                    &at.child(field),
                    format!("etcdMember did not have {field}"),
                ));
            }
            if members[..number].iter().any(|other| other.text("name") == name) {
                errors.push(FieldError::duplicate(&at.child("name"), name));
            }
        }
    }
}

fn validate_etcd_version(etcd: &Value, first: &str, at: &Path, errors: &mut ErrorList) {
    let text = etcd.text("version");
    if text.is_empty() {
        return;
    }
    let plain = text.strip_prefix('v').unwrap_or(text);
    match parse_version(plain).filter(|_| plain.matches('.').count() == 2) {
        None => errors.push(FieldError::invalid(at, text, "the storage version is invalid")),
        Some([3, ..]) => {}
        Some(_) => {
            let detail = "unsupported storage version, we only support major version 3";
            errors.push(FieldError::invalid(at, text, detail));
        }
    }
    if text != first {
        let detail = format!(
            "cluster: {:?}, has a different storage version: {text:?}, both must be the same",
            etcd.text("name")
        );
        errors.push(FieldError::forbidden(at, detail));
    }
}

fn validate_api_server(tree: &Value, complete: bool, errors: &mut ErrorList) {
    let Some(server) = tree.get("kubeAPIServer") else { return };
    let at = spec("kubeAPIServer");
    let oidc = tree.at("authentication.oidc").as_object().is_some_and(|o| !o.is_empty());
    let mut forbid =
        |field: &str, detail: &str| errors.push(FieldError::forbidden(&at.child(field), detail));
    if !server.text("authenticationConfigFile").is_empty() && oidc {
        forbid(
            "authenticationConfigFile",
            "authenticationConfigFile is mutually exclusive with OIDC options, remove all existing OIDC options to \
             use authenticationConfigFile",
        );
    }
    if server.flag("enableBootstrapTokenAuth") {
        forbid("enableBootstrapTokenAuth", "bootstrap tokens are not supported");
    }
    if !server.items("admissionControl").is_empty() {
        forbid(
            "admissionControl",
            "admissionControl has been replaced with enableAdmissionPlugins",
        );
    }
    if server.texts("enableAdmissionPlugins").any(|text| text == "PodSecurityPolicy") {
        forbid("enableAdmissionPlugins", "PodSecurityPolicy has been removed from Kubernetes 1.25");
    }
    let services = server.text("serviceClusterIPRange");
    let is_required = complete || !services.is_empty();
    if is_required && services != tree.text("networking.serviceClusterIPRange") {
        forbid(
            "serviceClusterIPRange",
            "kubeAPIServer serviceClusterIPRange did not match cluster serviceClusterIPRange",
        );
    }
    if server.has("proxyClientCertFile") != server.has("proxyClientKeyFile") {
        let detail =
            "proxyClientCertFile and proxyClientKeyFile must both be specified (or neither)";
        errors.push(FieldError::forbidden(&at, detail));
    }
    let ports = server.text("serviceNodePortRange");
    if !ports.is_empty() && !is_port_range(ports) {
        let detail = "must be a range of ports such as 30000-32767";
        errors.push(FieldError::invalid(&at.child("serviceNodePortRange"), ports, detail));
    }
    validate_authorization(tree, server, &at, errors);
    validate_audit(server, &at, errors);
}

/// Reports whether a text is `30000-32767`, `30000+2767` or one port.
fn is_port_range(text: &str) -> bool {
    let port = |text: &str| text.trim().parse::<u16>().ok();
    if let Some((from, to)) = text.split_once('-') {
        return matches!((port(from), port(to)), (Some(from), Some(to)) if from <= to);
    }
    if let Some((from, count)) = text.split_once('+') {
        return matches!((port(from), port(count)), (Some(from), Some(count)) if from.checked_add(count).is_some());
    }
    port(text).is_some()
}

fn validate_authorization(tree: &Value, server: &Value, at: &Path, errors: &mut ErrorList) {
    const MODES: [&str; 6] = ["ABAC", "Webhook", "Node", "RBAC", "AlwaysAllow", "AlwaysDeny"];
    let Some(text) = server.at("authorizationMode").as_str() else { return };
    let modes: Vec<_> = text.split(',').collect();
    if modes.contains(&"Webhook") && !server.has("authorizationWebhookConfigFile") {
        let detail =
            "Authorization mode Webhook requires authorizationWebhookConfigFile to be specified";
        errors.push(FieldError::required(&at.child("authorizationWebhookConfigFile"), detail));
    }
    if !tree.has("authorization.rbac") {
        return;
    }
    for mode in modes.iter().filter(|mode| !MODES.contains(mode)) {
        errors.push(FieldError::not_supported(&at.child("authorizationMode"), *mode, &MODES));
    }
    let both = modes.contains(&"Node") && modes.contains(&"RBAC");
    if tree.has("cloudProvider.aws") && !both {
        let detail = "As of kubernetes 1.19 on AWS, authorizationMode must include RBAC and Node";
        errors.push(FieldError::required(&at.child("authorizationMode"), detail));
    }
}

fn validate_audit(server: &Value, at: &Path, errors: &mut ErrorList) {
    let (policy, webhook) = (server.text("auditPolicyFile"), server.text("auditWebhookConfigFile"));
    let directory =
        |path: &str| path.rsplit_once('/').map_or(".", |(directory, _)| directory).to_owned();
    let detail = match (policy, webhook) {
        (_, "") => return,
        ("", _) => "an audit policy is required for the audit webhook config",
        (policy, webhook) if directory(policy) != directory(webhook) => {
            "the audit webhook config must be placed in the same directory as the audit policy"
        }
        _ => return,
    };
    errors.push(FieldError::invalid(&at.child("auditWebhookConfigFile"), webhook, detail));
}

/// Validates the container runtime's settings of a cluster or a group.
pub(super) fn validate_runtime(
    containerd: &Value,
    cluster: &Value,
    of_cluster: bool,
    at: &Path,
    errors: &mut ErrorList,
) {
    let text = containerd.at("version").as_str();
    let version = text.and_then(parse_version);
    if let Some(text) = text {
        let detail = match version {
            None => Some("unable to parse version string"),
            Some(version) => (version < [1, 3, 4]).then_some("unsupported legacy version"),
        };
        errors.extend(detail.map(|d| FieldError::invalid(&at.child("version"), text, d)));
    }
    if containerd.flag("nri.enabled") && version.is_some_and(|version| version < [1, 7, 0]) {
        let detail = "NRI is available starting from version 1.7.0 and above";
        errors.push(FieldError::forbidden(&at.child("nri"), detail));
    }
    validate_packages(containerd, &at.child("packages"), errors);
    let openstack = cluster.has("cloudProvider.openstack");
    if containerd.flag("nvidiaGPU.enabled") {
        let at = at.child("nvidiaGPU");
        if !cluster.has("cloudProvider.aws") && !openstack {
            errors
                .push(FieldError::forbidden(&at, "Nvidia is only supported on AWS and OpenStack"));
        }
        if openstack && of_cluster {
            let detail = "OpenStack supports nvidia configuration only in instance group";
            errors.push(FieldError::forbidden(&at, detail));
        }
    }
    if containerd.has("gvisor") && of_cluster {
        let detail = "gVisor can only be enabled on instance groups";
        errors.push(FieldError::forbidden(&at.child("gvisor"), detail));
    }
}

/// Validates that packages of the runtime have both a URL and a hash.
fn validate_packages(containerd: &Value, at: &Path, errors: &mut ErrorList) {
    const HASH: usize = 64;
    for (url, hash) in [("urlAmd64", "hashAmd64"), ("urlArm64", "hashArm64")] {
        let package = |field: &str| containerd.at(&format!("packages.{field}")).as_str();
        let (field, value, detail) = match (package(url), package(hash)) {
            (Some(_), Some(text)) if text.len() > HASH => {
                (hash, text, "Package hash must be 64 characters long")
            }
            (Some(text), None) => (url, text, "Package hash must also be set"),
            (None, Some(text)) => (hash, text, "Package URL must also be set"),
            _ => continue,
        };
        errors.push(FieldError::invalid(&at.child(field), value, detail));
    }
}

fn validate_node_local_dns(tree: &Value, errors: &mut ErrorList) {
    let local = tree.text("kubeDNS.nodeLocalDNS.localIP");
    if !local.is_empty() && local.parse::<std::net::IpAddr>().is_err() {
        let detail = "Cluster had an invalid kubeDNS.nodeLocalDNS.localIP";
        errors.push(FieldError::invalid(&spec("kubeDNS.nodeLocalDNS.localIP"), local, detail));
    }
    if tree.text("kubeProxy.proxyMode") != "ipvs" && !tree.has("networking.cilium") {
        return;
    }
    for kubelet in ["kubelet", "controlPlaneKubelet"] {
        let at = format!("{kubelet}.clusterDNS");
        if !["", local].contains(&tree.text(&at)) {
            let detail = "Kubelet ClusterDNS must be set to the default IP address for LocalIP";
            errors.push(FieldError::forbidden(&spec(&at), detail));
        }
    }
}

/// Validates the limits of unavailable and additional machines in rolling updates.
pub(super) fn validate_rolling_update(
    update: &Value,
    control_plane: bool,
    at: &Path,
    errors: &mut ErrorList,
) {
    let scaled = |value: &Value, at: &Path, total: i64, up: bool| {
        let unreadable = |error: &dyn std::fmt::Display| {
            FieldError::invalid(at, value.clone(), format!("Unable to parse: {error}"))
        };
        let parsed: IntOrString =
            serde_json::from_value(value.clone()).map_err(|e| unreadable(&e))?;
        parsed.scaled(total, up).map_err(|e| unreadable(&e))
    };
    let mut unavailable = 1;
    if let Some(value) = update.get("maxUnavailable").filter(|v| !v.is_null()) {
        let at = at.child("maxUnavailable");
        match scaled(value, &at, 1, false) {
            // A percentage of one machine rounds to zero, also for negative ones.
            Ok(n) if n < 0 || value.as_str().is_some_and(|text| text.starts_with('-')) => {
                errors.push(FieldError::invalid(&at, value.clone(), "Cannot be negative"));
                unavailable = n;
            }
            Ok(n) => unavailable = n,
            Err(error) => errors.push(error),
        }
    }
    let Some(value) = update.get("maxSurge").filter(|v| !v.is_null()) else { return };
    let at = at.child("maxSurge");
    match scaled(value, &at, 1000, true) {
        Ok(surge) if control_plane && surge != 0 => {
            let detail = "Cannot surge instance groups with role \"ControlPlane\"";
            errors.push(FieldError::forbidden(&at, detail));
        }
        Ok(surge) if surge < 0 => {
            errors.push(FieldError::invalid(&at, value.clone(), "Cannot be negative"))
        }
        Ok(0) if unavailable == 0 => {
            errors.push(FieldError::forbidden(&at, "Cannot be zero if maxUnavailable is zero"));
        }
        Ok(_) => {}
        Err(error) => errors.push(error),
    }
}

fn validate_file_repository(text: &str, errors: &mut ErrorList) {
    let at = spec("assets.fileRepository");
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    match rest {
        None => {
            errors.push(FieldError::invalid(
                &at,
                text,
                "fileRepository must be an http:// or https:// URL",
            ));
        }
        Some(rest) if rest.split('/').next().is_none_or(str::is_empty) => {
            errors.push(FieldError::invalid(&at, text, "fileRepository must include a host"));
        }
        Some(_) => {}
    }
}
