//! Searches the kernel's log for processes that the OOM killer killed.
//!
//! The counter of a cgroup disappears with the cgroup, and version 1 has none in the parents. The log outlives both.

use std::{fs, io, io::Read, os::unix::fs::OpenOptionsExt, path::Path};

use nix::fcntl::OFlag;

use crate::error::Error;

const LOG: &str = "/dev/kmsg";
/// The maximum size of a record, in bytes.
const RECORD: usize = 8192;
/// The lowest priority value of records from programs, which are not trusted.
const FIRST_OF_PROGRAMS: u32 = 8;

/// Reports whether the kernel's log has a kill by the OOM killer in a cgroup whose path contains `name`. `false` proves
/// nothing, because the kernel logs only some of many kills and overwrites old records.
///
/// # Errors
///
/// Returns an error if the log cannot be read.
pub fn was_killed_for_memory(name: &str) -> Result<bool, Error> {
    let path = Path::new(LOG);
    let mut options = fs::OpenOptions::new();
    options.read(true).custom_flags(OFlag::O_NONBLOCK.bits());
    let mut log = options.open(path).map_err(Error::at("open", path))?;
    let mut record = [0; RECORD];
    loop {
        match log.read(&mut record) {
            Ok(0) => return Ok(false),
            Ok(length) if is_kill(&record[..length], name) => return Ok(true),
            Ok(_) => {}
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => return Ok(false),
                // The record was overwritten in the meantime. The next read returns the oldest record that is left.
                io::ErrorKind::BrokenPipe | io::ErrorKind::Interrupted => {}
                _ => return Err(Error::at("read", path)(error)),
            },
        }
    }
}

/// Returns `true` for the kernel's record of a kill in such a cgroup:
/// `PRIORITY,NUMBER,TIME,FLAGS;oom-kill:constraint=…,task_memcg=PATH,task=…`.
fn is_kill(record: &[u8], name: &str) -> bool {
    let Ok(record) = std::str::from_utf8(record) else { return false };
    let Some((prefix, text)) = record.split_once(';') else { return false };
    let priority = prefix.split(',').next().and_then(|number| number.parse::<u32>().ok());
    let group = || text.split(',').find_map(|field| field.strip_prefix("task_memcg="));
    priority.is_some_and(|priority| priority < FIRST_OF_PROGRAMS)
        && text.starts_with("oom-kill:")
        && !name.is_empty()
        && group().is_some_and(|group| group.contains(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_oom_kill_records_of_kernel_only() {
        let kill = "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,\
            oom_memcg=/kubepods/podu,task_memcg=/kubepods/podu/0123abcd,task=tail,pid=18443,uid=0\n";
        let is = |record: &str, name: &str| is_kill(record.as_bytes(), name);
        assert!(is(&format!("6,421,1629691976,-;{kill}"), "0123abcd"));
        assert!(!is(&format!("6,421,1629691976,-;{kill}"), "ffff"));
        assert!(!is(&format!("6,421,1629691976,-;{kill}"), ""));
        assert!(!is(&format!("14,421,1629691976,-;{kill}"), "0123abcd"), "a program wrote it");
        assert!(!is("6,1,1,-;task_memcg=/0123abcd", "0123abcd"));
        assert!(!is(kill, "0123abcd"));
        assert!(!is_kill(b"6,1,1,-;\xff", "0123abcd"));
    }

    #[test]
    fn finds_no_oom_kill_of_unknown_cgroup() {
        // Without permission to read the log, the function returns an error.
        assert!(!was_killed_for_memory("windlass-no-such-group").unwrap_or(false));
    }
}
