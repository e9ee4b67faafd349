//! The audit log with rotation. Rotated files are beside it: `audit.log`, `audit-2026-11-22T23-41-12.000.log`, and the
//! latter with `.gz`.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

use api_meta::Timestamp;
use flate2::{Compression, write::GzEncoder};

use crate::event::Event;

/// The format of a line: JSON, or upstream's legacy format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Json,
    Legacy,
}

impl Format {
    /// Formats an event as a line with a line feed.
    pub fn line(self, event: &Event) -> Result<String, serde_json::Error> {
        let mut line = match self {
            Self::Json => serde_json::to_string(event)?,
            Self::Legacy => event.legacy(),
        };
        line.push('\n');
        Ok(line)
    }
}

/// The limits for rotating a file and for deleting rotated ones. Zero means no limit.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rotation {
    /// The size at which the file is rotated.
    pub max_bytes: u64,
    /// The age at which rotated files are deleted.
    pub max_age: Duration,
    /// The number of rotated files to keep.
    pub max_backups: usize,
    /// `true` if rotated files are compressed with gzip.
    pub compress: bool,
}

/// The audit log file.
pub struct Log {
    path: PathBuf,
    rotation: Rotation,
    /// The file and its size. `None` after a failure, so that the next write opens it again.
    file: Option<(File, u64)>,
}

impl Log {
    /// Opens the file, and creates it and its directory if needed, so that an invalid path is an error at the start.
    pub fn open(path: &Path, rotation: Rotation) -> io::Result<Self> {
        if let Some(directory) = path.parent().filter(|d| !d.as_os_str().is_empty()) {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        }
        let mut log = Self { path: path.to_owned(), rotation, file: None };
        log.file = Some(log.reopened()?);
        Ok(log)
    }

    fn reopened(&self) -> io::Result<(File, u64)> {
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&self.path)?;
        let length = file.metadata()?.len();
        Ok((file, length))
    }

    /// Appends a line. After an error, the next call tries again. `now` is part of the name of a rotated file.
    pub fn write(&mut self, line: &str, now: Timestamp) -> io::Result<()> {
        let size = line.len() as u64;
        let limit = self.rotation.max_bytes;
        if limit > 0 && size > limit {
            let told = format!("write length {size} exceeds maximum file size {limit}");
            return Err(io::Error::other(told));
        }
        let (file, length) = match self.file.take() {
            Some(open) => open,
            None => self.reopened()?,
        };
        let (mut file, length) = if limit > 0 && length + size > limit {
            drop(file);
            self.rotate(now)?;
            self.reopened()?
        } else {
            (file, length)
        };
        if let Err(error) = file.write_all(line.as_bytes()) {
            // Remove a partial line, which would corrupt the next one. The caller gets an error for it.
            let _ = file.set_len(length);
            return Err(error);
        }
        self.file = Some((file, length + size));
        Ok(())
    }

    fn rotate(&self, now: Timestamp) -> io::Result<()> {
        fs::rename(&self.path, self.backup(now))?;
        // A failure to delete old files must not lose the new line.
        if let Err(error) = self.tidy(now) {
            tracing::warn!(path = %self.path.display(), %error, "failed to remove old audit logs");
        }
        Ok(())
    }

    /// Returns the parts of a rotated file's name before and after the time.
    fn around(&self) -> (String, String) {
        let text = |part: Option<&std::ffi::OsStr>| {
            part.map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
        };
        let ending = match text(self.path.extension()).as_str() {
            "" => String::new(),
            ending => format!(".{ending}"),
        };
        (format!("{}-", text(self.path.file_stem())), ending)
    }

    fn backup(&self, now: Timestamp) -> PathBuf {
        let (before, ending) = self.around();
        // Milliseconds, without characters that are unsuitable for file names: 2026-11-22T23-41-12.123.
        let time = now.micros().replace(':', "-");
        let time = time.get(..23).unwrap_or(&time).to_owned();
        self.path.with_file_name(format!("{before}{time}{ending}"))
    }

    /// Returns the rotated files with the times in their names, newest first.
    fn backups(&self) -> io::Result<Vec<(String, PathBuf)>> {
        let (before, ending) = self.around();
        let directory = match self.path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let mut found = Vec::new();
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            let name = path.file_name().map(|n| n.to_string_lossy().into_owned());
            let name = name.unwrap_or_default();
            let whole = name.strip_suffix(".gz").unwrap_or(&name);
            let time = whole.strip_prefix(&before).and_then(|rest| rest.strip_suffix(&ending));
            if let Some(time) = time.filter(|time| seconds(time).is_some()) {
                found.push((time.to_owned(), path));
            }
        }
        found.sort_by(|one, other| other.cmp(one));
        Ok(found)
    }

    fn tidy(&self, now: Timestamp) -> io::Result<()> {
        let Rotation { max_age, max_backups, compress, .. } = self.rotation;
        for (number, (time, path)) in self.backups()?.into_iter().enumerate() {
            let age = now.unix().saturating_sub(seconds(&time).unwrap_or(0)).unsigned_abs();
            let old = !max_age.is_zero() && age > max_age.as_secs();
            if old || max_backups > 0 && number >= max_backups {
                fs::remove_file(&path)?;
            } else if compress && path.extension().is_none_or(|ending| ending != "gz") {
                zip(&path)?;
            }
        }
        Ok(())
    }
}

/// Parses the time in a file's name.
fn seconds(name: &str) -> Option<i64> {
    let (date, time) = name.split_once('T')?;
    let text = format!("{date}T{}Z", time.replace('-', ":"));
    (name.len() == 23).then(|| text.parse::<Timestamp>().ok()).flatten().map(Timestamp::unix)
}

/// Replaces a file by its compressed form. If interrupted, both files remain, and the next call starts over.
fn zip(path: &Path) -> io::Result<()> {
    let mut to = path.as_os_str().to_owned();
    to.push(".gz");
    let made = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&to)?;
    let mut encoder = GzEncoder::new(made, Compression::default());
    io::copy(&mut File::open(path)?, &mut encoder)?;
    encoder.finish()?;
    fs::remove_file(path)
}
