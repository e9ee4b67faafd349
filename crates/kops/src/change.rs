//! `kops create -f`, `replace` and `delete`.

use std::io::{Read as _, Write};

use api_meta::Timestamp;
use kops_api::{
    Kind, Object, Spec as _, documents, validate_cluster, validate_cluster_update, validate_group,
};
use vfs::Since;

use crate::{
    Error, Surroundings,
    flags::{Create, Delete, Replace},
    registry::Registry,
};

/// The label by which a group says which cluster is its.
const CLUSTER_LABEL: &str = "kops.k8s.io/cluster";
/// The most bytes that a file of objects has.
const LARGEST: u64 = 16 << 20;

/// An object that is written, once all others have been looked at.
struct Planned {
    cluster: String,
    object: Object,
    since: Since,
}

pub(crate) fn create(
    registry: &Registry,
    args: &Create,
    around: &mut Surroundings<'_>,
) -> Result<(), Error> {
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
    around: &mut Surroundings<'_>,
) -> Result<(), Error> {
    let planned = plan(registry, &args.filename, around, &|exists| {
        if exists || args.force { None } else { Some("does not exist (try adding --force flag)") }
    })?;
    for one in &planned {
        registry.write(&one.cluster, &one.object, &one.since)?;
    }
    Ok(())
}

/// Reads and judges all objects of all files. `refuses` says what is wrong with an object that is there, or is not.
fn plan(
    registry: &Registry,
    files: &[String],
    around: &Surroundings<'_>,
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
                        format!("{file}: kind {} is not kept yet; leave it out", kind.name());
                    return Err(Error::Usage(text));
                }
            };
            let one = judge(registry, &planned, cluster, object, around, refuses)?;
            planned.push(one);
        }
    }
    match planned.is_empty() {
        true => Err(Error::Usage(format!("{}: no object is in it", files.join(", ")))),
        false => Ok(planned),
    }
}

fn judge(
    registry: &Registry,
    planned: &[Planned],
    cluster: String,
    mut object: Object,
    around: &Surroundings<'_>,
    refuses: &dyn Fn(bool) -> Option<&'static str>,
) -> Result<Planned, Error> {
    let kind = object.kind.name();
    let problems = match object.kind {
        Kind::Cluster => validate_cluster(&object, false),
        _ => {
            let same = |p: &&Planned| p.cluster == cluster && p.object.kind == Kind::Cluster;
            let around = match planned.iter().find(same) {
                Some(planned) => Some(planned.object.clone()),
                None => registry.cluster(&cluster)?.map(|(object, _)| object),
            };
            let around = around.ok_or_else(|| Error::known("cluster", &cluster, "not found"))?;
            validate_group(&object, Some(&around))
        }
    };
    let what = format!("{kind} {:?}", object.name());
    let check = |problems: api_meta::ErrorList| match problems.is_empty() {
        true => Ok(()),
        false => Err(kops_api::Error::Fields { what: what.clone(), problems }),
    };
    check(problems)?;
    let same = |p: &Planned| {
        p.cluster == cluster && p.object.kind == object.kind && p.object.name() == object.name()
    };
    if planned.iter().any(same) {
        return Err(Error::known(kind, object.name(), "is there twice"));
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
            Since::Absent
        }
        Some((old, version)) => {
            if object.kind == Kind::Cluster {
                let etcd = old.spec.list("etcdClusters").iter().map(|etcd| etcd.text("name"));
                let made = registry.is_made(&cluster)?;
                let created: Vec<_> = etcd.filter(|_| made).collect();
                check(validate_cluster_update(&object, &old, &created))?;
            }
            object.metadata.set_if("creationTimestamp", old.metadata.get("creationTimestamp"));
            Since::Read(version)
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
    match text.len() as u64 > LARGEST {
        true => Err(Error::Usage(format!("{file}: it is larger than {LARGEST} bytes"))),
        false => Ok(text),
    }
}

pub(crate) fn delete(
    registry: &Registry,
    command: &Delete,
    name: &str,
    out: &mut dyn Write,
) -> Result<(), Error> {
    let Delete::Cluster { cluster, yes } = command;
    let name = cluster.as_deref().unwrap_or(name);
    if name.is_empty() {
        return Err(Error::Usage("--name is required (for safety)".to_owned()));
    }
    let Some((object, _)) = registry.cluster(name)? else {
        return Err(Error::known("cluster", name, "not found"));
    };
    // Only of clusters without a cloud is it known that nothing else of them exists.
    if !kops_core::Cluster::cloud(&object).is_bare() {
        let problem = "may have machines in its cloud, which are not deleted here yet; delete it with upstream's kops";
        return Err(Error::known("cluster", name, problem));
    }
    if !yes {
        writeln!(out, "\nMust specify --yes to delete cluster")?;
        return Ok(());
    }
    registry.remove(name)?;
    writeln!(out, "\nDeleted cluster: {name:?}")?;
    Ok(())
}
