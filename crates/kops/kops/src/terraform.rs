//! Runs `kops update cluster --target=terraform`: writes a cluster on AWS as a configuration for the user's Terraform.
//!
//! Keys are written to the state store directly, as upstream does, and nowhere else. Terraform writes all other
//! objects. AWS is not called: facts come from the spec and the table of `--known`.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use kops_api::{Object, Spec as _};
use kops_core::{
    model::aws::{Body, Model, StoreObject},
    render::terraform::{Files, Settings, terraform},
};
use serde_json::Value;
use vfs::{Precondition, Secrecy};

use crate::{
    CommandEnvironment, Error, cloud,
    flags::UpdateCluster,
    keys::{self, Keyset},
    known::CloudFacts,
    registry::Registry,
};

const OUT: &str = "out/terraform";

pub(crate) fn run(
    registry: &Registry,
    command: &UpdateCluster,
    user: &Object,
    around: &mut CommandEnvironment<'_>,
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

/// Builds the configuration. Returns it, and whether the cluster got its first keys. Nothing is stored unless
/// everything can be built.
fn make(
    registry: &Registry,
    command: &UpdateCluster,
    user: &Object,
    around: &CommandEnvironment<'_>,
) -> Result<(Files, bool), Error> {
    let known = CloudFacts::read(command.known.as_deref())?;
    let built = cloud::build(registry, command, user, &known, known.world(), around.now)?;
    let files = terraform(&built.model, &settings(&built.cluster, &built.model, &known)?)?;
    for keyset in built.new_keysets() {
        store_keyset(registry, user.name(), keyset)?;
    }
    if let Some((path, key)) = &built.ssh_key {
        registry.put(path, key.as_bytes(), &Precondition::Absent, Secrecy::Open)?;
    }
    Ok((files, !built.new.is_empty()))
}

fn store_keyset(registry: &Registry, cluster: &str, keyset: &Keyset) -> Result<(), Error> {
    let name = &keyset.name;
    for (path, private) in
        [(keys::private_path(cluster, name), true), (keys::issued_path(cluster, name), false)]
    {
        let since = match registry.content(&path)? {
            None => Precondition::Absent,
            Some((_, version)) => Precondition::Read(version),
        };
        let secrecy = if private { Secrecy::Private } else { Secrecy::Open };
        registry.put(&path, keyset.document(private)?.as_bytes(), &since, secrecy)?;
    }
    Ok(())
}

fn settings(cluster: &Object, model: &Model, known: &CloudFacts) -> Result<Settings, Error> {
    let mut regions = BTreeSet::new();
    for resource in model.resources.values() {
        if let Body::StoreObject(StoreObject { bucket, .. }) = &resource.body {
            regions.insert(known.region_of(bucket)?);
        }
    }
    if regions.len() > 1 {
        let all = regions.into_iter().collect::<Vec<_>>().join(", ");
        let text = format!(
            "the spec's stores are in buckets of several regions ({all}), but the configuration has one provider for \
             them: use one region"
        );
        return Err(Error::Usage(text));
    }
    let given = |field: &str| {
        let map = cluster.spec.at(&format!("target.terraform.{field}")).and_then(Value::as_object);
        let members = map.into_iter().flatten();
        let strings = members.filter_map(|(name, value)| Some((name.clone(), value.as_str()?)));
        strings.map(|(name, value)| (name, value.to_owned())).collect()
    };
    Ok(Settings {
        cluster: cluster.name().to_owned(),
        provider: given("providerExtraConfig"),
        files_provider: given("filesProviderExtraConfig"),
        files_region: regions.pop_first().unwrap_or_default(),
    })
}

/// Writes the configuration, after the files that it refers to.
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
