//! Processes that outlive the command that starts them, tracked by PID files.

use std::{
    collections::HashMap,
    fs,
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use nix::{sys::signal::Signal, unistd::Pid};

use crate::error::Error;

/// A PID file. It also contains the start time of the process, so that a later process with the same PID is not
/// mistaken for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PidFile(pub PathBuf);

impl PidFile {
    /// Returns the PID if the process runs.
    pub fn running(&self) -> Option<i32> {
        let text = fs::read_to_string(&self.0).ok()?;
        let (pid, started) = text.trim().split_once(' ')?;
        let pid: i32 = pid.parse().ok()?;
        (start_time(pid)?.to_string() == started).then_some(pid)
    }

    /// Records the calling process or one of its children.
    pub fn record(&self, pid: i32) -> Result<(), Error> {
        if let Some(directory) = self.0.parent() {
            fs::create_dir_all(directory).map_err(Error::at("create the directory", directory))?;
        }
        // Rename, so that readers never see a partial file.
        let beside = self.0.with_extension("pid.new");
        fs::write(&beside, format!("{pid} {}\n", start_time(pid).unwrap_or(0)))
            .map_err(Error::at("write", &beside))?;
        fs::rename(&beside, &self.0).map_err(Error::at("write", &self.0))
    }

    /// Removes the file. A missing file is success.
    pub fn remove(&self) -> Result<(), Error> {
        match fs::remove_file(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::at("remove", &self.0)(error))
            }
            _ => Ok(()),
        }
    }
}

/// Returns the start time of a process, in clock ticks since boot; `None` if it has ended. A killed process is a zombie
/// while its other threads still hold its files and ports, so it has not ended before they have.
pub fn start_time(pid: i32) -> Option<u64> {
    started(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Reads the start time from `/proc/PID/stat`.
fn started(stat: &str) -> Option<u64> {
    // The command's name, in parentheses, may contain any characters.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let [state, .., threads, _, start] = fields.get(..20)? else { return None };
    if *state == "Z" && ["0", "1"].contains(threads) { None } else { start.parse().ok() }
}

/// Sends SIGTERM to a process.
pub fn terminate(pid: i32) {
    // The process may be gone already.
    let _ = nix::sys::signal::kill(Pid::from_raw(pid), Signal::SIGTERM);
}

/// Sends SIGKILL to a process.
pub fn kill(pid: i32) {
    let _ = nix::sys::signal::kill(Pid::from_raw(pid), Signal::SIGKILL);
}

/// Returns the last lines of a log of any length. Lines that differ only in numbers, such as the time and PID of
/// repeated failures, are merged into the last of them, with their count.
pub fn tail(path: &Path, lines: usize) -> io::Result<String> {
    let mut file = fs::File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(64 << 10)))?;
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    let mut counts = HashMap::<String, usize>::new();
    for line in text.lines() {
        *counts.entry(without_numbers(line)).or_default() += 1;
    }
    let mut last = Vec::new();
    for line in text.lines().rev() {
        // Each line is listed once: its count is removed at its last occurrence.
        if let Some(count) = counts.remove(&without_numbers(line)) {
            let times = if count > 1 { format!(" ({count} times)") } else { String::new() };
            last.push(format!("{line}{times}"));
        }
        if last.len() == lines {
            break;
        }
    }
    last.reverse();
    Ok(last.join("\n"))
}

fn without_numbers(line: &str) -> String {
    line.split(|c: char| c.is_ascii_digit()).filter(|part| !part.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognizes_process_but_not_another_with_its_pid() {
        let dir = tempfile::tempdir().unwrap();
        let file = PidFile(dir.path().join("run/a.pid"));
        assert_eq!(file.running(), None);
        let own = std::process::id().cast_signed();
        file.record(own).unwrap();
        assert_eq!(file.running(), Some(own));
        fs::write(&file.0, format!("{own} 1\n")).unwrap();
        assert_eq!(file.running(), None, "it started at another time");
        file.remove().unwrap();
        file.remove().unwrap();
    }

    #[test]
    fn counts_zombie_with_threads_as_running() {
        let stat = |state: &str, threads: u32| {
            format!("7 (a) Z (b) {state} 1 7 7 0 -1 4 0 0 0 0 1 2 0 0 20 0 {threads} 0 99 8192 0\n")
        };
        for (state, threads, expected) in [
            ("S", 1, Some(99)),
            ("S", 9, Some(99)),
            ("Z", 3, Some(99)),
            ("Z", 1, None),
            ("Z", 0, None),
        ] {
            assert_eq!(started(&stat(state, threads)), expected, "{state} {threads}");
        }
        assert_eq!(started("7 (a) S 1"), None);
        assert_eq!(started(""), None);
    }

    #[test]
    fn returns_last_lines_of_log() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        fs::write(&path, "a\n".repeat(40_000) + "b\nc\n").unwrap();
        assert_eq!(tail(&path, 2).unwrap(), "b\nc");
    }

    #[test]
    fn merges_repeated_lines_with_their_count() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let failure = |n| format!("2026-11-22T10:00:0{n}Z start pid={n}\n10:0{n} no such file\n");
        fs::write(&path, format!("{}{}{}", failure(1), failure(2), failure(3))).unwrap();
        let expected = "2026-11-22T10:00:03Z start pid=3 (3 times)\n10:03 no such file (3 times)";
        assert_eq!(tail(&path, 12).unwrap(), expected);
    }
}
