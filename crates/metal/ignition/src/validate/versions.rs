//! Rules of certain versions of the spec.
//!
//! A machine converts configs before 3.4 to 3.4.0, so the rules of older versions apply only to translated Butane
//! configs.

use crate::{
    error::ConfigError,
    spec::{Config, Resource},
};

/// Returns the minor version of a spec 3 config.
pub(crate) fn minor(config: &Config) -> u32 {
    let minor = config.ignition.version.split('.').nth(1);
    minor.and_then(|minor| minor.parse().ok()).unwrap_or(u32::MAX)
}

/// The URL schemes and the minor version that introduced them.
const SCHEMES: [(&str, u32); 2] = [("gs:", 2), ("arn:", 4)];

pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    let fail = |path: String, reason: &str| Err(ConfigError::invalid(path, reason));
    let minor = minor(config);
    for (path, resource) in resources(config) {
        let source = resource.source.as_deref().unwrap_or_default();
        if SCHEMES.iter().any(|(scheme, since)| source.starts_with(scheme) && minor < *since) {
            return fail(format!("{path}.source"), "invalid url scheme");
        }
        let hash = resource.verification.hash.as_deref().unwrap_or_default();
        if hash.starts_with("sha256-") && minor < 1 {
            return fail(format!("{path}.verification.hash"), "unrecognized hash function");
        }
    }
    for (i, filesystem) in config.storage.filesystems.iter().enumerate() {
        if filesystem.format.as_deref() == Some("none") && minor < 3 {
            let path = format!("storage.filesystems.{i}.format");
            return fail(path, "invalid filesystem format");
        }
    }
    for (i, luks) in config.storage.luks.iter().enumerate() {
        let pin = luks.clevis.custom.pin.as_deref().unwrap_or_default();
        if minor < 6 && !["", "tpm2", "tang", "sss"].contains(&pin) {
            return fail(format!("storage.luks.{i}.clevis.custom.pin"), "unsupported clevis pin");
        }
    }
    Ok(())
}

/// Returns all resources of a config with their paths.
fn resources(config: &Config) -> Vec<(String, &Resource)> {
    let head = &config.ignition;
    let mut all = vec![("ignition.config.replace".to_owned(), &head.config.replace)];
    let lists = [
        ("ignition.config.merge", &head.config.merge),
        (
            "ignition.security.tls.certificateAuthorities",
            &head.security.tls.certificate_authorities,
        ),
    ];
    for (path, list) in lists {
        all.extend(list.iter().enumerate().map(|(i, one)| (format!("{path}.{i}"), one)));
    }
    for (i, file) in config.storage.files.iter().enumerate() {
        all.push((format!("storage.files.{i}.contents"), &file.contents));
        let parts = file.append.iter().enumerate();
        all.extend(parts.map(|(j, part)| (format!("storage.files.{i}.append.{j}"), part)));
    }
    for (i, luks) in config.storage.luks.iter().enumerate() {
        all.push((format!("storage.luks.{i}.keyFile"), &luks.key_file));
    }
    all
}
