//! Creates files, directories and links.

use std::collections::BTreeMap;

use ignition::{
    passwd::Databases,
    spec::{Directory, File, Link, Owner, Storage},
};
use rustix::fs::FileType;

use crate::{
    error::Error,
    fetch::Fetcher,
    root::{FileInfo, Root},
};

enum Node<'c> {
    Directory(&'c Directory),
    File(&'c File),
    Link(&'c Link),
}

impl Node<'_> {
    fn path(&self) -> &str {
        match self {
            Self::Directory(directory) => &directory.path,
            Self::File(file) => &file.path,
            Self::Link(link) => &link.path,
        }
    }

    /// Returns the sort key: parents before their contents, and hard links last.
    fn order(&self) -> (bool, usize, String) {
        let hard = matches!(self, Self::Link(link) if link.hard == Some(true));
        let path = self.path().trim_end_matches('/');
        (hard, path.split('/').count(), path.to_owned())
    }
}

pub(super) async fn apply(
    root: &Root,
    storage: &Storage,
    passwd: &Databases,
    fetcher: &Fetcher,
) -> Result<(), Error> {
    let directories = storage.directories.iter().map(Node::Directory);
    let files = storage.files.iter().map(Node::File);
    let links = storage.links.iter().map(Node::Link);
    let mut nodes: Vec<Node<'_>> = directories.chain(files).chain(links).collect();
    nodes.sort_by_cached_key(Node::order);
    let mut places = BTreeMap::new();
    for node in &nodes {
        let path = node.path();
        if let Some(other) = places.insert(root.real(path)?, path) {
            let reason = format!(
                "through a link it is the same path as {other}, which the config also contains"
            );
            return Err(Error::Node { path: path.to_owned(), reason });
        }
    }
    for node in nodes {
        match node {
            Node::Directory(directory) => make_directory(root, directory, passwd)?,
            Node::File(file) => write_file(root, file, passwd, fetcher).await?,
            Node::Link(link) => make_link(root, link, passwd)?,
        }
    }
    Ok(())
}

fn already_exists(path: &str, what: &str) -> Error {
    Error::Node {
        path: path.to_owned(),
        reason: format!("{what} exists already; set overwrite to replace it"),
    }
}

fn kind(existing: FileInfo) -> &'static str {
    match existing.kind {
        FileType::Directory => "a directory",
        FileType::RegularFile => "a file",
        FileType::Symlink => "a link",
        _ => "something",
    }
}

/// Resolves an owner by id or name.
fn owner(
    path: &str,
    owner: &Owner,
    find: impl Fn(&str) -> Option<u32>,
) -> Result<Option<u32>, Error> {
    let Some(name) = owner.name.as_deref().filter(|name| !name.is_empty()) else {
        return Ok(owner.id);
    };
    let missing = || Error::Node {
        path: path.to_owned(),
        reason: format!("the owner {name} does not exist"),
    };
    find(name).map(Some).ok_or_else(missing)
}

fn owners(
    path: &str,
    user: &Owner,
    group: &Owner,
    passwd: &Databases,
) -> Result<(Option<u32>, Option<u32>), Error> {
    let uid = owner(path, user, |name| passwd.user(name).map(|(uid, _, _)| uid))?;
    Ok((uid, owner(path, group, |name| passwd.group_id(name))?))
}

fn make_directory(root: &Root, directory: &Directory, passwd: &Databases) -> Result<(), Error> {
    let path = directory.path.as_str();
    let mut existing = root.stat(path)?;
    if let Some(node) = existing {
        if directory.overwrite == Some(true) {
            root.remove(path)?;
            existing = None;
        } else if node.kind != FileType::Directory {
            return Err(already_exists(path, kind(node)));
        }
    }
    root.make_directory(path)?;
    let (uid, gid) = owners(path, &directory.user, &directory.group, passwd)?;
    let mode = directory.mode.or_else(|| existing.is_none().then_some(0o755));
    let default_id = existing.is_none().then_some(0);
    root.set(path, mode, uid.or(default_id), gid.or(default_id))
}

