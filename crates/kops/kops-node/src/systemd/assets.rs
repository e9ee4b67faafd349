//! The programs that a node configuration lists: copied or downloaded to a cache, and checked against their hashes
//! there, so that nobody can change them between the check and their use.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{self, Read as _},
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use api_meta::Tree as _;
use kops_core::nodeup::Asset;
use serde_json::Value;
use sys::Programs;

use crate::{
    download::{DownloadError, MAX_FILE, download},
    error::Error,
    hash::file_hash,
    systemd_error::SystemdError,
};

/// The directory of the programs and of unpacked archives, by their hash. Only root can enter it, so that nobody else
/// can run programs of archives with the permissions that the archive gives them.
const CACHE: &str = "var/cache/nodeup";
/// The largest number of members of an archive.
const MAX_MEMBERS: usize = 10_000;

/// The programs of a node configuration.
#[derive(Debug, Default)]
pub(super) struct Downloads {
    files: BTreeMap<(String, String), PathBuf>,
}

impl Downloads {
    /// Gets, checks and unpacks the files that a configuration lists for an architecture.
    pub(super) async fn read(
        root: &Path,
        config: &Value,
        architecture: &str,
        programs: &dyn Programs,
    ) -> Result<Self, Error> {
        let mut downloads = Self::default();
        let mut names = BTreeSet::new();
        for line in config.texts(&format!("Assets.{architecture}")) {
            let (hash, urls) = line.split_once('@').unwrap_or(("", line));
            let url = urls.split(',').next().unwrap_or(urls);
            let path = cache(root, hash, urls).await?;
            names.insert(hash.to_owned());
            let is_archive =
                [".tgz", ".tar.gz", ".tar.xz", ".tar"].iter().any(|end| url.ends_with(end));
            if is_archive {
                let name = format!("{hash}.unpacked");
                let directory = root.join(CACHE).join(&name);
                names.insert(name);
                unpack(&path, &directory, programs)?;
                downloads.add_members(url, &directory, &directory)?;
            } else {
                downloads.files.insert((url.to_owned(), url.to_owned()), path);
            }
        }
        remove_others(&root.join(CACHE), &names)?;
        Ok(downloads)
    }

    /// Adds the regular files of a directory. Links are left out, because they may lead elsewhere.
    fn add_members(&mut self, url: &str, top: &Path, directory: &Path) -> Result<(), Error> {
        let failed = || SystemdError::io("read the directory", directory);
        for entry in fs::read_dir(directory).map_err(failed())? {
            let path = entry.map_err(failed())?.path();
            let kind = fs::symlink_metadata(&path)
                .map_err(SystemdError::io("examine", &path))?
                .file_type();
            if kind.is_dir() {
                self.add_members(url, top, &path)?;
            } else if kind.is_file() {
                let name = path.strip_prefix(top).unwrap_or(&path).display().to_string();
                self.files.insert((url.to_owned(), name), path);
            }
            if self.files.len() > MAX_MEMBERS {
                let what = format!("the list of members of {url}");
                return Err(SystemdError::TooLarge { what, limit: MAX_MEMBERS as u64 }.into());
            }
        }
        Ok(())
    }

    /// Returns the files for the tasks.
    pub(super) fn assets(&self) -> Vec<Asset> {
        let asset = |(source, path): &(String, String)| Asset {
            key: path.rsplit('/').next().unwrap_or(path).to_owned(),
            path: path.clone(),
            source: source.clone(),
        };
        self.files.keys().map(asset).collect()
    }

    /// Returns the file of an asset.
    pub(super) fn path(&self, asset: &Asset) -> Result<&Path, SystemdError> {
        let found = self.files.get(&(asset.source.clone(), asset.path.clone()));
        found
            .map(PathBuf::as_path)
            .ok_or_else(|| SystemdError::MissingTask { name: asset.key.clone() })
    }
}

/// Copies or downloads a file to the cache, unless it is there, and returns its path there. The addresses are tried in
/// their order.
async fn cache(root: &Path, hash: &str, urls: &str) -> Result<PathBuf, Error> {
    if hash.len() != 64 || !hash.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Err(Error::AssetHash { url: urls.to_owned() });
    }
    let directory = root.join(CACHE);
    let mut options = fs::DirBuilder::new();
    let made = options.recursive(true).mode(0o700).create(&directory);
    made.map_err(SystemdError::io("create the directory", &directory))?;
    let path = directory.join(hash);
    if path.is_file() && file_hash(&path)? == hash {
        return Ok(path);
    }
    let partial = directory.join(format!("{hash}.new"));
    let mut addresses = urls.split(',').peekable();
    while let Some(url) = addresses.next() {
        match obtain(root, hash, url, &partial).await {
            Ok(()) => break,
            Err(error) if addresses.peek().is_some() => {
                tracing::warn!(url, %error, "cannot get a program; trying the next address");
            }
            Err(source) => {
                let (url, source) = (url.to_owned(), Box::new(source));
                return Err(SystemdError::Download { url, source }.into());
            }
        }
    }
    fs::rename(&partial, &path).map_err(SystemdError::io("rename", &partial))?;
    Ok(path)
}

/// Writes the content of an address to a file. Other content than that with the hash is an error.
async fn obtain(root: &Path, hash: &str, url: &str, to: &Path) -> Result<(), DownloadError> {
    match url.strip_prefix("file://") {
        Some(path) if path.starts_with('/') => {
            let below = Path::new(path.trim_start_matches('/'));
            copy(sys::read_beneath(root, below)?, to)?;
        }
        Some(_) => return Err(DownloadError::Address),
        None => download(url, to).await?,
    }
    if file_hash(to)? == hash {
        return Ok(());
    }
    fs::remove_file(to)?;
    Err(DownloadError::Hash)
}

