//! A store, wherever it lies.

use std::{path::Path, sync::Arc};

use crate::{Error, Listed, Secrecy, Since, Version, file::Directory, name, s3::Bucket};

/// A state store. Its calls wait for what they do, also where that is asked of a server.
#[derive(Clone, Debug)]
pub struct Store(Place);

#[derive(Clone, Debug)]
enum Place {
    Directory(Directory),
    Bucket(Arc<Bucket>),
}

/// An environment variable's value.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

impl Store {
    /// The store at a URL, `file:///path` or `s3://bucket/prefix`. What else has to be known of a server is said by this
    /// process' environment.
    pub fn open(url: &str) -> Result<Self, Error> {
        Self::open_in(url, &|name| std::env::var(name).ok())
    }

    /// The same, by another environment: upstream's variables `S3_ENDPOINT`, `S3_REGION`, `S3_ACCESS_KEY_ID`,
    /// `S3_SECRET_ACCESS_KEY`, `KOPS_STATE_S3_ACL` and `AWS_REGION`. Without an endpoint it is AWS, with the credentials that
    /// AWS' own programs find.
    pub fn open_in(url: &str, environment: Environment<'_>) -> Result<Self, Error> {
        let wrong = |reason| Error::Url { url: url.to_owned(), reason };
        let (scheme, rest) = url.split_once("://").ok_or_else(|| wrong("it is no URL"))?;
        match scheme {
            "file" if !rest.starts_with('/') || rest.contains('\0') => {
                Err(wrong("its path is not absolute"))
            }
            "file" => Ok(Self(Place::Directory(Directory { base: rest.into() }))),
            "s3" => Ok(Self(Place::Bucket(Arc::new(Bucket::open(url, rest, environment)?)))),
            _ => Err(Error::Scheme { url: url.to_owned(), scheme: scheme.to_owned() }),
        }
    }

    /// An object and its version; nothing if there is none.
    pub fn read(&self, name: &str) -> Result<Option<(Vec<u8>, Version)>, Error> {
        name::check(name)?;
        match &self.0 {
            Place::Directory(directory) => directory.read(name),
            Place::Bucket(bucket) => bucket.read(name),
        }
    }

    /// Copies an object, however large it is, into a file, which is the caller's alone. Nothing if there is none.
    pub fn fetch(&self, name: &str, to: &Path) -> Result<Option<Version>, Error> {
        name::check(name)?;
        match &self.0 {
            Place::Directory(directory) => directory.fetch(name, to),
            Place::Bucket(bucket) => bucket.fetch(name, to),
        }
    }

    /// Writes a new object, however large it is, from a file. It is for its owner alone.
    pub fn keep(&self, name: &str, from: &Path) -> Result<(), Error> {
        name::check(name)?;
        match &self.0 {
            Place::Directory(directory) => directory.keep(name, from),
            Place::Bucket(bucket) => bucket.keep(name, from),
        }
    }

    /// Writes an object, if it still is what the writer made it from. Who may read a bucket's objects is said by the bucket.
    pub fn write(
        &self,
        name: &str,
        content: &[u8],
        since: &Since,
        secrecy: Secrecy,
    ) -> Result<Version, Error> {
        name::check(name)?;
        match &self.0 {
            Place::Directory(directory) => directory.write(name, content, since, secrecy),
            Place::Bucket(bucket) => bucket.write(name, content, since),
        }
    }

    /// Removes an object whatever it is by now.
    pub fn discard(&self, name: &str) -> Result<(), Error> {
        name::check(name)?;
        match &self.0 {
            Place::Directory(directory) => directory.discard(name),
            Place::Bucket(bucket) => bucket.discard(name),
        }
    }

    /// Removes an object, if it still is what was read.
    pub fn remove(&self, name: &str, read: &Version) -> Result<(), Error> {
        name::check(name)?;
        match &self.0 {
            Place::Directory(directory) => directory.remove(name, read),
            Place::Bucket(bucket) => bucket.remove(name, read),
        }
    }

    /// The names of all objects below a directory (of the whole store, if it is empty), sorted. What is no object of a
    /// store, as a link, is passed over.
    pub fn list(&self, directory: &str) -> Result<Vec<String>, Error> {
        Ok(self.describe(directory)?.into_iter().map(|listed| listed.name).collect())
    }

    /// The same, with what is known of each without reading it.
    pub fn describe(&self, directory: &str) -> Result<Vec<Listed>, Error> {
        check_directory(directory)?;
        match &self.0 {
            Place::Directory(held) => held.list(directory),
            Place::Bucket(bucket) => bucket.list(directory),
        }
    }

    /// The names right below a directory, sorted, and whether each is a directory.
    pub fn entries(&self, directory: &str) -> Result<Vec<(String, bool)>, Error> {
        check_directory(directory)?;
        match &self.0 {
            Place::Directory(held) => held.entries(directory),
            Place::Bucket(bucket) => bucket.entries(directory),
        }
    }
}

fn check_directory(name: &str) -> Result<(), Error> {
    if name.is_empty() { Ok(()) } else { name::check(name) }
}
