//! A snapshot of etcd, as its maintenance API hands it out, and what has to be made of it for a member to begin with: the
//! database with the members of now, and the first files of the log and of Raft, by which each member knows the others.
//!
//! The database is bbolt's: pages of one size, a tree of them for each bucket. Nothing of it is moved: a few values are written
//! over, and the members come on a page of their own behind all others.

mod bolt;
mod log;

use std::io::{self, Read, Seek, SeekFrom, Write};

use serde_json::json;
use sha2::{Digest as _, Sha256};

pub use log::{Founders, log_file, raft_file};

/// The largest database that is restored: what etcd is advised to hold at most.
pub const LARGEST: u64 = 8 << 30;
const SUM: u64 = 32;

/// Why something is no snapshot that a member may begin with.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("it is no snapshot of etcd: {0}")]
    Foreign(&'static str),
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// How many bytes a database takes at most, by its first ones: so much of an archive is worth reading, and no more.
pub fn size(head: &[u8]) -> Result<u64, Error> {
    Ok(bolt::Head::of_head(head)?.size() + SUM)
}

/// How many of a database's first bytes say how large it is, whatever the size of its pages.
pub const HEAD: usize = 2 * bolt::LARGEST_PAGE;

/// Checks a snapshot by the sum at its end, takes that away, and makes it the database with which the founders begin. Says how
/// long the file is to be.
pub fn prepare<F: Read + Write + Seek>(file: &mut F, founders: &Founders) -> Result<u64, Error> {
    let whole = file.seek(SeekFrom::End(0))?;
    let end = whole.checked_sub(SUM).filter(|end| *end > 0 && end % 512 == 0);
    let end = end.ok_or(Error::Damaged("it ends before the sum that is at the end of each"))?;
    check_sum(file, end)?;
    let mut bolt = bolt::Bolt::open(file, end)?;
    // A log that begins anew begins after the entries by which the founders came in.
    bolt.set_number("meta", "consistent_index", founders.index())?;
    bolt.set_number("meta", "term", log::TERM)?;
    let members: Vec<_> = founders
        .members()
        .map(|member| {
            let id = format!("{:x}", member.id);
            (id.into_bytes(), member.to_json().to_string().into_bytes())
        })
        .collect();
    bolt.replace_bucket("members", &members)?;
    bolt.replace_bucket("members_removed", &[])?;
    bolt.finish()
}

fn check_sum<F: Read + Seek>(file: &mut F, end: u64) -> Result<(), Error> {
    file.seek(SeekFrom::Start(0))?;
    let (mut sum, mut buffer) = (Sha256::new(), vec![0; 1 << 16]);
    let mut body = Read::take(&mut *file, end);
    loop {
        match body.read(&mut buffer)? {
            0 => break,
            read => sum.update(buffer.get(..read).unwrap_or_default()),
        }
    }
    let mut said = [0; 32];
    file.read_exact(&mut said)?;
    match sum.finalize().as_slice() == said {
        true => Ok(()),
        false => Err(Error::Damaged("its sum is another than the one at its end")),
    }
}

impl log::Founder {
    fn to_json(&self) -> serde_json::Value {
        json!({"id": self.id, "peerURLs": [self.peer_url], "name": self.name})
    }
}

#[cfg(test)]
mod tests;
