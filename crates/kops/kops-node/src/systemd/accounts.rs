//! The users and groups of a machine, from its files.

use std::{fs, path::Path};

use kops_core::nodeup::LocalUser;
use sys::Programs;

use crate::{error::Error, systemd_error::SystemdError};

/// The users and groups of a machine.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    users: Vec<UserEntry>,
    groups: Vec<(String, u32)>,
}

#[derive(Debug)]
struct UserEntry {
    name: String,
    uid: u32,
    gid: u32,
    home: String,
    shell: String,
}

impl Accounts {
    /// Reads the files below a root. Lines that are not entries are skipped, as by the C library.
    pub(super) fn read(root: &Path) -> Result<Self, SystemdError> {
        let read = |name: &str| {
            let path = root.join("etc").join(name);
            fs::read_to_string(&path).map_err(SystemdError::io("read", path))
        };
        let users = read("passwd")?;
        let users = users.lines().filter_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            let &[name, _, uid, gid, _, home, shell] = fields.as_slice() else { return None };
            Some(UserEntry {
                name: name.to_owned(),
                uid: uid.parse().ok()?,
                gid: gid.parse().ok()?,
                home: home.to_owned(),
                shell: shell.to_owned(),
            })
        });
        let users = users.collect();
        let groups = read("group")?;
        let groups = groups.lines().filter_map(|line| {
            let mut fields = line.split(':');
            Some((fields.next()?.to_owned(), fields.nth(1)?.parse().ok()?))
        });
        Ok(Self { users, groups: groups.collect() })
    }

    /// Returns the IDs for a file's owner and group, which must exist.
    pub(super) fn owner(
        &self,
        path: &Path,
        owner: Option<&str>,
        group: Option<&str>,
    ) -> Result<(Option<u32>, Option<u32>), SystemdError> {
        let unknown = |kind, name: &str| SystemdError::Owner {
            path: path.to_owned(),
            kind,
            name: name.to_owned(),
        };
        let uid = match owner {
            None => None,
            Some(name) => {
                let found = self.users.iter().find(|user| user.name == name);
                Some(found.ok_or_else(|| unknown("user", name))?.uid)
            }
        };
        let gid = match group {
            None => None,
            Some(name) => {
                let found = self.groups.iter().find(|(known, _)| known == name);
                Some(found.ok_or_else(|| unknown("group", name))?.1)
            }
        };
        Ok((uid, gid))
    }

    /// Returns the users with their groups and home directories.
    pub(super) fn local_users(&self) -> Vec<LocalUser> {
        let group = |gid: u32| self.groups.iter().find(|(_, id)| *id == gid).map(|(name, _)| name);
        let users = self.users.iter().filter_map(|user| {
            Some(LocalUser {
                name: user.name.clone(),
                group: group(user.gid)?.clone(),
                home: user.home.clone(),
            })
        });
        users.collect()
    }

    /// Creates a user, or changes one that differs. Returns `true` if anything was changed.
    pub(super) fn apply(
        &self,
        user: &kops_core::nodeup::User,
        programs: &dyn Programs,
    ) -> Result<bool, Error> {
        let uid = user.uid.to_string();
        let mut flags = Vec::new();
        let found = self.users.iter().find(|found| found.name == user.name);
        if found.is_none_or(|found| found.uid != user.uid) {
            flags.extend(["-u", &uid]);
        }
        if found.is_none_or(|found| found.shell != user.shell) {
            flags.extend(["-s", &user.shell]);
        }
        if !user.home.is_empty() && found.is_none_or(|found| found.home != user.home) {
            flags.extend(["-d", &user.home]);
        }
        if flags.is_empty() {
            return Ok(false);
        }
        let program = if found.is_some() { "usermod" } else { "useradd" };
        let command: Vec<&str> =
            [program].into_iter().chain(flags).chain([user.name.as_str()]).collect();
        programs.must(&command)?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use kops_core::nodeup::User;
    use sys::{ProgramOutput, RecordedPrograms};

    use super::*;

    fn accounts(passwd: &str) -> Accounts {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("etc")).unwrap();
        fs::write(dir.path().join("etc/passwd"), passwd).unwrap();
        fs::write(dir.path().join("etc/group"), "root:x:0:\nbad line\nweb:x:7:a,b\n").unwrap();
        Accounts::read(dir.path()).unwrap()
    }

    #[test]
    fn changes_only_users_that_differ() {
        let programs =
            RecordedPrograms::new(|_| ProgramOutput { code: Some(0), ..ProgramOutput::default() });
        let user = User {
            name: "web".to_owned(),
            uid: 7,
            shell: "/sbin/nologin".to_owned(),
            home: "/srv".to_owned(),
        };
        let root = "root:x:0:0:root:/root:/bin/bash\nnot an entry\n";
        assert!(accounts(root).apply(&user, &programs).unwrap());
        let same = format!("{root}web:x:7:7::/srv:/sbin/nologin\n");
        assert!(!accounts(&same).apply(&user, &programs).unwrap());
        let other = format!("{root}web:x:8:7::/srv:/bin/sh\n");
        assert!(accounts(&other).apply(&user, &programs).unwrap());
        assert_eq!(
            programs.calls(),
            ["useradd -u 7 -s /sbin/nologin -d /srv web", "usermod -u 7 -s /sbin/nologin web"]
        );
        assert_eq!(accounts(&same).local_users().len(), 2);
    }
}
