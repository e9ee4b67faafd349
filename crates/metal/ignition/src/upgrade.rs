//! Converts configs of spec 2.0 to 2.4, which older stores contain, to spec 3.4.

use std::collections::BTreeMap;

use api_meta::Tree as _;
use serde_json::{Map, Value, json};

use crate::{data::escape, error::ConfigError, paths};

/// The number of 512-byte sectors per MiB. Spec 2.x uses them on every disk.
const SECTORS_PER_MIB: u64 = 2048;

pub(crate) fn upgrade(old: &Value) -> Result<Value, ConfigError> {
    let mut out = json!({ "ignition": ignition(&old["ignition"]) });
    let mounts = mounts(old)?;
    let disks = old.items("storage.disks").iter().enumerate().map(|(i, disk)| self::disk(i, disk));
    let raid = old.items("storage.raid").to_vec();
    let filesystems: Vec<Value> =
        old.items("storage.filesystems").iter().filter_map(filesystem).collect();
    let mut files = files(old, &mounts)?;
    files.extend(networkd(old));
    out["storage"] = json!({
        "disks": disks.collect::<Result<Vec<_>, _>>()?,
        "raid": raid,
        "filesystems": filesystems,
        "files": files,
        "directories": nodes(old, "directories", &mounts)?,
        "links": nodes(old, "links", &mounts)?,
    });
    out["systemd"] =
        json!({ "units": old.items("systemd.units").iter().map(unit).collect::<Vec<_>>() });
    out["passwd"] = passwd(&old["passwd"])?;
    Ok(out)
}

fn ignition(old: &Value) -> Value {
    let mut out = json!({ "version": "3.4.0" });
    for key in ["timeouts", "security", "proxy"] {
        if old[key].is_object() {
            out[key] = old[key].clone();
        }
    }
    let config = &old["config"];
    if !config.items("append").is_empty() {
        out.put("config.merge", config["append"].clone());
    }
    if config["replace"].is_object() {
        out.put("config.replace", config["replace"].clone());
    }
    out
}

/// Returns the mount points of filesystems by name. A filesystem without a path is mounted below `/tmp`, as in 2.x.
fn mounts(old: &Value) -> Result<BTreeMap<String, String>, ConfigError> {
    let mut out =
        BTreeMap::from([("root".to_owned(), String::new()), (String::new(), String::new())]);
    for (i, filesystem) in old.items("storage.filesystems").iter().enumerate() {
        let name = filesystem.text("name");
        if let Some(path) = filesystem["path"].as_str() {
            // The root is at `/sysroot` in the initrd.
            let path = path.strip_prefix("/sysroot").unwrap_or(path);
            out.insert(name.to_owned(), path.trim_end_matches('/').to_owned());
        } else if !filesystem["mount"].is_object() {
            let path = format!("storage.filesystems.{i}");
            return Err(ConfigError::invalid(path, "filesystem is missing mount or path"));
        } else if !name.is_empty() {
            out.insert(name.to_owned(), mount_point(name));
        }
    }
    Ok(out)
}

fn mount_point(name: &str) -> String {
    format!("/tmp/ignition-{name}")
}

fn filesystem(old: &Value) -> Option<Value> {
    let mount = old["mount"].as_object()?;
    let mut out = mount.clone();
    if let Some(create) = out.remove("create") {
        if create["force"] == true {
            out.insert("wipeFilesystem".into(), true.into());
        }
        out.insert("options".into(), create["options"].clone());
    }
    let name = old.text("name");
    if !name.is_empty() && out.get("format") != Some(&json!("swap")) {
        out.insert("path".into(), mount_point(name).into());
    }
    out.retain(|_, value| !value.is_null());
    Some(Value::Object(out))
}

