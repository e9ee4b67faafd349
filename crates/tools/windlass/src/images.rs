//! The command `windlass images`: builds and imports container images offline.

use std::{
    collections::BTreeMap,
    fs::File,
    io::BufWriter,
    path::{Path, PathBuf},
};

use bootstrap::images;
use bootstrap_core::{
    constants::{DEFAULT_CRI_SOCKET, OWN_REPOSITORY},
    upgrade::image_tag,
};
use local::{Cluster, ClusterArgs};

use crate::failure::Failure;

#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Packs the control plane's images from this binary (all, or one by its component's name), an installed etcd
    /// (`etcd`), or any static binary, and imports them into the container runtime
    Build(Build),
    /// Imports an archive into the container runtime of every node of the cluster of `up` or, without one, into the
    /// machine's own
    Import(Import),
}

#[derive(clap::Args)]
pub(crate) struct Build {
    /// A component such as kube-proxy or etcd, or any image's name with a tag; every component if none is given
    image: Option<String>,
    /// The binary; this one, or the etcd in PATH, if none is given
    #[arg(long)]
    binary: Option<PathBuf>,
    /// The path of the binary in the image
    #[arg(long, default_value = "/app")]
    path: String,
    /// Further names of the binary, as links beside it (busybox's applets)
    #[arg(long = "link", value_delimiter = ',')]
    links: Vec<String>,
    /// The entrypoint of the image [default: the binary]
    #[arg(last = true)]
    entrypoint: Vec<String>,
    /// Write the archive here instead of importing it
    #[arg(long, short)]
    output: Option<PathBuf>,
    /// The repository of components' images
    #[arg(long, default_value = OWN_REPOSITORY)]
    image_repository: String,
    #[command(flatten)]
    target: Target,
}

/// The container runtime that receives the images.
#[derive(clap::Args)]
struct Target {
    /// The runtime's socket. Without it, components' images go to the machine's own containerd, and others to those of
    /// the cluster of `up`, if there is one
    #[arg(long)]
    cri_socket: Option<String>,
    #[command(flatten)]
    cluster: ClusterArgs,
}

#[derive(clap::Args)]
pub(crate) struct Import {
    archive: PathBuf,
    #[command(flatten)]
    target: Target,
}

pub(crate) fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Build(build) => match build.image.as_deref() {
            None => components(&build, None),
            Some(name) if images::is_component(name) => components(&build, Some(name)),
            Some(name) => make(&build, name),
        },
        Command::Import(import) => {
            let what = format!("the content of {}", import.archive.display());
            everywhere(&import.target, &import.archive, &what)
        }
    }
}

/// A container runtime that receives images.
struct Runtime {
    /// The name of its node, or what is known of it.
    name: String,
    socket: PathBuf,
}

impl Runtime {
    fn at(socket: &Path) -> Self {
        Self { name: format!("the runtime at {}", socket.display()), socket: socket.to_owned() }
    }

    fn of(node: &Cluster) -> Self {
        let name = format!("node {}", node.settings.node_name);
        Self { name, socket: node.containerd_socket() }
    }
}

/// Imports an archive into the named container runtime, or into those of all running nodes, and prints where it is.
fn everywhere(target: &Target, archive: &Path, what: &str) -> Result<(), Failure> {
    for runtime in runtimes(target)? {
        oci::import(&runtime.socket, archive)?;
        eprintln!("{what} is on {}", runtime.name);
    }
    Ok(())
}

fn runtimes(target: &Target) -> Result<Vec<Runtime>, Failure> {
    if let Some(endpoint) = &target.cri_socket {
        return Ok(vec![Runtime::at(bootstrap::host::socket_path(endpoint))]);
    }
    let own = bootstrap::host::socket_path(DEFAULT_CRI_SOCKET);
    let cluster = match target.cluster.load() {
        // A machine of `init` or `join`, or one that is going to be.
        Err(local::Error::NoCluster(_)) if target.cluster.is_default() && own.exists() => {
            return Ok(vec![Runtime::at(own)]);
        }
        loaded => loaded?,
    };
    let members = cluster.members()?;
    let running = members.iter().map(Runtime::of).filter(|runtime| runtime.socket.exists());
    Ok(std::iter::once(Runtime::of(&cluster)).chain(running).collect())
}

/// Packs components under the names that `init` writes into manifests.
fn components(build: &Build, only: Option<&str>) -> Result<(), Failure> {
    let host = bootstrap::host::Host::default();
    let mut sources = images::Sources::of(&host)?;
    match (&build.binary, only) {
        (Some(path), Some("etcd")) => sources.etcd = Some(path.clone()),
        (Some(path), _) => sources.binary.clone_from(path),
        (None, _) => {}
    }
    let names = images::names(&build.image_repository, &sources, only)?;
    if let Some(archive) = &build.output {
        images::write(&sources, &names, archive)?;
    } else {
        for endpoint in component_endpoints(&build.target)? {
            images::build(&sources, &names, &endpoint)?;
        }
    }
    names.iter().for_each(|name| println!("{name}"));
    Ok(())
}

/// Returns the endpoints for component images: by default, the machine's own container runtime.
fn component_endpoints(target: &Target) -> Result<Vec<String>, Failure> {
    if target.cri_socket.is_none() && target.cluster.root.is_none() {
        return Ok(vec![DEFAULT_CRI_SOCKET.to_owned()]);
    }
    Ok(runtimes(target)?.iter().map(|runtime| runtime.socket.display().to_string()).collect())
}

fn make(build: &Build, name: &str) -> Result<(), Failure> {
    let binary = match &build.binary {
        Some(path) => path.clone(),
        None => {
            let own = std::env::current_exe()?;
            oci::require_static(&own)?;
            own
        }
    };
    let entrypoint: Vec<&str> = match build.entrypoint.as_slice() {
        [] => vec![&build.path],
        words => words.iter().map(String::as_str).collect(),
    };
    let mut image = oci::Image::of_binary(name, &binary, &build.path, &entrypoint);
    // A bare name is relative to the binary's directory; an absolute path stays.
    let beside = Path::new(&build.path).with_file_name("");
    let links = build.links.iter().map(|link| {
        let path = beside.join(link).display().to_string();
        (path, oci::Entry::Link { target: build.path.clone() })
    });
    image.entries.extend(links.collect::<BTreeMap<_, _>>());
    if let Some(path) = &build.output {
        return Ok(oci::write_archive(&[image], BufWriter::new(File::create(path)?))?);
    }
    let archive = tempfile::Builder::new().prefix("windlass-image-").suffix(".tar").tempfile()?;
    oci::write_archive(&[image], BufWriter::new(archive.as_file()))?;
    everywhere(&build.target, archive.path(), name)?;
    if is_always_pulled(name) {
        eprintln!(
            "Pods with the image {name} pull it from a registry at each start, because of its tag; use another tag, or \
             set imagePullPolicy: Never"
        );
    }
    Ok(())
}

/// Reports whether the default policy of Pods pulls an image at each start: its tag is `latest`, or it has none.
fn is_always_pulled(image: &str) -> bool {
    match image_tag(image) {
        "" => !image.contains('@'),
        tag => tag == "latest",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latest_images_are_always_pulled() {
        for image in ["app", "app:latest", "registry:5000/app", "app:latest@sha256:ab"] {
            assert!(is_always_pulled(image), "{image}");
        }
        for image in ["app:1", "registry:5000/app:1", "app@sha256:ab"] {
            assert!(!is_always_pulled(image), "{image}");
        }
    }
}
