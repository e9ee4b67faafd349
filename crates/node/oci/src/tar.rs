//! Writes the subset of the ustar format that images need: directories, files and symbolic links owned by root.

use std::io::{self, Read, Write};

const BLOCK: usize = 512;

pub(crate) enum Kind<'a> {
    Directory,
    File { size: u64 },
    Link { target: &'a str },
}

pub(crate) struct Writer<W: Write> {
    out: W,
}

impl<W: Write> Writer<W> {
    pub(crate) fn new(out: W) -> Self {
        Self { out }
    }

    /// Writes an entry. `content` must have exactly the size in `kind`.
    pub(crate) fn entry(
        &mut self,
        path: &str,
        mode: u32,
        kind: &Kind<'_>,
        content: &mut dyn Read,
    ) -> io::Result<()> {
        let Kind::File { size } = kind else {
            return self.out.write_all(&header(path, mode, kind)?);
        };
        let out = self.begin(path, mode, *size)?;
        let copied = io::copy(&mut content.take(*size), out)?;
        self.end(path, *size, copied)
    }

    /// Writes a file's header. The caller writes the content to the returned writer, and then calls [`Writer::end`].
    pub(crate) fn begin(&mut self, path: &str, mode: u32, size: u64) -> io::Result<&mut W> {
        self.out.write_all(&header(path, mode, &Kind::File { size })?)?;
        Ok(&mut self.out)
    }

    pub(crate) fn end(&mut self, path: &str, size: u64, written: u64) -> io::Result<()> {
        if written != size {
            let message = format!(
                "{path}: expected {size} bytes, found {written}; it changed while it was packed"
            );
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, message));
        }
        let padding = size.next_multiple_of(BLOCK as u64) - size;
        io::copy(&mut io::repeat(0).take(padding), &mut self.out).map(drop)
    }

    /// Ends the archive with two empty blocks.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        self.out.write_all(&[0; 2 * BLOCK])?;
        Ok(self.out)
    }
}

fn header(path: &str, mode: u32, kind: &Kind<'_>) -> io::Result<[u8; BLOCK]> {
    let mut block = [0u8; BLOCK];
    let (flag, size, link) = match kind {
        Kind::Directory => (b'5', 0, ""),
        Kind::File { size } => (b'0', *size, ""),
        Kind::Link { target } => (b'2', 0, *target),
    };
    put(&mut block[0..100], path.as_bytes(), path)?;
    put(&mut block[100..108], format!("{mode:07o}").as_bytes(), path)?;
    put(&mut block[108..116], b"0000000", path)?;
    put(&mut block[116..124], b"0000000", path)?;
    put(&mut block[124..136], format!("{size:011o}").as_bytes(), path)?;
    put(&mut block[136..148], b"00000000000", path)?;
    block[148..156].fill(b' ');
    block[156] = flag;
    put(&mut block[157..257], link.as_bytes(), path)?;
    block[257..265].copy_from_slice(b"ustar\x0000");
    let sum: u32 = block.iter().map(|&b| u32::from(b)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    Ok(block)
}

fn put(field: &mut [u8], value: &[u8], path: &str) -> io::Result<()> {
    let Some(place) = field.get_mut(..value.len()) else {
        let message = format!("{path}: a name, link or size is too long for the archive format");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    };
    place.copy_from_slice(value);
    Ok(())
}