fn disk(at: usize, old: &Value) -> Result<Value, ConfigError> {
    let mut out = old.clone();
    let Some(partitions) = out.get_mut("partitions").and_then(Value::as_array_mut) else {
        return Ok(out);
    };
    for (i, partition) in partitions.iter_mut().filter_map(Value::as_object_mut).enumerate() {
        for (old, new) in [("start", "startMiB"), ("size", "sizeMiB")] {
            let Some(sectors) = partition.remove(old).and_then(|value| value.as_u64()) else {
                continue;
            };
            if !sectors.is_multiple_of(SECTORS_PER_MIB) {
                let path = format!("storage.disks.{at}.partitions.{i}.{old}");
                return Err(ConfigError::invalid(path, "spec 3 requires whole mebibytes"));
            }
            partition.entry(new).or_insert((sectors / SECTORS_PER_MIB).into());
        }
    }
    Ok(out)
}

/// Returns a file, directory or link at its path from the root.
fn node(
    kind: &str,
    at: usize,
    old: &Value,
    mounts: &BTreeMap<String, String>,
) -> Result<Map<String, Value>, ConfigError> {
    let mut out = old.as_object().cloned().unwrap_or_default();
    let name = out.remove("filesystem").unwrap_or_default();
    let Some(mount) = mounts.get(name.text("")) else {
        let path = format!("storage.{kind}.{at}.filesystem");
        return Err(ConfigError::invalid(
            path,
            format!("the filesystem {:?} does not exist", name.text("")),
        ));
    };
    let path = format!("{mount}{}", out.get("path").map_or("", |path| path.text("")));
    // Spec 2.x accepted any spelling of a path.
    out.insert("path".into(), paths::simplified(&path).into());
    Ok(out)
}

fn nodes(
    old: &Value,
    kind: &str,
    mounts: &BTreeMap<String, String>,
) -> Result<Vec<Value>, ConfigError> {
    let items = old.items(&["storage", kind]).iter().enumerate();
    items.map(|(i, item)| Ok(Value::Object(node(kind, i, item, mounts)?))).collect()
}

/// Merges entries that append to one path into one file. Spec 2.x overwrites by default.
fn files(old: &Value, mounts: &BTreeMap<String, String>) -> Result<Vec<Value>, ConfigError> {
    let mut out: Vec<Value> = Vec::new();
    for (i, item) in old.items("storage.files").iter().enumerate() {
        let mut file = node("files", i, item, mounts)?;
        let contents = file.remove("contents").unwrap_or_else(|| json!({}));
        let append = file.remove("append") == Some(Value::Bool(true));
        let existing = out.iter_mut().find(|existing| existing["path"] == file["path"]);
        match (existing, append) {
            (Some(existing), true) => match existing["append"].as_array_mut() {
                Some(parts) => parts.push(contents),
                None => existing["append"] = json!([contents]),
            },
            (Some(_), false) => {
                let path = format!("storage.files.{i}.path");
                return Err(ConfigError::invalid(path, "duplicate entry defined"));
            }
            (None, true) => {
                file.remove("overwrite");
                file.insert("append".into(), json!([contents]));
                out.push(Value::Object(file));
            }
            (None, false) => {
                file.entry("overwrite").or_insert(true.into());
                let mut contents = contents;
                // Values of the wrong type are rejected later.
                if let Some(contents) = contents.as_object_mut() {
                    contents.entry("source").or_insert("".into());
                }
                file.insert("contents".into(), contents);
                out.push(Value::Object(file));
            }
        }
    }
    Ok(out)
}

fn networkd(old: &Value) -> Vec<Value> {
    let mut out = Vec::new();
    let file = |path: String, contents: &Value| {
        let source = format!("data:,{}", escape(contents.text("").as_bytes()));
        json!({ "path": path, "mode": 0o644, "overwrite": true, "contents": { "source": source } })
    };
    for unit in old.items("networkd.units") {
        let path = format!("/etc/systemd/network/{}", unit.text("name"));
        if !unit.text("contents").is_empty() {
            out.push(file(path.clone(), &unit["contents"]));
        }
        for dropin in unit.items("dropins") {
            out.push(file(format!("{path}.d/{}", dropin.text("name")), &dropin["contents"]));
        }
    }
    out
}

fn unit(old: &Value) -> Value {
    let mut out = old.as_object().cloned().unwrap_or_default();
    if out.remove("enable") == Some(Value::Bool(true)) {
        out.entry("enabled").or_insert(true.into());
    }
    Value::Object(out)
}

