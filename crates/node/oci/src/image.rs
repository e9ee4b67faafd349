//! An image and its archive in the OCI image layout.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufWriter, Read, Write},
    path::{Path, PathBuf},
};

use aws_lc_rs::digest::{Context, SHA256, digest};
use data_encoding::HEXLOWER;
use serde_json::{Value, json};

use crate::tar;

/// An error in packing an image.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("pack image {image}: read {}: {source}", path.display())]
    Read { image: String, path: PathBuf, source: io::Error },
    #[error("pack image {image}: {source}")]
    Write { image: String, source: io::Error },
}

/// An entry in an image's file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A directory.
    Directory { mode: u32 },
    /// A file with the content of a file on this host.
    File { source: PathBuf, mode: u32 },
    /// A file with the given content.
    Bytes { content: Vec<u8>, mode: u32 },
    /// A symbolic link.
    Link { target: String },
}

/// An image with one layer.
#[derive(Clone, Debug, Default)]
pub struct Image {
    /// The name with its tag, and with a registry unless it is `docker.io/library`.
    pub name: String,
    /// The entrypoint's arguments.
    pub entrypoint: Vec<String>,
    /// The default arguments after the entrypoint.
    pub cmd: Vec<String>,
    /// The environment, as `NAME=value`.
    pub env: Vec<String>,
    /// The user; empty for root.
    pub user: String,
    /// The labels.
    pub labels: BTreeMap<String, String>,
    /// The entries by absolute path. Missing parent directories are added.
    pub entries: BTreeMap<String, Entry>,
}

impl Image {
    /// Returns an image of one static binary at path `at`, run by `entrypoint`.
    pub fn of_binary(name: &str, binary: &Path, at: &str, entrypoint: &[&str]) -> Self {
        let mut image = Self { name: name.to_owned(), ..Self::default() };
        image.entrypoint = entrypoint.iter().map(ToString::to_string).collect();
        image.env =
            vec!["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()];
        image.entries.insert(at.to_owned(), Entry::File { source: binary.to_owned(), mode: 0o755 });
        image.entries.insert("/tmp".to_owned(), Entry::Directory { mode: 0o1777 });
        image
    }

    fn write_layer(&self, out: &mut dyn Write) -> Result<(), Error> {
        let mut tar = tar::Writer::new(out);
        let mut written = std::collections::BTreeSet::new();
        for (path, entry) in &self.entries {
            let path = path.trim_start_matches('/');
            for (at, _) in path.match_indices('/') {
                let parent = &path[..at];
                if !self.entries.contains_key(&format!("/{parent}")) && written.insert(parent) {
                    let name = format!("{parent}/");
                    self.put(&mut tar, &name, 0o755, &tar::Kind::Directory, &mut io::empty())?;
                }
            }
            match entry {
                Entry::Directory { mode } => {
                    self.put(
                        &mut tar,
                        &format!("{path}/"),
                        *mode,
                        &tar::Kind::Directory,
                        &mut io::empty(),
                    )?;
                }
                Entry::Bytes { content, mode } => {
                    let kind = tar::Kind::File { size: content.len() as u64 };
                    self.put(&mut tar, path, *mode, &kind, &mut content.as_slice())?;
                }
                Entry::Link { target } => {
                    self.put(&mut tar, path, 0o777, &tar::Kind::Link { target }, &mut io::empty())?;
                }
                Entry::File { source, mode } => {
                    let unreadable = |e| Error::Read {
                        image: self.name.clone(),
                        path: source.clone(),
                        source: e,
                    };
                    let mut file = File::open(source).map_err(unreadable)?;
                    let size = file.metadata().map_err(unreadable)?.len();
                    self.put(&mut tar, path, *mode, &tar::Kind::File { size }, &mut file)?;
                }
            }
        }
        tar.finish().map_err(|e| self.failed(e)).map(drop)
    }

    fn put<W: Write>(
        &self,
        tar: &mut tar::Writer<W>,
        path: &str,
        mode: u32,
        kind: &tar::Kind<'_>,
        content: &mut dyn Read,
    ) -> Result<(), Error> {
        tar.entry(path, mode, kind, content).map_err(|e| self.failed(e))
    }

    fn failed(&self, source: io::Error) -> Error {
        Error::Write { image: self.name.clone(), source }
    }

    fn config(&self, diff_id: &str) -> Value {
        let mut config =
            json!({ "Env": self.env, "Entrypoint": self.entrypoint, "WorkingDir": "/" });
        if !self.cmd.is_empty() {
            config["Cmd"] = json!(self.cmd);
        }
        if !self.user.is_empty() {
            config["User"] = json!(self.user);
        }
        if !self.labels.is_empty() {
            config["Labels"] = json!(self.labels);
        }
        json!({
            "architecture": architecture(),
            "os": "linux",
            "config": config,
            "rootfs": { "type": "layers", "diff_ids": [diff_id] },
        })
    }

    /// Returns the name with the registry and tag that an import adds.
    pub fn full_name(&self) -> String {
        let (path, tag) = match self.name.rsplit_once(':') {
            Some((path, tag)) if !tag.contains('/') => (path, tag),
            _ => (self.name.as_str(), "latest"),
        };
        let registry = path.split_once('/').map(|(first, _)| first);
        match registry {
            Some(first) if first.contains(['.', ':']) || first == "localhost" => {
                format!("{path}:{tag}")
            }
            Some(_) => format!("docker.io/{path}:{tag}"),
            None => format!("docker.io/library/{path}:{tag}"),
        }
    }
}

/// Returns the CPU architecture's name in Go and OCI.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Writes images as one OCI image layout in a tar archive. Reads each layer twice, first for its digest, so that no
/// binary is held in memory.
pub fn write_archive(images: &[Image], out: impl Write) -> Result<(), Error> {
    let mut archive = Archive {
        tar: tar::Writer::new(BufWriter::new(out)),
        blobs: Default::default(),
        layers: Vec::new(),
    };
    let mut manifests = Vec::new();
    for image in images {
        manifests.push(archive.image(image)?);
    }
    let name = images.first().map(|i| i.name.clone()).unwrap_or_default();
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": manifests,
    });
    let failed = |source| Error::Write { image: name.clone(), source };
    archive.file("index.json", index.to_string().as_bytes()).map_err(failed)?;
    archive.file("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#).map_err(failed)?;
    archive.tar.finish().and_then(|mut out| out.flush()).map_err(failed)
}

