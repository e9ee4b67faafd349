//! Rules of ConfigMaps and Secrets.

use api_meta::{ErrorList, FieldError, Path, Tree as _, validation};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use crate::strategy::Strategy;

const MAX_BYTES: usize = 1024 * 1024;
const IMMUTABLE: &str = "field is immutable when `immutable` is set";

pub(crate) static CONFIG_MAP: Strategy = Strategy {
    check: |map, errors| {
        let size = check_keys(map, &["data", "binaryData"], errors);
        for key in map.pairs("binaryData").map(|(key, _)| key) {
            if map.at("data").get(key).is_some() {
                let path = Path::new("data").key(key);
                errors.push(FieldError::invalid(
                    &path,
                    key.as_str(),
                    "duplicate of key present in binaryData",
                ));
            }
        }
        if size > MAX_BYTES {
            // Upstream prints the path of the whole object like this.
            errors.push(FieldError::too_long(&Path::new("[]"), MAX_BYTES));
        }
    },
    check_update: |new, old, errors| check_immutable(new, old, &["data", "binaryData"], errors),
    ..Strategy::PLAIN
};

pub(crate) static SECRET: Strategy = Strategy {
    own_defaults: encode_strings,
    check: check_secret,
    check_create: check_account,
    check_update: |new, old, errors| {
        check_account(new, errors);
        crate::meta::check_immutable(new, old, "type", errors);
        check_immutable(new, old, &["data"], errors);
    },
    selectable: &[("type", |secret| secret.text("type").to_owned())],
    ..Strategy::PLAIN
};

/// Moves `stringData`, which is never stored, to `data`.
fn encode_strings(secret: &mut Value) {
    let strings = secret.at_mut("stringData").map(Value::take).unwrap_or_default();
    secret.set("stringData", Value::Null);
    let Value::Object(strings) = strings else { return };
    if strings.is_empty() {
        return;
    }
    let Some(data) = secret.map_mut("data") else { return };
    for (key, text) in strings {
        let text = text.as_str().unwrap_or_default();
        data.insert(key, STANDARD.encode(text).into());
    }
}

/// Validates the keys of maps and returns the total size of their values.
fn check_keys(object: &Value, fields: &[&str], errors: &mut ErrorList) -> usize {
    let mut size = 0;
    for field in fields {
        for (key, value) in object.pairs(field) {
            for message in validation::config_map_key(key) {
                errors.push(FieldError::invalid(&Path::new(field).key(key), key.as_str(), message));
            }
            let text = value.as_str().unwrap_or_default();
            size += if *field == "data" && object.has("type") || *field == "binaryData" {
                text.len() / 4 * 3
            } else {
                text.len()
            };
        }
    }
    size
}

fn check_immutable(new: &Value, old: &Value, fields: &[&str], errors: &mut ErrorList) {
    if !old.flag("immutable") {
        return;
    }
    if !new.flag("immutable") {
        errors.push(FieldError::forbidden(&Path::new("immutable"), IMMUTABLE));
    }
    for field in fields {
        if new.at(field) != old.at(field) {
            errors.push(FieldError::forbidden(&Path::new(field), IMMUTABLE));
        }
    }
}

/// Reports a token's Secret that names no service account.
fn check_account(secret: &Value, errors: &mut ErrorList) {
    const ANNOTATION: &str = "kubernetes.io/service-account.name";
    let account = secret.at("metadata.annotations").get(ANNOTATION).and_then(Value::as_str);
    let is_token = secret.text("type") == "kubernetes.io/service-account-token";
    if is_token && account.is_none_or(str::is_empty) {
        let path = Path::new("metadata").child("annotations").key(ANNOTATION);
        errors.push(FieldError::required(&path, ""));
    }
}

fn check_secret(secret: &Value, errors: &mut ErrorList) {
    if check_keys(secret, &["data"], errors) > MAX_BYTES {
        errors.push(FieldError::too_long(&Path::new("data"), MAX_BYTES));
    }
    let data = Path::new("data");
    let key = |name: &str| secret.at("data").get(name).and_then(Value::as_str);
    let mut require = |name: &str, path: Path| {
        if key(name).is_none() {
            errors.push(FieldError::required(&path, ""));
        }
    };
    match secret.text("type") {
        "kubernetes.io/dockercfg" => require(".dockercfg", data.key(".dockercfg")),
        "kubernetes.io/dockerconfigjson" => {
            require(".dockerconfigjson", data.key(".dockerconfigjson"));
        }
        "kubernetes.io/basic-auth" if key("username").is_none() && key("password").is_none() => {
            errors.push(FieldError::required(&data.key("username"), ""));
            errors.push(FieldError::required(&data.key("password"), ""));
        }
        "kubernetes.io/ssh-auth" if key("ssh-privatekey").is_none_or(str::is_empty) => {
            errors.push(FieldError::required(&data.key("ssh-privatekey"), ""));
        }
        "kubernetes.io/tls" => {
            require("tls.crt", data.key("tls.crt"));
            require("tls.key", data.key("tls.key"));
        }
        _ => {}
    }
    let name = match secret.text("type") {
        "kubernetes.io/dockercfg" => ".dockercfg",
        "kubernetes.io/dockerconfigjson" => ".dockerconfigjson",
        _ => return,
    };
    if let Some(config) = key(name)
        && let Ok(bytes) = STANDARD.decode(config)
        && serde_json::from_slice::<Map<String, Value>>(&bytes).is_err()
    {
        let detail = if serde_json::from_slice::<IgnoredAny>(&bytes).is_ok() {
            "json: cannot unmarshal the value into Go value of type map[string]interface {}"
        } else {
            "invalid character"
        };
        let path = data.key(name);
        errors.push(FieldError::invalid(&path, "<secret contents redacted>", detail));
    }
}
