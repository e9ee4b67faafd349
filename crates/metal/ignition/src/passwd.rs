//! Edits `/etc/passwd` and its related files as strings. Editing them directly, instead of running useradd, needs no
//! program of the system that is being installed, and is deterministic. Read [`Databases`] first.

use std::{collections::BTreeSet, ops::RangeInclusive};

use crate::spec::{Group, User};

/// The four files. Unknown lines are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Databases {
    /// The content of `/etc/passwd`.
    pub passwd: String,
    /// The content of `/etc/group`.
    pub group: String,
    /// The content of `/etc/shadow`.
    pub shadow: String,
    /// The content of `/etc/gshadow`.
    pub gshadow: String,
}

/// The settings of `/etc/login.defs`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginDefs {
    uids: RangeInclusive<u32>,
    system_uids: RangeInclusive<u32>,
    gids: RangeInclusive<u32>,
    system_gids: RangeInclusive<u32>,
    ages: [String; 3],
    /// The mode of new home directories.
    pub home_mode: u32,
}

/// A home directory to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home {
    /// The path.
    pub path: String,
    /// The user id of the owner.
    pub uid: u32,
    /// The group id of the owner.
    pub gid: u32,
}

/// The reasons why a user or group cannot be created.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PasswdError {
    #[error("user {user}: the group {group} does not exist")]
    NoGroup { user: String, group: String },
    #[error("no {0} is free in the range of /etc/login.defs")]
    NoneFree(&'static str),
    #[error("{what} {name:?}: {field} holds a colon or a line break")]
    Field { what: &'static str, name: String, field: &'static str },
    #[error("user {name}: user ID {id} belongs to {other}")]
    Taken { name: String, id: u32, other: String },
}

impl LoginDefs {
    /// Parses `/etc/login.defs`; missing settings get the defaults of shadow's tools.
    pub fn parse(text: &str) -> Self {
        let value = |name: &str| {
            let mut lines =
                text.lines().filter_map(|line| line.trim().split_once(char::is_whitespace));
            lines.find(|(key, _)| *key == name).map(|(_, value)| value.trim().to_owned())
        };
        let number = |name, default| value(name).and_then(|v| v.parse().ok()).unwrap_or(default);
        let octal = |name| u32::from_str_radix(value(name)?.trim_start_matches('0'), 8).ok();
        let age = |name, default: &str| value(name).unwrap_or_else(|| default.to_owned());
        Self {
            uids: number("UID_MIN", 1000)..=number("UID_MAX", 60_000),
            system_uids: number("SYS_UID_MIN", 101)..=number("SYS_UID_MAX", 999),
            gids: number("GID_MIN", 1000)..=number("GID_MAX", 60_000),
            system_gids: number("SYS_GID_MIN", 101)..=number("SYS_GID_MAX", 999),
            ages: [
                age("PASS_MIN_DAYS", "0"),
                age("PASS_MAX_DAYS", "99999"),
                age("PASS_WARN_AGE", "7"),
            ],
            home_mode: octal("HOME_MODE")
                .unwrap_or_else(|| 0o777 & !octal("UMASK").unwrap_or(0o022)),
        }
    }
}

impl Databases {
    /// Returns a user's user id, group id and home directory.
    pub fn user(&self, name: &str) -> Option<(u32, u32, &str)> {
        let fields: Vec<&str> = line(&self.passwd, name)?.split(':').collect();
        Some((fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?, fields.get(5)?))
    }

    /// Returns the id of a group.
    pub fn group_id(&self, name: &str) -> Option<u32> {
        line(&self.group, name)?.split(':').nth(2)?.parse().ok()
    }

    /// Creates, changes or removes a group.
    pub fn apply_group(&mut self, group: &Group, defs: &LoginDefs) -> Result<(), PasswdError> {
        plain(
            "group",
            &group.name,
            &[("name", Some(&group.name)), ("passwordHash", group.password_hash.as_ref())],
        )?;
        if group.should_exist == Some(false) {
            remove(&mut self.group, &group.name);
            remove(&mut self.gshadow, &group.name);
            return Ok(());
        }
        if line(&self.group, &group.name).is_none() {
            let gid = match group.gid {
                Some(gid) => gid,
                None => self.free_gid(group.system == Some(true), defs)?,
            };
            self.add_group(&group.name, gid);
        } else if let Some(gid) = group.gid {
            edit(&mut self.group, &group.name, 2, |_| gid.to_string());
        }
        if let Some(hash) = &group.password_hash {
            if line(&self.gshadow, &group.name).is_none() {
                append(&mut self.gshadow, &format!("{}:!::", group.name));
            }
            edit(&mut self.gshadow, &group.name, 1, |_| hash.clone());
        }
        Ok(())
    }

