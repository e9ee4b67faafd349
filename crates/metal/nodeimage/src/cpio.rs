//! Writes cpio archives in the kernel's format ("newc").

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Write},
    path::PathBuf,
};

/// An entry of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The permission bits; the file type follows from the content.
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) content: Content,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Directory,
    Link(String),
    Bytes(Vec<u8>),
    /// A file on the build machine.
    File {
        path: PathBuf,
        size: u64,
    },
    CharacterDevice(u32, u32),
}

impl Entry {
    pub(crate) fn new(mode: u32, content: Content) -> Self {
        Self { mode, uid: 0, gid: 0, content }
    }

    pub(crate) fn text(text: &str) -> Self {
        Self::new(0o644, Content::Bytes(text.as_bytes().to_vec()))
    }

    pub(crate) fn link(target: &str) -> Self {
        Self::new(0o777, Content::Link(target.to_owned()))
    }

    pub(crate) fn directory() -> Self {
        Self::new(0o755, Content::Directory)
    }
}

/// Entries by path without a leading slash. The order puts directories before their contents.
pub(crate) type Entries = BTreeMap<String, Entry>;

/// Adds missing parent directories.
pub(crate) fn complete(entries: &mut Entries) {
    let paths: Vec<String> = entries.keys().cloned().collect();
    for path in paths {
        for (at, _) in path.match_indices('/') {
            entries.entry(path[..at].to_owned()).or_insert_with(Entry::directory);
        }
    }
}

pub(crate) fn write(entries: &Entries, out: &mut impl Write) -> io::Result<()> {
    for (number, (name, entry)) in (1..).zip(entries) {
        let (kind, size, device) = match &entry.content {
            Content::Directory => (0o40_000, 0, (0, 0)),
            Content::Link(target) => (0o120_000, target.len() as u64, (0, 0)),
            Content::Bytes(bytes) => (0o100_000, bytes.len() as u64, (0, 0)),
            Content::File { size, .. } => (0o100_000, *size, (0, 0)),
            Content::CharacterDevice(major, minor) => (0o20_000, 0, (*major, *minor)),
        };
        let (mode, uid, gid) = (kind | entry.mode, entry.uid, entry.gid);
        Header { number, mode, uid, gid, size, device, name }.write(out)?;
        match &entry.content {
            Content::Directory | Content::CharacterDevice(..) => {}
            Content::Link(target) => out.write_all(target.as_bytes())?,
            Content::Bytes(bytes) => out.write_all(bytes)?,
            Content::File { path, size } => {
                let copied = io::copy(&mut File::open(path)?, out)?;
                if copied != *size {
                    return Err(io::Error::other(format!(
                        "{} changes while it is read",
                        path.display()
                    )));
                }
            }
        }
        pad(out, size)?;
    }
    Header { name: "TRAILER!!!", ..Header::default() }.write(out)
}

/// The header of an entry.
#[derive(Default)]
struct Header<'a> {
    /// The inode number.
    number: u32,
    mode: u32,
    uid: u32,
    gid: u32,
    size: u64,
    /// The major and minor number of a device.
    device: (u32, u32),
    name: &'a str,
}

impl Header<'_> {
    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let Self { number, mode, uid, gid, device: (major, minor), name, .. } = *self;
        let size = u32::try_from(self.size)
            .map_err(|_| io::Error::other(format!("{name} has more than 4 GiB")))?;
        let length = name.len() as u32 + 1;
        write!(out, "070701")?;
        // Hard links are separate files, and times are zero.
        for field in [number, mode, uid, gid, 1, 0, size, 0, 0, major, minor, length, 0] {
            write!(out, "{field:08X}")?;
        }
        out.write_all(name.as_bytes())?;
        out.write_all(&[0])?;
        pad(out, 110 + u64::from(length))
    }
}

fn pad(out: &mut impl Write, length: u64) -> io::Result<()> {
    out.write_all(&[0; 3][..(length.next_multiple_of(4) - length) as usize])
}

/// Parses mode, name and data of each entry, by the format's specification.
#[cfg(test)]
pub(crate) fn parse(mut archive: &[u8]) -> Vec<(u32, String, Vec<u8>)> {
    let mut out = Vec::new();
    while !archive.is_empty() {
        assert_eq!(&archive[..6], b"070701");
        let field = |number: usize| {
            let text = std::str::from_utf8(&archive[6 + 8 * number..14 + 8 * number]).unwrap();
            usize::from_str_radix(text, 16).unwrap()
        };
        let (mode, size, name) = (field(1), field(6), field(11));
        let start = (110 + name).next_multiple_of(4);
        let text = std::str::from_utf8(&archive[110..110 + name - 1]).unwrap();
        out.push((mode as u32, text.to_owned(), archive[start..start + size].to_vec()));
        archive = &archive[(start + size).next_multiple_of(4)..];
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_sorted_and_padded_archive() {
        let mut entries = Entries::from([
            ("b/c".to_owned(), Entry::text("hi")),
            ("a".to_owned(), Entry::link("b/c")),
            ("dev/null".to_owned(), Entry::new(0o666, Content::CharacterDevice(1, 3))),
        ]);
        complete(&mut entries);
        let mut out = Vec::new();
        write(&entries, &mut out).unwrap();
        let want = [
            (0o120_777, "a", "b/c"),
            (0o40_755, "b", ""),
            (0o100_644, "b/c", "hi"),
            (0o40_755, "dev", ""),
            (0o20_666, "dev/null", ""),
            (0, "TRAILER!!!", ""),
        ];
        let want = want.map(|(mode, name, data)| (mode, name.to_owned(), data.as_bytes().to_vec()));
        assert_eq!(parse(&out), want);
    }
}
