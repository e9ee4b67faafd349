//! Runs `kops create -f`, `replace` and `delete`, and stores edited objects.

use std::{collections::BTreeSet, time::SystemTime};

use api_meta::{Timestamp, Tree as _};
use kops_api::{Kind, Object, validate_cluster, validate_cluster_update, validate_group};
use kops_core::{CloudName, Cluster as _};
use kops_local::{check_support, fleet};
use kops_store::{Registry, SshKey};
use vfs::{Precondition, Version};

use crate::{
    cluster_deletion,
    environment::CommandEnvironment,
    error::Error,
    flags::{Create, Delete, Replace},
    input::read_text,
    ssh_key,
};

/// The label of a group that names its cluster.
pub(crate) const CLUSTER_LABEL: &str = "kops.k8s.io/cluster";

/// The objects to write after all objects have been validated.
struct PlannedFiles {
    writes: Vec<PlannedWrite>,
    keys: Vec<PlannedKey>,
}

/// An SSH public key to store.
struct PlannedKey {
    cluster: String,
    key: SshKey,
}

impl PlannedKey {
    fn store(&self, registry: &Registry) -> Result<(), Error> {
        Ok(registry.add_ssh_key(&self.cluster, &self.key, self.key.line.as_bytes())?)
    }
}

/// An object to write.
struct PlannedWrite {
    cluster: String,
    object: Object,
    since: Precondition,
}

pub(crate) fn create(
    registry: &Registry,
    args: &Create,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    if args.filename.is_empty() {
        let problem = "is required, or say what to create: cluster";
        return Err(Error::Flag { flag: "--filename", problem });
    }
    let rules = WriteRules { registry, now: context.now, refuses: &refuse_existing };
    let planned = rules.plan_files(&args.filename)?;
    writeln!(context.out)?;
    for write in &planned.writes {
        registry.write(&write.cluster, &write.object, &write.since)?;
        let kind = write.object.kind.name().to_ascii_lowercase();
        writeln!(context.out, "Created {kind}/{}", write.object.name())?;
    }
    for key in &planned.keys {
        key.store(registry)?;
        writeln!(context.out, "Added ssh credential")?;
    }
    Ok(())
}

pub(crate) fn replace(
    registry: &Registry,
    args: &Replace,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let refuses = |exists| {
        if exists || args.force { None } else { Some("does not exist (try adding --force flag)") }
    };
    let rules = WriteRules { registry, now: context.now, refuses: &refuses };
    let planned = rules.plan_files(&args.filename)?;
    for write in &planned.writes {
        registry.write(&write.cluster, &write.object, &write.since)?;
    }
    planned.keys.iter().try_for_each(|key| key.store(registry))
}

/// The rules for the objects of one command.
struct WriteRules<'a> {
    registry: &'a Registry,
    now: SystemTime,
    /// Returns the reason to reject an object, by whether it exists.
    refuses: &'a dyn Fn(bool) -> Option<&'static str>,
}

fn refuse_existing(exists: bool) -> Option<&'static str> {
    exists.then_some("already exists")
}