async fn write_file(
    root: &Root,
    file: &File,
    passwd: &Databases,
    fetcher: &Fetcher,
) -> Result<(), Error> {
    let path = file.path.as_str();
    let mut existing = root.stat(path)?;
    // Fetch first, so that a failure does not remove the existing file.
    let contents = match &file.contents.source {
        Some(_) => Some(fetcher.fetch(&file.contents).await?),
        None => None,
    };
    if let Some(node) = existing {
        if file.overwrite == Some(true) {
            if node.kind != FileType::RegularFile {
                root.remove(path)?;
            }
            existing = None;
        } else if node.kind != FileType::RegularFile {
            return Err(already_exists(path, kind(node)));
        } else if let Some(contents) = &contents {
            // A file with the same contents needs no overwrite.
            if root.read(path)?.as_deref() != Some(contents)
                && !is_from_earlier_run(root, file, contents, fetcher).await?
            {
                return Err(already_exists(path, "a file with other contents"));
            }
        }
    }
    let mut bytes = match (&contents, existing) {
        (Some(contents), _) => contents.clone(),
        (None, Some(_)) => root.read(path)?.unwrap_or_default(),
        (None, None) => Vec::new(),
    };
    let mut parts = Vec::new();
    for part in &file.append {
        parts.extend(fetcher.fetch(part).await?);
    }
    // Parts that an earlier run has appended are not appended again.
    if contents.is_some() || existing.is_none() || !bytes.ends_with(&parts) {
        bytes.extend(parts);
    }
    let (uid, gid) = owners(path, &file.user, &file.group, passwd)?;
    let preserved = existing.filter(|_| contents.is_none());
    // An existing mode keeps its special bits; the default applies to new files.
    let mode = file.mode.or(preserved.map(|existing| existing.mode)).unwrap_or(0o644);
    let uid = uid.or(preserved.map(|existing| existing.uid)).unwrap_or(0);
    let gid = gid.or(preserved.map(|existing| existing.gid)).unwrap_or(0);
    // An unchanged file is not replaced, so its hard links stay valid.
    let regular = root.stat(path)?.is_some_and(|node| node.kind == FileType::RegularFile);
    if regular && root.read(path)?.as_deref() == Some(&bytes) {
        root.set(path, Some(mode), Some(uid), Some(gid))
    } else {
        root.write(path, &bytes, mode, uid, gid)
    }
}

/// Returns `true` if an earlier run wrote the file from these contents and appended parts.
async fn is_from_earlier_run(
    root: &Root,
    file: &File,
    contents: &[u8],
    fetcher: &Fetcher,
) -> Result<bool, Error> {
    let mut bytes = contents.to_vec();
    for part in &file.append {
        bytes.extend(fetcher.fetch(part).await?);
    }
    Ok(root.read(&file.path)?.as_deref() == Some(&bytes))
}

fn make_link(root: &Root, link: &Link, passwd: &Databases) -> Result<(), Error> {
    let path = link.path.as_str();
    let target = link.target.as_deref().unwrap_or_default();
    let hard = link.hard == Some(true);
    let mut is_present = false;
    if let Some(existing) = root.stat(path)? {
        let same = if hard {
            root.stat(target)?.is_some_and(|target| target.inode == existing.inode)
        } else {
            existing.kind == FileType::Symlink && root.read_link(path)? == target
        };
        match (same, link.overwrite == Some(true)) {
            (true, _) => is_present = true,
            (false, true) => root.remove(path)?,
            (false, false) => return Err(already_exists(path, kind(existing))),
        }
    }
    if hard {
        return if is_present { Ok(()) } else { root.hard_link(path, target) };
    }
    if !is_present {
        root.symlink(path, target)?;
    }
    let (uid, gid) = owners(path, &link.user, &link.group, passwd)?;
    root.set(path, None, Some(uid.unwrap_or(0)), Some(gid.unwrap_or(0)))
}
