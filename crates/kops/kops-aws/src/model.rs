//! Builds the model of a cluster on AWS or GCE from the store and the user's files. Facts about clouds are arguments.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    time::SystemTime,
};

use api_meta::Tree as _;
use kops_api::Object;
use kops_core::{
    Machines, NodeInputs, World, complete, complete_group,
    model::{
        aws::{self, AwsInputs},
        gce::{self, GceInputs},
        metal::{self, MetalInputs},
    },
    scheduler_config,
};
use kops_store::{ClusterObjects, KOPS_VERSION, Keyset, Registry, read_channel};
use pki::KeyAlgorithm;
use serde_json::Value;

use crate::{error::Error, facts::CloudFacts};

/// The model of a cluster, and the objects to store for it.
pub struct BuiltModel<M = aws::Model> {
    /// The complete spec.
    pub cluster: Object,
    /// The model.
    pub model: M,
    keysets: Keysets,
    /// An SSH key to store: its name in the store, and the key.
    pub ssh_key: Option<(String, String)>,
}

/// The user's inputs of a model.
pub struct ModelInputs<'a> {
    /// The stored spec.
    pub user: &'a Object,
    /// The stored instance groups.
    pub groups: &'a [Object],
    /// The cluster's objects in the store.
    pub stored: &'a ClusterObjects<'a>,
    /// The table of facts.
    pub facts: &'a CloudFacts,
    /// A directory with add-ons; `None` for those of the store.
    pub addons: Option<&'a Path>,
    /// A file with the SSH public key for the machines.
    pub ssh_public_key: Option<&'a str>,
    /// The newest version allowed for kubelets of workers; `None` for the spec's.
    pub kubelet: Option<String>,
}

/// A cluster's keysets.
struct Keysets {
    all: Vec<Keyset>,
    /// The names of those that are not yet in the store.
    new: BTreeSet<String>,
}

/// A cluster and its groups, completed, and the facts that completed them.
pub(crate) struct CompleteCluster {
    pub(crate) cluster: Object,
    groups: Vec<Object>,
    world: World,
}

impl<M> BuiltModel<M> {
    /// Returns the keysets that are not yet in the store.
    pub fn new_keysets(&self) -> impl Iterator<Item = &Keyset> {
        self.keysets.all.iter().filter(|keyset| self.keysets.new.contains(&keyset.name))
    }
}

/// The inputs of a model that are the same on all clouds.
struct CommonInputs {
    complete: CompleteCluster,
    node: NodeInputs,
    addons: BTreeMap<String, String>,
    ssh_keys: SshKeys,
    keysets: Keysets,
}

/// Builds the model of a cluster on AWS without storing anything.
pub fn build_model(
    registry: &Registry,
    from: &ModelInputs<'_>,
    world: World,
    now: SystemTime,
) -> Result<BuiltModel, Error> {
    let CommonInputs { complete, node, addons, ssh_keys, keysets } =
        gather(registry, from, world, now)?;
    let CompleteCluster { cluster, groups, world } = complete;
    if ssh_keys.all.len() > 1 {
        return Err(Error::SshKeys { directory: ssh_key_directory(from.stored) });
    }
    let inputs = AwsInputs { node, world, ssh_keys: ssh_keys.all, addons, ..AwsInputs::default() };
    let model = with_hashes(
        inputs,
        |inputs| &mut inputs.node,
        |inputs| aws::aws(&cluster, &groups, inputs),
    )?;
    Ok(BuiltModel { cluster, model, keysets, ssh_key: ssh_keys.new })
}

/// Builds the model of a cluster on GCE without storing anything.
pub fn build_gce_model(
    registry: &Registry,
    from: &ModelInputs<'_>,
    world: World,
    now: SystemTime,
) -> Result<BuiltModel<gce::Model>, Error> {
    let CommonInputs { complete, node, addons, ssh_keys, keysets } =
        gather(registry, from, world, now)?;
    let CompleteCluster { cluster, groups, .. } = complete;
    let inputs = GceInputs { node, ssh_keys: ssh_keys.all, addons };
    let model = with_hashes(
        inputs,
        |inputs| &mut inputs.node,
        |inputs| gce::gce(&cluster, &groups, inputs),
    )?;
    Ok(BuiltModel { cluster, model, keysets, ssh_key: ssh_keys.new })
}