impl WriteRules<'_> {
    /// Reads and validates all objects of all files.
    fn plan_files(&self, files: &[String]) -> Result<PlannedFiles, Error> {
        let (mut writes, mut keys) = (Vec::new(), Vec::new());
        for file in files {
            for object in Object::read_all(file, &read_text(file)?)? {
                let cluster = match object.kind {
                    Kind::Cluster => object.name().to_owned(),
                    Kind::InstanceGroup => cluster_label(&object)?,
                    Kind::SshCredential => {
                        let cluster = cluster_label(&object)?;
                        let parent = self.parent(&writes, &cluster)?;
                        let line = object.spec.text("publicKey").as_bytes();
                        let key = ssh_key::parse(&parent, file, line)?;
                        keys.push(PlannedKey { cluster, key });
                        continue;
                    }
                    kind => {
                        return Err(Error::Kind { file: file.clone(), kind: kind.name() });
                    }
                };
                let write = self.plan_object(&writes, cluster, object)?;
                writes.push(write);
            }
        }
        if writes.is_empty() && keys.is_empty() {
            return Err(Error::NoObjects { files: files.join(", ") });
        }
        self.check_support(&writes)?;
        Ok(PlannedFiles { writes, keys })
    }

    /// Returns the cluster of an object: a planned or a stored one.
    fn parent(&self, planned: &[PlannedWrite], cluster: &str) -> Result<Object, Error> {
        let same = |p: &&PlannedWrite| p.cluster == cluster && p.object.kind == Kind::Cluster;
        let parent = match planned.iter().find(same) {
            Some(planned) => Some(planned.object.clone()),
            None => self.registry.cluster(cluster)?.map(|(object, _)| object),
        };
        let missing = || kops_store::Error::object("cluster", cluster, "not found");
        Ok(parent.ok_or_else(missing)?)
    }

    /// Stores planned objects, unless one of them is rejected.
    fn store(&self, planned: &[PlannedWrite]) -> Result<(), Error> {
        self.check_support(planned)?;
        for write in planned {
            self.registry.write(&write.cluster, &write.object, &write.since)?;
        }
        Ok(())
    }

    /// Rejects planned objects that `update` could not apply to a cluster of cloud local.
    fn check_support(&self, planned: &[PlannedWrite]) -> Result<(), Error> {
        let names: BTreeSet<_> = planned.iter().map(|write| write.cluster.as_str()).collect();
        for name in names {
            let mut groups = self.registry.groups(name)?;
            let mut cluster = self.registry.cluster(name)?.map(|(cluster, _)| cluster);
            for write in planned.iter().filter(|write| write.cluster == name) {
                let object = write.object.clone();
                match object.kind {
                    Kind::Cluster => cluster = Some(object),
                    _ => {
                        groups.retain(|group| group.name() != object.name());
                        groups.push(object);
                    }
                }
            }
            let Some(cluster) = cluster else { continue };
            let machines = fleet(self.registry, name).spec()?;
            if cluster.cloud() == CloudName::Local {
                check_support(&cluster, &groups, machines.as_ref())?;
            } else if machines.is_some() {
                let (cluster, cloud) = (name.to_owned(), cluster.cloud().word());
                return Err(kops_local::Error::CloudChanged { cluster, cloud }.into());
            }
        }
        Ok(())
    }

    /// Validates an object together with the stored ones and those planned before.
    fn plan_object(
        &self,
        planned: &[PlannedWrite],
        cluster: String,
        mut object: Object,
    ) -> Result<PlannedWrite, Error> {
        let registry = self.registry;
        let kind = object.kind.name();
        let problems = match object.kind {
            Kind::Cluster => validate_cluster(&object, false),
            _ => {
                let parent = self.parent(planned, &cluster)?;
                validate_group(&object, Some(&parent))
            }
        };
        let what = format!("{kind} {:?}", object.name());
        let check = |problems: api_meta::ErrorList| {
            if problems.is_empty() {
                Ok(())
            } else {
                Err(kops_api::Error::Fields { what: what.clone(), problems: problems.into() })
            }
        };
        check(problems)?;
        let same = |p: &PlannedWrite| {
            p.cluster == cluster && p.object.kind == object.kind && p.object.name() == object.name()
        };
        if planned.iter().any(same) {
            return Err(kops_store::Error::object(kind, object.name(), "is defined twice").into());
        }
        let stored = match object.kind {
            Kind::Cluster => registry.cluster(object.name())?,
            _ => registry.group(&cluster, object.name())?,
        };
        if let Some(problem) = (self.refuses)(stored.is_some()) {
            return Err(kops_store::Error::object(kind, object.name(), problem).into());
        }
        let since = match stored {
            None => {
                let now = Timestamp::from(self.now).to_seconds().to_string();
                object.metadata.put("creationTimestamp", now);
                Precondition::Absent
            }
            Some((mut old, version)) => {
                if object.kind == Kind::Cluster {
                    let created = registry.created_etcd_clusters(&cluster)?;
                    let created: Vec<_> = created.iter().map(String::as_str).collect();
                    // An etcd cluster that was only written may be removed again.
                    let mut etcd = old.spec.items("etcdClusters").to_vec();
                    etcd.retain(|etcd| created.contains(&etcd.text("name")));
                    old.spec.put("etcdClusters", etcd);
                    check(validate_cluster_update(&object, &old, &created))?;
                }
                object
                    .metadata
                    .put_some("creationTimestamp", old.metadata.get("creationTimestamp"));
                Precondition::Read(version)
            }
        };
        Ok(PlannedWrite { cluster, object, since })
    }
}

