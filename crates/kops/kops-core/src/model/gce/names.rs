//! Upstream's names of GCE's resources. Longer names are cut, and end in a hash of the whole.

use crate::{
    error::Error,
    names::{gce, truncate},
};

/// GCE's limit on names.
const LIMIT: usize = 63;
/// GCE's limit on the prefix of the names of a manager's machines.
const MACHINE_LIMIT: usize = 58;
/// The limit on the part of a service account's address before the `@`.
const ACCOUNT_LIMIT: usize = 30;
/// The limit on the prefix of a template's name, so that Terraform can append a suffix.
const PREFIX_LIMIT: usize = 32;
/// The least part of a cluster's name that a name contains.
const LEAST: usize = 10;

/// Returns the name of an object of a cluster.
pub(super) fn suffixed(object: &str, cluster: &str) -> Result<String, Error> {
    limited_suffix(object, cluster, LIMIT)
}

/// Returns the name of a service account.
pub(super) fn account(role: &str, cluster: &str) -> Result<String, Error> {
    limited_suffix(role, cluster, ACCOUNT_LIMIT)
}

fn limited_suffix(object: &str, cluster: &str, limit: usize) -> Result<String, Error> {
    let rest = limit.saturating_sub(object.len() + 1);
    if rest < LEAST {
        let reason = format!(
            "leaves fewer than {LEAST} of {limit} characters for the cluster's name: use a shorter name"
        );
        return Err(Error::value("the name on GCE", object, reason));
    }
    Ok(format!("{object}-{}", truncate(&gce(cluster), rest)))
}

/// Returns the name of a cluster's network.
pub(super) fn network(cluster: &str) -> String {
    truncate(&gce(cluster), LIMIT)
}

/// Returns the name of a group's template in Terraform.
pub(super) fn template(group: &str, cluster: &str) -> String {
    gce(&format!("{group}-{cluster}"))
}

/// Returns the prefix of a template's name on GCE.
pub(super) fn template_prefix(template: &str) -> String {
    truncate(template, PREFIX_LIMIT)
}

/// Returns the name of the manager of a group's machines in a zone.
pub(super) fn manager(group: &str, zone: &str, cluster: &str) -> String {
    let letter = zone.rsplit('-').next().unwrap_or(zone);
    truncate(&gce(&format!("{letter}-{group}-{cluster}")), LIMIT)
}

/// Returns a label's value on GCE: other characters than lower-case letters and digits are `-` and their hexadecimal
/// number.
pub(super) fn encode_label(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'0'..=b'9' | b'a'..=b'z' => char::from(byte).to_string(),
        byte => format!("-{byte:02x}"),
    };
    text.bytes().map(encode).collect()
}

/// Validates a name on GCE (RFC 1035).
pub(super) fn check(what: &str, name: &str) -> Result<(), Error> {
    check_length(what, name, LIMIT)
}

/// Validates the name of a group, which is the prefix of its machines' names.
pub(super) fn check_machines(group: &str) -> Result<(), Error> {
    check_length("instance group", group, MACHINE_LIMIT)
}

fn check_length(what: &str, name: &str, limit: usize) -> Result<(), Error> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if name.len() <= limit
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(plain)
        && !name.ends_with('-')
    {
        return Ok(());
    }
    let reason = format!(
        "is not a name on GCE: at most {limit} lower-case letters, digits and -, beginning with a letter, not ending \
         with -"
    );
    Err(Error::value(what, name, reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_long_names_as_upstream_does() {
        let long = "minimal-gce-with-a-very-very-very-very-very-long-name.example.com";
        let nat = suffixed("nat", long).unwrap();
        assert_eq!(nat, "nat-minimal-gce-with-a-very-very-very-very-very-long-nam-96dqvi");
        assert_eq!(nat.len(), LIMIT);
        assert_eq!(
            manager("nodes", "us-test1-b", long),
            "b-nodes-minimal-gce-with-a-very-very-very-very-very-long-h6o2lg"
        );
        assert_eq!(
            account("control-plane", "minimal.example.com").unwrap(),
            "control-plane-minimal-e-rabo9p"
        );
        assert_eq!(account("node", "minimal.example.com").unwrap(), "node-minimal-example-com");
        assert_eq!(
            template_prefix("nodes-minimal-gce-ilb-example-com"),
            "nodes-minimal-gce-ilb-exa-mk47iu"
        );
        let refused = suffixed(&"a".repeat(60), long).unwrap_err().to_string();
        assert!(refused.contains("leaves fewer than 10 of 63 characters"), "{refused}");
    }

    #[test]
    fn validates_names_and_encodes_labels() {
        assert!(check("disk", "a-b-1").is_ok() && check("disk", &"a".repeat(63)).is_ok());
        let long = "a".repeat(64);
        for hostile in ["", "1a", "-a", "a-", "A", "a.b", "a_b", "a\"", "${a}", "a\nb", "é", &long]
        {
            let error = check("disk", hostile).unwrap_err().to_string();
            assert!(error.contains("is not a name on GCE"), "{error}");
        }
        assert!(
            check_machines(&"a".repeat(58)).is_ok() && check_machines(&"a".repeat(59)).is_err()
        );
        assert_eq!(encode_label("us-test1-a/É"), "us-2dtest1-2da-2f-c3-89");
    }
}