/// Builds the model of a cluster on machines that kOps does not make, without storing anything.
pub fn build_metal_model(
    registry: &Registry,
    from: &ModelInputs<'_>,
    world: World,
    now: SystemTime,
) -> Result<BuiltModel<metal::Model>, Error> {
    let CommonInputs { complete, node, addons, ssh_keys, keysets } =
        gather(registry, from, world, now)?;
    let CompleteCluster { cluster, groups, .. } = complete;
    let model = with_hashes(
        MetalInputs { node, addons },
        |inputs| &mut inputs.node,
        |inputs| metal::metal(&cluster, &groups, inputs),
    )?;
    Ok(BuiltModel { cluster, model, keysets, ssh_key: ssh_keys.new })
}

/// Completes the objects, and reads the other inputs.
fn gather(
    registry: &Registry,
    from: &ModelInputs<'_>,
    world: World,
    now: SystemTime,
) -> Result<CommonInputs, Error> {
    let complete = complete_objects(from.user, from.groups, world)?;
    check_supported(&complete.cluster, &complete.groups)?;
    let ssh_keys = ssh_keys(from.stored, from.ssh_public_key)?;
    let addons = match from.addons {
        Some(directory) => read_addons(directory)?,
        None => stored_addons(from.stored)?,
    };
    let keysets = keysets(registry, &complete.cluster, now)?;
    let mut node = NodeInputs {
        kops: KOPS_VERSION.to_owned(),
        hashes: from.facts.hashes(),
        scheduler_config: scheduler_config(&user_objects(from.stored)?)?,
        kubelet: from.kubelet.clone(),
        ..NodeInputs::default()
    };
    for keyset in &keysets.all {
        node.keysets.insert(keyset.name.clone(), keyset.public()?);
    }
    Ok(CommonInputs { complete, node, addons, ssh_keys, keysets })
}

/// Builds a model. All unknown hashes are reported at once, because there are more than a dozen.
fn with_hashes<I, M>(
    mut inputs: I,
    node: impl Fn(&mut I) -> &mut NodeInputs,
    build: impl Fn(&I) -> Result<M, kops_core::Error>,
) -> Result<M, Error> {
    let mut missing = Vec::new();
    let model = loop {
        match build(&inputs) {
            Err(kops_core::Error::Unknown { what: "file", name, .. }) => {
                // A placeholder until the next unknown hash is found; it is not used.
                node(&mut inputs).hashes.insert(name.clone(), String::new());
                missing.push(name);
            }
            done => break done?,
        }
    };
    if missing.is_empty() {
        return Ok(model);
    }
    Err(Error::Hashes { files: missing })
}

/// Completes a cluster and its groups.
pub(crate) fn complete_objects(
    user: &Object,
    groups: &[Object],
    mut world: World,
) -> Result<CompleteCluster, Error> {
    if groups.is_empty() {
        let problem = "has no instance groups; create some first";
        return Err(kops_store::Error::object("cluster", user.name(), problem).into());
    }
    world.api_server_nodes = groups.iter().any(|one| one.spec.text("role") == "APIServer");
    let channel = read_channel(user.spec.text("channel"), false)?;
    let cluster = complete(user, groups, &world, &Machines::default())?;
    let groups = groups.iter().map(|group| complete_group(&cluster, group, &channel, &world));
    let groups = groups.collect::<Result<_, _>>()?;
    Ok(CompleteCluster { cluster, groups, world })
}

/// Rejects settings that this implementation could not pass to machines.
fn check_supported(cluster: &Object, groups: &[Object]) -> Result<(), Error> {
    let unsupported = |setting: String| Err(Error::Unsupported { setting });
    for field in ["encryptionConfig", "serviceAccountIssuerDiscovery.discoveryStore"] {
        let value = cluster.spec.at(field);
        if !value.is_null() && *value != false && *value != "" {
            return unsupported(format!("spec.{field}"));
        }
    }
    let has_warm_pool = |spec: &Value, field: &str| {
        spec.opt_at(field).is_some_and(|pool| pool.opt_int("maxSize") != Some(0))
    };
    if has_warm_pool(&cluster.spec, "cloudProvider.aws.warmPool") {
        return unsupported("spec.warmPool".to_owned());
    }
    match groups.iter().find(|group| has_warm_pool(&group.spec, "warmPool")) {
        Some(group) => unsupported(format!("spec.warmPool of instance group {}", group.name())),
        None => Ok(()),
    }
}