struct Archive<'a, W: Write> {
    tar: tar::Writer<BufWriter<W>>,
    /// The digests in the archive. Images of the same binary share its layer.
    blobs: std::collections::BTreeSet<String>,
    /// The layers in the archive: entries, digest and size.
    layers: Vec<(&'a BTreeMap<String, Entry>, String, u64)>,
}

impl<'a, W: Write> Archive<'a, W> {
    /// Returns the digest and size of an image's layer, and writes the layer if it is new. Images with equal entries
    /// read their files once.
    fn layer_of(&mut self, image: &'a Image) -> Result<(String, u64), Error> {
        let written = self.layers.iter().find(|(entries, ..)| **entries == image.entries);
        if let Some((_, layer, size)) = written {
            return Ok((layer.clone(), *size));
        }
        let mut hashed = HashingWriter { hash: Context::new(&SHA256), size: 0 };
        image.write_layer(&mut hashed)?;
        let (layer, size) = (HEXLOWER.encode(hashed.hash.finish().as_ref()), hashed.size);
        if self.blobs.insert(layer.clone()) {
            self.layer(image, &layer, size)?;
        }
        self.layers.push((&image.entries, layer.clone(), size));
        Ok((layer, size))
    }

    fn image(&mut self, image: &'a Image) -> Result<Value, Error> {
        let (layer, size) = self.layer_of(image)?;
        let failed = |source| Error::Write { image: image.name.clone(), source };
        let config = image.config(&format!("sha256:{layer}")).to_string();
        let config =
            self.blob("application/vnd.oci.image.config.v1+json", &config).map_err(failed)?;
        let media_type = "application/vnd.oci.image.manifest.v1+json";
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": media_type,
            "config": config,
            "layers": [{
                "mediaType": "application/vnd.oci.image.layer.v1.tar",
                "digest": format!("sha256:{layer}"),
                "size": size,
            }],
        });
        let mut described = self.blob(media_type, &manifest.to_string()).map_err(failed)?;
        let name = image.full_name();
        let tag = name.rsplit(':').next().unwrap_or_default();
        described["annotations"] = json!({
            "io.containerd.image.name": name,
            "org.opencontainers.image.ref.name": tag,
        });
        described["platform"] = json!({ "architecture": architecture(), "os": "linux" });
        Ok(described)
    }

    /// Writes a layer whose size is known.
    fn layer(&mut self, image: &Image, digest: &str, size: u64) -> Result<(), Error> {
        let path = format!("blobs/sha256/{digest}");
        let failed = |source| Error::Write { image: image.name.clone(), source };
        let out = self.tar.begin(&path, 0o644, size).map_err(failed)?;
        let mut counted = CountingWriter { out, size: 0 };
        image.write_layer(&mut counted)?;
        let written = counted.size;
        self.tar.end(&path, size, written).map_err(failed)
    }

    fn blob(&mut self, media_type: &str, content: &str) -> io::Result<Value> {
        let digest = HEXLOWER.encode(digest(&SHA256, content.as_bytes()).as_ref());
        if self.blobs.insert(digest.clone()) {
            self.file(&format!("blobs/sha256/{digest}"), content.as_bytes())?;
        }
        Ok(
            json!({ "mediaType": media_type, "digest": format!("sha256:{digest}"), "size": content.len() }),
        )
    }

    fn file(&mut self, path: &str, mut content: &[u8]) -> io::Result<()> {
        let kind = tar::Kind::File { size: content.len() as u64 };
        self.tar.entry(path, 0o644, &kind, &mut content)
    }
}

