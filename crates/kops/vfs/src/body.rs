//! Files as HTTP bodies, and checksums of content.

use std::{fs::File, io::Read as _, path::Path};

use bytes::Bytes;
use data_encoding::HEXLOWER;
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use sha2::{Digest as _, Sha256};

const CHUNK: usize = 256 << 10;

/// Returns a body that reads a file from its current position to its end. Polling the body blocks on the disk.
pub(crate) fn of_file(mut file: File) -> client::Body {
    let chunks = std::iter::from_fn(move || {
        let mut chunk = vec![0; CHUNK];
        match file.read(&mut chunk) {
            Ok(0) => None,
            Ok(read) => {
                chunk.truncate(read);
                Some(Ok(Frame::data(Bytes::from(chunk))))
            }
            Err(error) => Some(Err(error.into())),
        }
    });
    StreamBody::new(futures_util::stream::iter(chunks)).boxed_unsync()
}

/// Returns the SHA-256 sum of `content`, in hexadecimal.
pub(crate) fn sum_of(content: &[u8]) -> String {
    HEXLOWER.encode(&Sha256::digest(content))
}

/// Returns a file's length and its SHA-256 sum in hexadecimal.
pub(crate) fn sum(path: &Path) -> std::io::Result<(u64, String)> {
    let (mut file, mut sum, mut length) = (File::open(path)?, Sha256::new(), 0);
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok((length, HEXLOWER.encode(&sum.finalize()))),
            read => {
                sum.update(buffer.get(..read).unwrap_or_default());
                length += read as u64;
            }
        }
    }
}
