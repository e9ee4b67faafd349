//! Runs `kops create -f`, `replace`, `edit` and `delete`.

use std::io::Read as _;

use api_meta::Timestamp;
use kops_api::{
    Kind, Object, Spec as _, documents, validate_cluster, validate_cluster_update, validate_group,
};
use kops_core::{CloudName, Cluster as _};
use vfs::Precondition;

use crate::{
    CommandEnvironment, Error, amazon,
    flags::{Create, Delete, Edit, Replace},
    local,
    registry::{self, Registry},
};

/// The label of a group that names its cluster.
const CLUSTER_LABEL: &str = "kops.k8s.io/cluster";
/// The largest file of objects, in bytes.
const LARGEST: u64 = 16 << 20;

/// An object to write after all objects have been validated.
struct Planned {
    cluster: String,
    object: Object,
    since: Precondition,
}

pub(crate) fn create(
    registry: &Registry,
    args: &Create,
    around: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    if args.filename.is_empty() {
        return Err(Error::Usage(
            "--filename is required, or say what to create: cluster".to_owned(),
        ));
    }
    let planned = plan(registry, &args.filename, around, &|exists| {
        if exists { Some("already exists") } else { None }
    })?;
    writeln!(around.out)?;
    for one in &planned {
        registry.write(&one.cluster, &one.object, &one.since)?;
        let kind = one.object.kind.name().to_ascii_lowercase();
        writeln!(around.out, "Created {kind}/{}", one.object.name())?;
    }
    Ok(())
}

pub(crate) fn replace(
    registry: &Registry,
    args: &Replace,
    around: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let planned = plan(registry, &args.filename, around, &|exists| {
        if exists || args.force { None } else { Some("does not exist (try adding --force flag)") }
    })?;
    for one in &planned {
        registry.write(&one.cluster, &one.object, &one.since)?;
    }
    Ok(())
}

/// Reads and validates all objects of all files. `refuses` returns the reason to reject an object by whether it exists.
fn plan(
    registry: &Registry,
    files: &[String],
    around: &CommandEnvironment<'_>,
    refuses: &dyn Fn(bool) -> Option<&'static str>,
) -> Result<Vec<Planned>, Error> {
    let mut planned: Vec<Planned> = Vec::new();
    for file in files {
        for document in documents(&text(file)?) {
            let object = Object::read(file, document.as_bytes())?;
            let cluster = match object.kind {
                Kind::Cluster => object.name().to_owned(),
                Kind::InstanceGroup => label(&object)?,
                kind => {
                    let text =
                        format!("{file}: kind {} is not supported yet; remove it", kind.name());
                    return Err(Error::Usage(text));
                }
            };
            let one = check_object(registry, &planned, cluster, object, around, refuses)?;
            planned.push(one);
        }
    }
    if planned.is_empty() {
        return Err(Error::Usage(format!("{}: no objects found", files.join(", "))));
    }
    Ok(planned)
}