fn passwd(old: &Value) -> Result<Value, ConfigError> {
    let mut users: Vec<Value> = Vec::new();
    for (i, user) in old.items("users").iter().enumerate() {
        let mut out = user.as_object().cloned().unwrap_or_default();
        if let Some(Value::Object(create)) = out.remove("create") {
            create.into_iter().for_each(|(key, value)| {
                out.entry(key).or_insert(value);
            });
        }
        if let Some(uid) = out.get("uid").filter(|uid| uid.as_u64().is_none()) {
            return Err(ConfigError::invalid(
                format!("passwd.users.{i}.uid"),
                format!("{uid} is not a user ID"),
            ));
        }
        users.push(Value::Object(out));
    }
    Ok(json!({ "users": users, "groups": old.items("groups") }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;

    #[test]
    fn upgrades_spec_2_config() {
        let old = json!({
            "ignition": { "version": "2.2.0", "config": { "append": [{ "source": "http://x/y" }] } },
            "storage": {
                "disks": [{ "device": "/dev/vda", "partitions": [{ "number": 1, "start": 2048, "size": 4096 }] }],
                "filesystems": [
                    { "name": "var", "mount": { "device": "/dev/vda1", "format": "ext4", "create": { "force": true, "options": ["-q"] } } },
                    { "name": "host", "path": "/sysroot/host" },
                ],
                "files": [
                    { "filesystem": "root", "path": "/a", "contents": { "source": "data:,1" }, "mode": 420 },
                    { "filesystem": "var", "path": "/b", "append": true, "contents": { "source": "data:,2" } },
                    { "filesystem": "var", "path": "/b", "append": true, "contents": { "source": "data:,3" } },
                    { "filesystem": "host", "path": "/./c" },
                ],
            },
            "networkd": { "units": [{ "name": "n.network", "contents": "[Match]\n" }] },
            "systemd": { "units": [{ "name": "u.service", "enable": true }] },
            "passwd": { "users": [{ "name": "core", "create": { "uid": 5 } }] },
        });
        let new = parse(&old.to_string()).unwrap();
        assert_eq!(new["ignition"]["version"], "3.4.0");
        assert_eq!(new["ignition"]["config"]["merge"][0]["source"], "http://x/y");
        assert_eq!(
            new["storage"]["disks"][0]["partitions"][0],
            json!({ "number": 1, "startMiB": 1, "sizeMiB": 2 })
        );
        assert_eq!(
            new["storage"]["filesystems"],
            json!([{ "device": "/dev/vda1", "format": "ext4", "wipeFilesystem": true, "options": ["-q"], "path": "/tmp/ignition-var" }])
        );
        let files = &new["storage"]["files"];
        assert_eq!(files[0]["overwrite"], true);
        assert_eq!(
            files[1],
            json!({ "path": "/tmp/ignition-var/b", "append": [{ "source": "data:,2" }, { "source": "data:,3" }] })
        );
        assert_eq!(files[2]["path"], "/host/c");
        assert_eq!(files[3]["contents"]["source"], "data:,%5BMatch%5D%0A");
        assert_eq!(new["systemd"]["units"][0], json!({ "name": "u.service", "enabled": true }));
        assert_eq!(new["passwd"]["users"][0], json!({ "name": "core", "uid": 5 }));
    }

    #[test]
    fn rejects_spec_2_features_without_equivalent() {
        for (storage, want) in [
            (
                json!({ "files": [{ "filesystem": "x", "path": "/a" }] }),
                "$.storage.files.0.filesystem: the filesystem \"x\" does not exist",
            ),
            (
                json!({ "disks": [{ "device": "/dev/a", "partitions": [{ "number": 1, "size": 5 }] }] }),
                "$.storage.disks.0.partitions.0.size: spec 3 requires whole mebibytes",
            ),
            (
                json!({ "filesystems": [{ "name": "x" }] }),
                "$.storage.filesystems.0: filesystem is missing mount or path",
            ),
        ] {
            let old = json!({ "ignition": { "version": "2.0.0" }, "storage": storage });
            assert_eq!(parse(&old.to_string()).unwrap_err().to_string(), want);
        }
    }
}
