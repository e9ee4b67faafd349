//! Reads container logs as the runtime writes them.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::Path,
};

/// A line of a log: `TIME STREAM TAG TEXT`. The tag says whether the text ends with a line break.
pub struct Line<'a> {
    /// The time, in RFC 3339.
    pub time: &'a str,
    /// `true` for text of the standard error stream.
    pub stderr: bool,
    /// `true` if the text does not end its line.
    pub partial: bool,
    /// The text without its line break.
    pub text: &'a [u8],
}

/// Parses a line of a log. Returns `None` for a malformed line.
pub fn parse(line: &[u8]) -> Option<Line<'_>> {
    let mut parts = line.splitn(4, |&b| b == b' ');
    let time = std::str::from_utf8(parts.next()?).ok()?;
    let stream = parts.next()?;
    let tag = parts.next()?;
    let text = parts.next().unwrap_or_default();
    let partial = tag.split(|&b| b == b':').next() == Some(b"P");
    Some(Line { time, stderr: stream == b"stderr", partial, text })
}

/// Opens a container's log below the log directory `root`. A Pod that mounts that directory could have replaced the log
/// by a link to a file of the host.
///
/// # Errors
///
/// Fails if the path is not below `root`, leads out of it, or is not a regular file.
pub fn open(root: &Path, path: &Path) -> io::Result<File> {
    let below = path.strip_prefix(root).map_err(|_| {
        let text =
            format!("the log is not below the kubelet's directory of logs, {}", root.display());
        io::Error::new(io::ErrorKind::PermissionDenied, text)
    })?;
    sys::read_beneath(root, below).map_err(|error| error.source)
}

/// Returns the end of a log's text, at most `lines` lines and `bytes` bytes.
pub fn tail(root: &Path, path: &Path, lines: usize, bytes: usize) -> String {
    // Times and tags precede the text, so more bytes are read than are returned.
    let window = (bytes + lines * 64) as u64;
    let read = || -> io::Result<Vec<u8>> {
        let mut file = open(root, path)?;
        let size = file.metadata()?.len();
        file.seek(SeekFrom::Start(size.saturating_sub(window)))?;
        let mut content = Vec::new();
        file.take(window).read_to_end(&mut content)?;
        Ok(content)
    };
    let content = read().unwrap_or_default();
    let parsed: Vec<Line<'_>> = content.split(|&b| b == b'\n').filter_map(parse).collect();
    let mut text = Vec::new();
    for line in &parsed[parsed.len().saturating_sub(lines)..] {
        text.extend_from_slice(line.text);
        if !line.partial {
            text.push(b'\n');
        }
    }
    let start = text.len().saturating_sub(bytes);
    String::from_utf8_lossy(&text[start..]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tail_joins_partial_lines_within_its_bounds() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        let time = "2026-01-01T00:00:00.000000000Z";
        let log = format!("{time} stdout F one\n{time} stderr P tw\n{time} stderr F o\n");
        std::fs::write(&path, log).unwrap();
        assert_eq!(tail(dir.path(), &path, 80, 2048), "one\ntwo\n");
        assert_eq!(tail(dir.path(), &path, 2, 2048), "two\n");
        assert_eq!(tail(dir.path(), &path, 80, 3), "wo\n");
        assert_eq!(tail(dir.path(), &dir.path().join("none"), 1, 1), "");
    }

    #[test]
    fn opens_no_file_outside_the_directory_of_logs() {
        let dir = tempfile::tempdir().unwrap();
        let (root, secret) = (dir.path().join("pods"), dir.path().join("secret"));
        let own = root.join("ns_pod_uid/app");
        std::fs::create_dir_all(&own).unwrap();
        std::fs::write(&secret, "secret").unwrap();
        std::fs::write(own.join("0.log"), "own").unwrap();
        std::os::unix::fs::symlink("0.log", own.join("inner.log")).unwrap();
        std::os::unix::fs::symlink(&secret, own.join("1.log")).unwrap();
        let up = own.join("../../../secret");
        assert!(open(&root, &own.join("0.log")).is_ok());
        assert!(open(&root, &own.join("inner.log")).is_ok(), "a link to another log");
        for outside in [own.join("1.log"), up, secret, own] {
            assert!(open(&root, &outside).is_err(), "{}", outside.display());
        }
    }
}
