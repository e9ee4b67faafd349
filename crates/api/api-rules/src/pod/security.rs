//! Validation of security contexts.

use std::collections::HashSet;

use api_meta::{ErrorList, FieldError, Path, Tree as _};
use serde_json::Value;

use super::paths::validate_local_path;
use crate::{
    fields::{validate_one_of, validate_optional_one_of},
    strategy::Strategy,
};

pub(super) fn check_pod(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let context = spec.at("securityContext");
    let context_path = path.child("securityContext");
    if spec.flag("hostPID") && spec.flag("shareProcessNamespace") {
        errors.push(FieldError::invalid(
            &path.child("shareProcessNamespace"),
            true,
            "ShareProcessNamespace and HostPID cannot both be enabled",
        ));
    }
    validate_ids(context, &["runAsUser", "runAsGroup", "fsGroup"], &context_path, errors);
    for (i, group) in context.items("supplementalGroups").iter().enumerate() {
        check_id(group, &context_path.child("supplementalGroups").index(i), errors);
    }
    validate_optional_one_of(
        context,
        "fsGroupChangePolicy",
        &["OnRootMismatch", "Always"],
        &context_path,
        errors,
    );
    validate_profiles(context, &context_path, errors);
    validate_sysctls(spec, context, &context_path.child("sysctls"), errors);
    if spec.at("hostUsers") == &Value::Bool(false) {
        for field in ["hostPID", "hostIPC", "hostNetwork"] {
            if spec.flag(field) {
                errors.push(FieldError::forbidden(
                    &path.child(field),
                    "when `pod.Spec.HostUsers` is false",
                ));
            }
        }
    }
}

/// Validates sysctls: names are unique, and none belongs to a namespace that the Pod shares with the host.
fn validate_sysctls(spec: &Value, context: &Value, path: &Path, errors: &mut ErrorList) {
    const FORM: &str = "must have at most 253 characters and match regex \
        ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";
    let mut seen = HashSet::new();
    for (i, sysctl) in context.items("sysctls").iter().enumerate() {
        let (path, name) = (path.index(i), sysctl.text("name"));
        let is_repeated = !seen.insert(name);
        if name.is_empty() {
            errors.push(FieldError::required(&path.child("name"), ""));
        } else if !is_sysctl(name) {
            errors.push(FieldError::invalid(&path.child("name"), name, FORM));
        } else if is_repeated {
            errors.push(FieldError::duplicate(&path.child("name"), name));
        }
        // The kernel accepts both separators.
        let dotted = name.replace('/', ".");
        for (field, prefixes) in [
            ("hostNetwork", &["net."][..]),
            ("hostIPC", &["kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue."][..]),
        ] {
            if spec.flag(field) && prefixes.iter().any(|prefix| dotted.starts_with(prefix)) {
                let detail = format!("may not be specified when '{field}' is true");
                errors.push(FieldError::invalid(&path.child("name"), name, detail));
            }
        }
    }
}

fn is_sysctl(name: &str) -> bool {
    let alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let segment = |text: &str| {
        text.starts_with(alphanumeric)
            && text.ends_with(alphanumeric)
            && text.chars().all(|c| alphanumeric(c) || c == '-' || c == '_')
    };
    name.len() <= 253 && name.split(['.', '/']).all(segment)
}

pub(super) fn check_container(container: &Value, path: &Path, errors: &mut ErrorList) {
    let context = container.at("securityContext");
    if context.is_null() {
        return;
    }
    let path = path.child("securityContext");
    validate_ids(context, &["runAsUser", "runAsGroup"], &path, errors);
    validate_optional_one_of(context, "procMount", &["Default", "Unmasked"], &path, errors);
    validate_profiles(context, &path, errors);
    if context.at("allowPrivilegeEscalation") == &Value::Bool(false) {
        if context.flag("privileged") {
            errors.push(FieldError::invalid(
                &path,
                context.clone(),
                "cannot set `allowPrivilegeEscalation` to false and `privileged` to true",
            ));
        }
        let added = context.items("capabilities.add");
        if added.iter().any(|c| matches!(c.as_str(), Some("CAP_SYS_ADMIN"))) {
            errors.push(FieldError::invalid(
                &path,
                context.clone(),
                "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN",
            ));
        }
    }
}

/// Reports privileged containers in an object's Pod spec, for `--allow-privileged=false`.
pub fn refuse_privileged(strategy: &Strategy, object: &Value, errors: &mut ErrorList) {
    if strategy.pod_spec.is_empty() {
        return;
    }
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        let at = format!("{}.{list}", strategy.pod_spec);
        for (i, container) in object.items(&at).iter().enumerate() {
            if container.at("securityContext").flag("privileged") {
                let path = Path::new(&at).index(i).child("securityContext").child("privileged");
                errors.push(FieldError::forbidden(&path, "disallowed by cluster policy"));
            }
        }
    }
}

fn validate_ids(context: &Value, fields: &[&str], path: &Path, errors: &mut ErrorList) {
    for field in fields {
        if context.has(field) {
            check_id(context.at(field), &path.child(field), errors);
        }
    }
}

fn check_id(id: &Value, path: &Path, errors: &mut ErrorList) {
    let id = id.as_i64().unwrap_or_default();
    if !(0..=i64::from(i32::MAX)).contains(&id) {
        errors.push(FieldError::invalid(path, id, "must be between 0 and 2147483647, inclusive"));
    }
}

fn validate_profiles(context: &Value, path: &Path, errors: &mut ErrorList) {
    for field in ["seccompProfile", "appArmorProfile"] {
        let (profile, path) = (context.at(field), path.child(field));
        if profile.is_null() {
            continue;
        }
        let types = ["Localhost", "RuntimeDefault", "Unconfined"];
        validate_one_of(profile, "type", &types, &path, errors);
        let local = profile.text("type") == "Localhost";
        let path = path.child("localhostProfile");
        // An empty seccomp profile is a name too.
        let is_set = match field {
            "seccompProfile" => profile.has("localhostProfile"),
            _ => !profile.blank("localhostProfile"),
        };
        if local && !is_set {
            errors.push(FieldError::required(
                &path,
                match field {
                    "seccompProfile" => "must be set when seccomp type is Localhost",
                    _ => "must be set when AppArmor type is Localhost",
                },
            ));
        } else if local && field == "seccompProfile" {
            validate_local_path(profile.text("localhostProfile"), &path, errors);
        } else if local {
            validate_app_armor_name(profile.text("localhostProfile"), &path, errors);
        } else if profile.has("localhostProfile") {
            errors.push(FieldError::invalid(
                &path,
                profile.at("localhostProfile").clone(),
                match field {
                    "seccompProfile" => "can only be set when seccomp type is Localhost",
                    _ => "can only be set when AppArmor type is Localhost",
                },
            ));
        }
    }
}

/// Validates the name of a localhost profile.
fn validate_app_armor_name(name: &str, path: &Path, errors: &mut ErrorList) {
    const LONGEST: usize = 4095;
    if name.trim() != name {
        errors.push(FieldError::invalid(path, name, "must not be padded with whitespace"));
    }
    if name.len() > LONGEST {
        errors.push(FieldError::too_long(path, LONGEST));
    }
}
