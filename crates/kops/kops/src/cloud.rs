//! Builds the model of a cluster on AWS from the store and the user's files. Facts about AWS are arguments.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    time::SystemTime,
};

use kops_api::{Object, Spec as _};
use kops_core::{
    Machines, NodeInputs, World, complete, complete_group,
    model::aws::{self, AwsInputs, Model},
    scheduler_config,
};
use pki::KeyAlgorithm;
use serde_json::Value;

use crate::{
    Error, KOPS, create,
    flags::UpdateCluster,
    keys::{self, Keyset},
    known::CloudFacts,
    registry::Registry,
};

/// The model of a cluster, and the objects to store for it.
pub(crate) struct Built {
    pub(crate) cluster: Object,
    pub(crate) model: Model,
    keysets: Vec<Keyset>,
    /// The names of the newly created keysets.
    pub(crate) new: BTreeSet<String>,
    /// An SSH key to store: its name in the store, and the key.
    pub(crate) ssh_key: Option<(String, String)>,
}

impl Built {
    /// Returns the keysets that are not yet in the store.
    pub(crate) fn new_keysets(&self) -> impl Iterator<Item = &Keyset> {
        self.keysets.iter().filter(|keyset| self.new.contains(&keyset.name))
    }
}

/// Builds a cluster's model without storing anything.
pub(crate) fn build(
    registry: &Registry,
    command: &UpdateCluster,
    user: &Object,
    known: &CloudFacts,
    world: World,
    now: SystemTime,
) -> Result<Built, Error> {
    let (cluster, groups, world) = completed(registry, user, world)?;
    refuse(&cluster, &groups)?;
    let ssh_keys = ssh_keys(registry, command, user.name())?;
    let addons = match &command.addons {
        Some(directory) => addons_of(Path::new(directory))?,
        None => kept_addons(registry, user.name())?,
    };
    let (keysets, new) = keysets(registry, &cluster, now)?;
    let mut node = NodeInputs {
        kops: KOPS.to_owned(),
        hashes: known.hashes(),
        scheduler_config: scheduler_config(&user_objects(registry, user.name())?)?,
        ..NodeInputs::default()
    };
    for keyset in &keysets {
        node.keysets.insert(keyset.name.clone(), keyset.public()?);
    }
    let inputs = AwsInputs { node, world, ssh_keys: ssh_keys.kept, addons, ..AwsInputs::default() };
    let model = model(&cluster, &groups, inputs)?;
    Ok(Built { cluster, model, keysets, new, ssh_key: ssh_keys.new })
}

/// Builds the model. All unknown hashes are reported at once, because there are more than a dozen.
fn model(cluster: &Object, groups: &[Object], mut inputs: AwsInputs) -> Result<Model, Error> {
    let mut missing = Vec::new();
    let model = loop {
        match aws::aws(cluster, groups, &inputs) {
            Err(kops_core::Error::Unknown { what: "file", name, .. }) => {
                // A placeholder until the next unknown hash is found; it is not used.
                inputs.node.hashes.insert(name.clone(), String::new());
                missing.push(name);
            }
            done => break done?,
        }
    };
    if missing.is_empty() {
        return Ok(model);
    }
    let text = format!(
        "machines run only files with known hashes, and these are unknown; list them under files in the file of \
         --known, as upstream's kops get assets -o yaml prints them:\n  {}",
        missing.join("\n  ")
    );
    Err(Error::Usage(text))
}

/// Returns a cluster and its groups, completed.
pub(crate) fn completed(
    registry: &Registry,
    user: &Object,
    mut world: World,
) -> Result<(Object, Vec<Object>, World), Error> {
    let groups = registry.groups(user.name())?;
    if groups.is_empty() {
        let problem = "has no instance groups; create some first";
        return Err(Error::known("cluster", user.name(), problem));
    }
    world.api_server_nodes = groups.iter().any(|one| one.spec.text("role") == "APIServer");
    let channel = create::channel(user.spec.text("channel"), false)?;
    let cluster = complete(user, &groups, &world, &Machines::default())?;
    let groups = groups.iter().map(|group| complete_group(&cluster, group, &channel, &world));
    let groups = groups.collect::<Result<_, _>>()?;
    Ok((cluster, groups, world))
}

