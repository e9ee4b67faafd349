//! Sessions with iSCSI targets, by `iscsiadm`. CHAP secrets are written into its records, which only root can read, and
//! never become arguments.

use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions},
    io::Write as _,
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use super::target::Target;
use crate::{
    error::Error,
    program::{VolumeProgramError, VolumePrograms},
};

/// The exit code of `iscsiadm` for a session that exists already.
const SESSION_EXISTS: i32 = 15;
/// The exit code of `iscsiadm` for a session or record that does not exist.
const NOT_FOUND: i32 = 21;

/// The secrets of CHAP by the names of settings, such as `node.session.auth.password`.
#[derive(Clone, Default)]
pub(crate) struct Chap {
    /// For the discovery of targets.
    pub(crate) discovery: Option<BTreeMap<String, String>>,
    /// For the session.
    pub(crate) session: Option<BTreeMap<String, String>>,
}

/// The programs and records of `iscsiadm`.
#[derive(Clone, Copy)]
pub(crate) struct Sessions<'a> {
    pub(crate) programs: &'a VolumePrograms,
    pub(crate) target: &'a Target,
}

impl Sessions<'_> {
    async fn admin(&self, arguments: &[&str]) -> Result<(), VolumeProgramError> {
        self.programs.run("iscsiadm", arguments).await.map(drop)
    }

    /// Logs in to the target at all its portals. One that answers suffices.
    pub(crate) async fn log_in(&self, chap: &Chap) -> Result<(), Error> {
        let (mut first, mut any) = (None, false);
        for portal in &self.target.portals {
            match self.log_in_at(portal, chap).await {
                Ok(()) => any = true,
                Err(error) => {
                    tracing::warn!(portal, %error, "log in to an iSCSI target");
                    first.get_or_insert(error);
                }
            }
        }
        if any { Ok(()) } else { first.map_or(Ok(()), Err) }
    }

    async fn log_in_at(&self, portal: &str, chap: &Chap) -> Result<(), Error> {
        let Target { iqn, interface, .. } = self.target;
        let discovery = ["-m", "discoverydb", "-t", "sendtargets", "-p", portal, "-I", interface];
        if let Some(secrets) = &chap.discovery {
            self.admin(&[&discovery[..], &["-o", "new"]].concat()).await?;
            let method = ("discovery.sendtargets.auth.authmethod", "CHAP");
            write_secrets(&self.discovery_records(portal), method, secrets)?;
        }
        self.admin(&[&discovery[..], &["--discover"]].concat()).await?;
        let node = ["-m", "node", "-p", portal, "-T", iqn, "-I", interface];
        if let Some(secrets) = &chap.session {
            let method = ("node.session.auth.authmethod", "CHAP");
            write_secrets(&self.node_records(), method, secrets)?;
        }
        match self.admin(&[&node[..], &["--login"]].concat()).await {
            Ok(()) => {}
            // Another disk of the target is in use. The session shows this one after a new scan.
            Err(error) if error.code() == Some(SESSION_EXISTS) => {
                self.admin(&["-m", "node", "-p", portal, "-T", iqn, "-R"]).await?;
            }
            Err(error) => {
                // Do not keep the secrets.
                drop(self.admin(&[&node[..], &["-o", "delete"]].concat()).await);
                return Err(error.into());
            }
        }
        // The kubelet logs in after a restart, not the node's own service.
        let manual = ["-o", "update", "-n", "node.startup", "-v", "manual"];
        self.admin(&[&node[..], &manual].concat()).await.map_err(Error::from)
    }

    /// Ends the sessions and deletes their records with the secrets.
    pub(crate) async fn log_out(&self) -> Result<(), Error> {
        let Target { portals, iqn, interface, .. } = self.target;
        for portal in portals {
            let node = ["-m", "node", "-p", portal, "-T", iqn, "-I", interface];
            for last in [&["--logout"][..], &["-o", "delete"]] {
                match self.admin(&[&node[..], last].concat()).await {
                    Err(error) if error.code() != Some(NOT_FOUND) => return Err(error.into()),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Returns the record of the discovery at a portal.
    fn discovery_records(&self, portal: &str) -> Vec<PathBuf> {
        let host = portal.rsplit_once(':').map_or(portal, |(host, _)| host);
        let host = host.trim_matches(['[', ']']);
        let all = self.programs.iscsi_records("send_targets").into_iter().flat_map(children);
        let own = all.filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            name.split(',').next() == Some(host)
        });
        own.map(|path| path.join("st_config")).filter(|path| path.is_file()).collect()
    }

    /// Returns the records of the target for the interface, one for each portal.
    fn node_records(&self) -> Vec<PathBuf> {
        let of_target = self.programs.iscsi_records("nodes").into_iter();
        let portals = of_target.flat_map(|nodes| children(nodes.join(&self.target.iqn)));
        let records = portals.map(|portal| portal.join(&self.target.interface));
        records.filter(|path| path.is_file()).collect()
    }
}

fn children(directory: PathBuf) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// Writes secrets into records of `iscsiadm`.
fn write_secrets(
    records: &[PathBuf],
    (method, chap): (&str, &str),
    secrets: &BTreeMap<String, String>,
) -> Result<(), Error> {
    if records.is_empty() {
        return Err(Error::IscsiRecord);
    }
    for path in records {
        let text = fs::read_to_string(path).map_err(Error::file("read", path))?;
        let text = with_settings(&text, &[(method, chap)], secrets)?;
        write_private(path, &text).map_err(Error::file("write", path))?;
    }
    Ok(())
}

fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    let mut file = OpenOptions::new().write(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())
}

