//! The words of instance groups' roles in flags and in output.

use crate::error::Error;

/// The roles of instance groups, with their words in flags and in output.
const ROLES: [(&str, &str); 4] = [
    ("control-plane", "ControlPlane"),
    ("apiserver", "APIServer"),
    ("node", "Node"),
    ("bastion", "Bastion"),
];

/// Returns the word of a role in flags and in output.
pub(crate) fn role_word(role: &str) -> &'static str {
    ROLES.iter().find(|(_, known)| *known == role).map_or("node", |(word, _)| *word)
}

/// Parses a role as upstream does: in any case, in the plural, and with the old name of control planes.
pub(crate) fn parse_role(text: &str) -> Result<&'static str, Error> {
    let lower = text.to_ascii_lowercase();
    let word = lower.strip_suffix('s').unwrap_or(&lower).replace("controlplane", "control-plane");
    let word = if word == "master" { "control-plane" } else { &word };
    let found = ROLES.iter().find(|(known, _)| *known == word);
    found.map(|(_, role)| *role).ok_or_else(|| Error::UnknownRole(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_roles_as_upstream_does() {
        for (text, role) in [
            ("node", "Node"),
            ("Nodes", "Node"),
            ("master", "ControlPlane"),
            ("ControlPlane", "ControlPlane"),
            ("control-plane", "ControlPlane"),
            ("bastions", "Bastion"),
        ] {
            assert_eq!(parse_role(text).unwrap(), role);
        }
        for text in ["", "s", "king", "node,bastion"] {
            let error = parse_role(text).unwrap_err().to_string();
            assert_eq!(error, format!("unknown role {text:?}"));
        }
    }
}
