//! Translates Container Linux Config, which older stores contain, to Ignition 2.3.
//!
//! The format has no version and no variant. Dynamic data such as `{PRIVATE_IPV4}` requires a platform, which a store
//! does not know.

mod services;
#[cfg(test)]
mod tests;

use api_meta::Tree as _;
use serde_json::{Map, Value as Json, json};

use crate::{
    advice::{self, Advice},
    butane::{Error, Translation, Translator},
    config,
    data::escape,
    error::ConfigError,
    schema::Shape::{self, Bool, Int, List, Object, Options, Text},
    spec::Config,
    yaml::{self, Node},
};

const VERSION: &str = "2.3.0";
const SECTOR: u64 = 512;
const TEXTS: Shape = List(&Text);
const HASH: Shape = Object(&[("hash", Object(&[("function", Text), ("sum", Text)]))]);
const SOURCE: Shape = Object(&[("source", Text), ("verification", HASH)]);
const OWNER: Shape = Object(&[("id", Int), ("name", Text)]);
const UNITS: Shape = List(&Object(&[
    ("name", Text),
    ("enable", Bool),
    ("enabled", Bool),
    ("mask", Bool),
    ("contents", Text),
    ("dropins", List(&Object(&[("name", Text), ("contents", Text)]))),
]));

const CONFIG: &[(&str, Shape)] = &[
    (
        "ignition",
        Object(&[
            ("config", Object(&[("append", List(&SOURCE)), ("replace", SOURCE)])),
            ("timeouts", Object(&[("http_response_headers", Int), ("http_total", Int)])),
            (
                "security",
                Object(&[(
                    "tls",
                    Object(&[(
                        "certificate_authorities",
                        List(&Object(&[
                            ("source", Text),
                            ("verification", Object(&[("hash", Text)])),
                        ])),
                    )]),
                )]),
            ),
            ("proxy", Object(&[("http_proxy", Text), ("https_proxy", Text), ("no_proxy", TEXTS)])),
        ]),
    ),
    ("storage", STORAGE),
    ("systemd", Object(&[("units", UNITS)])),
    ("networkd", Object(&[("units", UNITS)])),
    ("passwd", PASSWD),
    ("etcd", Options),
    ("flannel", Options),
    ("docker", Object(&[("flags", TEXTS)])),
    ("update", Object(&[("group", Text), ("server", Text)])),
    (
        "locksmith",
        Object(&[
            ("reboot_strategy", Text),
            ("window_start", Text),
            ("window_length", Text),
            ("group", Text),
            ("etcd_endpoints", Text),
            ("etcd_cafile", Text),
            ("etcd_certfile", Text),
            ("etcd_keyfile", Text),
        ]),
    ),
];

const STORAGE: Shape = Object(&[
    (
        "disks",
        List(&Object(&[
            ("device", Text),
            ("wipe_table", Bool),
            (
                "partitions",
                List(&Object(&[
                    ("label", Text),
                    ("number", Int),
                    ("size", Text),
                    ("start", Text),
                    ("type_guid", Text),
                    ("guid", Text),
                ])),
            ),
        ])),
    ),
    (
        "raid",
        List(&Object(&[
            ("name", Text),
            ("level", Text),
            ("devices", TEXTS),
            ("spares", Int),
            ("options", TEXTS),
        ])),
    ),
    (
        "filesystems",
        List(&Object(&[
            ("name", Text),
            (
                "mount",
                Object(&[
                    ("device", Text),
                    ("format", Text),
                    ("wipe_filesystem", Bool),
                    ("label", Text),
                    ("uuid", Text),
                    ("options", TEXTS),
                    ("create", Object(&[("force", Bool), ("options", TEXTS)])),
                ]),
            ),
            ("path", Text),
        ])),
    ),
    (
        "files",
        List(&Object(&[
            ("filesystem", Text),
            ("path", Text),
            ("overwrite", Bool),
            ("append", Bool),
            (
                "contents",
                Object(&[
                    ("inline", Text),
                    ("local", Text),
                    (
                        "remote",
                        Object(&[("url", Text), ("compression", Text), ("verification", HASH)]),
                    ),
                ]),
            ),
            ("mode", Int),
            ("user", OWNER),
            ("group", OWNER),
        ])),
    ),
    (
        "directories",
        List(&Object(&[
            ("filesystem", Text),
            ("path", Text),
            ("overwrite", Bool),
            ("mode", Int),
            ("user", OWNER),
            ("group", OWNER),
        ])),
    ),
    (
        "links",
        List(&Object(&[
            ("filesystem", Text),
            ("path", Text),
            ("overwrite", Bool),
            ("user", OWNER),
            ("group", OWNER),
            ("target", Text),
            ("hard", Bool),
        ])),
    ),
]);

