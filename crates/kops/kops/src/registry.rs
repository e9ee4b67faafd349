//! The layout of the state store, which is upstream's: `X/config`, `X/instancegroup/GROUP`. `X/lock` is our own; a
//! command that changes a cluster's resources holds it.

use kops_api::{Kind, Object, VersionName};
use vfs::{Environment, Precondition, Secrecy, Store, Version};

use crate::{
    CommandEnvironment, Error,
    backups::{self, Backups},
};

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

pub(crate) struct Registry {
    store: Store,
    directory: String,
    url: String,
}

impl Registry {
    pub(crate) fn open(url: &str, environment: Environment<'_>) -> Result<Self, Error> {
        let store = Store::open_in(url, environment)?;
        let directory = match url.split_once("://") {
            Some(("file", path)) => path.to_owned(),
            Some((scheme, path)) => format!("{LOCAL_PARENT}-{scheme}/{path}"),
            None => url.to_owned(),
        };
        Ok(Self { store, directory, url: url.trim_end_matches('/').to_owned() })
    }

    /// Reports whether the store is a directory of this machine.
    pub(crate) fn is_here(&self) -> bool {
        self.url.starts_with("file:")
    }

    /// Returns the store's URL.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Returns the store's directory on this machine or, for a remote store, a local stand-in.
    pub(crate) fn directory(&self) -> String {
        self.directory.clone()
    }

    /// Returns the backups of a cluster.
    pub(crate) fn backups(&self, cluster: &str) -> Backups {
        let directory = format!("{cluster}/backups/etcd/{}", backups::NAME);
        Backups { store: self.store.clone(), directory }
    }

    /// Returns all clusters, sorted by name.
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

    /// Returns a cluster's groups, sorted by name.
    pub(crate) fn groups(&self, cluster: &str) -> Result<Vec<Object>, Error> {
        let entries = self.store.entries(&format!("{cluster}/instancegroup"))?;
        let names = entries.into_iter().filter(|(_, directory)| !directory);
        let read = names.map(|(name, _)| Ok(self.group(cluster, &name)?.map(|(object, _)| object)));
        read.filter_map(Result::transpose).collect()
    }

    fn read(&self, path: &str, kind: Kind, name: &str) -> Result<Option<(Object, Version)>, Error> {
        let Some((content, version)) = self.store.read(path)? else { return Ok(None) };
        let object = Object::read(path, &content)?;
        // A copied file would otherwise be shown as another object, and later overwrite it.
        if object.kind != kind || object.name() != name {
            let actual = format!("{} {:?}", object.kind.name(), object.name());
            let text = format!(
                "reading {path} of the state store: it is {actual}, not {} {name:?}",
                kind.name()
            );
            return Err(Error::Usage(text));
        }
        Ok(Some((object, version)))
    }

    /// Reports whether a cluster has been updated, so that its etcd clusters may run.
    pub(crate) fn is_updated(&self, cluster: &str) -> Result<bool, Error> {
        Ok(self.store.read(&format!("{cluster}/cluster-completed.spec"))?.is_some())
    }

    /// Writes a cluster or a group.
    pub(crate) fn write(
        &self,
        cluster: &str,
        object: &Object,
        since: &Precondition,
    ) -> Result<(), Error> {
        let content = object.to_yaml(VersionName::V1alpha2);
        let path = path(object.kind, cluster, object.name());
        self.store.write(&path, content.as_bytes(), since, Secrecy::Open)?;
        Ok(())
    }

    /// Returns any object of the store.
    pub(crate) fn content(&self, name: &str) -> Result<Option<(Vec<u8>, Version)>, Error> {
        Ok(self.store.read(name)?)
    }

    pub(crate) fn put(
        &self,
        name: &str,
        content: &[u8],
        since: &Precondition,
        secrecy: Secrecy,
    ) -> Result<(), Error> {
        self.store.write(name, content, since, secrecy)?;
        Ok(())
    }

    pub(crate) fn drop_object(&self, name: &str, read: &Version) -> Result<(), Error> {
        Ok(self.store.remove(name, read)?)
    }

    /// Returns the names of all objects below a directory.
    pub(crate) fn names(&self, directory: &str) -> Result<Vec<String>, Error> {
        Ok(self.store.list(directory)?)
    }

    /// Returns the names directly below a directory, and whether each is a directory.
    pub(crate) fn entries(&self, directory: &str) -> Result<Vec<(String, bool)>, Error> {
        Ok(self.store.entries(directory)?)
    }

    /// Locks a cluster against other commands that change its resources.
    pub(crate) fn lock(
        &self,
        cluster: &str,
        around: &CommandEnvironment<'_>,
    ) -> Result<vfs::Lock, Error> {
        self.lock_as(cluster, &user(around), around.now)
    }

    /// Locks a cluster for a named holder.
    pub(crate) fn lock_as(
        &self,
        cluster: &str,
        who: &str,
        now: std::time::SystemTime,
    ) -> Result<vfs::Lock, Error> {
        let holder = format!("{who}@{} (process {})", rt::hostname(), std::process::id());
        Ok(self.store.lock(&format!("{cluster}/lock"), &holder, now.into(), LOCK_PERIOD)?)
    }

    /// Runs `work` while renewing the lock. The work is cancelled if the lock is lost or on Ctrl-C, so that the lock is
    /// released.
    pub(crate) async fn while_held(
        &self,
        lock: &mut vfs::Lock,
        who: &str,
        work: impl Future<Output = Result<(), Error>>,
    ) -> Result<(), Error> {
        let holder = format!("{who}@{} (process {})", rt::hostname(), std::process::id());
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
            error = renew => Err(error),
            Ok(()) = tokio::signal::ctrl_c() => {
                Err(Error::Usage("interrupted; run the same command again to continue".to_owned()))
            }
        }
    }

    pub(crate) fn unlock(&self, lock: vfs::Lock) -> Result<(), Error> {
        Ok(self.store.unlock(lock)?)
    }

    pub(crate) fn remove_group(
        &self,
        cluster: &str,
        group: &str,
        read: &Version,
    ) -> Result<(), Error> {
        Ok(self.store.remove(&path(Kind::InstanceGroup, cluster, group), read)?)
    }

    /// Deletes all objects of a cluster, its spec last, so that an interrupted deletion can be repeated. If there is an
    /// object that kOps did not write, nothing is deleted.
    pub(crate) fn remove(&self, cluster: &str) -> Result<(), Error> {
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
    pub(crate) fn check_removable(&self, cluster: &str) -> Result<Vec<String>, Error> {
        let names = self.store.list(cluster)?;
        for name in &names {
            let inner = inner(cluster, name);
            let directory = inner.split_once('/').map(|(directory, _)| directory);
            if !FILES.contains(&inner.as_str())
                && !directory.is_some_and(|d| DIRECTORIES.contains(&d))
            {
                let problem =
                    "is in the cluster's directory, but kOps did not write it; move it away first";
                return Err(Error::known("file", name, problem));
            }
        }
        Ok(names)
    }
}

/// Returns the user's name for locks.
pub(crate) fn user(around: &CommandEnvironment<'_>) -> String {
    (around.environment)("USER").unwrap_or_else(|| "root".to_owned())
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
