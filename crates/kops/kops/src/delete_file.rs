//! Runs `kops delete -f`: deletes the objects that files name.

use std::collections::BTreeSet;

use kops_api::{Kind, Object};
use kops_store::Registry;

use crate::{
    change::{self, cluster_label},
    cluster_deletion,
    environment::CommandEnvironment,
    error::Error,
    flags::{Delete, DeleteCluster},
    input::read_text,
    ssh_key,
};

/// An object to delete.
enum Deletion {
    Cluster(String),
    Group { cluster: String, group: String },
    SshKeys { cluster: String },
}

/// Deletes the objects of files, after all files have been read and understood.
pub(crate) async fn run(
    registry: &Registry,
    files: &[String],
    yes: bool,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    if files.is_empty() {
        return Err(Error::Flag { flag: "--filename", problem: "is required" });
    }
    let mut all = Vec::new();
    for file in files {
        for object in Object::read_all(file, &read_text(file)?)? {
            all.push(plan(file, &object)?);
        }
    }
    if all.is_empty() {
        return Err(Error::NoObjects { files: files.join(", ") });
    }
    let mut deleted = BTreeSet::new();
    for one in all {
        match one {
            Deletion::Cluster(name) => {
                let cluster = Some(name.clone());
                let command = DeleteCluster { cluster, yes, ..DeleteCluster::default() };
                cluster_deletion::run(registry, &command, "", context).await?;
                deleted.insert(name);
            }
            // Groups have been deleted together with their cluster.
            Deletion::Group { cluster, .. } if deleted.contains(&cluster) => {}
            Deletion::Group { cluster, group } => {
                let command = Delete::Group { group, yes };
                change::delete(registry, &command, &cluster, context).await?;
            }
            Deletion::SshKeys { cluster } if deleted.contains(&cluster) => {}
            Deletion::SshKeys { .. } if !yes => {
                writeln!(context.out, "\nMust specify --yes to delete SSH public keys")?;
            }
            Deletion::SshKeys { cluster } => ssh_key::delete(registry, &cluster)?,
        }
    }
    Ok(())
}

fn plan(file: &str, object: &Object) -> Result<Deletion, Error> {
    match object.kind {
        Kind::Cluster => Ok(Deletion::Cluster(object.name().to_owned())),
        Kind::InstanceGroup => {
            let (cluster, group) = (cluster_label(object)?, object.name().to_owned());
            Ok(Deletion::Group { cluster, group })
        }
        Kind::SshCredential => Ok(Deletion::SshKeys { cluster: cluster_label(object)? }),
        kind => Err(Error::UnhandledKind { file: file.to_owned(), kind: kind.name() }),
    }
}