const CREATE: Shape = Object(&[
    ("uid", Int),
    ("gecos", Text),
    ("home_dir", Text),
    ("no_create_home", Bool),
    ("primary_group", Text),
    ("groups", TEXTS),
    ("no_user_group", Bool),
    ("no_log_init", Bool),
    ("shell", Text),
    ("system", Bool),
]);

const PASSWD: Shape = Object(&[
    (
        "users",
        List(&Object(&[
            ("name", Text),
            ("password_hash", Text),
            ("ssh_authorized_keys", TEXTS),
            ("uid", Int),
            ("gecos", Text),
            ("home_dir", Text),
            ("no_create_home", Bool),
            ("primary_group", Text),
            ("groups", TEXTS),
            ("no_user_group", Bool),
            ("no_log_init", Bool),
            ("shell", Text),
            ("system", Bool),
            ("create", CREATE),
        ])),
    ),
    (
        "groups",
        List(&Object(&[("name", Text), ("gid", Int), ("password_hash", Text), ("system", Bool)])),
    ),
]);

/// The partition types by their aliases.
const TYPES: [(&str, &str); 4] = [
    ("raid_containing_root", "be9067b9-ea49-4f15-b4f6-f36f8c9e1818"),
    ("linux_filesystem_data", "0fc63daf-8483-4772-8e79-3d69d8477de4"),
    ("swap_partition", "0657fd6d-a4ab-43c4-84e5-0933c84b4f4f"),
    ("raid_partition", "a19d880f-05fc-4d3b-a006-743f0f84911e"),
];

/// Returns `true` for a Container Linux Config. All other configs have `variant` or `version`.
pub(crate) fn is_config(root: &Node) -> bool {
    let yaml::Value::Map(entries) = &root.value else { return false };
    !entries.iter().any(|(key, _)| matches!(key.name.as_str(), "variant" | "version"))
}

/// Translates a parsed config.
pub(crate) fn translate(root: &Node) -> Result<Translation, Error> {
    let mut translator = Translator::new(None);
    let config = translator.object(root, CONFIG, "$")?;
    let config = ignition(config).map_err(|error| translator.locate(error, root))?;
    // An error in the result is an error in the source.
    let result = config::parse(&config.to_string()).and_then(|config| config::typed(&config));
    let typed = result.map_err(|error| translator.locate(error, root))?;
    translator.advise(advise(&config, &typed), root);
    Ok(Translation { config, warnings: translator.warnings })
}

/// Returns the warnings of Ignition 2.3: those of 3.x, deprecated fields, and defaults.
fn advise(config: &Json, typed: &Config) -> Vec<Advice> {
    let mut out = advice::advise(typed);
    let (storage, passwd) = (&config["storage"], &config["passwd"]);
    for list in ["files", "directories"] {
        let nodes = storage.items(list).iter().enumerate();
        for (i, _) in nodes.filter(|(_, node)| node["mode"].is_null()) {
            let message = "permissions unset, defaulting to 0000";
            out.push(Advice::new(format!("storage.{list}.{i}.mode"), message));
        }
    }
    let has_create = |at: &Json| !at["create"].is_null();
    for (i, _) in passwd.items("users").iter().enumerate().filter(|(_, user)| has_create(user)) {
        let message = "the create object has been deprecated in favor of user-level options";
        out.push(Advice::new(format!("passwd.users.{i}.create"), message));
    }
    let filesystems = storage.items("filesystems").iter().enumerate();
    for (i, _) in filesystems.filter(|(_, filesystem)| has_create(&filesystem["mount"])) {
        let message = "the create object has been deprecated in favor of mount-level options";
        out.push(Advice::new(format!("storage.filesystems.{i}.mount.create"), message));
    }
    out
}

