//! The objects of a cluster's store, from its spec and its keysets.

use api_meta::Tree as _;
use kops_api::{Object, VersionName, yaml};
use kops_core::{
    Machines, NodeInputs, World, boot_config, channels_pod, complete, complete_group, etcd_spec,
    node_config, node_config_path,
};
use kops_node::PROGRAM_ANNOTATION;
use kops_store::{KOPS_VERSION, Keyset, StoredObject, parse_yaml, read_channel};
use vfs::Secrecy;

use crate::{addons, error::Error};

/// A group with its machines' user data.
pub struct GroupUserData {
    /// The complete group.
    pub(crate) group: Object,
    /// The user data of its machines.
    pub(crate) user_data: String,
}

/// The results of a cluster's spec.
pub struct Model {
    /// The objects to store.
    pub objects: Vec<StoredObject>,
    /// The user data of each group's machines.
    pub user_data: Vec<GroupUserData>,
}

/// Completes a cluster and its groups.
pub(crate) fn complete_objects(
    cluster: &Object,
    groups: &[Object],
) -> Result<(Object, Vec<Object>), Error> {
    let world = World::default();
    let channel = read_channel(cluster.spec.text("channel"), false)?;
    let whole = complete(cluster, groups, &world, &Machines::default())?;
    let groups = groups.iter().map(|group| complete_group(&whole, group, &channel, &world));
    let groups = groups.collect::<Result<_, _>>()?;
    Ok((whole, groups))
}

/// Builds the objects to store and the machines' user data. Both objects must be complete. `has_proxy_daemon` is the
/// result of [`crate::needs_proxy_daemon`].
pub fn build_model(
    cluster: &Object,
    groups: Vec<Object>,
    keysets: &[Keyset],
    mut inputs: NodeInputs,
    has_proxy_daemon: bool,
) -> Result<Model, Error> {
    KOPS_VERSION.clone_into(&mut inputs.kops);
    for keyset in keysets {
        inputs.keysets.insert(keyset.name.clone(), keyset.public()?);
    }
    let open = |kind, name: String, content: String| StoredObject {
        name,
        content,
        secrecy: Secrecy::Open,
        kind,
    };
    let file = |name: String, content: String| open("ManagedFile", name, content);
    let mut objects = Vec::new();
    let v1alpha2 = VersionName::V1alpha2;
    objects.push(file("cluster-completed.spec".into(), cluster.to_yaml(v1alpha2)));
    objects.push(file("kops-version.txt".into(), KOPS_VERSION.to_owned()));
    for etcd in cluster.spec.items("etcdClusters") {
        let name = etcd.text("name");
        objects
            .push(file(format!("backups/etcd/{name}/control/etcd-cluster-spec"), etcd_spec(etcd)));
    }
    let channels = annotate_program(&channels_pod(cluster, KOPS_VERSION), "channels")?;
    objects.push(file("manifests/channels/kops-channels.yaml".into(), channels));
    let addons = addons::build_objects(cluster, has_proxy_daemon)?;
    objects.extend(addons.into_iter().map(|(name, content)| file(name, content)));
    let mut user_data = Vec::new();
    for group in groups {
        let config = node_config(cluster, &group, &inputs)?;
        let name = node_config_path(group.spec.text("role"), group.name());
        let boot = boot_config(cluster, &group, &inputs, &config);
        objects.push(file(name, config));
        user_data.push(GroupUserData { group, user_data: boot });
    }
    Ok(Model { objects, user_data })
}

/// Annotates an upstream manifest so that the machine runs our program.
fn annotate_program(manifest: &str, program: &str) -> Result<String, Error> {
    let mut tree = parse_yaml("a manifest", manifest.as_bytes())?;
    tree.put(&["metadata", "annotations", PROGRAM_ANNOTATION], program);
    Ok(yaml::to_string(&tree))
}
