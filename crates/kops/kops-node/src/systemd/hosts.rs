//! The names of the API in a machine's hosts file.

use std::{fs, net::IpAddr, path::Path};

use kops_core::nodeup::HostRecord;

use super::{
    accounts::Accounts,
    files::{Bytes, DesiredFile, apply},
};
use crate::systemd_error::SystemdError;

const BEGIN: &str = "# Begin host entries managed by nodeup";
const END: &str = "# End host entries managed by nodeup";

/// Replaces nodeup's part of the hosts file. Returns `true` if the file was changed.
pub(super) fn write(root: &Path, records: &[HostRecord]) -> Result<bool, SystemdError> {
    let path = root.join("etc/hosts");
    let text = fs::read_to_string(&path).map_err(SystemdError::io("read", &path))?;
    let wanted = DesiredFile {
        content: Some(Bytes::Text(merge(&text, records)?.into_bytes())),
        path,
        mode: None,
        owner: None,
        group: None,
        if_missing: false,
    };
    apply(&wanted, &Accounts::default())
}

fn merge(text: &str, records: &[HostRecord]) -> Result<String, SystemdError> {
    let mut lines = others(text);
    while lines.last().is_some_and(|line| line.trim().is_empty()) {
        lines.pop();
    }
    lines.extend([String::new(), BEGIN.to_owned()]);
    for record in records {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
        if record.name.is_empty() || !record.name.chars().all(is_name) {
            let value = record.name.clone();
            return Err(SystemdError::HostRecord { value, wanted: "a DNS name" });
        }
        for address in &record.addresses {
            if address.parse::<IpAddr>().is_err() {
                let value = address.clone();
                return Err(SystemdError::HostRecord { value, wanted: "an address" });
            }
            lines.push(format!("{address}\t{}", record.name));
        }
    }
    lines.push(END.to_owned());
    Ok(lines.join("\n") + "\n")
}

/// Returns the lines that nodeup has not written. If a part of nodeup's has lost its end, only its first line is left
/// out.
fn others(text: &str) -> Vec<String> {
    let mut others = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        match line.trim() {
            BEGIN => {
                let mut rest = lines.clone();
                if rest.by_ref().map(str::trim).find(|line| [BEGIN, END].contains(line))
                    == Some(END)
                {
                    lines = rest;
                }
            }
            END => {}
            _ => others.push(line.to_owned()),
        }
    }
    others
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(name: &str, address: &str) -> HostRecord {
        HostRecord { name: name.to_owned(), addresses: vec![address.to_owned()] }
    }

    #[test]
    fn keeps_lines_of_others_after_a_lost_end() {
        let text = format!("a\n{BEGIN}\nb\n{BEGIN}\nc\n{END}\nd\n{BEGIN}\ne\n");
        assert_eq!(others(&text), ["a", "b", "d", "e"]);
    }

    #[test]
    fn replaces_only_its_own_lines() {
        let base = "127.0.0.1 localhost\n\n";
        let first = merge(base, &[record("api.internal.a", "10.0.0.1")]).unwrap();
        let second = merge(&first, &[record("api.internal.a", "10.0.0.2")]).unwrap();
        assert_eq!(
            second,
            format!("127.0.0.1 localhost\n\n{BEGIN}\n10.0.0.2\tapi.internal.a\n{END}\n")
        );
        assert_eq!(merge(&second, &[record("api.internal.a", "10.0.0.2")]).unwrap(), second);
        for hostile in
            [record("a\n1.2.3.4 b", "10.0.0.1"), record("a", "10.0.0.1 b\n"), record("", "::1")]
        {
            assert!(merge(base, std::slice::from_ref(&hostile)).is_err(), "{hostile:?}");
        }
    }
}
