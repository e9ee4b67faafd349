//! Converts the sections of Container Linux' own services to unit drop-ins and a file.

use api_meta::Tree as _;
use serde_json::{Map, Value as Json, json};

use crate::{data::escape, error::ConfigError};

/// The variable in `update.conf` of each locksmith setting.
const LOCKSMITH: [(&str, &str); 8] = [
    ("rebootStrategy", "REBOOT_STRATEGY"),
    ("windowStart", "LOCKSMITHD_REBOOT_WINDOW_START"),
    ("windowLength", "LOCKSMITHD_REBOOT_WINDOW_LENGTH"),
    ("group", "LOCKSMITHD_GROUP"),
    ("etcdEndpoints", "LOCKSMITHD_ENDPOINT"),
    ("etcdCafile", "LOCKSMITHD_ETCD_CAFILE"),
    ("etcdCertfile", "LOCKSMITHD_ETCD_CERTFILE"),
    ("etcdKeyfile", "LOCKSMITHD_ETCD_KEYFILE"),
];

/// Adds the units and the file for these sections.
pub(super) fn add(out: &mut Json, config: &Map<String, Json>) -> Result<(), ConfigError> {
    let section = |name| config.get(name).unwrap_or(&Json::Null);
    if let Some(options) = section("etcd").as_array() {
        let text = wrapped("etcd", "ETCD", options)?;
        push(out, "systemd", "units", dropin("etcd-member.service", "etcd-member", &text));
    }
    if let Some(options) = section("flannel").as_array() {
        let text = flannel(options)?;
        push(out, "systemd", "units", dropin("flanneld.service", "flannel", &text));
    }
    if section("docker").is_object() {
        let flags = section("docker")["flags"].as_array().map(Vec::as_slice).unwrap_or_default();
        let flags: Vec<&str> = flags.iter().filter_map(Json::as_str).collect();
        let text = format!("[Service]\nEnvironment=\"DOCKER_OPTS={}\"", flags.join(" "));
        push(out, "systemd", "units", dropin("docker.service", "docker", &text));
    }
    let text = update(section("update"), section("locksmith"))?;
    if !text.is_empty() {
        let source = format!("data:,{}", escape(text.as_bytes()));
        let file = json!({
            "filesystem": "root", "path": "/etc/coreos/update.conf", "mode": 0o644, "contents": { "source": source },
        });
        push(out, "storage", "files", file);
    }
    Ok(())
}

fn push(out: &mut Json, section: &str, list: &str, item: Json) {
    match out[section][list].as_array_mut() {
        Some(items) => items.push(item),
        None => out[section][list] = json!([item]),
    }
}

fn dropin(unit: &str, name: &str, text: &str) -> Json {
    let name = format!("20-clct-{name}.conf");
    json!({ "name": unit, "enable": true, "dropins": [{ "name": name, "contents": text }] })
}

/// Returns an option's name and its value, which is quoted if it is text.
fn option(option: &Json) -> (&str, &str) {
    (option[0].as_str().unwrap_or_default(), option[1].as_str().unwrap_or_default())
}

fn find<'c>(options: &'c [Json], name: &str) -> Option<&'c str> {
    options.iter().map(option).find(|(other, _)| *other == name).map(|(_, value)| value)
}

/// Returns `true` for values such as `{PRIVATE_IPV4}`.
fn is_dynamic(value: &str) -> bool {
    let word = |text: &str| {
        text.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
    };
    value.split('{').skip(1).any(|rest| {
        rest.split_once('}').is_some_and(|(inside, _)| !inside.is_empty() && word(inside))
    })
}

/// Returns a drop-in that starts a service through its wrapper with these options.
fn wrapped(name: &str, variable: &str, options: &[Json]) -> Result<String, ConfigError> {
    let mut out = "[Service]".to_owned();
    if let Some(version) = find(options, "version") {
        out += &format!("\nEnvironment=\"{variable}_IMAGE_TAG=v{}\"", version.trim_matches('"'));
    }
    out += &format!("\nExecStart=\nExecStart=/usr/lib/coreos/{name}-wrapper ${variable}_OPTS");
    for (key, value) in options.iter().map(option) {
        let flag = match key {
            "version" | "network_config" => continue,
            "interface" => "iface".to_owned(),
            key => key.replace('_', "-"),
        };
        if is_dynamic(value) {
            return Err(ConfigError::Invalid {
                path: format!("{name}.{key}"),
                reason: format!("platform must be specified to use templating: {value}"),
            });
        }
        out += &format!(" \\\n  --{flag}={value}");
    }
    Ok(out)
}

/// Returns flannel's drop-in, which writes the network configuration to etcd before the start.
fn flannel(options: &[Json]) -> Result<String, ConfigError> {
    let mut out = wrapped("flannel", "FLANNEL", options)?;
    if let Some(network) = find(options, "network_config") {
        out += "\nExecStartPre=/usr/bin/etcdctl";
        for (key, flag) in [
            ("etcd_endpoints", "endpoints"),
            ("etcd_cafile", "ca-file"),
            ("etcd_certfile", "cert-file"),
            ("etcd_keyfile", "key-file"),
        ] {
            if let Some(value) = find(options, key) {
                out += &format!(" --{flag}={value}");
            }
        }
        out += &format!(" set /coreos.com/network/config {network}");
    }
    Ok(out)
}

fn update(update: &Json, locksmith: &Json) -> Result<String, ConfigError> {
    let mut out = String::new();
    if let Some(group) = update["group"].as_str() {
        out += &format!("GROUP={}", group.to_ascii_lowercase());
    }
    if let Some(server) = update["server"].as_str() {
        out += &format!("\nSERVER={server}");
    }
    let invalid = |key: &str, reason: &str| ConfigError::Invalid {
        path: format!("locksmith.{key}"),
        reason: reason.to_owned(),
    };
    if locksmith.opt_text("windowStart").is_some() != locksmith.opt_text("windowLength").is_some() {
        let reason = "window-start and window-length must both be specified";
        return Err(invalid("windowStart", reason));
    }
    if let Some(strategy) = locksmith.opt_text("rebootStrategy")
        && !["reboot", "etcd-lock", "off"].contains(&strategy.to_ascii_lowercase().as_str())
    {
        return Err(invalid("rebootStrategy", "unknown reboot strategy"));
    }
    for (key, variable) in LOCKSMITH {
        if let Some(value) = locksmith[key].as_str() {
            out += &format!("\n{variable}={value:?}");
        }
    }
    Ok(out)
}