/// Copies a file of a limited size.
fn copy(from: fs::File, to: &Path) -> Result<(), DownloadError> {
    let mut file = fs::File::create(to)?;
    if io::copy(&mut from.take(MAX_FILE + 1), &mut file)? > MAX_FILE {
        return Err(DownloadError::TooLarge);
    }
    Ok(file.sync_all()?)
}

/// Removes the programs of earlier configurations and of killed runs.
fn remove_others(directory: &Path, names: &BTreeSet<String>) -> Result<(), SystemdError> {
    let failed = || SystemdError::io("read the directory", directory);
    if !directory.is_dir() {
        return Ok(());
    }
    for entry in fs::read_dir(directory).map_err(failed())? {
        let entry = entry.map_err(failed())?;
        if names.contains(&*entry.file_name().to_string_lossy()) {
            continue;
        }
        let path = entry.path();
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let removed = if is_directory { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        removed.map_err(SystemdError::io("remove", path))?;
    }
    Ok(())
}

/// Unpacks an archive once. A run that stops meanwhile leaves only a directory that the next run removes.
fn unpack(archive: &Path, directory: &Path, programs: &dyn Programs) -> Result<(), Error> {
    if directory.is_dir() {
        return Ok(());
    }
    let partial = directory.with_extension("unpacking");
    if partial.is_dir() {
        fs::remove_dir_all(&partial).map_err(SystemdError::io("remove", &partial))?;
    }
    fs::create_dir_all(&partial).map_err(SystemdError::io("create the directory", &partial))?;
    let (from, to) = (archive.display().to_string(), partial.display().to_string());
    let flags = ["--extract", "--no-same-owner", "--no-same-permissions", "--force-local"];
    programs.must(&[&["tar"], &flags[..], &["--file", &from, "--directory", &to]].concat())?;
    // A machine that loses its power must not find a directory with empty files.
    programs.must(&["sync", "--file-system", &to])?;
    Ok(fs::rename(&partial, directory).map_err(SystemdError::io("rename", &partial))?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use serde_json::json;
    use sys::HostPrograms;

    use super::*;

    #[tokio::test]
    async fn keeps_programs_where_only_root_can_change_them() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        fs::create_dir_all(root.join("opt")).unwrap();
        fs::write(root.join("opt/kubelet"), "program").unwrap();
        let hash = file_hash(&root.join("opt/kubelet")).unwrap();
        let line = format!("{hash}@file:///opt/kubelet");
        let config = json!({"Assets": {"amd64": [line]}});
        let read = || Downloads::read(root, &config, "amd64", &HostPrograms);
        let found = read().await.unwrap();
        let path = found.path(&found.assets()[0]).unwrap().to_owned();
        let mode = fs::metadata(path.parent().unwrap()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        // The copy is used, whatever becomes of the file, and is made anew if it differs.
        fs::write(root.join("opt/kubelet"), "other").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "program");
        fs::write(&path, "cut").unwrap();
        assert!(read().await.is_err());
        fs::write(root.join("opt/kubelet"), "program").unwrap();
        read().await.unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "program");
        let pipe = root.join("opt/pipe").display().to_string();
        HostPrograms.must(&["mkfifo", &pipe]).unwrap();
        let error = cache(root, &"0".repeat(64), "file:///opt/pipe").await.unwrap_err();
        assert!(error.to_string().contains("regular file"), "{error}");
    }

    #[tokio::test]
    async fn tries_the_next_address_after_another_hash() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        fs::create_dir_all(root.join("opt")).unwrap();
        fs::write(root.join("opt/false"), "other").unwrap();
        fs::write(root.join("opt/true"), "program").unwrap();
        let hash = file_hash(&root.join("opt/true")).unwrap();
        let urls = "file:///opt/none,file:///opt/false,file:///opt/true";
        let path = cache(root, &hash, urls).await.unwrap();
        assert_eq!(fs::read_to_string(path).unwrap(), "program");
        let error = cache(root, &"0".repeat(64), urls).await.unwrap_err().to_string();
        assert!(error.contains("file:///opt/true") && error.contains("hash differs"), "{error}");
        assert_eq!(fs::read_dir(root.join(CACHE)).unwrap().count(), 1);
    }

    #[tokio::test]
    async fn rejects_programs_that_differ_from_their_hash() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        fs::create_dir_all(root.join("opt/bin")).unwrap();
        fs::write(root.join("opt/bin/containerd"), "program").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", root.join("opt/bin/link")).unwrap();
        let archive = root.join("opt/c.tar").display().to_string();
        let opt = root.join("opt").display().to_string();
        HostPrograms
            .must(&["tar", "--create", "--file", &archive, "--directory", &opt, "bin"])
            .unwrap();
        let hash = file_hash(Path::new(&archive)).unwrap();
        let read = async |line: String| {
            let config = json!({"Assets": {"amd64": [line]}});
            Downloads::read(root, &config, "amd64", &HostPrograms).await
        };
        let found = read(format!("{hash}@file:///opt/c.tar")).await.unwrap().assets();
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].key.as_str(), found[0].path.as_str()),
            ("containerd", "bin/containerd")
        );
        for wrong in [
            format!("{}@file:///opt/c.tar", "0".repeat(64)),
            "file:///opt/c.tar".to_owned(),
            format!("{}@file:///opt/c.tar", "../".repeat(22)),
        ] {
            assert!(read(wrong.clone()).await.is_err(), "{wrong}");
        }
    }
}
