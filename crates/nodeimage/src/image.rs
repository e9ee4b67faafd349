//! `windlass metal image`.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use flate2::{Compression, GzBuilder, write::GzEncoder};
use sha2::{Digest, Sha256};

use crate::{
    contents,
    cpio::{self, Content, Entries, Entry},
    initrd, tree,
};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where vmlinuz, initrd.img and rootfs.img are written
    #[arg(long, short)]
    output: PathBuf,
    /// A root that is there already, instead of one from Debian's packages
    #[arg(long, value_name = "DIR")]
    tree: Option<PathBuf>,
    /// The static binary of Windlass [default: this one]
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Debian's release
    #[arg(long, default_value = "bookworm")]
    suite: String,
    /// Where packages come from [default: the machine's own sources]
    #[arg(long)]
    mirror: Option<String>,
    /// Archives of container images to carry along; the pause image always is
    #[arg(long, value_name = "FILE")]
    image: Vec<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{operation} {path}: {source}")]
    File { operation: &'static str, path: String, source: io::Error },
    #[error("the tree has no {0}; make it of the packages that this command would install")]
    Missing(String),
    #[error("{0}; install mmdebstrap, or give a tree with --tree")]
    Packages(#[from] sys::ProgramError),
    #[error("packing the pause image: {0}")]
    Pause(io::Error),
}

impl Error {
    pub(crate) fn file<P: AsRef<Path>>(
        operation: &'static str,
        path: P,
    ) -> impl FnOnce(io::Error) -> Self + use<P> {
        let path = path.as_ref().display().to_string();
        move |source| Self::File { operation, path, source }
    }
}

const PAUSE: &str = "registry.k8s.io/pause:3.10.2";
const PARTS: &str = "usr/lib/windlass/boot";

/// Makes the image.
pub fn build(args: &Args) -> Result<(), Error> {
    let output = &args.output;
    fs::create_dir_all(output).map_err(Error::file("making", output))?;
    let binary = match &args.binary {
        Some(binary) => binary.clone(),
        None => std::env::current_exe().map_err(Error::file("finding", "this binary"))?,
    };
    let root = match &args.tree {
        Some(tree) => tree.clone(),
        None => {
            let into = output.join("tree");
            tracing::info!(tree = %into.display(), "installing Debian's packages");
            tree::make(&args.suite, args.mirror.as_deref(), &into)?;
            into
        }
    };
    let version = kernel_version(&root)?;
    tracing::info!(version, "packing the initrd");
    let kernel = root.join(format!("boot/vmlinuz-{version}"));
    let vmlinuz = output.join("vmlinuz");
    fs::copy(&kernel, &vmlinuz).map_err(Error::file("copying", &kernel))?;
    let early = output.join("initrd.img");
    pack(&initrd::entries(&root, &version, &binary)?, &early)?;
    tracing::info!("packing the root");
    let mut entries = tree::read(&root)?;
    contents::add(&mut entries);
    boot_parts(&root, &mut entries, &vmlinuz, &early)?;
    let pause = output.join("pause.tar");
    pause_image(&binary, &pause)?;
    for (number, archive) in std::iter::once(&pause).chain(&args.image).enumerate() {
        entries.insert(format!("usr/lib/windlass/images/{number}.tar"), file(archive, 0o644)?);
    }
    cpio::complete(&mut entries);
    let inner = output.join("rootfs.cpio.gz");
    pack(&entries, &inner)?;
    // The kernel unpacks the outer archive, and the first process the inner one, where it is wanted.
    let rootfs = output.join("rootfs.img");
    let outer = Entries::from([("rootfs.cpio.gz".to_owned(), file(&inner, 0o644)?)]);
    let write = || {
        let mut out = BufWriter::new(File::create(&rootfs)?);
        cpio::write(&outer, &mut out)?;
        out.flush()
    };
    write().map_err(Error::file("writing", &rootfs))?;
    for left in [&inner, &pause] {
        fs::remove_file(left).map_err(Error::file("removing", left))?;
    }
    sums(output, &[vmlinuz, early, rootfs])
}

/// The newest kernel that the tree has modules for.
fn kernel_version(root: &Path) -> Result<String, Error> {
    let directory = root.join("usr/lib/modules");
    let found = fs::read_dir(&directory).map_err(Error::file("listing", &directory))?;
    let mut names: Vec<String> =
        found.flatten().map(|f| f.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names.pop().ok_or_else(|| Error::Missing("kernel".into()))
}

fn file(path: &Path, mode: u32) -> Result<Entry, Error> {
    let size = fs::metadata(path).map_err(Error::file("reading", path))?.len();
    Ok(Entry::new(mode, Content::File { path: path.to_owned(), size }))
}

/// What an installed disk boots from.
fn boot_parts(
    root: &Path,
    entries: &mut Entries,
    vmlinuz: &Path,
    early: &Path,
) -> Result<(), Error> {
    let parts = [
        ("vmlinuz", vmlinuz.to_owned()),
        ("initrd.img", early.to_owned()),
        ("gptmbr.bin", root.join("usr/lib/EXTLINUX/gptmbr.bin")),
        ("systemd-bootx64.efi", root.join("usr/lib/systemd/boot/efi/systemd-bootx64.efi")),
    ];
    for (name, path) in parts {
        entries.insert(format!("{PARTS}/{name}"), file(&path, 0o644)?);
    }
    Ok(())
}

/// The image of every Pod's first process, which is this binary too.
fn pause_image(binary: &Path, into: &Path) -> Result<(), Error> {
    let image = oci::Image::of_binary(PAUSE, binary, "/windlass", &["/windlass", "pause"]);
    let out = BufWriter::new(File::create(into).map_err(Error::file("writing", into))?);
    oci::write_archive(&[image], out)
        .map(drop)
        .map_err(|error| Error::Pause(io::Error::other(error.to_string())))
}

fn pack(entries: &Entries, into: &Path) -> Result<(), Error> {
    let write = || {
        let out = BufWriter::new(File::create(into)?);
        // No time and no name of a file in the header.
        let mut out: GzEncoder<_> =
            GzBuilder::new().mtime(0).operating_system(255).write(out, Compression::new(6));
        cpio::write(entries, &mut out)?;
        out.finish()?.flush()
    };
    write().map_err(Error::file("writing", into))
}

/// Says what came out, in the form of sha256sum.
fn sums(output: &Path, files: &[PathBuf]) -> Result<(), Error> {
    let mut text = String::new();
    for path in files {
        let bytes = fs::read(path).map_err(Error::file("reading", path))?;
        let sum: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        println!("{sum}  {name}  {} MiB", bytes.len() >> 20);
        text.push_str(&format!("{sum}  {name}\n"));
    }
    let path = output.join("SHA256SUMS");
    fs::write(&path, text).map_err(Error::file("writing", &path))
}

#[cfg(test)]
mod tests;
