//! The layout of the state store, which is upstream's: `X/config`, `X/instancegroup/GROUP`. `X/lock` is our own; a
//! command that changes a cluster's resources holds it.

use api_meta::Tree as _;
use kops_api::{Kind, Object, VersionName};
use vfs::{Environment, ObjectInfo, Precondition, Secrecy, Store, Version};

use crate::{backups::Backups, error::Error, layout::ETCD};

/// The lifetime of a lock whose holder has crashed. Longer operations renew it.
const LOCK_PERIOD: std::time::Duration = std::time::Duration::from_secs(60);

/// The parent directory of machines whose store is not on this machine.
const LOCAL_PARENT: &str = "/var/lib/windlass/kops";

/// The files and directories that kOps writes for a cluster.
const FILES: [&str; 5] =
    ["config", "cluster.spec", "cluster-completed.spec", "kops-version.txt", "lock"];
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

/// A state store with the clusters of kOps.
pub struct Registry {
    store: Store,
    directory: String,
    url: String,
}

impl Registry {
    /// Opens the store at a URL. `environment` configures the access to a server.
    pub fn open(url: &str, environment: Environment<'_>) -> Result<Self, Error> {
        let store = Store::open_in(url, environment)?;
        let directory = match url.split_once("://") {
            Some(("file", path)) => path.to_owned(),
            Some((scheme, path)) => format!("{LOCAL_PARENT}-{scheme}/{path}"),
            None => url.to_owned(),
        };
        Ok(Self { store, directory, url: url.trim_end_matches('/').to_owned() })
    }

    /// Reports whether the store is a directory of this machine.
    pub fn is_local(&self) -> bool {
        self.url.starts_with("file:")
    }

    /// Returns the store's URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the store's directory on this machine or, for a remote store, a local stand-in.
    pub fn directory(&self) -> String {
        self.directory.clone()
    }

    /// Returns the backups of a cluster.
    pub fn backups(&self, cluster: &str) -> Backups {
        let directory = format!("{cluster}/backups/etcd/{ETCD}");
        Backups { store: self.store.clone(), directory }
    }

    /// Returns all clusters, sorted by name.
    pub fn clusters(&self) -> Result<Vec<Object>, Error> {
        let entries = self.store.entries("")?;
        let names = entries.into_iter().filter(|(_, directory)| *directory);
        let read = names.map(|(name, _)| Ok(self.cluster(&name)?.map(|(object, _)| object)));
        read.filter_map(Result::transpose).collect()
    }

    /// Returns a cluster and its version.
    pub fn cluster(&self, name: &str) -> Result<Option<(Object, Version)>, Error> {
        self.read(&path(Kind::Cluster, name, name), Kind::Cluster, name)
    }

    /// Returns the complete specification of a cluster, which the last update has stored; `None` before the first one.
    pub fn last_complete_cluster(&self, name: &str) -> Result<Option<Object>, Error> {
        let path = format!("{name}/cluster-completed.spec");
        Ok(self.read(&path, Kind::Cluster, name)?.map(|(object, _)| object))
    }

    /// Returns the complete specification of a cluster that has been updated.
    pub fn complete_cluster(&self, name: &str) -> Result<Object, Error> {
        self.last_complete_cluster(name)?.ok_or_else(|| {
            let problem = "was never updated; run kops update cluster --yes";
            Error::object("cluster", name, problem)
        })
    }

    /// Returns an instance group and its version.
    pub fn group(&self, cluster: &str, name: &str) -> Result<Option<(Object, Version)>, Error> {
        self.read(&path(Kind::InstanceGroup, cluster, name), Kind::InstanceGroup, name)
    }

    /// Returns a cluster's groups, sorted by name.
    pub fn groups(&self, cluster: &str) -> Result<Vec<Object>, Error> {
        let entries = self.store.entries(&format!("{cluster}/instancegroup"))?;
        let names = entries.into_iter().filter(|(_, directory)| !directory);
        let read = names.map(|(name, _)| Ok(self.group(cluster, &name)?.map(|(object, _)| object)));
        read.filter_map(Result::transpose).collect()
    }

    fn read(&self, path: &str, kind: Kind, name: &str) -> Result<Option<(Object, Version)>, Error> {
        let Some((content, version)) = self.store.read(path)? else { return Ok(None) };
        Ok(Some((Self::parse(path, kind, name, &content)?, version)))
    }

    /// Parses the object of a path.
    pub(crate) fn parse(
        path: &str,
        kind: Kind,
        name: &str,
        content: &[u8],
    ) -> Result<Object, Error> {
        let object = Object::read(path, content)?;
        // A copied file would otherwise be shown as another object, and later overwrite it.
        if object.kind != kind || object.name() != name {
            let actual = format!("{} {:?}", object.kind.name(), object.name());
            let expected = format!("{} {name:?}", kind.name());
            return Err(Error::Mismatch { path: path.to_owned(), actual, expected });
        }
        Ok(object)
    }

    /// Returns the names of the etcd clusters that the last update created.
    pub fn created_etcd_clusters(&self, cluster: &str) -> Result<Vec<String>, Error> {
        let Some(complete) = self.last_complete_cluster(cluster)? else { return Ok(Vec::new()) };
        let etcd = complete.spec.items("etcdClusters").iter();
        Ok(etcd.map(|etcd| etcd.text("name").to_owned()).collect())
    }

