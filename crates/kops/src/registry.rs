//! The state store's layout, which is upstream's: `X/config`, `X/instancegroup/GROUP`.

use kops_api::{Kind, Object, VersionName};
use vfs::{Secrecy, Since, Store, Version};

use crate::Error;

/// What kOps writes of a cluster, beside these directories.
const FILES: [&str; 4] = ["config", "cluster.spec", "cluster-completed.spec", "kops-version.txt"];
const DIRECTORIES: [&str; 8] = [
    "addons",
    "clusteraddons",
    "pki",
    "secrets",
    "instancegroup",
    "igconfig",
    "manifests",
    "backups",
];

pub(crate) struct Registry {
    store: Store,
}

impl Registry {
    pub(crate) fn open(url: &str) -> Result<Self, Error> {
        Ok(Self { store: Store::open(url)? })
    }

    /// All clusters, by name.
    pub(crate) fn clusters(&self) -> Result<Vec<Object>, Error> {
        let entries = self.store.entries("")?;
        let names = entries.into_iter().filter(|(_, directory)| *directory);
        let read = names.map(|(name, _)| Ok(self.cluster(&name)?.map(|(object, _)| object)));
        read.filter_map(Result::transpose).collect()
    }

    pub(crate) fn cluster(&self, name: &str) -> Result<Option<(Object, Version)>, Error> {
        self.read(&path(Kind::Cluster, name, name), Kind::Cluster, name)
    }

    pub(crate) fn group(
        &self,
        cluster: &str,
        name: &str,
    ) -> Result<Option<(Object, Version)>, Error> {
        self.read(&path(Kind::InstanceGroup, cluster, name), Kind::InstanceGroup, name)
    }

    /// A cluster's groups, by name.
    pub(crate) fn groups(&self, cluster: &str) -> Result<Vec<Object>, Error> {
        let entries = self.store.entries(&format!("{cluster}/instancegroup"))?;
        let names = entries.into_iter().filter(|(_, directory)| !directory);
        let read = names.map(|(name, _)| Ok(self.group(cluster, &name)?.map(|(object, _)| object)));
        read.filter_map(Result::transpose).collect()
    }

    fn read(&self, path: &str, kind: Kind, name: &str) -> Result<Option<(Object, Version)>, Error> {
        let Some((content, version)) = self.store.read(path)? else { return Ok(None) };
        let object = Object::read(path, &content)?;
        // A copied file would otherwise be shown as another, and written over it.
        if object.kind != kind || object.name() != name {
            let said = format!("{} {:?}", object.kind.name(), object.name());
            let text = format!(
                "reading {path} of the state store: it is {said}, not {} {name:?}",
                kind.name()
            );
            return Err(Error::Usage(text));
        }
        Ok(Some((object, version)))
    }

    /// Whether a cluster has been updated, so that its etcd clusters may run.
    pub(crate) fn is_made(&self, cluster: &str) -> Result<bool, Error> {
        Ok(self.store.read(&format!("{cluster}/cluster-completed.spec"))?.is_some())
    }

    /// Writes an object of a cluster.
    pub(crate) fn write(&self, cluster: &str, object: &Object, since: &Since) -> Result<(), Error> {
        let content = object.to_yaml(VersionName::V1alpha2);
        let path = path(object.kind, cluster, object.name());
        self.store.write(&path, content.as_bytes(), since, Secrecy::Open)?;
        Ok(())
    }

    /// Removes all that is kept of a cluster, its spec last: who is interrupted can repeat it. Nothing is removed if
    /// there is something that kOps did not write.
    pub(crate) fn remove(&self, cluster: &str) -> Result<(), Error> {
        let mut names = self.store.list(cluster)?;
        let inner = |name: &str| {
            name.strip_prefix(cluster).and_then(|n| n.strip_prefix('/')).map(str::to_owned)
        };
        for name in &names {
            let inner = inner(name).unwrap_or_default();
            let directory = inner.split_once('/').map(|(directory, _)| directory);
            if !FILES.contains(&inner.as_str())
                && !directory.is_some_and(|d| DIRECTORIES.contains(&d))
            {
                let problem = "is in the cluster's directory and is not kOps'; move it away first";
                return Err(Error::known("file", name, problem));
            }
        }
        names.sort_by_key(|name| inner(name).is_some_and(|inner| inner == "config"));
        for name in names {
            if let Some((_, version)) = self.store.read(&name)? {
                self.store.remove(&name, &version)?;
            }
        }
        Ok(())
    }
}

fn path(kind: Kind, cluster: &str, name: &str) -> String {
    match kind {
        Kind::Cluster => format!("{cluster}/config"),
        _ => format!("{cluster}/instancegroup/{name}"),
    }
}
