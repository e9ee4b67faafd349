//! Unpacks the root in the image: a cpio archive in the kernel's format ("newc"), compressed by gzip.

use std::{
    fs::{self, File},
    io::{self, BufReader, Read},
    os::unix::fs::symlink,
    path::{Component, Path},
};

use flate2::bufread::MultiGzDecoder;
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, Uid};

use crate::error::Error;

const HEADER: usize = 110;
const LONGEST_NAME: usize = 4096;
const TRAILER: &str = "TRAILER!!!";

struct Header {
    mode: u32,
    uid: u32,
    gid: u32,
    size: u64,
    device: (u32, u32),
    name: usize,
}

/// Unpacks the archive into a directory and returns the number of entries.
pub(crate) fn unpack(archive: &Path, into: &Path) -> Result<usize, Error> {
    let failed = |operation| Error::file(operation, archive);
    let file = BufReader::with_capacity(1 << 20, File::open(archive).map_err(failed("opening"))?);
    extract(MultiGzDecoder::new(file), into).map_err(failed("unpacking"))
}

fn extract(mut archive: impl Read, into: &Path) -> io::Result<usize> {
    let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    for count in 0.. {
        let mut bytes = [0; HEADER];
        archive.read_exact(&mut bytes)?;
        let header = parse(&bytes).ok_or_else(|| invalid("a cpio header is missing"))?;
        if !(2..=LONGEST_NAME).contains(&header.name) {
            return Err(invalid("a name is too long"));
        }
        let mut name = vec![0; header.name + padding(HEADER + header.name)];
        archive.read_exact(&mut name)?;
        let name = String::from_utf8_lossy(&name[..header.name - 1]).into_owned();
        if name == TRAILER {
            return Ok(count);
        }
        if Path::new(&name)
            .components()
            .any(|part| !matches!(part, Component::Normal(_) | Component::CurDir))
        {
            return Err(invalid("a name leads out of the archive"));
        }
        let path = into.join(&name);
        let mut data = archive.by_ref().take(header.size);
        make(&header, &path, &mut data)
            .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))?;
        io::copy(&mut data, &mut io::sink())?;
        let pad = padding(header.size as usize);
        archive.read_exact(&mut [0; 4][..pad])?;
    }
    Ok(0)
}

fn parse(bytes: &[u8; HEADER]) -> Option<Header> {
    if !bytes.starts_with(b"070701") {
        return None;
    }
    let field = |number: usize| {
        let text = std::str::from_utf8(bytes.get(6 + 8 * number..14 + 8 * number)?).ok()?;
        u32::from_str_radix(text, 16).ok()
    };
    Some(Header {
        mode: field(1)?,
        uid: field(2)?,
        gid: field(3)?,
        size: field(6)?.into(),
        device: (field(9)?, field(10)?),
        name: field(11)? as usize,
    })
}

/// Returns the number of bytes to a multiple of four.
fn padding(length: usize) -> usize {
    length.next_multiple_of(4) - length
}

fn make(header: &Header, path: &Path, data: &mut impl Read) -> io::Result<()> {
    let kind = FileType::from_raw_mode(header.mode);
    match kind {
        FileType::Directory => fs::create_dir_all(path)?,
        FileType::Symlink => {
            let mut target = String::new();
            data.read_to_string(&mut target)?;
            remove(path)?;
            symlink(target, path)?;
        }
        FileType::RegularFile => {
            remove(path)?;
            io::copy(data, &mut File::create_new(path)?)?;
        }
        kind => {
            remove(path)?;
            let (major, minor) = header.device;
            rustix::fs::mknodat(
                CWD,
                path,
                kind,
                Mode::from_raw_mode(0o600),
                rustix::fs::makedev(major, minor),
            )?;
        }
    }
    let (uid, gid) = (Uid::from_raw(header.uid), Gid::from_raw(header.gid));
    rustix::fs::chownat(CWD, path, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    if kind != FileType::Symlink {
        rustix::fs::chmodat(
            CWD,
            path,
            Mode::from_raw_mode(header.mode & 0o7777),
            AtFlags::empty(),
        )?;
    }
    Ok(())
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, mode: u32, data: &str) -> Vec<u8> {
        let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        let fields =
            [0, mode, uid, gid, 1, 0, data.len() as u32, 0, 0, 0, 0, name.len() as u32 + 1, 0];
        let mut out = b"070701".to_vec();
        fields.iter().for_each(|field| out.extend(format!("{field:08X}").bytes()));
        for text in [format!("{name}\0").as_bytes(), data.as_bytes()] {
            out.extend(text);
            out.extend(vec![0; padding(out.len())]);
        }
        out
    }

    #[test]
    fn unpacks_archive_repeatedly() {
        let dir = tempfile::tempdir().unwrap();
        let archive = [
            entry("etc", 0o40_755, ""),
            entry("etc/x", 0o100_640, "hello"),
            entry("etc/l", 0o120_777, "x"),
            entry(TRAILER, 0, ""),
        ]
        .concat();
        for _ in 0..2 {
            assert_eq!(extract(&archive[..], dir.path()).unwrap(), 3);
        }
        assert_eq!(fs::read_to_string(dir.path().join("etc/l")).unwrap(), "hello");
    }

    #[test]
    fn rejects_invalid_archives() {
        let dir = tempfile::tempdir().unwrap();
        let into = dir.path().join("in");
        fs::create_dir(&into).unwrap();
        let bad = [entry("../x", 0o100_644, "y"), entry(TRAILER, 0, "")].concat();
        assert!(extract(&bad[..], &into).is_err());
        assert!(!dir.path().join("x").exists());
        let cut = entry("a", 0o100_644, "text");
        assert!(extract(&cut[..cut.len() - 2], &into).is_err());
        assert!(extract(&[b'x'; 200][..], &into).is_err());
    }
}
