//! `kops update cluster --target=terraform`: a cluster on AWS as a configuration that the user's Terraform carries out.
//!
//! Keys are written to the state store at once, as upstream does it, and to nothing else. All else that lies there is made by
//! Terraform. AWS is not called: what would be looked up comes from the spec and from the table of `--known`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use kops_api::{Object, Spec as _, documents, yaml};
use kops_core::{
    Machines, NodeInputs, World, complete, complete_group,
    model::aws::{self, AwsInputs, Body, Model},
    render::terraform::{Files, Settings, terraform},
};
use pki::KeyAlgorithm;
use serde_json::{Value, json};
use vfs::{Secrecy, Since};

use crate::{
    Error, KOPS, Surroundings, create,
    flags::UpdateCluster,
    keys::{self, Keyset},
    known::Known,
    registry::Registry,
};

const OUT: &str = "out/terraform";

pub(crate) fn run(
    registry: &Registry,
    command: &UpdateCluster,
    user: &Object,
    around: &mut Surroundings<'_>,
) -> Result<(), Error> {
    let out = command.out.as_deref().unwrap_or(OUT);
    let lock = registry.lock(user.name(), around)?;
    let made = make(registry, command, user, around);
    let unlocked = registry.unlock(lock);
    let (files, made) = made?;
    unlocked?;
    write(Path::new(out), &files)?;
    let to = &mut around.out;
    writeln!(to, "\nTerraform output has been placed into {out}")?;
    if made {
        writeln!(to, "Run these commands to apply the configuration:")?;
        writeln!(to, "   cd {out}\n   terraform plan\n   terraform apply\n")?;
    } else {
        writeln!(to, "\nChanges may require instances to restart: kops rolling-update cluster\n")?;
    }
    Ok(())
}

/// The configuration, and whether the cluster has got its first keys for it. Nothing is kept unless all of it can be made.
fn make(
    registry: &Registry,
    command: &UpdateCluster,
    user: &Object,
    around: &Surroundings<'_>,
) -> Result<(Files, bool), Error> {
    let known = Known::read(command.known.as_deref())?;
    let (cluster, groups, world) = completed(registry, user, &known)?;
    refuse(&cluster, &groups)?;
    let ssh_keys = ssh_keys(registry, command, user.name())?;
    let addons = match &command.addons {
        Some(directory) => addons_of(Path::new(directory))?,
        None => kept_addons(registry, user.name())?,
    };
    let (keysets, new) = keysets(registry, &cluster, around)?;
    let mut node = NodeInputs {
        kops: KOPS.to_owned(),
        hashes: known.hashes(),
        scheduler_config: scheduler(registry, user.name())?,
        ..NodeInputs::default()
    };
    for keyset in &keysets {
        node.keysets.insert(keyset.name.clone(), keyset.public()?);
    }
    let inputs = AwsInputs { node, world, ssh_keys: ssh_keys.kept, addons, ..AwsInputs::default() };
    let model = model(&cluster, &groups, inputs)?;
    let files = terraform(&model, &settings(&cluster, &model, &known)?)?;
    for keyset in keysets.iter().filter(|keyset| new.contains(&keyset.name)) {
        keep(registry, user.name(), keyset)?;
    }
    if let Some((path, key)) = ssh_keys.new {
        registry.put(&path, key.as_bytes(), &Since::Absent, Secrecy::Open)?;
    }
    Ok((files, !new.is_empty()))
}