/// Returns a cluster's keysets, and the names of new ones. Upstream's programs sign with RSA.
fn keysets(registry: &Registry, cluster: &Object, now: SystemTime) -> Result<Keysets, Error> {
    let (mut all, mut new) = (Vec::new(), BTreeSet::new());
    for name in Keyset::names(cluster) {
        match Keyset::read(registry, cluster.name(), &name)? {
            Some(keyset) => all.push(keyset),
            None => {
                all.push(Keyset::generate_with(&name, KeyAlgorithm::Rsa2048, now)?);
                new.insert(name);
            }
        }
    }
    Ok(Keysets { all, new })
}

/// The directory of SSH keys, below the cluster's.
const SSH_KEYS: &str = "pki/ssh/public/admin";

/// The SSH public keys of a cluster's machines.
struct SshKeys {
    all: Vec<String>,
    /// A key to store: its name in the store, and the key.
    new: Option<(String, String)>,
}

/// Returns the directory of a cluster's SSH keys in the store.
fn ssh_key_directory(stored: &ClusterObjects<'_>) -> String {
    format!("{}/{SSH_KEYS}", stored.cluster())
}

/// Returns the stored SSH keys, and the given one.
fn ssh_keys(stored: &ClusterObjects<'_>, path: Option<&str>) -> Result<SshKeys, Error> {
    let mut all = Vec::new();
    for name in stored.names(SSH_KEYS) {
        if let Some((content, _)) = stored.read(&name)? {
            all.push(String::from_utf8_lossy(&content).into_owned());
        }
    }
    let mut new = None;
    if let Some(path) = path {
        let key = fs::read_to_string(path)
            .map_err(kops_store::Error::file("reading the SSH key", path))?;
        let name = aws::fingerprint(&key)?.replace(':', "");
        let name = format!("{}/{name}", ssh_key_directory(stored));
        // The stored key may have another comment.
        if !all.contains(&key) && !stored.has(&name) {
            new = Some((name, key.clone()));
            all.push(key);
        }
    }
    Ok(SshKeys { all, new })
}

/// Returns the user's additional objects stored with the cluster.
fn user_objects(stored: &ClusterObjects<'_>) -> Result<String, Error> {
    let found = stored.read(&format!("{}/clusteraddons/default", stored.cluster()))?;
    Ok(found.map(|(content, _)| String::from_utf8_lossy(&content).into_owned()).unwrap_or_default())
}

/// Returns the add-ons in the state store, where upstream's `kops` put them.
fn stored_addons(stored: &ClusterObjects<'_>) -> Result<BTreeMap<String, String>, Error> {
    let directory = format!("{}/addons/", stored.cluster());
    let mut addons = BTreeMap::new();
    for name in stored.names("addons") {
        if let (Some(short), Some((content, _))) =
            (name.strip_prefix(&directory), stored.read(&name)?)
        {
            addons.insert(short.to_owned(), String::from_utf8_lossy(&content).into_owned());
        }
    }
    Ok(addons)
}

/// Returns the add-ons of a directory with the store's layout.
fn read_addons(directory: &Path) -> Result<BTreeMap<String, String>, Error> {
    let mut addons = BTreeMap::new();
    let mut open = vec![directory.to_owned()];
    while let Some(next) = open.pop() {
        let shown = next.display().to_string();
        let failed = || kops_store::Error::file("reading add-ons in", &shown);
        for entry in fs::read_dir(&next).map_err(failed())? {
            let entry = entry.map_err(failed())?;
            let path = entry.path();
            // Symbolic links are not followed, because they may form a loop.
            let kind = entry.file_type().map_err(failed())?;
            if kind.is_dir() {
                open.push(path);
            } else if kind.is_file()
                && let Ok(short) = path.strip_prefix(directory)
            {
                let content = fs::read_to_string(&path).map_err(failed())?;
                addons.insert(short.display().to_string(), content);
            }
        }
    }
    Ok(addons)
}
