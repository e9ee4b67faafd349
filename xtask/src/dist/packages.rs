//! The Debian packages of a release: the binary, and the kubelet's service as in kubeadm's packages.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use super::release::Release;
use crate::{
    error::{During, Result},
    file::{create_directory, make_executable, write},
    run::{output, program},
};

const MAINTAINER: &str = "The Windlass authors <windlass@localhost>";
const RUNTIME: &str = "containerd | containerd.io | cri-o, runc | crun | containerd.io | cri-o, nftables, iproute2, \
    mount, e2fsprogs";

/// Enables the kubelet as kubeadm's packages do. It restarts until `init` or `join` has configured it.
const ENABLE: &str = "#!/bin/sh
set -e
if [ \"$1\" = configure ] && [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    systemctl enable --now kubelet.service
fi
";
const DISABLE: &str = "#!/bin/sh
set -e
if [ \"$1\" = remove ] && [ -d /run/systemd/system ]; then
    systemctl disable --now kubelet.service
fi
";

/// A package that is being put together.
struct Package<'a> {
    name: &'static str,
    /// The files, as they will stand below `/`.
    root: PathBuf,
    release: &'a Release<'a>,
}

/// Builds the packages `windlass` and `windlass-kubelet`.
pub(super) fn build(tree: &Path, binary: &Path, out: &Path, release: &Release<'_>) -> Result<()> {
    let main = Package::new("windlass", out, release)?;
    main.file("usr/bin/windlass", |path| fs::copy(binary, path).map(drop))?;
    make_executable(&main.root.join("usr/bin/windlass"))?;
    add_manual(binary, &main.root.join("usr/share/man/man1"))?;
    main.pack(
        out,
        &format!("Recommends: {RUNTIME}"),
        "Kubernetes and its bootstrap in one binary",
    )?;

    let node = Package::new("windlass-kubelet", out, release)?;
    for name in ["kubelet", "kubeadm"] {
        node.file(&format!("usr/bin/{name}"), |path| symlink("windlass", path))?;
    }
    let units = tree.join("crates/bootstrap/bootstrap-core/units");
    let service = "usr/lib/systemd/system/kubelet.service";
    let drop_in = format!("{service}.d/10-kubeadm.conf");
    for (name, path) in [("kubelet.service", service), ("10-kubeadm.conf", &drop_in)] {
        node.file(path, |path| fs::copy(units.join(name), path).map(drop))?;
    }
    for (name, text) in [("postinst", ENABLE), ("prerm", DISABLE)] {
        let path = node.root.join("DEBIAN").join(name);
        write(&path, text)?;
        make_executable(&path)?;
    }
    let relations = format!(
        "Depends: windlass (= {}), {RUNTIME}\nProvides: kubelet, kubeadm\nConflicts: kubelet, kubeadm\nReplaces: \
         kubelet, kubeadm",
        release.version
    );
    node.pack(out, &relations, "Windlass' kubelet as a systemd service, and the command kubeadm")
}

/// Adds the manual pages, compressed without a time, so that a second build gives the same bytes.
fn add_manual(binary: &Path, directory: &Path) -> Result<()> {
    output(program(binary, ["internal", "man-pages"]).arg(directory))?;
    let pages = fs::read_dir(directory).during("listing", directory.display())?;
    let mut pages: Vec<_> = pages.flatten().map(|entry| entry.path()).collect();
    pages.sort();
    output(program("gzip", ["-9n"]).args(pages)).map(drop)
}

impl<'a> Package<'a> {
    fn new(name: &'static str, out: &Path, release: &'a Release<'a>) -> Result<Self> {
        let root = out.join(format!(".{name}"));
        create_directory(&root.join("DEBIAN"))?;
        Ok(Self { name, root, release })
    }

    /// Adds a file that `create` makes at a path.
    fn file(&self, path: &str, create: impl FnOnce(&Path) -> std::io::Result<()>) -> Result<()> {
        let path = self.root.join(path);
        create_directory(path.parent().unwrap_or(&self.root))?;
        create(&path).during("creating", path.display())
    }

    /// Writes the package into `out` and removes its files.
    fn pack(self, out: &Path, relations: &str, description: &str) -> Result<()> {
        let Release { version, architecture, commit } = self.release;
        let control = format!(
            "Package: {}\nVersion: {version}\nArchitecture: {architecture}\nMaintainer: {MAINTAINER}\nSection: \
             admin\nPriority: optional\n{relations}\nDescription: {description}\n",
            self.name
        );
        write(&self.root.join("DEBIAN/control"), control)?;
        set_modes(&self.root)?;
        let path = out.join(format!("{}_{version}_{architecture}.deb", self.name));
        let mut dpkg = program("dpkg-deb", ["--root-owner-group", "-Zxz", "--build"]);
        // The time of the files is that of the commit.
        output(dpkg.arg(&self.root).arg(path).env("SOURCE_DATE_EPOCH", &commit.epoch))?;
        fs::remove_dir_all(&self.root).during("removing", self.root.display())
    }
}

/// Sets the modes of a package's files, which must depend neither on those of the source tree nor on the umask.
fn set_modes(root: &Path) -> Result<()> {
    output(program("chmod", ["--recursive", "u=rwX,go=rX"]).arg(root)).map(drop)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn modes_of_files_do_not_depend_on_the_source_tree() {
        let root = std::env::temp_dir().join(format!("xtask-modes-{}", std::process::id()));
        create_directory(&root.join("bin")).unwrap();
        for (name, before, after) in [("bin/run", 0o700, 0o755), ("unit", 0o664, 0o644)] {
            let path = root.join(name);
            write(&path, "").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(before)).unwrap();
            set_modes(&root).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, after, "{name}");
        }
        fs::remove_dir_all(&root).unwrap();
    }
}
