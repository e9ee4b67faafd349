//! The problem that keeps a machine from starting, in a file on its disk. `nodeup` writes the file, and the command
//! `kops` shows it.

use std::{fs, path::Path};

use api_meta::Tree as _;
use bootstrap::host::Host;
use bootstrap_core::constants::ETCD;
use instances::untrusted;
use serde_json::{Value, json};

use crate::error::Error;

/// The file, relative to the root of the machine.
const FILE: &str = "opt/kops/nodeup-problem.json";
/// The largest file that is read. A worker's machine is not trusted.
const LARGEST: u64 = 16 << 10;
/// The longest message that is shown, in characters.
const LONGEST: usize = 1000;
/// The programs of the host that machines run, or that their images are built of.
const PROGRAMS: [&str; 7] =
    ["containerd", "runc", ETCD, "losetup", "blkid", "mkfs.ext4", "fsck.ext4"];

fn write(message: &str) {
    let text = json!({"message": message}).to_string();
    if let Err(error) =
        pki::write_file(&Path::new("/").join(FILE), text.as_bytes(), pki::PUBLIC_MODE)
    {
        tracing::warn!(%error, "cannot record the problem of this machine");
    }
}

/// Records why the machine waits.
pub(crate) fn report_wait(reason: &str) {
    write(&format!("its etcd member waits: {reason}"));
}

/// Records why the machine's configuration failed. It is repeated.
pub(crate) fn report_failure(error: &Error) {
    write(&format!("nodeup failed and is repeated: {error}"));
}

/// Removes the record, because the machine is configured.
pub(crate) fn clear() {
    let path = Path::new("/").join(FILE);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            tracing::warn!(%error, path = %path.display(), "cannot remove the record of a problem");
        }
        _ => {}
    }
}

/// Returns the problem that a machine has recorded on its disk; `None` if there is none or it is not readable. The
/// message is one line without control characters.
pub fn machine_problem(disk: &Path) -> Option<String> {
    let text = untrusted::read(disk, Path::new(FILE), LARGEST)?;
    let tree: Value = serde_json::from_slice(&text).ok()?;
    let message = untrusted::plain(tree.text("message"), LONGEST);
    Some(message.trim().to_owned()).filter(|message| !message.is_empty())
}

/// Checks that this host has the programs that machines need, etcd in a supported version.
pub fn check_programs() -> Result<(), Error> {
    check_programs_of(&Host::default())
}

fn check_programs_of(host: &Host) -> Result<(), Error> {
    let missing = PROGRAMS.into_iter().filter(|program| host.program(program).is_none());
    let programs: Vec<_> = missing.collect();
    if !programs.is_empty() {
        return Err(Error::MissingPrograms { programs });
    }
    if let Some(etcd) = host.program(ETCD) {
        bootstrap::images::etcd_version(&etcd)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn shows_a_machines_problem_without_trusting_the_machine() {
        let dir = tempfile::tempdir().unwrap();
        let disk = dir.path().join("disk");
        let file = disk.join(FILE);
        assert_eq!(machine_problem(&disk), None);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        let shown = |content: &[u8]| {
            fs::write(&file, content).unwrap();
            machine_problem(&disk)
        };
        assert_eq!(shown(br#"{"message": "no etcd"}"#).as_deref(), Some("no etcd"));
        let escape = shown(b"{\"message\": \"a\\u001b[2J\\nb\"}");
        assert_eq!(escape.as_deref(), Some("a [2J b"));
        for text in ["", "{", "[]", r#"{"message": 5}"#, r#"{"message": "\n"}"#] {
            assert_eq!(shown(text.as_bytes()), None, "{text}");
        }
        let long = |length: usize| json!({"message": "x".repeat(length)}).to_string();
        assert_eq!(shown(long(5000).as_bytes()).map(|text| text.len()), Some(LONGEST));
        assert_eq!(shown(long(1 << 20).as_bytes()), None);
        // A link out of the machine, a pipe and a directory.
        let secret = dir.path().join("secret.json");
        fs::write(&secret, r#"{"message": "secret"}"#).unwrap();
        fs::remove_file(&file).unwrap();
        symlink(&secret, &file).unwrap();
        assert_eq!(machine_problem(&disk), None);
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        assert_eq!(machine_problem(&disk), None);
        fs::remove_dir(&file).unwrap();
        let made = std::process::Command::new("mkfifo").arg(&file).status().unwrap();
        assert!(made.success());
        assert_eq!(machine_problem(&disk), None);
    }

    #[test]
    fn names_all_missing_programs() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::under(dir.path());
        let error = check_programs_of(&host).unwrap_err().to_string();
        assert!(error.contains("containerd, runc, etcd") && error.contains("apt-get"), "{error}");
        let programs = dir.path().join("usr/bin");
        for name in PROGRAMS {
            let output = if name == ETCD { "etcd Version: 2.3.8" } else { "" };
            testkit::write_script(&programs.join(name), &format!("echo '{output}'"));
        }
        let error = check_programs_of(&host).unwrap_err().to_string();
        assert!(error.contains("etcd 2.3.8 is not supported"), "{error}");
    }
}