    /// Writes a cluster or a group.
    pub fn write(&self, cluster: &str, object: &Object, since: &Precondition) -> Result<(), Error> {
        let content = object.to_yaml(VersionName::V1alpha2);
        let path = path(object.kind, cluster, object.name());
        self.store.write(&path, content.as_bytes(), since, Secrecy::Open)?;
        Ok(())
    }

    /// Returns any object of the store.
    pub fn read_object(&self, name: &str) -> Result<Option<(Vec<u8>, Version)>, Error> {
        Ok(self.store.read(name)?)
    }

    /// Writes an object, if its version is still `since`.
    pub fn write_object(
        &self,
        name: &str,
        content: &[u8],
        since: &Precondition,
        secrecy: Secrecy,
    ) -> Result<(), Error> {
        self.store.write(name, content, since, secrecy)?;
        Ok(())
    }

    /// Removes an object, if its version is still `read`.
    pub fn delete_object(&self, name: &str, read: &Version) -> Result<(), Error> {
        Ok(self.store.remove(name, read)?)
    }

    /// Returns all objects below a directory, without reading them.
    pub(crate) fn describe_objects(&self, directory: &str) -> Result<Vec<ObjectInfo>, Error> {
        Ok(self.store.describe(directory)?)
    }

    /// Returns the names of all objects below a directory.
    pub fn list_objects(&self, directory: &str) -> Result<Vec<String>, Error> {
        Ok(self.store.list(directory)?)
    }

    /// Returns the names directly below a directory, and whether each is a directory.
    pub fn list_entries(&self, directory: &str) -> Result<Vec<(String, bool)>, Error> {
        Ok(self.store.entries(directory)?)
    }

    /// Locks a cluster for a user, against other commands that change its resources.
    pub fn lock(
        &self,
        cluster: &str,
        user: &str,
        now: std::time::SystemTime,
    ) -> Result<vfs::Lock, Error> {
        let name = format!("{cluster}/lock");
        Ok(self.store.lock(&name, &holder(user), now.into(), LOCK_PERIOD)?)
    }

    /// Runs `work` while renewing the lock. The work is cancelled if the lock is lost or on Ctrl-C, so that the lock is
    /// released.
    pub async fn while_locked<E: From<Error>>(
        &self,
        lock: &mut vfs::Lock,
        user: &str,
        work: impl Future<Output = Result<(), E>>,
    ) -> Result<(), E> {
        let holder = holder(user);
        let renew = async {
            loop {
                tokio::time::sleep(LOCK_PERIOD / 4).await;
                if let Err(error) = self.store.renew(lock, &holder, rt::now().into(), LOCK_PERIOD) {
                    return Error::from(error);
                }
            }
        };
        tokio::select! {
            done = work => done,
            error = renew => Err(error.into()),
            Ok(()) = tokio::signal::ctrl_c() => Err(Error::Interrupted.into()),
        }
    }

    /// Releases the lock of a cluster.
    pub fn unlock(&self, lock: vfs::Lock) -> Result<(), Error> {
        Ok(self.store.unlock(lock)?)
    }

    /// Deletes an instance group, if its version is still `read`.
    pub fn remove_group(&self, cluster: &str, group: &str, read: &Version) -> Result<(), Error> {
        Ok(self.store.remove(&path(Kind::InstanceGroup, cluster, group), read)?)
    }

    /// Deletes all objects of a cluster, its spec last, so that an interrupted deletion can be repeated. If there is an
    /// object that kOps did not write, nothing is deleted.
    pub fn remove(&self, cluster: &str) -> Result<(), Error> {
        let mut names = self.check_removable(cluster)?;
        names.sort_by_key(|name| inner(cluster, name) == "config");
        for name in names {
            if let Some((_, version)) = self.store.read(&name)? {
                self.store.remove(&name, &version)?;
            }
        }
        Ok(())
    }

    /// Returns all objects of a cluster, if kOps wrote all of them.
    pub fn check_removable(&self, cluster: &str) -> Result<Vec<String>, Error> {
        let names = self.store.list(cluster)?;
        for name in &names {
            let inner = inner(cluster, name);
            let directory = inner.split_once('/').map(|(directory, _)| directory);
            if !FILES.contains(&inner.as_str())
                && !directory.is_some_and(|d| DIRECTORIES.contains(&d))
            {
                let problem =
                    "is in the cluster's directory, but kOps did not write it; move it away first";
                return Err(Error::object("file", name, problem));
            }
        }
        Ok(names)
    }
}

/// Returns the name of a lock's holder.
fn holder(user: &str) -> String {
    format!("{user}@{} (process {})", rt::hostname(), std::process::id())
}

/// Returns an object's name within its cluster's directory.
fn inner(cluster: &str, name: &str) -> String {
    let inner = name.strip_prefix(cluster).and_then(|n| n.strip_prefix('/'));
    inner.unwrap_or_default().to_owned()
}

fn path(kind: Kind, cluster: &str, name: &str) -> String {
    match kind {
        Kind::Cluster => format!("{cluster}/config"),
        _ => format!("{cluster}/instancegroup/{name}"),
    }
}
