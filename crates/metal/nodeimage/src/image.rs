//! `windlass metal image`: builds the node image.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Seek, Write},
    path::{Path, PathBuf},
};

use data_encoding::HEXLOWER;
use flate2::{Compression, GzBuilder, write::GzEncoder};
use sha2::{Digest, Sha256};

use crate::{
    contents,
    cpio::{self, Content, Entries, Entry},
    error::Error,
    initrd, tree,
};

/// The flags of `windlass metal image`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The directory for vmlinuz, initrd.img and rootfs.img
    #[arg(long, short)]
    output: PathBuf,
    /// An existing root instead of one from Debian's packages
    #[arg(long, value_name = "DIR")]
    tree: Option<PathBuf>,
    /// The static binary of Windlass [default: this one]
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Debian's release
    #[arg(long, default_value = "bookworm")]
    suite: String,
    /// The mirror of the packages [default: this machine's sources]
    #[arg(long)]
    mirror: Option<String>,
    /// Archives of container images to include; those of Windlass itself are built on the machine
    #[arg(long, value_name = "FILE")]
    image: Vec<PathBuf>,
    /// Certificates of authorities to trust besides Debian's, such as that of the boot server
    #[arg(long, value_name = "FILE")]
    ca: Vec<PathBuf>,
}

/// The authorities that programs trust.
const TRUST: &str = "etc/ssl/certs/ca-certificates.crt";
const PARTS: &str = "usr/lib/windlass/boot";

/// Builds the image.
pub fn build(args: &Args) -> Result<(), Error> {
    let output = &args.output;
    fs::create_dir_all(output).map_err(sys::Error::at("making", output))?;
    let binary = match &args.binary {
        Some(binary) => binary.clone(),
        None => std::env::current_exe().map_err(sys::Error::at("finding", "this binary"))?,
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
    fs::copy(&kernel, &vmlinuz).map_err(sys::Error::at("copying", &kernel))?;
    let early = output.join("initrd.img");
    let trust = trust(&root, &args.ca)?;
    let mut entries = initrd::entries(&root, &version, &binary)?;
    entries.insert(TRUST.to_owned(), trust.clone());
    pack(&entries, &early)?;
    tracing::info!("packing the root");
    let mut entries = tree::read(&root)?;
    contents::add(&mut entries);
    entries.insert(TRUST.to_owned(), trust);
    boot_parts(&root, &mut entries, &vmlinuz, &early)?;
    for (number, archive) in args.image.iter().enumerate() {
        entries.insert(format!("usr/lib/windlass/images/{number}.tar"), file(archive, 0o644)?);
    }
    cpio::complete(&mut entries);
    let inner = output.join("rootfs.cpio.gz");
    pack(&entries, &inner)?;
    // The kernel unpacks the outer archive, and the init process unpacks the inner one into memory or onto a disk.
    let rootfs = output.join("rootfs.img");
    let outer = Entries::from([("rootfs.cpio.gz".to_owned(), file(&inner, 0o644)?)]);
    let write = || {
        let mut out = BufWriter::new(File::create(&rootfs)?);
        cpio::write(&outer, &mut out)?;
        out.flush()
    };
    write().map_err(sys::Error::at("writing", &rootfs))?;
    fs::remove_file(&inner).map_err(sys::Error::at("removing", &inner))?;
    write_checksums(output, &[vmlinuz, early, rootfs])
}

/// Returns the newest kernel version for which the tree has modules.
fn kernel_version(root: &Path) -> Result<String, Error> {
    let directory = root.join("usr/lib/modules");
    let entries = fs::read_dir(&directory).map_err(sys::Error::at("listing", &directory))?;
    let mut names: Vec<String> =
        entries.flatten().map(|f| f.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names.pop().ok_or_else(|| Error::Missing("kernel".into()))
}

fn file(path: &Path, mode: u32) -> Result<Entry, Error> {
    let size = fs::metadata(path).map_err(sys::Error::at("reading", path))?.len();
    Ok(Entry::new(mode, Content::File { path: path.to_owned(), size }))
}

/// Adds the files with which an installed disk boots.
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

/// Returns Debian's authorities and the given ones.
fn trust(root: &Path, more: &[PathBuf]) -> Result<Entry, Error> {
    let path = root.join(TRUST);
    let mut text = fs::read(&path).map_err(sys::Error::at("reading", &path))?;
    for path in more {
        let own = fs::read(path).map_err(sys::Error::at("reading", path))?;
        let begins = b"-----BEGIN CERTIFICATE-----";
        if !own.windows(begins.len()).any(|part| part == begins) {
            return Err(Error::Authority(path.display().to_string()));
        }
        text.push(b'\n');
        text.extend(own);
    }
    Ok(Entry::new(0o644, Content::Bytes(text)))
}

fn pack(entries: &Entries, into: &Path) -> Result<(), Error> {
    let write = || {
        let out = BufWriter::new(File::create(into)?);
        // The header contains no time and no file name.
        let mut out: GzEncoder<_> =
            GzBuilder::new().mtime(0).operating_system(255).write(out, Compression::new(6));
        cpio::write(entries, &mut out)?;
        let mut file = out.finish()?.into_inner().map_err(io::IntoInnerError::into_error)?;
        // The kernel finds a second archive only at a multiple of four bytes, and skips zeros.
        let length = file.stream_position()?;
        file.set_len(length.next_multiple_of(4))
    };
    Ok(write().map_err(sys::Error::at("writing", into))?)
}

/// Prints the checksums and writes SHA256SUMS.
fn write_checksums(output: &Path, files: &[PathBuf]) -> Result<(), Error> {
    let mut text = String::new();
    for path in files {
        let bytes = fs::read(path).map_err(sys::Error::at("reading", path))?;
        let sum = HEXLOWER.encode(&Sha256::digest(&bytes));
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        println!("{sum}  {name}  {} MiB", bytes.len() >> 20);
        text.push_str(&format!("{sum}  {name}\n"));
    }
    let path = output.join("SHA256SUMS");
    Ok(fs::write(&path, text).map_err(sys::Error::at("writing", &path))?)
}

#[cfg(test)]
mod tests;
