//! Converts systemd units to files below `/etc/systemd`.

use std::collections::BTreeMap;

use crate::spec::Unit;

const UNITS: &str = "/etc/systemd/system";
/// The file that enables and disables units, below the system's root.
pub const PRESET: &str = "/etc/systemd/system-preset/20-ignition.preset";

/// A change to the filesystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Write {
        path: String,
        contents: String,
    },
    /// Replaces the unit by a link to /dev/null.
    Mask {
        path: String,
    },
    /// Removes such a link, if it exists.
    Unmask {
        path: String,
    },
    /// Removes the links by which other units depend on this one.
    Disable {
        unit: String,
    },
}

/// Plans the changes for these units. The presets come last; systemd applies them at the first boot.
pub fn plan(units: &[Unit]) -> Vec<Step> {
    let mut steps = Vec::new();
    // Sorted by verb and unit, so that the order of units does not change the file.
    let mut presets: BTreeMap<(&str, String), Vec<&str>> = BTreeMap::new();
    for unit in units {
        let path = format!("{UNITS}/{}", unit.name);
        for dropin in &unit.dropins {
            // An empty drop-in masks one of the same name from the system.
            if let Some(contents) = dropin.contents.clone() {
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
            let (name, instance) = preset_name(&unit.name);
            presets.entry((verb, name)).or_default().extend(instance);
            if !enabled {
                steps.push(Step::Disable { unit: unit.name.clone() });
            }
        }
    }
    if !presets.is_empty() {
        let mut lines: Vec<_> = presets.into_iter().collect();
        lines.sort_by(|((_, a), _), ((_, b), _)| a.cmp(b));
        let contents = lines.into_iter().map(|((verb, name), instances)| {
            // systemd applies only the first line about a template, so it lists all instances.
            let instances = instances.iter().map(|instance| format!(" {instance}"));
            format!("{verb} {name}{}\n", instances.collect::<String>())
        });
        steps.push(Step::Write { path: PRESET.into(), contents: contents.collect() });
    }
    steps
}

/// Splits an instance name into its template and the instance.
fn preset_name(name: &str) -> (String, Option<&str>) {
    if let (Some((template, rest)), Some((_, kind))) = (name.split_once('@'), name.rsplit_once('.'))
        && let Some(instance) = rest.strip_suffix(&format!(".{kind}"))
        && !instance.is_empty()
    {
        return (format!("{template}@.{kind}"), Some(instance));
    }
    (name.to_owned(), None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Dropin;

    #[test]
    fn plans_files_links_and_presets_of_units() {
        let unit = |name: &str| Unit { name: name.into(), ..Unit::default() };
        let text = |text: &str| Some(text.to_owned());
        let steps = plan(&[
            Unit { enabled: Some(true), contents: text("[Unit]\n"), ..unit("a.service") },
            Unit { mask: Some(true), contents: text("x"), ..unit("b.service") },
            Unit { enabled: Some(false), mask: Some(false), ..unit("c@one.timer") },
            Unit {
                dropins: vec![
                    Dropin { name: "10.conf".into(), contents: text("y") },
                    Dropin { name: "20.conf".into(), contents: text("") },
                ],
                ..unit("d.service")
            },
            Unit { enabled: Some(true), ..unit("e@x.service") },
            Unit { enabled: Some(true), ..unit("b@z.service") },
            Unit { enabled: Some(true), ..unit("e@w.service") },
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
                Step::Disable { unit: "c@one.timer".into() },
                write("/etc/systemd/system/d.service.d/10.conf", "y"),
                write("/etc/systemd/system/d.service.d/20.conf", ""),
                write(
                    PRESET,
                    "enable a.service\nenable b@.service z\ndisable c@.timer one\nenable e@.service x w\n"
                ),
            ]
        );
    }
}