/// Rejects settings that this implementation could not pass to machines.
fn refuse(cluster: &Object, groups: &[Object]) -> Result<(), Error> {
    let refused = |what: String| {
        Err(Error::Usage(format!("{what}: clusters on aws do not support this yet; remove it")))
    };
    for field in ["encryptionConfig", "serviceAccountIssuerDiscovery.discoveryStore"] {
        let value = cluster.spec.at(field);
        if value.is_some_and(|value| !value.is_null() && *value != false && *value != "") {
            return refused(format!("spec.{field}"));
        }
    }
    let warm = |spec: &Value, field: &str| {
        spec.at(field).is_some_and(|pool| !pool.is_null() && pool.int("maxSize") != Some(0))
    };
    if warm(&cluster.spec, "cloudProvider.aws.warmPool") {
        return refused("spec.warmPool".to_owned());
    }
    match groups.iter().find(|group| warm(&group.spec, "warmPool")) {
        Some(group) => refused(format!("spec.warmPool of instance group {}", group.name())),
        None => Ok(()),
    }
}

/// Returns a cluster's keysets, and the names of new ones. Upstream's programs sign with RSA.
fn keysets(
    registry: &Registry,
    cluster: &Object,
    now: SystemTime,
) -> Result<(Vec<Keyset>, BTreeSet<String>), Error> {
    let (mut all, mut new) = (Vec::new(), BTreeSet::new());
    for name in keys::names(cluster) {
        match keys::read(registry, cluster.name(), &name)? {
            Some(keyset) => all.push(keyset),
            None => {
                all.push(Keyset::make_with(&name, KeyAlgorithm::Rsa2048, now)?);
                new.insert(name);
            }
        }
    }
    Ok((all, new))
}

struct SshKeys {
    kept: Vec<String>,
    /// A key to store: its name in the store, and the key.
    new: Option<(String, String)>,
}

/// Returns the stored SSH keys, or the given one.
fn ssh_keys(registry: &Registry, command: &UpdateCluster, cluster: &str) -> Result<SshKeys, Error> {
    let directory = format!("{cluster}/pki/ssh/public/admin");
    let mut kept = Vec::new();
    for name in registry.names(&directory)? {
        if let Some((content, _)) = registry.content(&name)? {
            kept.push(String::from_utf8_lossy(&content).into_owned());
        }
    }
    let mut new = None;
    if let Some(path) = &command.ssh_public_key {
        let key = fs::read_to_string(path).map_err(Error::file("reading the SSH key", path))?;
        let name = aws::fingerprint(&key)?.replace(':', "");
        if !kept.contains(&key) {
            new = Some((format!("{directory}/{name}"), key.clone()));
            kept.push(key);
        }
    }
    if kept.len() > 1 {
        let text = format!(
            "{directory} of the state store may hold only one SSH key, AWS' limit: delete the others"
        );
        return Err(Error::Usage(text));
    }
    Ok(SshKeys { kept, new })
}

/// Returns the user's additional objects stored with the cluster.
fn user_objects(registry: &Registry, cluster: &str) -> Result<String, Error> {
    let kept = registry.content(&format!("{cluster}/clusteraddons/default"))?;
    Ok(kept.map(|(content, _)| String::from_utf8_lossy(&content).into_owned()).unwrap_or_default())
}

/// Returns the add-ons in the state store, where upstream's `kops` put them.
fn kept_addons(registry: &Registry, cluster: &str) -> Result<BTreeMap<String, String>, Error> {
    let directory = format!("{cluster}/addons/");
    let mut addons = BTreeMap::new();
    for name in registry.names(directory.trim_end_matches('/'))? {
        if let (Some(short), Some((content, _))) =
            (name.strip_prefix(&directory), registry.content(&name)?)
        {
            addons.insert(short.to_owned(), String::from_utf8_lossy(&content).into_owned());
        }
    }
    Ok(addons)
}

/// Returns the add-ons of a directory with the store's layout.
fn addons_of(directory: &Path) -> Result<BTreeMap<String, String>, Error> {
    let mut addons = BTreeMap::new();
    let mut open = vec![directory.to_owned()];
    while let Some(next) = open.pop() {
        let shown = next.display().to_string();
        let failed = || Error::file("reading add-ons in", &shown);
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
