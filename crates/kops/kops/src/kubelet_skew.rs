//! The limit of kubelets' versions during an upgrade: a kubelet is never newer than the API servers that it talks to.

use api_meta::Tree as _;
use bootstrap_core::constants::CONTROL_PLANE_LABEL;
use client::Resource;
use instances::{Fleet, FleetSpec};
use kops_core::Version;
use kops_local::{COMMAND_PERIOD, applied_config, list_objects};
use kops_store::parse_yaml;
use serde_json::Value;

use crate::{cluster_update::ClusterUpdate, environment::CommandEnvironment, error::Error};

/// Returns the limit for workers of cloud local: the oldest version that a control plane is configured for, if it is
/// older than the wanted one.
pub(crate) fn local_limit(
    fleet: &Fleet,
    old: Option<&FleetSpec>,
    wanted: &str,
) -> Result<Option<String>, Error> {
    let mut versions = Vec::new();
    let groups = old.map(|old| old.groups.as_slice()).unwrap_or_default();
    for name in groups.iter().filter(|group| group.trusted).flat_map(instances::Group::names) {
        // A machine that has not started yet has no configuration and serves nothing.
        let Some(text) = applied_config(fleet, &name) else { continue };
        versions.push(parse_yaml(&name, &text)?.text("KubernetesVersion").to_owned());
    }
    oldest(versions, wanted)
}

/// Returns the limit for workers of another cloud: the oldest kubelet of a control plane, if it is older than the
/// wanted version. If the API does not answer, the limit is unknown, and a warning says so.
pub(crate) async fn remote_limit(
    update: ClusterUpdate<'_>,
    context: &CommandEnvironment<'_>,
    warnings: &mut Vec<String>,
) -> Result<Option<String>, Error> {
    let ClusterUpdate { registry, command, cluster } = update;
    let wanted = cluster.spec.text("kubernetesVersion");
    let asked = async {
        let client = command.api.open(registry, cluster, None, COMMAND_PERIOD, context)?;
        Ok::<_, Error>(list_objects(&client, &Resource::NODES, "").await?)
    };
    let nodes = match asked.await {
        Ok(nodes) => nodes,
        // The user has chosen this server.
        Err(error) if command.api.is_given() => return Err(error),
        Err(error) => {
            warnings.push(format!(
                "cannot read the version of the control plane, and no upgrade is assumed to be in progress: {error}"
            ));
            return Ok(None);
        }
    };
    let limit = oldest(control_plane_versions(&nodes), wanted)?;
    warnings.extend(limit.iter().map(|limit| describe_limit(limit, wanted)));
    Ok(limit)
}

fn control_plane_versions(nodes: &[Value]) -> Vec<String> {
    let is_control_plane = |node: &&Value| node.has(&["metadata", "labels", CONTROL_PLANE_LABEL]);
    let nodes = nodes.iter().filter(is_control_plane);
    nodes.map(|node| node.text("status.nodeInfo.kubeletVersion").to_owned()).collect()
}

/// Returns the oldest version, if it is older than the wanted one.
fn oldest(versions: Vec<String>, wanted: &str) -> Result<Option<String>, Error> {
    let wanted: Version = wanted.parse()?;
    let mut oldest: Option<(Version, String)> = None;
    for text in versions.into_iter().filter(|text| !text.is_empty()) {
        let version: Version = text.parse()?;
        if version < wanted && oldest.as_ref().is_none_or(|(other, _)| version < *other) {
            oldest = Some((version, text.trim_start_matches('v').to_owned()));
        }
    }
    Ok(oldest.map(|(_, text)| text))
}

/// Returns the note for the user about workers that keep an older version.
pub(crate) fn describe_limit(limit: &str, wanted: &str) -> String {
    format!(
        "Kubelets of nodes keep version {limit} until every control plane runs {wanted}: replace the control planes \
         with kops rolling-update cluster --yes, then update again"
    )
}

#[cfg(test)]
mod tests {
    use std::fs;

    use instances::Group;
    use kops_node::nodeup::APPLIED_CONFIG;
    use serde_json::json;

    use super::*;

    #[test]
    fn limits_kubelets_to_the_oldest_control_plane() {
        let node = |name: &str, version: &str, label: &str| {
            json!({"metadata": {"name": name, "labels": {label: ""}},
                "status": {"nodeInfo": {"kubeletVersion": version}}})
        };
        let nodes = [
            node("a", "v1.36.1", CONTROL_PLANE_LABEL),
            node("b", "v1.36.0", CONTROL_PLANE_LABEL),
            node("c", "v1.35.0", "node-role.kubernetes.io/node"),
            json!({"metadata": {"labels": {CONTROL_PLANE_LABEL: ""}}}),
            json!(5),
        ];
        let limit = |wanted| oldest(control_plane_versions(&nodes), wanted).unwrap();
        assert_eq!(limit("1.36.2").as_deref(), Some("1.36.0"));
        assert_eq!(limit("1.36.0"), None);
        assert_eq!(limit("1.35.9"), None);
        assert!(oldest(vec!["newest".to_owned()], "1.36.0").is_err());
        assert!(oldest(Vec::new(), "1.36.0").unwrap().is_none());
    }

    #[test]
    fn reads_versions_of_control_planes_from_their_disks() {
        let dir = tempfile::tempdir().unwrap();
        let fleet = Fleet::at(dir.path().join("fleet"));
        let group = |name: &str, trusted| Group {
            name: name.to_owned(),
            numbers: [1].into(),
            trusted,
            ..Group::default()
        };
        let spec = FleetSpec {
            groups: vec![group("cp-a", true), group("cp-b", true), group("nodes", false)],
            ..FleetSpec::default()
        };
        let put = |machine: &str, text: &str| {
            let path = fleet.disk(machine).join(APPLIED_CONFIG.trim_start_matches('/'));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert_eq!(local_limit(&fleet, Some(&spec), "1.36.2").unwrap(), None);
        put("cp-a-1", "KubernetesVersion: 1.36.1\n");
        put("nodes-1", "KubernetesVersion: 1.35.0\n");
        assert_eq!(local_limit(&fleet, Some(&spec), "1.36.2").unwrap().as_deref(), Some("1.36.1"));
        assert_eq!(local_limit(&fleet, Some(&spec), "1.36.1").unwrap(), None);
        assert_eq!(local_limit(&fleet, None, "1.36.2").unwrap(), None);
        put("cp-b-1", "KubernetesVersion: [x\n");
        assert!(local_limit(&fleet, Some(&spec), "1.36.2").is_err());
    }
}
