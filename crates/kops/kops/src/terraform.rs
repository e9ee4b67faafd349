//! Runs `kops update cluster --target=terraform`: writes a cluster on AWS or GCE as a configuration for the user's
//! Terraform.
//!
//! Keys are written to the state store directly, as upstream does, and nowhere else. Terraform writes all other
//! objects. The cloud is not called: facts come from the spec and the table of `--known`.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use api_meta::Tree as _;
use kops_api::Object;
use kops_aws::{BuiltModel, CloudFacts, ModelInputs, build_gce_model, build_model};
use kops_core::{
    CloudName, Cluster as _,
    direct::Selection,
    model::aws::{Body, StoreObject},
    render::terraform::{self, Files, Settings},
};
use kops_store::{ClusterObjects, Registry, key_changes};
use vfs::{Precondition, Secrecy};

use crate::{
    cluster_update::ClusterUpdate, environment::CommandEnvironment, error::Error,
    group_selection::select_update, kubelet_skew::remote_limit, plan::print_warnings,
};

const OUT: &str = "out/terraform";

pub(crate) async fn run(
    update: ClusterUpdate<'_>,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let ClusterUpdate { registry, command, cluster: user } = update;
    let out = command.target.out.as_deref().unwrap_or(OUT);
    let lock = registry.lock(user.name(), &context.user(), context.now)?;
    let built = build(update, context).await;
    let unlocked = registry.unlock(lock);
    let Built { files, is_new, warnings } = built?;
    unlocked?;
    print_warnings(&warnings, context.out)?;
    write(Path::new(out), &files)?;
    let to = &mut context.out;
    writeln!(to, "\nTerraform output has been placed into {out}")?;
    if is_new {
        writeln!(to, "Run these commands to apply the configuration:")?;
        writeln!(to, "   cd {out}\n   terraform plan\n   terraform apply\n")?;
    } else {
        writeln!(to, "\nChanges may require instances to restart: kops rolling-update cluster\n")?;
    }
    Ok(())
}

/// A built configuration.
struct Built {
    files: Files,
    /// `true` if the cluster got its first keys.
    is_new: bool,
    warnings: Vec<String>,
}

/// Builds the configuration. Nothing is stored unless everything can be built.
async fn build(
    update: ClusterUpdate<'_>,
    context: &CommandEnvironment<'_>,
) -> Result<Built, Error> {
    let ClusterUpdate { registry, command, cluster: user } = update;
    let selection = select_update(update)?;
    let facts = CloudFacts::read(command.target.known.as_deref())?;
    facts.check(user.cloud())?;
    let stored = ClusterObjects::list(registry, user.name())?;
    let groups = stored.groups()?.objects;
    let mut warnings = Vec::new();
    // The API is called only if the user has chosen its server.
    let kubelet = if command.ignore_kubelet_version_skew || !command.api.is_given() {
        None
    } else {
        remote_limit(update, context, &mut warnings).await?
    };
    let inputs = ModelInputs {
        user,
        groups: &groups,
        stored: &stored,
        facts: &facts,
        addons: command.addons.as_deref().map(Path::new),
        ssh_public_key: command.ssh_public_key.as_deref(),
        kubelet,
    };
    let work = Work { registry, inputs: &inputs, selection: &selection, now: context.now };
    let built = if user.cloud() == CloudName::Gce { work.write_gce()? } else { work.write_aws()? };
    Ok(Built { warnings, ..built })
}

/// The inputs of a configuration.
struct Work<'a> {
    registry: &'a Registry,
    inputs: &'a ModelInputs<'a>,
    selection: &'a Selection,
    now: SystemTime,
}

impl Work<'_> {
    /// Builds the configuration of a cluster on AWS.
    fn write_aws(&self) -> Result<Built, Error> {
        let facts = self.inputs.facts;
        let built = build_model(self.registry, self.inputs, facts.world(), self.now)?;
        let buckets = built.model.resources.values().filter_map(|resource| match &resource.body {
            Body::StoreObject(StoreObject { bucket, .. }) => Some(bucket.as_str()),
            _ => None,
        });
        let settings = settings(&built.cluster, buckets, facts)?;
        let files = terraform::aws(&built.model, &settings, self.selection)?;
        Ok(Built { files, is_new: self.store_keys(&built)?, warnings: Vec::new() })
    }

    /// Builds the configuration of a cluster on GCE.
    fn write_gce(&self) -> Result<Built, Error> {
        let facts = self.inputs.facts;
        let built = build_gce_model(self.registry, self.inputs, facts.world(), self.now)?;
        let buckets = built.model.s3_buckets.iter().map(String::as_str);
        let settings = settings(&built.cluster, buckets, facts)?;
        let files = terraform::gce(&built.model, &settings)?;
        Ok(Built { files, is_new: self.store_keys(&built)?, warnings: Vec::new() })
    }

    /// Stores new keys, unless the selection leaves the store alone. Returns `true` if there were new ones.
    fn store_keys<M>(&self, built: &BuiltModel<M>) -> Result<bool, Error> {
        if !self.selection.store_lifecycle().is_applied() {
            return Ok(false);
        }
        for keyset in built.new_keysets() {
            for change in key_changes(self.registry, built.cluster.name(), keyset)? {
                change.carry_out(self.registry)?;
            }
        }
        if let Some((path, key)) = &built.ssh_key {
            self.registry.write_object(
                path,
                key.as_bytes(),
                &Precondition::Absent,
                Secrecy::Open,
            )?;
        }
        Ok(built.new_keysets().next().is_some())
    }
}

fn settings<'a>(
    cluster: &Object,
    buckets: impl Iterator<Item = &'a str>,
    facts: &CloudFacts,
) -> Result<Settings, Error> {
    let mut regions = BTreeSet::new();
    for bucket in buckets {
        regions.insert(facts.region_of(bucket)?);
    }
    if regions.len() > 1 {
        let all = regions.into_iter().collect::<Vec<_>>().join(", ");
        return Err(Error::Regions(all));
    }
    let texts = |field: &str| {
        let map = cluster.spec.at(&format!("target.terraform.{field}")).as_object();
        let members = map.into_iter().flatten();
        let strings = members.filter_map(|(name, value)| Some((name.clone(), value.as_str()?)));
        strings.map(|(name, value)| (name, value.to_owned())).collect()
    };
    Ok(Settings {
        cluster: cluster.name().to_owned(),
        provider: texts("providerExtraConfig"),
        files_provider: texts("filesProviderExtraConfig"),
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
            fs::create_dir_all(parent)
                .map_err(kops_store::Error::file("making the directory of", &shown))?;
        }
        fs::write(&path, content).map_err(kops_store::Error::file("writing", &shown))?;
    }
    Ok(())
}
