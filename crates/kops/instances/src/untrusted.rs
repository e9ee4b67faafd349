//! Reads files that a machine's programs may have replaced: by links out of the disk, pipes, or huge files. Links that
//! lead out of the directory are not followed.

use std::{
    io::{Read as _, Seek as _, SeekFrom},
    path::Path,
};

/// The bytes at the end of a log in which the last line is searched.
const LOG_TAIL: u64 = 8 << 10;
/// The longest line of a log that is shown, in characters.
const LONGEST_LINE: usize = 400;

/// Reads a file below a directory. Returns `None` if it cannot be read or has more than `limit` bytes.
pub fn read(directory: &Path, file: &Path, limit: u64) -> Option<Vec<u8>> {
    let file = sys::read_beneath(directory, file).ok()?;
    let mut content = Vec::new();
    file.take(limit + 1).read_to_end(&mut content).ok()?;
    Some(content).filter(|content| content.len() as u64 <= limit)
}

/// Returns the last line of a log below a directory, fit for a terminal. Returns `None` if the log is empty or cannot
/// be read.
pub fn last_line(directory: &Path, log: &Path) -> Option<String> {
    let mut file = sys::read_beneath(directory, log).ok()?;
    let end = file.seek(SeekFrom::End(0)).ok()?;
    file.seek(SeekFrom::Start(end.saturating_sub(LOG_TAIL))).ok()?;
    let mut tail = Vec::new();
    file.take(LOG_TAIL).read_to_end(&mut tail).ok()?;
    let text = String::from_utf8_lossy(&tail);
    let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty())?;
    Some(plain(line, LONGEST_LINE))
}

/// Returns at most `longest` characters of a text, without control characters, which could change a terminal.
pub fn plain(text: &str, longest: usize) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(longest).collect()
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn reads_only_small_files_of_the_directory() {
        const LIMIT: u64 = 1 << 20;
        let directory = tempfile::tempdir().unwrap();
        let disk = directory.path().join("disk");
        fs::create_dir_all(&disk).unwrap();
        fs::write(directory.path().join("secret"), "key").unwrap();
        let read = |name: &str| read(&disk, Path::new(name), LIMIT);
        fs::write(disk.join("own"), "text").unwrap();
        symlink("own", disk.join("link")).unwrap();
        assert_eq!((read("own"), read("link")), (Some(b"text".to_vec()), Some(b"text".to_vec())));
        symlink(directory.path().join("secret"), disk.join("outside")).unwrap();
        let large = fs::File::create(disk.join("large")).unwrap();
        large.set_len(LIMIT).unwrap();
        assert_eq!(read("large").map(|content| content.len() as u64), Some(LIMIT));
        large.set_len(LIMIT + 1).unwrap();
        for name in ["outside", "large", "none", ""] {
            assert_eq!(read(name), None, "{name}");
        }
    }
}
