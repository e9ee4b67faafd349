//! Sends a file to a socket by `sendfile(2)`, without a buffer in this process.

use std::{
    fs::File, io, io::IoSliceMut, ops::Range, os::unix::fs::FileExt, sync::Arc, time::Duration,
};

use rustix::io::ReadWriteFlags;
use tokio::{io::Interest, net::TcpStream, time::timeout};

use super::blocking;

/// The maximum number of bytes of one call.
const PIECE: u64 = 128 << 10;

/// Sends a range of the file. Fails if the peer accepts no data for `patience`.
pub(super) async fn send(
    stream: &TcpStream,
    file: Arc<File>,
    Range { start, end }: Range<u64>,
    patience: Duration,
) -> io::Result<()> {
    let (mut at, mut warm) = (start, start);
    while at < end {
        if at >= warm {
            warm = (at + PIECE).min(end);
            if !is_in_memory(&file, at) {
                let file = file.clone();
                blocking::run(move || read(&file, at..warm)).await.map_err(io::Error::other)??;
            }
        }
        let count = usize::try_from(warm - at).unwrap_or(usize::MAX);
        let sent = stream.async_io(Interest::WRITABLE, || {
            Ok(rustix::fs::sendfile(stream, &file, Some(&mut at), count)?)
        });
        if timeout(patience, sent).await?? == 0 {
            return Err(io::Error::other("the file became shorter while it was sent"));
        }
    }
    Ok(())
}

/// Returns `true` if the page is in the page cache, as for all but the first machine of a rack.
fn is_in_memory(file: &File, at: u64) -> bool {
    let mut byte = [0];
    let mut parts = [IoSliceMut::new(&mut byte)];
    rustix::io::preadv2(file, &mut parts, at, ReadWriteFlags::NOWAIT).is_ok()
}

/// Reads a range into the page cache; waits for the disk.
fn read(file: &File, Range { mut start, end }: Range<u64>) -> io::Result<()> {
    let mut buffer = [0; 16 << 10];
    while start < end {
        match file.read_at(&mut buffer, start)? {
            0 => break,
            read => start += read as u64,
        }
    }
    Ok(())
}
