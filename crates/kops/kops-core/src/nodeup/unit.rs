//! Unit files of systemd.

use crate::error::Error;

/// A unit file, section by section in the order of their first entries.
#[derive(Clone, Debug, Default)]
pub(super) struct Unit {
    sections: Vec<Section>,
}

#[derive(Clone, Debug)]
struct Section {
    name: &'static str,
    text: String,
}

impl Unit {
    /// Returns a unit with the entries of a section.
    pub(super) fn new(name: &'static str, entries: &[(&str, &str)]) -> Self {
        Self::default().with(name, entries)
    }

    /// Adds entries to a section.
    pub(super) fn with(mut self, name: &'static str, entries: &[(&str, &str)]) -> Self {
        for (key, value) in entries {
            self.append(name, &format!("{key}={value}\n"));
        }
        self
    }

    /// Adds text to a section, which the caller has checked.
    pub(super) fn append(&mut self, name: &'static str, text: &str) {
        match self.sections.iter_mut().find(|section| section.name == name) {
            Some(section) => section.text.push_str(text),
            None => self.sections.push(Section { name, text: text.to_owned() }),
        }
    }

    /// Returns the file's text.
    pub(super) fn render(&self) -> String {
        let sections =
            self.sections.iter().map(|section| format!("[{}]\n{}", section.name, section.text));
        sections.collect::<Vec<_>>().join("\n")
    }
}

/// The types of units, by their extensions.
const TYPES: [&str; 11] = [
    "service",
    "socket",
    "device",
    "mount",
    "automount",
    "swap",
    "target",
    "path",
    "timer",
    "slice",
    "scope",
];

/// Returns a unit's file name: a name without a unit's extension is a service. A name that is not a plain file name
/// with systemd's characters is rejected, so that no unit is written elsewhere. So is an option of `systemctl`.
pub(super) fn unit_name(field: &str, name: &str) -> Result<String, Error> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || ":-_.\\@".contains(c);
    if name.is_empty()
        || name.len() > 200
        || name.starts_with(['.', '-'])
        || !name.chars().all(allowed)
    {
        let reason =
            "is not the name of a unit: up to 200 letters, digits and :-_.\\@, first no . or -";
        return Err(Error::value(field, name, reason));
    }
    let has_type = name.rsplit_once('.').is_some_and(|(_, end)| TYPES.contains(&end));
    Ok(if has_type { name.to_owned() } else { format!("{name}.service") })
}

/// Returns a command line of a unit, with the arguments quoted as upstream quotes them.
pub(super) fn command_line(args: &[String]) -> String {
    args.iter().map(|arg| quote(arg)).collect::<Vec<_>>().join(" ")
}

fn quote(arg: &str) -> String {
    let mut quoted = String::with_capacity(arg.len());
    for byte in arg.bytes() {
        match byte {
            b'"' | b'\'' | b'\\' => quoted.extend(['\\', char::from(byte)]),
            b' '..=b'~' => quoted.push(char::from(byte)),
            byte => quoted.push_str(&format!("\\x{byte:02x}")),
        }
    }
    if quoted.contains(' ') { format!("\"{quoted}\"") } else { quoted }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renders_sections_in_order() {
        let mut unit = Unit::new("Unit", &[("Description", "test")])
            .with("Service", &[("Type", "oneshot")])
            .with("Unit", &[("Requires", "a.service")]);
        unit.append("Service", "ExecStart=/bin/true");
        let wanted = "[Unit]\nDescription=test\nRequires=a.service\n\n[Service]\nType=oneshot\nExecStart=/bin/true";
        assert_eq!(unit.render(), wanted);
    }

    #[test]
    fn quotes_arguments_so_that_none_leaves_its_line() {
        let args = ["a", "(b)", "\\c", "\"", "\\'", " ", "x\ny"].map(str::to_owned);
        assert_eq!(command_line(&args), "a (b) \\\\c \\\" \\\\\\' \" \" x\\x0ay");
    }

    #[test]
    fn rejects_names_that_leave_the_directory() {
        for name in [
            "",
            "../x",
            "a/b",
            ".hidden",
            "a b",
            "a\nb",
            "ä",
            "-Hroot@evil",
            "--user",
            &"x".repeat(201),
        ] {
            assert!(unit_name("spec.hooks", name).is_err(), "{name:?}");
        }
        assert_eq!(unit_name("spec.hooks", "a.b").unwrap(), "a.b.service");
        assert_eq!(unit_name("spec.hooks", "a.timer").unwrap(), "a.timer");
        assert_eq!(unit_name("spec.hooks", "a@1").unwrap(), "a@1.service");
    }
}
