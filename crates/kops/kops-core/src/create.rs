//! `create cluster`: turns options into a cluster and its groups, with the user's values only. Completion adds the
//! defaults. Read [`create`] first.

mod etcd;
mod groups;
mod network;
mod options;

use std::collections::BTreeMap;

use api_meta::Tree as _;
use kops_api::{CLOUD_LABEL, Kind, Object};
use serde_json::{Value, json};

pub(crate) use self::groups::complete_machines;
pub use self::{
    groups::{NewGroup, create_group},
    options::{Options, cloud_of_zone},
};
use crate::{
    assign::assign,
    channel::Channel,
    cluster::{CloudName, Cluster},
    error::Error,
    version::Version,
    world::World,
};

/// Creates a cluster and its groups as they are stored: assigned, but not completed.
pub fn create(
    options: &Options,
    channel: &Channel,
    world: &World,
    kops: &Version,
) -> Result<(Object, Vec<Object>), Error> {
    let mut options = options.clone();
    complete_options(&mut options)?;
    let mut cluster = create_base(&options, channel, kops)?;
    let subnets = network::create_subnets(&options, &mut cluster, world)?;
    network::set_pod_network(&options, &mut cluster)?;
    network::set_topology(&options, &mut cluster, world)?;
    let control_planes = groups::create_control_planes(&options, &cluster, &subnets)?;
    etcd::create_clusters(&options, &mut cluster, &control_planes);
    let mut groups = control_planes;
    groups.extend(groups::create_api_servers(&options, &cluster, &subnets));
    groups.extend(groups::create_nodes(&options, &mut cluster, &subnets)?);
    groups.extend(groups::create_bastions(&options, &cluster));
    network::set_api_access(&options, &mut cluster)?;
    for group in &mut groups {
        groups::complete(&options, &cluster, group, channel, world)?;
    }
    apply_field_options(&options, &mut cluster, &mut groups)?;
    assign(&mut cluster, world)?;
    Ok((cluster, groups))
}

/// Validates the required options, and sets the default topology.
fn complete_options(options: &mut Options) -> Result<(), Error> {
    let missing = |field: &str, hint| Error::Missing { field: field.to_owned(), hint };
    if options.name.is_empty() {
        return Err(missing("--name", ": it is the cluster's DNS name"));
    }
    if options.zones.is_empty() {
        return Err(missing("--zones", ": at least one zone"));
    }
    if options.topology.is_empty() {
        options.topology = if options.ipv6 { "private" } else { "public" }.to_owned();
    }
    Ok(())
}

/// Builds the part of a cluster that does not depend on the network.
fn create_base(options: &Options, channel: &Channel, kops: &Version) -> Result<Object, Error> {
    let mut cluster = Object::new(Kind::Cluster, &options.name);
    let spec = &mut cluster.spec;
    spec.put("channel", options.channel.clone());
    let version = match options.kubernetes_version.as_str() {
        "" => channel.kubernetes(kops).unwrap_or_default(),
        version => version,
    };
    if !version.is_empty() {
        version.parse::<Version>()?;
        spec.put("kubernetesVersion", version);
    }
    spec.put(
        "configStore.base",
        format!("{}/{}", options.store.trim_end_matches('/'), options.name),
    );
    match options.authorization.to_ascii_lowercase().as_str() {
        "alwaysallow" => spec.put("authorization.alwaysAllow", json!({})),
        "" | "rbac" => spec.put("authorization.rbac", json!({})),
        _ => {
            return Err(Error::value(
                "--authorization",
                &options.authorization,
                "is neither RBAC nor AlwaysAllow",
            ));
        }
    }
    spec.put("iam.allowContainerRegistry", true);
    spec.put("kubelet.anonymousAuth", false);
    set_feature_gates(options, spec);
    let all = || vec!["0.0.0.0/0".to_owned(), "::/0".to_owned()];
    let admin = if options.admin_access.is_empty() { all() } else { options.admin_access.clone() };
    let ssh =
        if options.ssh_access.is_empty() { admin.clone() } else { options.ssh_access.clone() };
    spec.put("api.access", admin);
    spec.put("sshAccess", ssh);
    set_cloud(options, &mut cluster)?;
    if !options.discovery_store.is_empty() {
        let store = format!("{}/{}", options.discovery_store.trim_end_matches('/'), options.name);
        cluster.spec.put("serviceAccountIssuerDiscovery.discoveryStore", store);
        if cluster.cloud() == CloudName::Aws {
            cluster.spec.put("serviceAccountIssuerDiscovery.enableAWSOIDCProvider", true);
            cluster.spec.put("iam.useServiceAccountExternalPermissions", true);
        }
    }
    Ok(cluster)
}

