//! Container logs as the runtime writes them: reading their end, and rotating them.

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::Path,
};

/// One line of a log: `TIME STREAM TAG TEXT`, where the tag says whether the text ends its line.
pub(crate) struct Line<'a> {
    pub(crate) time: &'a str,
    pub(crate) stderr: bool,
    pub(crate) partial: bool,
    pub(crate) text: &'a [u8],
}

pub(crate) fn parse(line: &[u8]) -> Option<Line<'_>> {
    let mut parts = line.splitn(4, |&b| b == b' ');
    let time = std::str::from_utf8(parts.next()?).ok()?;
    let stream = parts.next()?;
    let tag = parts.next()?;
    let text = parts.next().unwrap_or_default();
    let partial = tag.split(|&b| b == b':').next() == Some(b"P");
    Some(Line { time, stderr: stream == b"stderr", partial, text })
}

/// The last lines of a log's text, at most so many lines and bytes.
pub(crate) fn tail(path: &Path, lines: usize, bytes: usize) -> String {
    // Times and tags come on top of the text, so that more has to be read than is wanted.
    let window = (bytes + lines * 64) as u64;
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
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
    fn the_tail_joins_partial_lines_and_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        let time = "2026-01-01T00:00:00.000000000Z";
        let log = format!("{time} stdout F one\n{time} stderr P tw\n{time} stderr F o\n");
        std::fs::write(&path, log).unwrap();
        assert_eq!(tail(&path, 80, 2048), "one\ntwo\n");
        assert_eq!(tail(&path, 2, 2048), "two\n");
        assert_eq!(tail(&path, 80, 3), "wo\n");
        assert_eq!(tail(&dir.path().join("none"), 1, 1), "");
    }
}
