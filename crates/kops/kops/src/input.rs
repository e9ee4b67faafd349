//! Reads files that the user names.

use std::io::Read as _;

use crate::error::Error;

/// The largest file of objects, in bytes.
const LARGEST: u64 = 16 << 20;

/// Reads a file of objects; `-` is the standard input.
pub(crate) fn read_text(file: &str) -> Result<String, Error> {
    let invalid = |e| std::io::Error::new(std::io::ErrorKind::InvalidData, e);
    let text = String::from_utf8(read_bytes(file, LARGEST)?);
    Ok(text.map_err(invalid).map_err(kops_store::Error::file("reading", file))?)
}

/// Reads a file of at most `limit` bytes; `-` is the standard input.
pub(crate) fn read_bytes(file: &str, limit: u64) -> Result<Vec<u8>, Error> {
    let failed = || kops_store::Error::file("reading", file);
    let source: Box<dyn std::io::Read> = match file {
        "-" => Box::new(std::io::stdin()),
        file => Box::new(std::fs::File::open(file).map_err(failed())?),
    };
    let mut content = Vec::new();
    source.take(limit + 1).read_to_end(&mut content).map_err(failed())?;
    if content.len() as u64 > limit {
        return Err(Error::Size { file: file.to_owned(), limit });
    }
    Ok(content)
}