/// Sets the cloud.
fn set_cloud(options: &Options, cluster: &mut Object) -> Result<(), Error> {
    match options.cloud.as_str() {
        "aws" => cluster.spec.put("cloudProvider.aws", json!({})),
        "gce" => {
            cluster.spec.put("cloudProvider.gce", json!({}));
            cluster.spec.put("cloudConfig", json!({}));
        }
        // These have no cloud in the spec; a label says where machines come from.
        "metal" | "local" => {
            cluster.metadata.put("labels", json!({ CLOUD_LABEL: options.cloud }));
        }
        "" => {
            return Err(Error::Missing {
                field: "--cloud".into(),
                hint: ": aws, gce, metal or local",
            });
        }
        other => {
            let remedy = "clusters are made on aws, gce, metal and local";
            return Err(Error::Unsupported { what: format!("cloud {other:?}"), remedy });
        }
    }
    Ok(())
}

/// Sets feature gates in every component: `+Name` and `Name` enable one, `-Name` disables one.
fn set_feature_gates(options: &Options, spec: &mut Value) {
    const COMPONENTS: [&str; 5] =
        ["kubelet", "kubeAPIServer", "kubeControllerManager", "kubeProxy", "kubeScheduler"];
    if options.feature_gates.is_empty() {
        return;
    }
    let gate = |text: &String| {
        let plain = text.strip_prefix('+').unwrap_or(text);
        let (name, on) = plain.strip_prefix('-').map_or((plain, true), |name| (name, false));
        (name.to_owned(), Value::from(on.to_string()))
    };
    let gates: serde_json::Map<_, _> = options.feature_gates.iter().map(gate).collect();
    for component in COMPONENTS {
        spec.put(&format!("{component}.featureGates"), gates.clone());
    }
}

/// Applies flags for single fields, after everything else.
fn apply_field_options(
    options: &Options,
    cluster: &mut Object,
    groups: &mut [Object],
) -> Result<(), Error> {
    let labels = parse_cloud_labels(&options.cloud_labels)?;
    if !labels.is_empty() {
        cluster.spec.put("cloudLabels", json!(labels));
    }
    for group in groups {
        groups::apply_role_options(options, group);
    }
    if !options.dns_zone.is_empty() {
        cluster.spec.put("dnsZone", options.dns_zone.clone());
    }
    if let Some((first, more)) = options.network_cidrs.split_first() {
        cluster.spec.put("networking.networkCIDR", first.clone());
        if !more.is_empty() {
            cluster.spec.put("networking.additionalNetworkCIDRs", more);
        }
    }
    if options.disable_subnet_tags {
        cluster.spec.put("networking.tagSubnets", false);
    }
    if !options.api_public_name.is_empty() {
        cluster.spec.put("api.publicName", options.api_public_name.clone());
    }
    let invalid = |problem: api_meta::FieldError| {
        Error::Object(kops_api::Error::Fields {
            what: "--set and --unset".to_owned(),
            problems: vec![problem],
        })
    };
    for path in &options.unsets {
        cluster.unset_field(path).map_err(invalid)?;
    }
    for set in &options.sets {
        let Some((path, text)) = set.split_once('=') else {
            return Err(Error::value("--set", set, "is not of the form path=value"));
        };
        cluster.set_field(path, text).map_err(invalid)?;
    }
    // Calico's eBPF data plane replaces kube-proxy and uses its port.
    if cluster.spec.flag("networking.calico.bpfEnabled") && !cluster.spec.has("kubeProxy.enabled") {
        cluster.spec.put("kubeProxy.enabled", false);
    }
    Ok(())
}

/// Parses `a=b,"c d"=e`: pairs separated by commas, with quotes around keys or values that contain an equals sign.
fn parse_cloud_labels(text: &str) -> Result<BTreeMap<String, String>, Error> {
    let wrong = |pair: &str| Error::value("--cloud-labels", pair, "is not of the form key=value");
    let mut labels = BTreeMap::new();
    for pair in text.split(',').filter(|pair| !pair.trim().is_empty()) {
        let mut fields = vec![String::new()];
        let mut quoted = false;
        for c in pair.trim_start().chars() {
            match (c, fields.last_mut()) {
                ('"', _) => quoted = !quoted,
                ('=', _) if !quoted => fields.push(String::new()),
                (c, Some(field)) => field.push(c),
                (_, None) => {}
            }
        }
        match (<[String; 2]>::try_from(fields), quoted) {
            (Ok([key, value]), false) if !key.is_empty() => labels.insert(key, value),
            _ => return Err(wrong(pair)),
        };
    }
    Ok(labels)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_cloud_labels() {
        let labels =
            parse_cloud_labels("Owner=John Doe,dn=\"cn=John: dc=a\", foo/bar=x+y").unwrap();
        let expected = [("Owner", "John Doe"), ("dn", "cn=John: dc=a"), ("foo/bar", "x+y")];
        assert!(labels.iter().map(|(k, v)| (k.as_str(), v.as_str())).eq(expected));
        for wrong in ["a", "a=b=c", "a=\"b", "=x"] {
            assert!(parse_cloud_labels(wrong).is_err(), "{wrong}");
        }
    }
}
