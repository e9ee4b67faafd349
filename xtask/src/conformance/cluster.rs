//! The cluster on which all conformance tests run: three nodes of `windlass up`, in a network namespace of their own.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::{namespace, registry::Registry, suite::Target};
use crate::{
    error::{During, Result},
    file::create_directory,
    run::{output, pass, program},
};

const NAME: &str = "conformance";
/// The usual root of a cluster with this name. `up` imports the archives of its directory `images`.
const ROOT: &str = "/var/lib/windlass/conformance";
const NODES: &str = "3";
/// The time in seconds in which every node imports the images and becomes ready.
const TIMEOUT: &str = "900";

pub(super) struct Cluster {
    windlass: PathBuf,
    directory: PathBuf,
    kubeconfig: PathBuf,
    registry: Option<Registry>,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            eprintln!("    removing the cluster: {error}");
        }
    }
}

impl Cluster {
    /// Starts the cluster with an archive of images. If `peer` has a containerd, the nodes run that one.
    pub(super) fn start(
        windlass: &Path,
        peer: &Path,
        images: &Path,
        directory: &Path,
    ) -> Result<Self> {
        let mut this = Self {
            windlass: windlass.to_owned(),
            directory: directory.to_owned(),
            kubeconfig: directory.join("kubeconfig"),
            registry: None,
        };
        // An interrupted run may have left its cluster.
        this.remove()?;
        namespace::create()?;
        // A restart of the machine removes the namespace, but not the cluster's files.
        output(&mut this.windlass("down"))?;
        let archives = Path::new(ROOT).join("images");
        create_directory(&archives)?;
        let copy = archives.join("conformance.tar");
        fs::copy(images, &copy).during("copying the images to", copy.display())?;
        let registry = Registry::start(directory)?;
        let config = directory.join("cluster.yaml");
        Registry::configure(&config)?;
        let mut up = this.windlass("up");
        up.args(["--nodes", NODES, "--timeout", TIMEOUT, "--config"]).arg(&config);
        if has_containerd(peer) {
            up.env("PATH", path_with(peer)?);
        }
        pass(&mut up)?;
        registry.fill(&Path::new(ROOT).join("run/containerd/containerd.sock"))?;
        this.registry = Some(registry);
        Ok(this)
    }

    pub(super) fn target(&self) -> Target<'_> {
        Target {
            directory: &self.directory,
            kubeconfig: &self.kubeconfig,
            namespace: Some(namespace::NAME),
            nodes: None,
        }
    }

    fn windlass(&self, subcommand: &str) -> Command {
        let mut command = namespace::inside(&self.windlass);
        command.args([subcommand, "--name", NAME, "--root", ROOT, "--kubeconfig"]);
        command.arg(&self.kubeconfig);
        command
    }

    /// Removes the cluster and the namespace, if they exist.
    fn remove(&self) -> Result<()> {
        if !namespace::exists() {
            return Ok(());
        }
        output(&mut self.windlass("down"))?;
        namespace::delete()
    }
}

fn has_containerd(peer: &Path) -> bool {
    peer.join("containerd").is_file()
}

fn path_with(peer: &Path) -> Result<OsString> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let paths = std::iter::once(peer.to_owned()).chain(std::env::split_paths(&path));
    std::env::join_paths(paths).during("adding to PATH", peer.display())
}

/// Returns the output of `containerd --version` of the nodes' containerd.
pub(super) fn containerd_version(peer: &Path) -> Result<String> {
    let name = if has_containerd(peer) { peer.join("containerd") } else { "containerd".into() };
    output(&mut program(name, ["--version"]))
}
