//! The lease file: a line is added for every change, and the whole is written anew before it grows long.
//!
//! A rack that powers on changes hundreds of leases in a moment, and writing all of them for each took longer
//! than clients should wait.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    net::Ipv4Addr,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use super::Leases;

/// Lines that the file may have beside one for each lease.
const SLACK: usize = 10_000;

pub(super) struct Journal {
    path: PathBuf,
    open: Mutex<Open>,
}

struct Open {
    file: File,
    lines: usize,
}

impl Journal {
    /// Reads the leases of a former run, and writes them anew.
    pub(super) fn open(path: PathBuf) -> io::Result<(Self, Leases)> {
        let named = |error: io::Error| {
            io::Error::new(error.kind(), format!("the lease file {}: {error}", path.display()))
        };
        let leases = match std::fs::read_to_string(&path) {
            Ok(text) => Leases::parse(&text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Leases::default(),
            Err(error) => return Err(named(error)),
        };
        let open = Mutex::new(rewrite(&path, &leases).map_err(named)?);
        Ok((Self { path, open }, leases))
    }

    pub(super) fn save(&self, address: Ipv4Addr, leases: &Leases) -> io::Result<()> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.lines > leases.len() + SLACK {
            *open = rewrite(&self.path, leases)?;
            return Ok(());
        }
        open.lines += 1;
        open.file.write_all(leases.line(address).as_bytes())
    }
}

/// Replaces the file as a whole, so that a crash leaves the old one or the new one.
fn rewrite(path: &Path, leases: &Leases) -> io::Result<Open> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let mut file = tempfile::NamedTempFile::new_in(directory.unwrap_or(Path::new(".")))?;
    file.write_all(leases.to_text().as_bytes())?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(Open { file: OpenOptions::new().append(true).open(path)?, lines: leases.len() })
}

#[cfg(test)]
mod tests {
    use super::{
        super::leases::{Lease, State},
        *,
    };

    #[test]
    fn the_file_says_what_is_so_and_stays_short() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("leases");
        let (journal, mut leases) = Journal::open(path.clone()).unwrap();
        let address = Ipv4Addr::new(10, 0, 0, 1);
        let lease = |expires| Lease {
            client: "52:54:00:00:00:01".into(),
            expires,
            state: State::Bound,
            hostname: Some("node1".into()),
        };
        for expires in 2..2 * SLACK as u64 {
            leases.set(address, lease(expires));
            journal.save(address, &leases).unwrap();
        }
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.lines().count() < SLACK + 10);
        assert_eq!(Leases::parse(&text).to_text(), leases.to_text());
        let (journal, mut leases) = Journal::open(path.clone()).unwrap();
        assert_eq!(leases.get(address), Some(&lease(2 * SLACK as u64 - 1)));
        leases.remove(address);
        journal.save(address, &leases).unwrap();
        let (_, leases) = Journal::open(path).unwrap();
        assert!(leases.get(address).is_none_or(|lease| lease.expires == 1));
    }
}
