//! Ignition configs themselves.

use serde_json::{Map, Value};

#[derive(Debug, thiserror::Error, PartialEq)]
pub enum ConfigError {
    #[error("not JSON: {0}")]
    Json(String),
    #[error("ignition.version is required")]
    NoVersion,
    #[error("ignition.version {0:?} is not one of 3.0.0 to 3.6.0")]
    Version(String),
    #[error("$.{path}: {reason}")]
    Invalid { path: String, reason: &'static str },
}

/// Parses a config of spec 3.0 to 3.6 and looks it over. One older than 3.4 becomes 3.4.0, which holds all
/// that it can say.
pub fn parse(text: &str) -> Result<Value, ConfigError> {
    let mut config: Value =
        serde_json::from_str(text).map_err(|error| ConfigError::Json(error.to_string()))?;
    let version = config.pointer_mut("/ignition/version").ok_or(ConfigError::NoVersion)?;
    let name = version.as_str().unwrap_or_default().to_owned();
    match name.strip_prefix("3.").and_then(|rest| rest.strip_suffix(".0")) {
        Some("0" | "1" | "2" | "3") => *version = "3.4.0".into(),
        Some("4" | "5" | "6") => {}
        _ => return Err(ConfigError::Version(name)),
    }
    check(&config)?;
    Ok(config)
}

/// What every stage relies on: names and absolute paths, each path once.
pub(crate) fn check(config: &Value) -> Result<(), ConfigError> {
    let mut paths = std::collections::BTreeSet::new();
    for list in ["files", "directories", "links"] {
        for (i, item) in items(config, "storage", list) {
            let at = || format!("storage.{list}.{i}.path");
            let path = item.get("path").and_then(Value::as_str).unwrap_or_default();
            let invalid = |reason| ConfigError::Invalid { path: at(), reason };
            if path.is_empty() {
                return Err(invalid("path is required"));
            }
            if !path.starts_with('/') {
                return Err(invalid("path not absolute"));
            }
            if !paths.insert(path.trim_end_matches('/').to_owned()) {
                return Err(invalid("duplicate entry defined"));
            }
        }
    }
    let named = [
        ("systemd", "units", "name"),
        ("passwd", "users", "name"),
        ("passwd", "groups", "name"),
        ("storage", "disks", "device"),
        ("storage", "raid", "name"),
        ("storage", "filesystems", "device"),
        ("storage", "luks", "name"),
    ];
    for (section, list, key) in named {
        let mut names = std::collections::BTreeSet::new();
        for (i, item) in items(config, section, list) {
            let path = format!("{section}.{list}.{i}.{key}");
            match item.get(key).and_then(Value::as_str) {
                None | Some("") => {
                    return Err(ConfigError::Invalid { path, reason: "a value is required" });
                }
                Some(name) if !names.insert(name) => {
                    return Err(ConfigError::Invalid { path, reason: "duplicate entry defined" });
                }
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