/// Returns the cluster that a label of an object names.
pub(crate) fn cluster_label(object: &Object) -> Result<String, Error> {
    let labels = object.metadata.get("labels");
    let cluster = labels.and_then(|l| l.get(CLUSTER_LABEL)).and_then(|name| name.as_str());
    cluster.map(str::to_owned).ok_or_else(|| Error::ClusterLabel {
        label: CLUSTER_LABEL,
        kind: object.kind.name(),
        name: object.name().to_owned(),
    })
}

/// Stores a new instance group of a stored cluster.
pub(crate) fn store_group(
    registry: &Registry,
    cluster: &str,
    group: Object,
    now: SystemTime,
) -> Result<(), Error> {
    let rules = WriteRules { registry, now, refuses: &refuse_existing };
    let write = rules.plan_object(&[], cluster.to_owned(), group)?;
    rules.store(std::slice::from_ref(&write))
}

/// Replaces a stored object by an edited one. The write fails if the object has changed since `shown`.
pub(crate) fn store_edited(
    registry: &Registry,
    cluster: &str,
    edited: Object,
    shown: Version,
    now: SystemTime,
) -> Result<(), Error> {
    let rules = WriteRules { registry, now, refuses: &|_| None };
    let mut write = rules.plan_object(&[], cluster.to_owned(), edited)?;
    // Compare with the version shown to the user, so that concurrent changes are not lost.
    write.since = Precondition::Read(shown);
    rules.store(std::slice::from_ref(&write))
}

/// Stores new objects of a cluster, built from flags. If one is invalid, nothing is stored.
pub(crate) fn store_objects(
    registry: &Registry,
    cluster: &str,
    objects: Vec<Object>,
    context: &CommandEnvironment<'_>,
) -> Result<(), Error> {
    let rules = WriteRules { registry, now: context.now, refuses: &refuse_existing };
    let mut planned: Vec<PlannedWrite> = Vec::new();
    for object in objects {
        let write = rules.plan_object(&planned, cluster.to_owned(), object)?;
        planned.push(write);
    }
    rules.store(&planned)
}

/// A new version of a stored object.
pub(crate) struct Replacement {
    /// The object.
    pub(crate) object: Object,
    /// The version that it replaces.
    pub(crate) since: vfs::Version,
}

/// Stores new versions of a cluster and its groups. If one is invalid, nothing is stored.
pub(crate) fn store_replacements(
    registry: &Registry,
    cluster: &str,
    replacements: Vec<Replacement>,
    context: &CommandEnvironment<'_>,
) -> Result<(), Error> {
    let rules = WriteRules { registry, now: context.now, refuses: &|_| None };
    let mut planned: Vec<PlannedWrite> = Vec::new();
    for Replacement { object, since } in replacements {
        let mut write = rules.plan_object(&planned, cluster.to_owned(), object)?;
        write.since = Precondition::Read(since);
        planned.push(write);
    }
    rules.store(&planned)
}

pub(crate) async fn delete(
    registry: &Registry,
    command: &Delete,
    name: &str,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    match command {
        Delete::Cluster(command) => cluster_deletion::run(registry, command, name, context).await,
        Delete::Group { group, yes } => delete_group(registry, name, group, *yes, context),
    }
}

fn delete_group(
    registry: &Registry,
    cluster: &str,
    group: &str,
    yes: bool,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    if cluster.is_empty() {
        return Err(Error::Flag { flag: "--name", problem: "is required" });
    }
    let Some((spec, _)) = registry.cluster(cluster)? else {
        return Err(kops_store::Error::object("cluster", cluster, "not found").into());
    };
    let Some((_, version)) = registry.group(cluster, group)? else {
        return Err(kops_store::Error::object("instancegroup", group, "not found").into());
    };
    let members = spec.spec.items("etcdClusters").iter().flat_map(|etcd| etcd.items("etcdMembers"));
    if members.into_iter().any(|member| member.text("instanceGroup") == group) {
        return Err(kops_store::Error::object(
            "instancegroup",
            group,
            "has a member of etcd; remove that from the cluster first",
        )
        .into());
    }
    if !yes {
        writeln!(context.out, "\nMust specify --yes to delete instancegroup")?;
        return Ok(());
    }
    registry.remove_group(cluster, group, &version)?;
    writeln!(
        context.out,
        "\nDeleted InstanceGroup: {group:?}. Its machines end with the next update."
    )?;
    Ok(())
}
