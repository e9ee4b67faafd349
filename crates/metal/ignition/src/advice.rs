//! Warnings about valid configs whose effect may not be the intended one.

use crate::{
    spec::{Config, Link, Unit},
    validate::versions::minor,
};

/// A warning: the path in the Ignition config, and upstream's message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Advice {
    pub(crate) path: String,
    pub(crate) message: String,
}

impl Advice {
    pub(crate) fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), message: message.into() }
    }
}

/// Returns the warnings of Ignition's validation.
pub(crate) fn advise(config: &Config) -> Vec<Advice> {
    let mut out = Vec::new();
    check_modes(config, &mut out);
    check_filesystems(config, &mut out);
    for (i, link) in config.storage.links.iter().enumerate() {
        check_link(&format!("storage.links.{i}"), link, &mut out);
    }
    let https = config.ignition.proxy.https_proxy.as_deref().unwrap_or_default();
    if https.to_ascii_lowercase().starts_with("http:") {
        let message = "insecure plaintext HTTP proxy specified for HTTPS resources";
        out.push(Advice::new("ignition.proxy.httpsProxy", message));
    }
    for (i, unit) in config.systemd.units.iter().enumerate() {
        check_unit(&format!("systemd.units.{i}.contents"), unit, &config.systemd.units, &mut out);
    }
    out
}

fn check_modes(config: &Config, out: &mut Vec<Advice>) {
    if minor(config) >= 6 {
        return;
    }
    let files = config.storage.files.iter().map(|file| file.mode).enumerate();
    let directories = config.storage.directories.iter().map(|directory| directory.mode).enumerate();
    let all =
        files.map(|(i, m)| ("files", i, m)).chain(directories.map(|(i, m)| ("directories", i, m)));
    for (list, i, _) in all.filter(|(.., mode)| mode.is_some_and(|mode| mode & 0o7000 != 0)) {
        let message = "setuid/setgid/sticky bits are not supported or functional in spec versions older than 3.6.0";
        out.push(Advice::new(format!("storage.{list}.{i}.mode"), message));
    }
}

fn check_filesystems(config: &Config, out: &mut Vec<Advice>) {
    for (i, filesystem) in config.storage.filesystems.iter().enumerate() {
        let disk = config.storage.disks.iter().find(|disk| disk.device == filesystem.device);
        let Some(disk) = disk else { continue };
        let message = if !disk.partitions.is_empty() {
            "filesystem overwrites partitioned device"
        } else if disk.wipe_table == Some(true) && filesystem.wipe_filesystem != Some(true) {
            "device matches disk with wipeTable enabled; filesystem will be wiped"
        } else {
            continue;
        };
        out.push(Advice::new(format!("storage.filesystems.{i}.device"), message));
    }
}

fn check_link(path: &str, link: &Link, out: &mut Vec<Advice>) {
    if link.hard != Some(true) {
        return;
    }
    for (name, owner) in [("user", &link.user), ("group", &link.group)] {
        for (field, is_set) in [("id", owner.id.is_some()), ("name", owner.name.is_some())] {
            if is_set {
                let message = "user/group ignored for hard link";
                out.push(Advice::new(format!("{path}.{name}.{field}"), message));
            }
        }
    }
}

fn check_unit(path: &str, unit: &Unit, all: &[Unit], out: &mut Vec<Advice>) {
    if unit.enabled != Some(true) {
        return;
    }
    let text = |unit: &Unit| unit.contents.clone().filter(|text| !text.is_empty());
    if text(unit).is_some_and(|text| !has_install_section(&text)) {
        let name = &unit.name;
        let message =
            format!("unit {name:?} is enabled, but has no install section so enable does nothing");
        out.push(Advice::new(path, message));
    }
    let parts = unit.name.strip_suffix(".service").and_then(|name| name.split_once('@'));
    let Some((template, _)) = parts.filter(|(a, b)| !a.is_empty() && !b.is_empty()) else { return };
    let template = format!("{template}@.service");
    // The last of several units with one name wins.
    let contents = all.iter().rfind(|other| other.name == template).and_then(text);
    if contents.is_some_and(|text| !has_install_section(&text)) {
        let name = &unit.name;
        let message =
            format!("template unit {template:?} for {name:?} doesn't have Install section");
        out.push(Advice::new(path, message));
    }
}

/// Returns `true` if a unit has an assignment in a section `[Install]`.
fn has_install_section(text: &str) -> bool {
    let (mut inside, mut continued) = (false, false);
    for line in text.lines() {
        let is_continuation = std::mem::replace(&mut continued, line.ends_with('\\'));
        if is_continuation {
            continue;
        }
        let line = line.trim();
        match line.strip_prefix('[') {
            Some(name) => inside = name.strip_suffix(']') == Some("Install"),
            None if inside && !line.starts_with(['#', ';']) && line.contains('=') => return true,
            None => {}
        }
    }
    false
}