    /// Creates, changes or removes a user. Returns a home directory to create. `today` is in days since 1970.
    pub fn apply_user(
        &mut self,
        user: &User,
        defs: &LoginDefs,
        today: u64,
    ) -> Result<Option<Home>, PasswdError> {
        let name = &user.name;
        plain(
            "user",
            name,
            &[
                ("name", Some(name)),
                ("passwordHash", user.password_hash.as_ref()),
                ("gecos", user.gecos.as_ref()),
                ("homeDir", user.home_dir.as_ref()),
                ("shell", user.shell.as_ref()),
            ],
        )?;
        if user.should_exist == Some(false) {
            self.remove_user(name);
            return Ok(None);
        }
        let home = match line(&self.passwd, name) {
            None => self.add_user(user, defs, today)?,
            Some(_) => {
                self.change_user(user)?;
                None
            }
        };
        for group in &user.groups {
            let missing = || PasswdError::NoGroup { user: name.clone(), group: group.clone() };
            self.group_id(group).ok_or_else(missing)?;
            edit(&mut self.group, group, 3, |members| with_member(members, name));
            edit(&mut self.gshadow, group, 3, |members| with_member(members, name));
        }
        Ok(home)
    }

    fn add_user(
        &mut self,
        user: &User,
        defs: &LoginDefs,
        today: u64,
    ) -> Result<Option<Home>, PasswdError> {
        let (name, system) = (&user.name, user.system == Some(true));
        let uid = match user.uid {
            Some(uid) => uid,
            None => free(&self.passwd, system, if system { &defs.system_uids } else { &defs.uids })
                .ok_or(PasswdError::NoneFree("user ID"))?,
        };
        self.refuse_taken(name, uid)?;
        let gid = match (&user.primary_group, user.no_user_group == Some(true)) {
            (Some(group), _) => self.primary(name, group)?,
            (None, true) => self.group_id("users").unwrap_or(100),
            (None, false) => match self.group_id(name) {
                Some(gid) => gid,
                None => {
                    // Prefer the user's number.
                    let is_used = |id: u32| {
                        self.group
                            .lines()
                            .any(|line| line.split(':').nth(2) == Some(&id.to_string()))
                    };
                    let gid = if user.uid.is_none() && !is_used(uid) {
                        uid
                    } else {
                        self.free_gid(system, defs)?
                    };
                    self.add_group(name, gid);
                    gid
                }
            },
        };
        let path = user.home_dir.clone().unwrap_or_else(|| format!("/home/{name}"));
        let gecos = user.gecos.as_deref().unwrap_or_default();
        let shell = user.shell.as_deref().unwrap_or("/bin/bash");
        append(&mut self.passwd, &format!("{name}:x:{uid}:{gid}:{gecos}:{path}:{shell}"));
        let hash = user.password_hash.as_deref().unwrap_or("*");
        let [min, max, warn] =
            if system { ["", "", ""].map(str::to_owned) } else { defs.ages.clone() };
        append(&mut self.shadow, &format!("{name}:{hash}:{today}:{min}:{max}:{warn}:::"));
        let needs_home = user.no_create_home != Some(true) && !system;
        Ok(needs_home.then_some(Home { path, uid, gid }))
    }

    fn change_user(&mut self, user: &User) -> Result<(), PasswdError> {
        let name = &user.name;
        if let Some(hash) = &user.password_hash {
            edit(&mut self.shadow, name, 1, |_| hash.clone());
        }
        let mut changes: Vec<(usize, String)> = Vec::new();
        if let Some(uid) = user.uid {
            self.refuse_taken(name, uid)?;
            changes.push((2, uid.to_string()));
        }
        if let Some(group) = &user.primary_group {
            changes.push((3, self.primary(name, group)?.to_string()));
        }
        let texts = [(4, &user.gecos), (5, &user.home_dir), (6, &user.shell)];
        changes.extend(texts.into_iter().filter_map(|(at, text)| Some((at, text.clone()?))));
        for (at, value) in changes {
            edit(&mut self.passwd, name, at, |_| value);
        }
        Ok(())
    }

