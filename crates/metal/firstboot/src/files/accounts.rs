//! Creates users, groups, home directories and SSH keys.

use std::time::{Duration, SystemTime};

use ignition::{
    passwd::{Databases, Home, LoginDefs},
    spec::{Passwd, User},
};
use rustix::fs::FileType;

use crate::{error::Error, root::Root};

const FILES: [(&str, u32); 4] = [
    ("/etc/passwd", 0o644),
    ("/etc/group", 0o644),
    ("/etc/shadow", 0o640),
    ("/etc/gshadow", 0o640),
];

/// The variable that selects the file for SSH keys: `false` for `authorized_keys`, otherwise a fragment of our own.
const FRAGMENT: &str = "IGNITION_WRITE_AUTHORIZED_KEYS_FRAGMENT";

/// Applies users and groups and returns the databases. `mounted` has the directories that were created as mount points.
pub(super) fn apply(root: &Root, passwd: &Passwd, mounted: &[String]) -> Result<Databases, Error> {
    let text = |path: &str| -> Result<String, Error> {
        Ok(String::from_utf8_lossy(&root.read(path)?.unwrap_or_default()).into_owned())
    };
    let mut databases = Databases {
        passwd: text("/etc/passwd")?,
        group: text("/etc/group")?,
        shadow: text("/etc/shadow")?,
        gshadow: text("/etc/gshadow")?,
    };
    let before = databases.clone();
    let defs = LoginDefs::parse(&text("/etc/login.defs")?);
    for group in &passwd.groups {
        databases.apply_group(group, &defs)?;
    }
    let mut homes = Vec::new();
    for user in &passwd.users {
        homes.extend(databases.apply_user(user, &defs, today())?);
    }
    let texts = [
        (&before.passwd, &databases.passwd),
        (&before.group, &databases.group),
        (&before.shadow, &databases.shadow),
        (&before.gshadow, &databases.gshadow),
    ];
    for ((path, mode), (before, after)) in FILES.into_iter().zip(texts) {
        if before != after {
            let existing = root.stat(path)?;
            let (mode, uid, gid) = existing
                .map_or((mode, 0, 0), |existing| (existing.mode, existing.uid, existing.gid));
            root.write(path, after.as_bytes(), mode, uid, gid)?;
        }
    }
    homes.iter().try_for_each(|home| make_home(root, home, &defs))?;
    for user in &passwd.users {
        assign_mount_points(root, user, &databases, mounted)?;
    }
    for user in passwd.users.iter().filter(|user| !user.ssh_authorized_keys.is_empty()) {
        write_authorized_keys(root, user, &databases)?;
    }
    Ok(databases)
}

/// Returns the day in days since 1970. Reproducible builds set it.
fn today() -> u64 {
    let reproducible = std::env::var("SOURCE_DATE_EPOCH").ok().and_then(|text| text.parse().ok());
    let now = || rt::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    reproducible.unwrap_or_else(|| now().as_secs()) / 86_400
}

/// Assigns mount points in a user's home to the user, with mode 0700.
fn assign_mount_points(
    root: &Root,
    user: &User,
    databases: &Databases,
    mounted: &[String],
) -> Result<(), Error> {
    let Some((uid, gid, home)) = databases.user(&user.name) else { return Ok(()) };
    let home = home.trim_end_matches('/');
    if user.no_create_home == Some(true) || home.is_empty() {
        return Ok(());
    }
    let is_within =
        |path: &str| path.strip_prefix(home).is_some_and(|p| p.is_empty() || p.starts_with('/'));
    for path in mounted.iter().filter(|path| is_within(path)) {
        root.set(path, Some(0o700), Some(uid), Some(gid))?;
    }
    Ok(())
}

/// Creates a home directory as a copy of the skeleton, unless it exists.
fn make_home(root: &Root, home: &Home, defs: &LoginDefs) -> Result<(), Error> {
    if root.stat(&home.path)?.is_some() {
        return Ok(());
    }
    root.make_directory(&home.path)?;
    copy(root, "/etc/skel", home, &home.path)?;
    root.set(&home.path, Some(defs.home_mode), Some(home.uid), Some(home.gid))
}

fn copy(root: &Root, from: &str, home: &Home, to: &str) -> Result<(), Error> {
    if root.stat(from)?.is_none_or(|existing| existing.kind != FileType::Directory) {
        return Ok(());
    }
    let outside = root.outside(from)?;
    let entries = std::fs::read_dir(&outside).map_err(Error::file("listing", &outside))?;
    for entry in entries {
        let name = entry.map_err(Error::file("listing", &outside))?.file_name();
        let (from, to) = (
            format!("{from}/{}", name.to_string_lossy()),
            format!("{to}/{}", name.to_string_lossy()),
        );
        let Some(existing) = root.stat(&from)? else { continue };
        match existing.kind {
            FileType::Directory => {
                root.make_directory(&to)?;
                copy(root, &from, home, &to)?;
                root.set(&to, Some(existing.mode), Some(home.uid), Some(home.gid))?;
            }
            FileType::Symlink => {
                root.symlink(&to, &root.read_link(&from)?)?;
                root.set(&to, None, Some(home.uid), Some(home.gid))?;
            }
            FileType::RegularFile => {
                root.write(
                    &to,
                    &root.read(&from)?.unwrap_or_default(),
                    existing.mode,
                    home.uid,
                    home.gid,
                )?;
            }
            _ => {}
        }
    }
    Ok(())
}

fn write_authorized_keys(root: &Root, user: &User, databases: &Databases) -> Result<(), Error> {
    if user.should_exist == Some(false) {
        return Ok(());
    }
    let Some((uid, gid, home)) = databases.user(&user.name) else { return Ok(()) };
    let fragment = std::env::var(FRAGMENT).map_or(true, |value| value != "false");
    let ssh = format!("{}/.ssh", home.trim_end_matches('/'));
    let mut directories = vec![ssh.clone()];
    let path = if fragment {
        directories.push(format!("{ssh}/authorized_keys.d"));
        format!("{ssh}/authorized_keys.d/ignition")
    } else {
        format!("{ssh}/authorized_keys")
    };
    for directory in directories {
        if root.stat(&directory)?.is_none() {
            root.make_directory(&directory)?;
            root.set(&directory, Some(0o700), Some(uid), Some(gid))?;
        }
    }
    let keys: String = user.ssh_authorized_keys.iter().flat_map(|key| [key.trim(), "\n"]).collect();
    root.write(&path, keys.as_bytes(), 0o600, uid, gid)
}