fn check_object(
    registry: &Registry,
    planned: &[Planned],
    cluster: String,
    mut object: Object,
    around: &CommandEnvironment<'_>,
    refuses: &dyn Fn(bool) -> Option<&'static str>,
) -> Result<Planned, Error> {
    let kind = object.kind.name();
    let (problems, cloud) = match object.kind {
        Kind::Cluster => (validate_cluster(&object, false), object.cloud()),
        _ => {
            let same = |p: &&Planned| p.cluster == cluster && p.object.kind == Kind::Cluster;
            let around = match planned.iter().find(same) {
                Some(planned) => Some(planned.object.clone()),
                None => registry.cluster(&cluster)?.map(|(object, _)| object),
            };
            let around = around.ok_or_else(|| Error::known("cluster", &cluster, "not found"))?;
            (validate_group(&object, Some(&around)), around.cloud())
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
    if cloud == CloudName::Local {
        local::check_fields(&object)?;
    }
    let same = |p: &Planned| {
        p.cluster == cluster && p.object.kind == object.kind && p.object.name() == object.name()
    };
    if planned.iter().any(same) {
        return Err(Error::known(kind, object.name(), "is defined twice"));
    }
    let kept = match object.kind {
        Kind::Cluster => registry.cluster(object.name())?,
        _ => registry.group(&cluster, object.name())?,
    };
    if let Some(problem) = refuses(kept.is_some()) {
        return Err(Error::known(kind, object.name(), problem));
    }
    let since = match kept {
        None => {
            let now = Timestamp::from(around.now).to_seconds().to_string();
            object.metadata.set("creationTimestamp", now);
            Precondition::Absent
        }
        Some((old, version)) => {
            if object.kind == Kind::Cluster {
                let etcd = old.spec.list("etcdClusters").iter().map(|etcd| etcd.text("name"));
                let made = registry.is_updated(&cluster)?;
                let created: Vec<_> = etcd.filter(|_| made).collect();
                check(validate_cluster_update(&object, &old, &created))?;
            }
            object.metadata.set_if("creationTimestamp", old.metadata.get("creationTimestamp"));
            Precondition::Read(version)
        }
    };
    Ok(Planned { cluster, object, since })
}

fn label(group: &Object) -> Result<String, Error> {
    let labels = group.metadata.get("labels");
    let cluster = labels.and_then(|l| l.get(CLUSTER_LABEL)).and_then(|name| name.as_str());
    cluster.map(str::to_owned).ok_or_else(|| {
        let name = group.name();
        Error::Usage(format!(
            "must specify {CLUSTER_LABEL:?} label with cluster name on instanceGroup {name:?}"
        ))
    })
}

fn text(file: &str) -> Result<String, Error> {
    let failed = || Error::file("reading", file);
    let source: Box<dyn std::io::Read> = match file {
        "-" => Box::new(std::io::stdin()),
        file => Box::new(std::fs::File::open(file).map_err(failed())?),
    };
    let mut text = String::new();
    source.take(LARGEST + 1).read_to_string(&mut text).map_err(failed())?;
    if text.len() as u64 > LARGEST {
        return Err(Error::Usage(format!("{file}: it is larger than {LARGEST} bytes")));
    }
    Ok(text)
}

/// Stores a new cluster and its groups, built from flags. If one is invalid, nothing is stored.
pub(crate) fn store_all(
    registry: &Registry,
    objects: Vec<Object>,
    around: &CommandEnvironment<'_>,
) -> Result<(), Error> {
    let refuses = |exists| if exists { Some("already exists") } else { None };
    let mut planned: Vec<Planned> = Vec::new();
    let name = objects.first().map(|object| object.name().to_owned()).unwrap_or_default();
    for object in objects {
        let one = check_object(registry, &planned, name.clone(), object, around, &refuses)?;
        planned.push(one);
    }
    planned.iter().try_for_each(|one| registry.write(&one.cluster, &one.object, &one.since))
}

/// Opens an object in the user's editor, and stores the result.
pub(crate) fn edit(
    registry: &Registry,
    command: &Edit,
    name: &str,
    around: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let (cluster, found) = match command {
        Edit::Cluster { cluster } => {
            let name = cluster.as_deref().unwrap_or(name);
            (name, registry.cluster(name)?)
        }
        Edit::Group { group } => (name, registry.group(name, group)?),
    };
    if cluster.is_empty() {
        return Err(Error::Usage("--name is required".to_owned()));
    }
    let Some((object, version)) = found else {
        return Err(Error::known("object", cluster, "was not found"));
    };
    let text = object.to_yaml(kops_api::VersionName::V1alpha2);
    let file = tempfile::Builder::new().suffix(".yaml").tempfile()?;
    std::fs::write(file.path(), &text)?;
    let editor = ["KUBE_EDITOR", "VISUAL", "EDITOR"].into_iter().find_map(around.environment);
    let editor = editor.unwrap_or_else(|| "vi".to_owned());
    // The editor's variable may contain flags.
    let status = std::process::Command::new("sh")
        .args(["-c", &format!("{editor} \"$0\"")])
        .arg(file.path())
        .status()
        .map_err(Error::file("starting the editor", &editor))?;
    if !status.success() {
        return Err(Error::Usage(format!("the editor {editor:?} ended with {status}")));
    }
    let path = file.path().display().to_string();
    let changed = self::text(&path)?;
    if changed == text {
        writeln!(around.out, "Edit cancelled: no changes made.")?;
        return Ok(());
    }
    let changed = Object::read(&path, changed.as_bytes())?;
    if changed.kind != object.kind || changed.name() != object.name() {
        let text = format!(
            "the edited object is {} {:?}, not {} {:?}: objects cannot be renamed",
            changed.kind.name(),
            changed.name(),
            object.kind.name(),
            object.name()
        );
        return Err(Error::Usage(text));
    }
    let mut one = check_object(registry, &[], cluster.to_owned(), changed, around, &|_| None)?;
    // Compare with the version shown to the user, so that concurrent changes are not lost.
    one.since = Precondition::Read(version);
    registry.write(&one.cluster, &one.object, &one.since)
}

pub(crate) async fn delete(
    registry: &Registry,
    command: &Delete,
    name: &str,
    around: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let (name, yes) = match command {
        Delete::Cluster { cluster, yes } => (cluster.as_deref().unwrap_or(name), *yes),
        Delete::Group { group, yes } => return delete_group(registry, name, group, *yes, around),
    };
    if name.is_empty() {
        return Err(Error::Usage("--name is required (for safety)".to_owned()));
    }
    let Some((object, _)) = registry.cluster(name)? else {
        return Err(Error::known("cluster", name, "not found"));
    };
    if amazon::is_aws(&object) {
        return amazon::delete(registry, &object, yes, around).await;
    }
    // Only clusters without a cloud are known to have no other resources.
    if !kops_core::Cluster::cloud(&object).is_bare() {
        let problem = "may have machines in its cloud, which cannot be deleted here yet; delete it with upstream's \
                       kops";
        return Err(Error::known("cluster", name, problem));
    }
    let fleet = local::fleet(registry, name);
    if !yes {
        local::describe(&fleet, around.out)?;
        writeln!(around.out, "\nMust specify --yes to delete cluster")?;
        return Ok(());
    }
    registry.check_removable(name)?;
    let mut lock = registry.lock(name, around)?;
    let user = registry::user(around);
    let removed = async { Ok(instances::remove(&fleet, name).await?) };
    let done = registry.while_held(&mut lock, &user, removed).await;
    registry.unlock(lock)?;
    done?;
    registry.remove(name)?;
    writeln!(around.out, "\nDeleted cluster: {name:?}")?;
    Ok(())
}

fn delete_group(
    registry: &Registry,
    cluster: &str,
    group: &str,
    yes: bool,
    around: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    if cluster.is_empty() {
        return Err(Error::Usage("--name is required".to_owned()));
    }
    let Some((spec, _)) = registry.cluster(cluster)? else {
        return Err(Error::known("cluster", cluster, "not found"));
    };
    let Some((_, version)) = registry.group(cluster, group)? else {
        return Err(Error::known("instancegroup", group, "not found"));
    };
    let members = spec.spec.list("etcdClusters").iter().flat_map(|etcd| etcd.list("etcdMembers"));
    if members.into_iter().any(|member| member.text("instanceGroup") == group) {
        return Err(Error::known(
            "instancegroup",
            group,
            "has a member of etcd; remove that from the cluster first",
        ));
    }
    if !yes {
        writeln!(around.out, "\nMust specify --yes to delete instancegroup")?;
        return Ok(());
    }
    registry.remove_group(cluster, group, &version)?;
    writeln!(
        around.out,
        "\nDeleted InstanceGroup: {group:?}. Its machines end with the next update."
    )?;
    Ok(())
}