    fn remove_user(&mut self, name: &str) {
        let gid = self.user(name).map(|(_, gid, _)| gid);
        remove(&mut self.passwd, name);
        remove(&mut self.shadow, name);
        for database in [&mut self.group, &mut self.gshadow] {
            let groups: Vec<String> =
                database.lines().filter_map(|l| Some(l.split_once(':')?.0.to_owned())).collect();
            for group in groups {
                edit(database, &group, 3, |members| {
                    members
                        .split(',')
                        .filter(|member| *member != name)
                        .collect::<Vec<_>>()
                        .join(",")
                });
            }
        }
        // The group that was created with the user is removed with it.
        let own = gid.is_some() && self.group_id(name) == gid;
        let empty = line(&self.group, name).is_some_and(|line| line.ends_with(':'));
        if own && empty {
            remove(&mut self.group, name);
            remove(&mut self.gshadow, name);
        }
    }

    fn refuse_taken(&self, name: &str, id: u32) -> Result<(), PasswdError> {
        let mut lines = self.passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
        let other =
            lines.find(|f| f.get(2).is_some_and(|uid| *uid == id.to_string()) && f[0] != name);
        match other {
            Some(fields) => {
                Err(PasswdError::Taken { name: name.to_owned(), id, other: fields[0].to_owned() })
            }
            None => Ok(()),
        }
    }

    fn primary(&self, user: &str, group: &str) -> Result<u32, PasswdError> {
        let id = self.group_id(group).or_else(|| group.parse().ok());
        id.ok_or_else(|| PasswdError::NoGroup { user: user.to_owned(), group: group.to_owned() })
    }

    fn free_gid(&self, system: bool, defs: &LoginDefs) -> Result<u32, PasswdError> {
        let range = if system { &defs.system_gids } else { &defs.gids };
        free(&self.group, system, range).ok_or(PasswdError::NoneFree("group ID"))
    }

    fn add_group(&mut self, name: &str, gid: u32) {
        append(&mut self.group, &format!("{name}:x:{gid}:"));
        append(&mut self.gshadow, &format!("{name}:!::"));
    }
}

/// Returns a free id: one above the highest used, or else the lowest gap. System ids are assigned from the top.
fn free(database: &str, system: bool, range: &RangeInclusive<u32>) -> Option<u32> {
    let ids = database.lines().filter_map(|line| line.split(':').nth(2)?.parse().ok());
    let used: BTreeSet<u32> = ids.filter(|id| range.contains(id)).collect();
    if system {
        return range.clone().rev().find(|id| !used.contains(id));
    }
    match used.last() {
        None => Some(*range.start()),
        Some(last) if last < range.end() => Some(last + 1),
        Some(_) => range.clone().find(|id| !used.contains(id)),
    }
}

fn with_member(members: &str, name: &str) -> String {
    let mut list: Vec<&str> = members.split(',').filter(|member| !member.is_empty()).collect();
    if !list.contains(&name) {
        list.push(name);
    }
    list.join(",")
}

fn line<'t>(database: &'t str, name: &str) -> Option<&'t str> {
    database.lines().find(|line| line.split(':').next() == Some(name))
}

/// Changes one field of an existing line.
fn edit(database: &mut String, name: &str, at: usize, change: impl FnOnce(&str) -> String) {
    let Some(old) = line(database, name) else { return };
    let mut fields: Vec<&str> = old.split(':').collect();
    let Some(field) = fields.get(at) else { return };
    let new = change(field);
    fields[at] = &new;
    let new = fields.join(":");
    let lines = database.lines().map(|line| if line == old { new.as_str() } else { line });
    *database = lines.flat_map(|line| [line, "\n"]).collect();
}

fn append(database: &mut String, line: &str) {
    if !database.is_empty() && !database.ends_with('\n') {
        database.push('\n');
    }
    database.push_str(line);
    database.push('\n');
}

fn remove(database: &mut String, name: &str) {
    let others = database.lines().filter(|line| line.split(':').next() != Some(name));
    *database = others.flat_map(|line| [line, "\n"]).collect();
}

