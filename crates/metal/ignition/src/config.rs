//! Parses Ignition configs: version, structure and validation.

use api_meta::Tree as _;
use serde_json::{Map, Value};

use crate::{error::ConfigError, paths, spec::Config, upgrade, validate};

/// Parses and validates a config of spec 2.x or 3.0 to 3.6; also of 3.7.0-experimental, without its new fields. A
/// config before 3.4 is converted to 3.4.0.
pub fn parse(text: &str) -> Result<Value, ConfigError> {
    let trimmed = text.trim_start();
    if trimmed.is_empty() {
        return Err(ConfigError::Empty);
    }
    if trimmed.starts_with("#cloud-config") || trimmed.starts_with("#!") {
        return Err(ConfigError::CloudConfig);
    }
    let mut config: Value =
        serde_json::from_str(text).map_err(|error| ConfigError::Json(error.to_string()))?;
    strip_nulls(&mut config);
    let version = config.at_mut("ignition.version").ok_or(ConfigError::NoVersion)?;
    let name = version.as_str().unwrap_or_default().to_owned();
    match name.strip_suffix(".0").and_then(|name| name.split_once('.')) {
        Some(("2", "0" | "1" | "2" | "3" | "4")) => {
            config = upgrade::upgrade(&config)?;
            remove_duplicates(&mut config);
        }
        Some(("3", "0" | "1" | "2" | "3")) => {
            *version = "3.4.0".into();
            strip_special_modes(&mut config);
        }
        Some(("3", "4" | "5")) => strip_special_modes(&mut config),
        Some(("3", "6")) => {}
        _ if name == "3.7.0-experimental" => {}
        _ => return Err(ConfigError::Version(name)),
    }
    check(&config)?;
    validate::validate(&typed(&config)?)?;
    Ok(config)
}

/// Converts a config to the types of the stages.
pub fn typed(config: &Value) -> Result<Config, ConfigError> {
    serde_json::from_value(config.clone()).map_err(|error| ConfigError::Shape(error.to_string()))
}

/// Returns `true` if the config requires the network, for a remote resource or for Tang.
pub fn needs_network(config: &Value) -> bool {
    let remote = |url: &str| !url.is_empty() && !url.starts_with("data:");
    let volumes = config.at("storage.luks").as_array();
    let clevis = volumes.into_iter().flatten().map(|volume| &volume["clevis"]);
    let mut tang = clevis.filter(|clevis| {
        clevis.flag("custom.needsNetwork")
            || clevis["tang"].as_array().is_some_and(|servers| !servers.is_empty())
    });
    fn any(value: &Value, is: &impl Fn(&str) -> bool) -> bool {
        match value {
            Value::Object(fields) => fields.iter().any(|(name, value)| match value {
                Value::String(url) if name == "source" => is(url),
                value => any(value, is),
            }),
            Value::Array(items) => items.iter().any(|item| any(item, is)),
            _ => false,
        }
    }
    tang.next().is_some() || any(config, &remote)
}

/// Removes special bits from modes. They had no effect before 3.6, and must not make an old config's file setuid.
fn strip_special_modes(config: &mut Value) {
    for list in ["files", "directories"] {
        for mode in config.items_mut(&["storage", list]).filter_map(|item| item.get_mut("mode")) {
            if let Some(number) = mode.as_u64() {
                *mode = (number & !0o7000).into();
            }
        }
    }
}

/// Removes duplicate groups and keys of users, which older configs may have.
fn remove_duplicates(config: &mut Value) {
    for user in config.items_mut("passwd.users") {
        for list in ["groups", "sshAuthorizedKeys"] {
            let mut distinct = Vec::new();
            if let Some(items) = user.get_mut(list).and_then(Value::as_array_mut) {
                items.retain(|item| {
                    !distinct.contains(item) && {
                        distinct.push(item.clone());
                        true
                    }
                });
            }
        }
    }
}

/// Removes `null` values, which have no meaning.
fn strip_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(strip_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(strip_nulls),
        _ => {}
    }
}

