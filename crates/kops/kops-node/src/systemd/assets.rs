//! The programs that a node configuration lists: files of this machine, checked against their hashes.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use kops_api::Spec as _;
use kops_core::nodeup::Asset;
use serde_json::Value;
use sys::Programs;

use crate::{error::Error, hash::file_hash, systemd_error::SystemdError};

/// The directory in which archives are unpacked, by their hash.
const UNPACKED: &str = "var/cache/nodeup/unpacked";
/// The largest number of members of an archive.
const MAX_MEMBERS: usize = 10_000;

/// The programs of a node configuration.
#[derive(Debug, Default)]
pub(super) struct Downloads {
    files: BTreeMap<(String, String), PathBuf>,
}

impl Downloads {
    /// Checks and unpacks the files that a configuration lists for an architecture.
    pub(super) fn read(
        root: &Path,
        config: &Value,
        architecture: &str,
        programs: &dyn Programs,
    ) -> Result<Self, Error> {
        let mut downloads = Self::default();
        for line in config.texts(&format!("Assets.{architecture}")) {
            let (hash, urls) = line.split_once('@').unwrap_or(("", line));
            let url = urls.split(',').next().unwrap_or(urls);
            let path = url.strip_prefix("file://").filter(|path| path.starts_with('/'));
            let path = path.ok_or_else(|| Error::AssetUrl { url: url.to_owned() })?;
            let path = root.join(path.trim_start_matches('/'));
            if file_hash(&path)? != hash {
                return Err(Error::AssetHash { url: url.to_owned() });
            }
            let is_archive =
                [".tgz", ".tar.gz", ".tar.xz", ".tar"].iter().any(|end| url.ends_with(end));
            if is_archive {
                let directory = root.join(UNPACKED).join(hash);
                unpack(&path, &directory, programs)?;
                downloads.add_members(url, &directory, &directory)?;
            } else {
                downloads.files.insert((url.to_owned(), url.to_owned()), path);
            }
        }
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

/// Unpacks an archive once. A run that stops meanwhile leaves only a directory that the next run removes.
fn unpack(archive: &Path, directory: &Path, programs: &dyn Programs) -> Result<(), Error> {
    if directory.is_dir() {
        return Ok(());
    }
    let partial = directory.with_extension("new");
    if partial.is_dir() {
        fs::remove_dir_all(&partial).map_err(SystemdError::io("remove", &partial))?;
    }
    fs::create_dir_all(&partial).map_err(SystemdError::io("create the directory", &partial))?;
    let (from, to) = (archive.display().to_string(), partial.display().to_string());
    programs.must(&["tar", "--extract", "--no-same-owner", "--file", &from, "--directory", &to])?;
    Ok(fs::rename(&partial, directory).map_err(SystemdError::io("rename", &partial))?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use sys::HostPrograms;

    use super::*;

    #[test]
    fn rejects_programs_that_differ_from_their_hash() {
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
        let read = |line: String| {
            let config = json!({"Assets": {"amd64": [line]}});
            Downloads::read(root, &config, "amd64", &HostPrograms)
        };
        let found = read(format!("{hash}@file:///opt/c.tar")).unwrap().assets();
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].key.as_str(), found[0].path.as_str()),
            ("containerd", "bin/containerd")
        );
        for wrong in [
            format!("{}@file:///opt/c.tar", "0".repeat(64)),
            "file:///opt/c.tar".to_owned(),
            format!("{hash}@https://example.com/c.tar"),
            format!("{hash}@file://opt/c.tar"),
        ] {
            assert!(read(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