/// Returns a record with settings replaced or added. The record ends with a comment line.
fn with_settings(
    record: &str,
    fixed: &[(&str, &str)],
    secrets: &BTreeMap<String, String>,
) -> Result<String, Error> {
    let prefix = fixed.first().map_or("", |(name, _)| name.trim_end_matches("authmethod"));
    let own = secrets.iter().filter(|(name, _)| name.starts_with(prefix));
    let own = own.map(|(name, value)| (name.as_str(), value.trim_end_matches('\n')));
    let settings: BTreeMap<&str, &str> = own.chain(fixed.iter().copied()).collect();
    if let Some(name) = settings.iter().find(|(name, value)| {
        value.is_empty() || value.contains(['\n', '\0']) || name.contains(char::is_whitespace)
    }) {
        return Err(Error::IscsiSecret((*name.0).to_owned()));
    }
    let is_replaced = |line: &&str| {
        let name = line.split('=').next().unwrap_or_default().trim();
        !settings.contains_key(name) && !line.starts_with("# END RECORD")
    };
    let mut lines: Vec<String> = record.lines().filter(is_replaced).map(str::to_owned).collect();
    lines.extend(settings.iter().map(|(name, value)| format!("{name} = {value}")));
    if record.contains("# END RECORD") {
        lines.push("# END RECORD".to_owned());
    }
    Ok(lines.join("\n") + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(record: &str, secrets: &[(&str, &str)]) -> Result<String, Error> {
        let secrets = secrets.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        with_settings(record, &[("node.session.auth.authmethod", "CHAP")], &secrets)
    }

    #[test]
    fn replaces_only_settings_of_the_session() {
        let record = "# BEGIN RECORD\na = 1\nnode.session.auth.password = old\n# END RECORD\n";
        let secrets = [
            ("node.session.auth.password", "new=\n"),
            ("discovery.sendtargets.auth.password", "other"),
            ("iface.transport_name", "evil"),
        ];
        assert_eq!(
            settings(record, &secrets).unwrap(),
            "# BEGIN RECORD\na = 1\nnode.session.auth.authmethod = CHAP\nnode.session.auth.password = new=\n# END RECORD\n"
        );
        for bad in ["", "a\nnode.startup = automatic", "a\0b"] {
            let error = settings(record, &[("node.session.auth.password", bad)]).unwrap_err();
            assert!(error.to_string().contains("node.session.auth.password"), "{error}");
            assert!(!error.to_string().contains("automatic"), "no secret is in an error");
        }
    }
}