/// Checks what every stage relies on: names and absolute paths without duplicates.
pub(crate) fn check(config: &Value) -> Result<(), ConfigError> {
    let mut distinct = std::collections::BTreeSet::new();
    let invalid =
        |path, reason: &str| Err(ConfigError::Invalid { path, reason: reason.to_owned() });
    for list in ["directories", "files", "links"] {
        for (i, item) in items(config, "storage", list) {
            let at = || format!("storage.{list}.{i}.path");
            let path = item.get("path").and_then(Value::as_str).unwrap_or_default();
            if path.is_empty() {
                return invalid(at(), "path not specified");
            }
            if let Err(reason) = paths::check(path) {
                return invalid(at(), reason);
            }
            if !distinct.insert(path) {
                return invalid(format!("storage.{list}.{i}"), validate::DUPLICATE);
            }
        }
    }
    let sections = [
        ("systemd", "units", "name"),
        ("passwd", "users", "name"),
        ("passwd", "groups", "name"),
        ("storage", "disks", "device"),
        ("storage", "raid", "name"),
        ("storage", "filesystems", "device"),
        ("storage", "luks", "name"),
    ];
    for (section, list, key) in sections {
        let mut names = std::collections::BTreeSet::new();
        for (i, item) in items(config, section, list) {
            let path = format!("{section}.{list}.{i}");
            match item.get(key).and_then(Value::as_str) {
                // A missing device has its own error.
                None | Some("") if key == "device" => {}
                None | Some("") => return invalid(format!("{path}.{key}"), "a value is required"),
                Some(name) if !names.insert(name) => return invalid(path, validate::DUPLICATE),
                Some(_) => {}
            }
        }
    }
    Ok(())
}

fn items<'c>(
    config: &'c Value,
    section: &str,
    list: &str,
) -> impl Iterator<Item = (usize, &'c Map<String, Value>)> {
    let list = config.get(section).and_then(|section| section.get(list));
    let items = list.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    items.iter().enumerate().filter_map(|(i, item)| Some((i, item.as_object()?)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn strips_special_mode_bits_before_3_6() {
        for (version, mode) in
            [("3.0.0", 0o755), ("3.5.0", 0o755), ("3.6.0", 0o4755), ("3.7.0-experimental", 0o4755)]
        {
            let files = json!([{ "path": "/a", "mode": 0o4755 }]);
            let config =
                json!({ "ignition": { "version": version }, "storage": { "files": files } });
            let parsed = parse(&config.to_string()).unwrap();
            assert_eq!(parsed["storage"]["files"][0]["mode"], mode, "{version}");
        }
    }

    #[test]
    fn removes_duplicate_keys_of_old_configs() {
        let config = |version: &str| {
            let user = json!({ "name": "core", "sshAuthorizedKeys": ["a", "b", "a"] });
            json!({ "ignition": { "version": version }, "passwd": { "users": [user] } }).to_string()
        };
        let keys = &parse(&config("2.3.0")).unwrap()["passwd"]["users"][0]["sshAuthorizedKeys"];
        assert_eq!(keys, &json!(["a", "b"]));
        let error = parse(&config("3.0.0")).unwrap_err().to_string();
        assert_eq!(error, "$.passwd.users.0.sshAuthorizedKeys.2: duplicate entry defined");
    }

    #[test]
    fn needs_network_for_remote_resources() {
        let volume = |clevis: Value| json!({ "luks": [{ "name": "a", "clevis": clevis }] });
        for (storage, want) in [
            (
                json!({ "files": [{ "contents": { "source": "data:,a" } }, { "contents": { "source": null } }] }),
                false,
            ),
            (
                json!({ "files": [{ "append": [{ "source": "data:,a" }, { "source": "http://a" }] }] }),
                true,
            ),
            (volume(json!({ "tpm2": true, "tang": [] })), false),
            (volume(json!({ "tang": [{ "url": "http://a" }] })), true),
            (volume(json!({ "custom": { "pin": "sss", "needsNetwork": true } })), true),
        ] {
            assert_eq!(needs_network(&json!({ "storage": storage })), want, "{storage}");
        }
    }
}
