//! Prepares a snapshot from etcd's maintenance API for the first start of a restored cluster. The result is the
//! database with the present members, and the first files of the log and of Raft, from which each member knows the
//! others.
//!
//! The database is in bbolt's format: pages of one size, with a tree of pages per bucket. No page is moved. Small
//! buckets are replaced, on new pages at the end. Read [`prepare`] first.
//!
//! Invariant: a snapshot is read completely before it is changed. A prepared database holds Kubernetes' objects.

mod bolt;
mod contents;
mod error;
mod log;

use std::io::{Read, Seek, SeekFrom, Write};

use sha2::{Digest as _, Sha256};

pub use self::{
    contents::OBJECTS,
    error::Error,
    log::{InitialCluster, log_file, raft_file},
};

/// The largest database that is restored, in bytes: the most that etcd recommends.
pub const LARGEST: u64 = 8 << 30;
const SUM: u64 = 32;

/// Returns the largest size of a snapshot in bytes, from the first bytes of its database. More of an archive need not
/// be read.
pub fn size(head: &[u8]) -> Result<u64, Error> {
    Ok(bolt::MetaPage::of_head(head)?.size() + SUM)
}

/// The number of first bytes that [`size`] needs, for every page size.
pub const HEAD: usize = 2 * bolt::LARGEST_PAGE;

/// Verifies a snapshot by the sum at its end and by reading it, and turns it into the initial members' database. Its
/// revision is far after those that clients have seen, and all earlier ones are compacted. Returns the new length of
/// the file.
pub fn prepare<F: Read + Write + Seek>(
    file: &mut F,
    initial: &InitialCluster,
) -> Result<u64, Error> {
    let whole = file.seek(SeekFrom::End(0))?;
    let end = whole.checked_sub(SUM).filter(|end| *end > 0 && end % 512 == 0);
    let end = end.ok_or(Error::Damaged("it ends before the sum at its end"))?;
    check_sum(file, end)?;
    let mut bolt = bolt::Bolt::open(file, end)?;
    let revision = contents::restored_revision(&mut bolt)?;
    // The new log starts after the entries that add the initial members.
    let mut meta = bolt.pairs("meta")?;
    contents::set_meta(&mut meta, initial.index(), log::TERM, revision);
    bolt.replace_bucket("meta", &meta)?;
    let members: Vec<_> = initial
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
    let mut stored = [0; 32];
    file.read_exact(&mut stored)?;
    if sum.finalize().as_slice() == stored {
        Ok(())
    } else {
        Err(Error::Damaged("its sum differs from the one at its end"))
    }
}

#[cfg(test)]
mod tests;