/// Rejects characters that would end a field or a line.
fn plain(
    what: &'static str,
    name: &str,
    fields: &[(&'static str, Option<&String>)],
) -> Result<(), PasswdError> {
    let bad =
        fields.iter().find(|(_, text)| text.is_some_and(|text| text.contains([':', '\n', '\0'])));
    match bad {
        Some((field, _)) => Err(PasswdError::Field { what, name: name.to_owned(), field }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFS: &str =
        "# x\nUID_MIN 1000\nUID_MAX\t60000\nGID_MIN 1000\nUMASK 077\nPASS_MAX_DAYS 99999\n";

    fn databases() -> Databases {
        Databases {
            passwd: "root:x:0:0:root:/root:/bin/bash\ncore:x:500:500::/home/core:/bin/bash\n"
                .into(),
            group: "root:x:0:\nwheel:x:10:root\nsudo:x:27:\ncore:x:500:\n".into(),
            shadow: "root:*:15887:0:::::\ncore:*:15887:0:::::\n".into(),
            gshadow: "root:*::\nwheel:*::root\ncore:*::\n".into(),
        }
    }

    fn user(name: &str) -> User {
        User { name: name.into(), ..User::default() }
    }

    #[test]
    fn creates_changes_and_removes_users() {
        let defs = LoginDefs::parse(DEFS);
        assert_eq!(defs.home_mode, 0o700);
        let mut d = databases();
        let first = User {
            password_hash: Some("$6$h".into()),
            groups: vec!["wheel".into(), "sudo".into()],
            ..user("test")
        };
        let home = d.apply_user(&first, &defs, 17331).unwrap();
        assert_eq!(home, Some(Home { path: "/home/test".into(), uid: 1000, gid: 1000 }));
        let system =
            User { system: Some(true), shell: Some("/sbin/nologin".into()), ..user("svc") };
        assert_eq!(d.apply_user(&system, &defs, 17331).unwrap(), None);
        let numbered = User { uid: Some(1020), gecos: Some("J".into()), ..user("jenkins") };
        d.apply_user(&numbered, &defs, 17331).unwrap();
        assert!(d.passwd.ends_with(
            "test:x:1000:1000::/home/test:/bin/bash\nsvc:x:999:999::/home/svc:/sbin/nologin\n\
             jenkins:x:1020:1001:J:/home/jenkins:/bin/bash\n"
        ));
        assert!(d.shadow.contains("test:$6$h:17331:0:99999:7:::\nsvc:*:17331::::::\n"));
        assert!(d.group.contains("wheel:x:10:root,test\nsudo:x:27:test\n"));
        assert!(d.gshadow.contains("wheel:*::root,test\n"));
        let before = d.clone();
        assert_eq!(d.apply_user(&first, &defs, 20000).unwrap(), None);
        assert_eq!(d, before, "a second run changes nothing");
        let shell = User { shell: Some("/bin/sh".into()), ..user("core") };
        d.apply_user(&shell, &defs, 1).unwrap();
        assert!(d.passwd.contains("core:x:500:500::/home/core:/bin/sh\n"));
        d.apply_user(&User { should_exist: Some(false), ..user("test") }, &defs, 1).unwrap();
        assert!(![&d.passwd, &d.shadow, &d.group, &d.gshadow].iter().any(|t| t.contains("test")));
        assert!(d.group.contains("sudo:x:27:\n"));
    }

    #[test]
    fn creates_changes_and_removes_groups() {
        let defs = LoginDefs::parse("");
        let mut d = databases();
        let group = |name: &str| Group { name: name.into(), ..Group::default() };
        d.apply_group(&group("a"), &defs).unwrap();
        d.apply_group(&Group { system: Some(true), ..group("b") }, &defs).unwrap();
        d.apply_group(
            &Group { gid: Some(77), password_hash: Some("h".into()), ..group("sudo") },
            &defs,
        )
        .unwrap();
        assert!(d.group.ends_with("sudo:x:77:\ncore:x:500:\na:x:1000:\nb:x:999:\n"));
        assert!(d.gshadow.ends_with("a:!::\nb:!::\nsudo:h::\n"));
        d.apply_group(&Group { should_exist: Some(false), ..group("a") }, &defs).unwrap();
        assert_eq!(d.group_id("a"), None);
    }

    #[test]
    fn rejects_values_that_break_the_files() {
        let defs = LoginDefs::parse("");
        for (wrong, message) in [
            (
                User { gecos: Some("a\nroot2:x:0:0".into()), ..user("x") },
                "user \"x\": gecos holds a colon or a line break",
            ),
            (user("a:b"), "user \"a:b\": name holds a colon or a line break"),
            (
                User { groups: vec!["none".into()], ..user("x") },
                "user x: the group none does not exist",
            ),
            (User { uid: Some(0), ..user("x") }, "user x: user ID 0 belongs to root"),
        ] {
            let error = databases().apply_user(&wrong, &defs, 1).unwrap_err();
            assert_eq!(error.to_string(), message);
        }
    }
}
