//! systemd units as files below `/etc/systemd`.

use crate::spec::Unit;

const UNITS: &str = "/etc/systemd/system";
pub const PRESET: &str = "/etc/systemd/system-preset/20-ignition.preset";

/// One change to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Write {
        path: String,
        contents: String,
    },
    /// A link to /dev/null in the unit's place.
    Mask {
        path: String,
    },
    /// Takes such a link away, if there is one.
    Unmask {
        path: String,
    },
}

/// What makes the units so; the presets, which systemd acts on at the first boot, come last.
pub fn plan(units: &[Unit]) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut presets = String::new();
    for unit in units {
        let path = format!("{UNITS}/{}", unit.name);
        for dropin in &unit.dropins {
            if let Some(contents) = dropin.contents.clone().filter(|text| !text.is_empty()) {
                steps.push(Step::Write { path: format!("{path}.d/{}", dropin.name), contents });
            }
        }
        match unit.mask {
            Some(true) => steps.push(Step::Mask { path: path.clone() }),
            Some(false) => steps.push(Step::Unmask { path: path.clone() }),
            None => {}
        }
        if let Some(contents) =
            unit.contents.clone().filter(|text| !text.is_empty() && unit.mask != Some(true))
        {
            steps.push(Step::Write { path, contents });
        }
        if let Some(enabled) = unit.enabled {
            let verb = if enabled { "enable" } else { "disable" };
            presets.push_str(&format!("{verb} {}\n", preset_name(&unit.name)));
        }
    }
    if !presets.is_empty() {
        steps.push(Step::Write { path: PRESET.into(), contents: presets });
    }
    steps
}

/// An instance is named by its template, then by itself.
fn preset_name(name: &str) -> String {
    match (name.split_once('@'), name.rsplit_once('.')) {
        (Some((template, rest)), Some((_, kind))) => match rest.strip_suffix(&format!(".{kind}")) {
            Some(instance) if !instance.is_empty() => format!("{template}@.{kind} {instance}"),
            _ => name.to_owned(),
        },
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Dropin;

    #[test]
    fn units_become_files_links_and_presets() {
        let unit = |name: &str| Unit { name: name.into(), ..Unit::default() };
        let text = |text: &str| Some(text.to_owned());
        let steps = plan(&[
            Unit { enabled: Some(true), contents: text("[Unit]\n"), ..unit("a.service") },
            Unit { mask: Some(true), contents: text("x"), ..unit("b.service") },
            Unit { enabled: Some(false), mask: Some(false), ..unit("c@one.timer") },
            Unit {
                dropins: vec![Dropin { name: "10.conf".into(), contents: text("y") }],
                ..unit("d.service")
            },
        ]);
        let write = |path: &str, contents: &str| Step::Write {
            path: path.into(),
            contents: contents.into(),
        };
        assert_eq!(
            steps,
            [
                write("/etc/systemd/system/a.service", "[Unit]\n"),
                Step::Mask { path: "/etc/systemd/system/b.service".into() },
                Step::Unmask { path: "/etc/systemd/system/c@one.timer".into() },
                write("/etc/systemd/system/d.service.d/10.conf", "y"),
                write(PRESET, "enable a.service\ndisable c@.timer one\n"),
            ]
        );
    }
}
