//! The state store, independent of its backend.

use std::{path::Path, sync::Arc};

use crate::{
    environment::Environment,
    error::Error,
    file::Directory,
    name,
    object::{ObjectInfo, Precondition, Secrecy, Version},
    s3::Bucket,
};

/// A state store. Its calls block, also on answers of a server.
#[derive(Clone, Debug)]
pub struct Store(Backend);

#[derive(Clone, Debug)]
enum Backend {
    Directory(Directory),
    Bucket(Arc<Bucket>),
}

impl Store {
    /// Opens the store at a URL, `file:///path`, `s3://bucket/prefix` or `gs://bucket/prefix`. The environment of this
    /// process configures the access to a server.
    pub fn open(url: &str) -> Result<Self, Error> {
        Self::open_in(url, &|name| std::env::var(name).ok())
    }

    /// Opens the store with the given environment: upstream's variables `S3_ENDPOINT`, `S3_REGION`, `S3_ACCESS_KEY_ID`,
    /// `S3_SECRET_ACCESS_KEY`, `KOPS_STATE_S3_ACL` and `AWS_REGION`. Without an endpoint, the store is in AWS and uses
    /// the credentials that AWS' own tools find. A store in Google's Cloud Storage needs an HMAC key,
    /// `GS_ACCESS_KEY_ID` and `GS_SECRET_ACCESS_KEY`; `GS_ENDPOINT` names another server.
    pub fn open_in(url: &str, environment: Environment<'_>) -> Result<Self, Error> {
        let wrong = |reason| Error::Url { url: url.to_owned(), reason };
        let (scheme, rest) = url.split_once("://").ok_or_else(|| wrong("it is not a URL"))?;
        match scheme {
            "file" if !rest.starts_with('/') || rest.contains('\0') => {
                Err(wrong("its path is not absolute"))
            }
            "file" => Ok(Self(Backend::Directory(Directory { base: rest.into() }))),
            "s3" | "gs" => Ok(Self(Backend::Bucket(Arc::new(Bucket::open(url, environment)?)))),
            _ => Err(Error::Scheme { url: url.to_owned(), scheme: scheme.to_owned() }),
        }
    }

    /// Returns an object and its version; `None` if it does not exist.
    pub fn read(&self, name: &str) -> Result<Option<(Vec<u8>, Version)>, Error> {
        name::check(name)?;
        match &self.0 {
            Backend::Directory(directory) => directory.read(name),
            Backend::Bucket(bucket) => bucket.read(name),
        }
    }

    /// Copies an object of any size to a file with mode 0600. Returns `None` if the object does not exist.
    pub fn fetch(&self, name: &str, to: &Path) -> Result<Option<Version>, Error> {
        name::check(name)?;
        match &self.0 {
            Backend::Directory(directory) => directory.fetch(name, to),
            Backend::Bucket(bucket) => bucket.fetch(name, to),
        }
    }

    /// Creates an object of any size from a file, readable by its owner only.
    pub fn keep(&self, name: &str, from: &Path) -> Result<(), Error> {
        name::check(name)?;
        match &self.0 {
            Backend::Directory(directory) => directory.keep(name, from),
            Backend::Bucket(bucket) => bucket.keep(name, from),
        }
    }

    /// Writes an object, if its version is still `since`. In a bucket, the bucket's policy decides who may read the
    /// object.
    pub fn write(
        &self,
        name: &str,
        content: &[u8],
        since: &Precondition,
        secrecy: Secrecy,
    ) -> Result<Version, Error> {
        name::check(name)?;
        match &self.0 {
            Backend::Directory(directory) => directory.write(name, content, since, secrecy),
            Backend::Bucket(bucket) => bucket.write(name, content, since),
        }
    }

    /// Removes an object of any version.
    pub fn discard(&self, name: &str) -> Result<(), Error> {
        name::check(name)?;
        match &self.0 {
            Backend::Directory(directory) => directory.discard(name),
            Backend::Bucket(bucket) => bucket.discard(name),
        }
    }

    /// Removes an object, if its version is still `read`.
    pub fn remove(&self, name: &str, read: &Version) -> Result<(), Error> {
        name::check(name)?;
        match &self.0 {
            Backend::Directory(directory) => directory.remove(name, read),
            Backend::Bucket(bucket) => bucket.remove(name, read),
        }
    }

    /// Returns the names of all objects below a directory (of the whole store, if it is empty), sorted. Other entries,
    /// such as symbolic links, are skipped.
    pub fn list(&self, directory: &str) -> Result<Vec<String>, Error> {
        Ok(self.describe(directory)?.into_iter().map(|listed| listed.name).collect())
    }

    /// Returns all objects below a directory with size and time, without reading them.
    pub fn describe(&self, directory: &str) -> Result<Vec<ObjectInfo>, Error> {
        check_directory(directory)?;
        match &self.0 {
            Backend::Directory(store) => store.list(directory),
            Backend::Bucket(bucket) => bucket.list(directory),
        }
    }

    /// Returns the names directly below a directory, sorted, and whether each is a directory.
    pub fn entries(&self, directory: &str) -> Result<Vec<(String, bool)>, Error> {
        check_directory(directory)?;
        match &self.0 {
            Backend::Directory(store) => store.entries(directory),
            Backend::Bucket(bucket) => bucket.entries(directory),
        }
    }
}

fn check_directory(name: &str) -> Result<(), Error> {
    if name.is_empty() { Ok(()) } else { name::check(name) }
}
