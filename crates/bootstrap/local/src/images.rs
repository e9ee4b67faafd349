//! The images that a cluster needs: packed from its binary, and imported into every node's container runtime.

pub(crate) mod archives;

use std::{
    fs, io,
    os::unix::fs::{MetadataExt, symlink},
    path::{Path, PathBuf},
};

use futures_util::future::try_join_all;
use nix::{sys::signal, unistd::Pid};
use tokio::time::Instant;

use crate::{
    cluster::Cluster,
    containerd::{PAUSE_IMAGE, WINDLASS_IMAGE},
    error::Error,
    process::{Role, notify_supervisor},
    replicated,
    wait::{check_up, wait},
};

/// The file in containerd's root that names the build of the binary whose images were imported.
const MARKER: &str = "windlass-images";
/// The directories of containerd whose files never change after they are written.
const WRITTEN_ONCE: [&str; 2] =
    ["io.containerd.content.v1.content/blobs", "io.containerd.snapshotter.v1.overlayfs/snapshots"];

/// Packs this binary as the images that the cluster needs, and imports them into every node's containerd. A containerd
/// that has never run gets a copy of the first node's files instead.
pub(crate) async fn import(
    cluster: &Cluster,
    members: &[Cluster],
    deadline: Instant,
) -> Result<(), Error> {
    let version = version_of(&cluster.binary())?;
    let archive = cluster.run().join("images.tar");
    // An earlier `up` may have been killed while containerd was stopped.
    if let Some(pid) = Role::Containerd.running(cluster) {
        let _ = signal::kill(Pid::from_raw(pid), signal::Signal::SIGCONT);
    }
    let running = || members.iter().filter(|node| !node.stopped().exists());
    if std::iter::once(cluster).chain(running()).any(|node| !has_images(node, &version)) {
        let archive = archive.clone();
        let images = images(cluster)?;
        blocking("packing images", move || pack(&images, &archive)).await?;
    }
    // A runtime without images runs nothing yet.
    let is_new = !marker(cluster).exists();
    import_into(cluster, &version, &archive, deadline).await?;
    remove(&cluster.images_missing())?;
    if is_new {
        for node in members.iter().filter(|node| !node.containerd_root().exists()) {
            copy(cluster, node).await?;
        }
    }
    for node in members {
        let root = node.containerd_root();
        fs::create_dir_all(&root).map_err(Error::file("creating", &root))?;
    }
    notify_supervisor(cluster);
    try_join_all(running().map(|node| import_into(node, &version, &archive, deadline))).await?;
    remove(&archive)
}

fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::file("removing", path)(error))
        }
        _ => Ok(()),
    }
}

/// Delays the agent until the images are imported, if a kept store may contain Pods. The kubelet would start these Pods
/// without their images: it would pull upstream's, or fail and retry with growing delays.
pub(crate) fn delay_agent(cluster: &Cluster) -> Result<(), Error> {
    let store = cluster.store();
    let is_new = fs::read_dir(&store).map_err(Error::file("reading", &store))?.next().is_none();
    if is_new || marker(cluster).exists() {
        return remove(&cluster.images_missing());
    }
    let path = cluster.images_missing();
    fs::write(&path, "").map_err(Error::file("writing", &path))
}

/// Imports the images into one runtime, unless it already has them, and the user's archives.
async fn import_into(
    node: &Cluster,
    version: &str,
    archive: &Path,
    deadline: Instant,
) -> Result<(), Error> {
    let socket = node.containerd_socket();
    let up = wait(deadline, async || tokio::net::UnixStream::connect(&socket).await.is_ok());
    check_up(node, up.await, "containerd", Role::Containerd)?;
    if !has_images(node, version) {
        let (marker, archive, version) = (marker(node), archive.to_owned(), version.to_owned());
        blocking("importing images", move || {
            oci::import(&socket, &archive)?;
            Ok(pki::write_file(&marker, version.as_bytes(), 0o644)?)
        })
        .await?;
    }
    archives::import(node).await
}

fn marker(node: &Cluster) -> PathBuf {
    node.containerd_root().join(MARKER)
}

fn has_images(node: &Cluster, version: &str) -> bool {
    fs::read_to_string(marker(node)).is_ok_and(|imported| imported == version)
}

/// Returns the images that any node of the cluster may need. Images of this binary share one layer, which is imported
/// and unpacked once.
fn images(cluster: &Cluster) -> Result<Vec<oci::Image>, Error> {
    if cluster.is_replicated() {
        return replicated::images(cluster);
    }
    let (binary, dns) =
        (cluster.binary(), bootstrap_core::images::coredns(&cluster.init().cluster));
    Ok(vec![
        oci::Image::of_binary(PAUSE_IMAGE, &binary, "/windlass", &["/windlass", "pause"]),
        oci::Image::of_binary(WINDLASS_IMAGE, &binary, "/windlass", &["/windlass"]),
        oci::Image::of_binary(&dns, &binary, "/windlass", &["/windlass", "coredns"]),
    ])
}