/// A writer that hashes and counts bytes.
struct HashingWriter {
    hash: Context,
    size: u64,
}

impl Write for HashingWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.hash.update(bytes);
        self.size += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A writer that counts bytes and passes them on.
struct CountingWriter<W> {
    out: W,
    size: u64,
}

impl<W: Write> Write for CountingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.size += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Image {
        let mut image =
            Image { name: "app:1".into(), entrypoint: vec!["/bin/app".into()], ..Image::default() };
        let content = vec![7; 70_000];
        image.entries.insert("/bin/app".into(), Entry::Bytes { content, mode: 0o755 });
        image.entries.insert("/bin/link".into(), Entry::Link { target: "app".into() });
        image.entries.insert("/tmp".into(), Entry::Directory { mode: 0o1777 });
        image
    }

    #[test]
    fn completes_names_of_images() {
        for (given, full) in [
            ("app", "docker.io/library/app:latest"),
            ("app:1", "docker.io/library/app:1"),
            ("me/app:1", "docker.io/me/app:1"),
            ("registry.k8s.io/pause:3.10", "registry.k8s.io/pause:3.10"),
            ("localhost/app", "localhost/app:latest"),
            ("host:5000/app", "host:5000/app:latest"),
        ] {
            assert_eq!(Image { name: given.into(), ..Image::default() }.full_name(), full);
        }
    }

    #[test]
    fn packs_reproducibly_and_shares_layers() {
        let (mut one, mut again, mut two) = (Vec::new(), Vec::new(), Vec::new());
        write_archive(&[sample()], &mut one).unwrap();
        write_archive(&[sample()], &mut again).unwrap();
        assert_eq!(one, again);
        let other =
            Image { name: "other:1".into(), entrypoint: vec!["/bin/link".into()], ..sample() };
        write_archive(&[sample(), other], &mut two).unwrap();
        assert!(two.len() < one.len() + 10_000, "the second image adds no second layer");
    }

    #[test]
    fn system_tar_reads_archive_and_layer() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image.tar");
        write_archive(&[sample()], File::create(&path).unwrap()).unwrap();
        let untar = |file: &Path| {
            let out = std::process::Command::new("tar")
                .arg("-C")
                .arg(dir.path())
                .arg("-xf")
                .arg(file)
                .output();
            let out = out.unwrap();
            assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        };
        untar(&path);
        let read = |name: &str| std::fs::read(dir.path().join(name)).unwrap();
        let index: Value = serde_json::from_slice(&read("index.json")).unwrap();
        let blob = |digest: &Value| format!("blobs/{}", digest.as_str().unwrap().replace(':', "/"));
        let manifest: Value =
            serde_json::from_slice(&read(&blob(&index["manifests"][0]["digest"]))).unwrap();
        untar(&dir.path().join(blob(&manifest["layers"][0]["digest"])));
        assert_eq!(read("bin/app"), vec![7; 70_000]);
        assert_eq!(std::fs::read_link(dir.path().join("bin/link")).unwrap(), Path::new("app"));
    }

    #[test]
    fn error_names_missing_binary() {
        let image = Image::of_binary("app", Path::new("/no/such/file"), "/app", &["/app"]);
        let error = write_archive(&[image], io::sink()).unwrap_err();
        assert!(error.to_string().contains("/no/such/file"), "{error}");
    }
}