fn ignition(mut config: Map<String, Json>) -> Result<Json, ConfigError> {
    let mut out = json!({ "ignition": config.remove("ignition").unwrap_or_else(|| json!({})) });
    out.put("ignition.version", VERSION);
    let mut storage = config.remove("storage").unwrap_or_else(|| json!({}));
    self::storage(&mut storage)?;
    out["storage"] = storage;
    for section in ["systemd", "networkd", "passwd"] {
        out[section] = config.remove(section).unwrap_or_else(|| json!({}));
    }
    services::add(&mut out, &config)?;
    join_hashes(&mut out);
    Ok(out)
}

fn items<'c>(section: &'c mut Json, list: &str) -> impl Iterator<Item = (usize, &'c mut Json)> {
    let list = section.get_mut(list).and_then(Json::as_array_mut);
    list.into_iter().flatten().enumerate()
}

fn storage(storage: &mut Json) -> Result<(), ConfigError> {
    for (i, disk) in items(storage, "disks") {
        for (j, partition) in items(disk, "partitions") {
            for key in ["size", "start"] {
                let Some(text) = partition[key].as_str() else { continue };
                let invalid = || {
                    let path = format!("storage.disks.{i}.partitions.{j}.{key}");
                    let reason = "is not a size in whole sectors, such as 512MiB";
                    ConfigError::invalid(path, format!("{text:?} {reason}"))
                };
                partition[key] = sectors(text).ok_or_else(invalid)?.into();
            }
            let kind = partition["typeGuid"].as_str().unwrap_or_default();
            if let Some((_, guid)) = TYPES.iter().find(|(word, _)| *word == kind) {
                partition["typeGuid"] = (*guid).into();
            }
        }
    }
    for kind in ["files", "directories", "links"] {
        for (i, node) in items(storage, kind) {
            if node["filesystem"].as_str().is_none_or(str::is_empty) {
                node["filesystem"] = "root".into();
            }
            if let Some(source) = node.get_mut("contents").map(Json::take) {
                let path = || format!("storage.{kind}.{i}.contents");
                node["contents"] =
                    contents(source).map_err(|reason| ConfigError::invalid(path(), reason))?;
            }
        }
    }
    Ok(())
}

/// Parses `512MiB` to sectors. Zero lets the machine choose the size.
fn sectors(text: &str) -> Option<u64> {
    let text = text.trim();
    if text.is_empty() || text == "0" {
        return Some(0);
    }
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let unit = match unit.trim() {
        "B" => 1,
        "K" | "KB" | "KiB" => 1 << 10,
        "M" | "MB" | "MiB" => 1 << 20,
        "G" | "GB" | "GiB" => 1 << 30,
        "T" | "TB" | "TiB" => 1 << 40,
        _ => return None,
    };
    let bytes = number.parse::<u64>().ok()?.checked_mul(unit)?;
    bytes.is_multiple_of(SECTOR).then_some(bytes / SECTOR)
}

fn contents(mut source: Json) -> Result<Json, &'static str> {
    let inline = source["inline"].take();
    if source["local"].as_str().is_some() {
        return Err("local files need a files directory, and none is given");
    }
    let mut remote = source["remote"].take();
    match (inline, remote.as_object_mut()) {
        (Json::String(_), Some(_)) => Err("inline and remote exclude each other"),
        (Json::String(text), None) => {
            Ok(json!({ "source": format!("data:,{}", escape(text.as_bytes())) }))
        }
        (_, Some(remote)) => {
            let url = remote.remove("url").unwrap_or_default();
            remote.insert("source".into(), url);
            Ok(std::mem::take(remote).into())
        }
        (_, None) => Ok(json!({ "source": "" })),
    }
}

/// Joins the two parts of a hash to `FUNCTION-SUM`.
fn join_hashes(value: &mut Json) {
    match value {
        Json::Object(fields) => {
            if let Some(hash) = fields.get_mut("hash")
                && let (Some(function), Some(sum)) =
                    (hash["function"].as_str(), hash["sum"].as_str())
            {
                *hash = format!("{function}-{sum}").into();
            }
            fields.values_mut().for_each(join_hashes);
        }
        Json::Array(items) => items.iter_mut().for_each(join_hashes),
        _ => {}
    }
}