fn pack(images: &[oci::Image], archive: &Path) -> Result<(), Error> {
    // The rename makes the complete file appear at once.
    let beside = archive.with_extension("new");
    let file = fs::File::create(&beside).map_err(Error::file("creating", &beside))?;
    oci::write_archive(images, io::BufWriter::new(file))?;
    fs::rename(&beside, archive).map_err(Error::file("putting in place", archive))
}

async fn blocking(
    operation: &'static str,
    work: impl FnOnce() -> Result<(), Error> + Send + 'static,
) -> Result<(), Error> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|source| Error::Task { operation, source })?
}

/// Copies one runtime's images to a runtime that has never run. Layers are hard links, because they never change. The
/// databases are copied while the source runtime is stopped, so a copy is as consistent as after a crash.
async fn copy(from: &Cluster, to: &Cluster) -> Result<(), Error> {
    let Some(pid) = Role::Containerd.running(from) else { return Ok(()) };
    let (from, to) = (from.containerd_root(), to.containerd_root());
    blocking("copying images", move || {
        let beside = to.with_extension("new");
        let _ = fs::remove_dir_all(&beside);
        let pid = Pid::from_raw(pid);
        let _ = signal::kill(pid, signal::Signal::SIGSTOP);
        let copied = copy_tree(&from, &beside, &|path| {
            let path = path.strip_prefix(&from).unwrap_or(path);
            WRITTEN_ONCE.iter().any(|directory| path.starts_with(directory))
        });
        let _ = signal::kill(pid, signal::Signal::SIGCONT);
        copied.map_err(Error::file("copying the images to", &beside))?;
        fs::rename(&beside, &to).map_err(Error::file("putting in place", &to))
    })
    .await
}

/// Copies a tree with its modes and owners. Files for which `shared` returns `true` become hard links.
fn copy_tree(from: &Path, to: &Path, shared: &dyn Fn(&Path) -> bool) -> io::Result<()> {
    let meta = fs::symlink_metadata(from)?;
    let kind = meta.file_type();
    if kind.is_symlink() {
        return symlink(fs::read_link(from)?, to);
    }
    if kind.is_file() {
        return if shared(from) { fs::hard_link(from, to) } else { fs::copy(from, to).map(drop) };
    }
    if !kind.is_dir() {
        return Ok(());
    }
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        copy_tree(&entry.path(), &to.join(entry.file_name()), shared)?;
    }
    std::os::unix::fs::chown(to, Some(meta.uid()), Some(meta.gid()))?;
    fs::set_permissions(to, meta.permissions())
}

/// Returns an identifier of a build of the binary, without reading the whole file.
fn version_of(binary: &Path) -> Result<String, Error> {
    Ok(archives::stamp(&fs::metadata(binary).map_err(Error::file("reading", binary))?))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn delays_agent_while_images_of_stored_pods_are_missing() {
        let dir = tempfile::tempdir().unwrap();
        let cluster = crate::cluster::example(dir.path());
        let layout = cluster.layout();
        for directory in
            [cluster.run(), cluster.store(), cluster.containerd_root(), layout.kubelet.clone()]
        {
            fs::create_dir_all(directory).unwrap();
        }
        fs::create_dir_all(&layout.kubernetes).unwrap();
        fs::write(layout.kubelet_config(), "").unwrap();
        fs::write(layout.kubeconfig("kubelet.conf"), "").unwrap();
        let is_wanted = || {
            delay_agent(&cluster).unwrap();
            Role::Agent.is_wanted(&cluster)
        };
        assert!(is_wanted(), "a new store has no Pods");
        fs::write(cluster.store().join("log"), "").unwrap();
        assert!(!is_wanted() && Role::Containerd.is_wanted(&cluster));
        fs::write(marker(&cluster), "an earlier build").unwrap();
        assert!(is_wanted(), "an earlier build's images are there");
    }

    #[test]
    fn links_layers_and_copies_other_files() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("a"), dir.path().join("b"));
        fs::create_dir_all(from.join("layers/one")).unwrap();
        fs::write(from.join("layers/one/file"), "layer").unwrap();
        fs::write(from.join("meta.db"), "database").unwrap();
        symlink("file", from.join("layers/one/link")).unwrap();
        fs::set_permissions(from.join("layers"), fs::Permissions::from_mode(0o711)).unwrap();
        copy_tree(&from, &to, &|path| path.starts_with(from.join("layers"))).unwrap();
        let inode = |path: &Path| fs::metadata(path).unwrap().ino();
        assert_eq!(inode(&from.join("layers/one/file")), inode(&to.join("layers/one/file")));
        assert_ne!(inode(&from.join("meta.db")), inode(&to.join("meta.db")));
        assert_eq!(fs::read_to_string(to.join("meta.db")).unwrap(), "database");
        assert_eq!(fs::read_link(to.join("layers/one/link")).unwrap(), Path::new("file"));
        assert_eq!(fs::metadata(to.join("layers")).unwrap().permissions().mode() & 0o777, 0o711);
    }
}
