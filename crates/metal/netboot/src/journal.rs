//! An append-only file with one line per change. It is rewritten as a whole before it grows too long.
//!
//! A rack that powers on changes hundreds of leases and machines in a moment. Rewriting the whole file for each change
//! took longer than clients wait.

use std::{
    fs::{File, OpenOptions},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use parking_lot::Mutex;

/// The maximum number of lines in excess of the live entries.
pub(crate) const SLACK: usize = 10_000;

pub(crate) struct Journal {
    path: PathBuf,
    open: Mutex<Option<Open>>,
}

struct Open {
    file: File,
    lines: usize,
}

/// Reads the lines of an earlier run. An incomplete last line, cut off by a crash, is dropped.
pub(crate) fn read(path: &Path) -> io::Result<String> {
    match std::fs::read_to_string(path) {
        Ok(mut text) => {
            text.truncate(text.rfind('\n').map_or(0, |end| end + 1));
            Ok(text)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(named(path, &error)),
    }
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

impl Journal {
    /// Starts a file with these lines, each with its line feed. Creates the directory, because the default one may not
    /// exist.
    pub(crate) fn begin(path: PathBuf, lines: impl Iterator<Item = String>) -> io::Result<Self> {
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory).map_err(|error| named(directory, &error))?;
        }
        let open = rewrite(&path, lines).map_err(|error| named(&path, &error))?;
        Ok(Self { path, open: Mutex::new(Some(open)) })
    }

    /// Appends a line that ends with a line feed. `live` is the number of live entries; `whole` has the lines of all of
    /// them.
    pub(crate) fn add(
        &self,
        line: &str,
        live: usize,
        whole: impl Iterator<Item = String>,
    ) -> io::Result<()> {
        let mut open = self.open.lock();
        if let Some(open) = open.as_mut().filter(|open| open.lines <= live + SLACK) {
            open.lines += 1;
            return open.file.write_all(line.as_bytes());
        }
        // If a rewrite fails, the next change tries again.
        *open = None;
        *open = Some(rewrite(&self.path, whole)?);
        Ok(())
    }
}

/// Replaces the file atomically, so that a crash leaves the old or the new one. Lines are streamed, not held in memory.
fn rewrite(path: &Path, lines: impl Iterator<Item = String>) -> io::Result<Open> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let file = tempfile::NamedTempFile::new_in(directory.unwrap_or(Path::new(".")))?;
    let (mut file, mut count) = (BufWriter::new(file), 0);
    for line in lines {
        file.write_all(line.as_bytes())?;
        count += 1;
    }
    file.into_inner()?.persist(path).map_err(|error| error.error)?;
    let file = OpenOptions::new().append(true).open(path)?;
    Ok(Open { file, lines: count })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journal_keeps_last_state_and_stays_short() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("not/there/journal");
        assert_eq!(read(&path).unwrap(), "");
        let journal = Journal::begin(path.clone(), ["a 0\n".into()].into_iter()).unwrap();
        for n in 1..2 * SLACK + 100 {
            let line = format!("a {n}\n");
            journal.add(&line, 1, std::iter::once_with(|| line.clone())).unwrap();
        }
        let text = read(&path).unwrap();
        assert!(text.lines().count() < SLACK + 10);
        assert_eq!(text.lines().last(), Some(format!("a {}", 2 * SLACK + 99).as_str()));
        std::fs::write(&path, "a 1\na 2\na").unwrap();
        assert_eq!(read(&path).unwrap(), "a 1\na 2\n");
    }
}