/// The model. Hashes that are not known are all told at once: there are more than a dozen.
fn model(cluster: &Object, groups: &[Object], mut inputs: AwsInputs) -> Result<Model, Error> {
    let mut missing = Vec::new();
    let model = loop {
        match aws::aws(cluster, groups, &inputs) {
            Err(kops_core::Error::Unknown { what: "file", name, .. }) => {
                // It stands in for the hash until the next is asked for, and goes nowhere.
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
        "machines run nothing but files whose hashes are known, and these are not; say them as files in the file of --known, \
         as upstream's kops get assets -o yaml prints them:\n  {}",
        missing.join("\n  ")
    );
    Err(Error::Usage(text))
}

fn completed(
    registry: &Registry,
    user: &Object,
    known: &Known,
) -> Result<(Object, Vec<Object>, World), Error> {
    let groups = registry.groups(user.name())?;
    if groups.is_empty() {
        let problem = "has no instance groups; create some first";
        return Err(Error::known("cluster", user.name(), problem));
    }
    let mut world = known.world();
    world.api_server_nodes = groups.iter().any(|one| one.spec.text("role") == "APIServer");
    let channel = create::channel(user.spec.text("channel"), false)?;
    let cluster = complete(user, &groups, &world, &Machines::default())?;
    let groups = groups.iter().map(|group| complete_group(&cluster, group, &channel, &world));
    let groups = groups.collect::<Result<_, _>>()?;
    Ok((cluster, groups, world))
}

/// What machines would have to be told and is not known here.
fn refuse(cluster: &Object, groups: &[Object]) -> Result<(), Error> {
    let refused = |what: String| {
        Err(Error::Usage(format!("{what}: --target=terraform does not do this yet; take it out")))
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

/// The keysets of a cluster, and the names of those that are made now. Upstream's programs sign with RSA.
fn keysets(
    registry: &Registry,
    cluster: &Object,
    around: &Surroundings<'_>,
) -> Result<(Vec<Keyset>, BTreeSet<String>), Error> {
    let (mut all, mut new) = (Vec::new(), BTreeSet::new());
    for name in keys::names(cluster) {
        match keys::read(registry, cluster.name(), &name)? {
            Some(keyset) => all.push(keyset),
            None => {
                all.push(Keyset::make_with(&name, KeyAlgorithm::Rsa2048, around.now)?);
                new.insert(name);
            }
        }
    }
    Ok((all, new))
}

fn keep(registry: &Registry, cluster: &str, keyset: &Keyset) -> Result<(), Error> {
    let name = &keyset.name;
    for (path, private) in
        [(keys::private_path(cluster, name), true), (keys::issued_path(cluster, name), false)]
    {
        let since = match registry.content(&path)? {
            None => Since::Absent,
            Some((_, version)) => Since::Read(version),
        };
        let secrecy = if private { Secrecy::Private } else { Secrecy::Open };
        registry.put(&path, keyset.document(private)?.as_bytes(), &since, secrecy)?;
    }
    Ok(())
}

struct SshKeys {
    kept: Vec<String>,
    /// One that is to be kept: its name in the store, and the key.
    new: Option<(String, String)>,
}

/// The keys of the store, or the one that is given.
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
            "{directory} of the state store may hold one SSH key, and AWS takes no more: delete the others"
        );
        return Err(Error::Usage(text));
    }
    Ok(SshKeys { kept, new })
}

/// The scheduler's configuration: the user's object among those that lie beside the cluster, or none.
fn scheduler(registry: &Registry, cluster: &str) -> Result<String, Error> {
    let kind = "KubeSchedulerConfiguration";
    let mut config = json!({"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": kind});
    let path = format!("{cluster}/clusteraddons/default");
    if let Some((content, _)) = registry.content(&path)? {
        for document in documents(&String::from_utf8_lossy(&content)) {
            let tree = api_codec::from_yaml(document.as_bytes())
                .map_err(|e| kops_api::Error::Yaml { what: path.clone(), cause: e.to_string() })?;
            if tree.text("kind") == kind {
                config = tree;
            }
        }
    }
    config.set("clientConnection.kubeconfig", "/var/lib/kube-scheduler/kubeconfig");
    Ok(yaml::to_string(&config))
}

/// Add-ons that lie in the state store, where upstream's `kops` has put them.
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

/// Add-ons of a directory that is laid out as the store's.
fn addons_of(directory: &Path) -> Result<BTreeMap<String, String>, Error> {
    let mut addons = BTreeMap::new();
    let mut open = vec![directory.to_owned()];
    while let Some(next) = open.pop() {
        let shown = next.display().to_string();
        let failed = || Error::file("reading add-ons in", &shown);
        for entry in fs::read_dir(&next).map_err(failed())? {
            let entry = entry.map_err(failed())?;
            let path = entry.path();
            // Links are not followed: they may lead round and round.
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

fn settings(cluster: &Object, model: &Model, known: &Known) -> Result<Settings, Error> {
    let mut regions = BTreeSet::new();
    for resource in model.resources.values() {
        if let Body::StoreObject { bucket, .. } = &resource.body {
            regions.insert(known.region_of(bucket)?);
        }
    }
    if regions.len() > 1 {
        let all = regions.into_iter().collect::<Vec<_>>().join(", ");
        let text = format!(
            "the spec's stores are in buckets of several regions ({all}), and the configuration has one provider for them: use one region"
        );
        return Err(Error::Usage(text));
    }
    let given = |field: &str| {
        let map = cluster.spec.at(&format!("target.terraform.{field}")).and_then(Value::as_object);
        let members = map.into_iter().flatten();
        let said = members.filter_map(|(name, value)| Some((name.clone(), value.as_str()?)));
        said.map(|(name, value)| (name, value.to_owned())).collect()
    };
    Ok(Settings {
        cluster: cluster.name().to_owned(),
        provider: given("providerExtraConfig"),
        files_provider: given("filesProviderExtraConfig"),
        files_region: regions.pop_first().unwrap_or_default(),
    })
}

/// Writes the configuration, and what it refers to before it.
fn write(directory: &Path, files: &Files) -> Result<(), Error> {
    let mut all: Vec<(PathBuf, &Vec<u8>)> =
        files.iter().map(|(name, content)| (directory.join(name), content)).collect();
    all.sort_by_key(|(path, _)| path.parent() == Some(directory));
    for (path, content) in all {
        let shown = path.display().to_string();
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(Error::file("making the directory of", &shown))?;
        }
        fs::write(&path, content).map_err(Error::file("writing", &shown))?;
    }
    Ok(())
}
