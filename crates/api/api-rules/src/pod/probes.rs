//! Validation of probes and lifecycle hooks.

use api_meta::{ErrorList, FieldError, Path, Tree as _, validation};
use serde_json::Value;

use crate::{fields::validate_one_of, meta::check_not_negative};

/// The handlers of a probe. A hook has `sleep` instead of `grpc`.
const PROBE_HANDLERS: [&str; 4] = ["exec", "httpGet", "tcpSocket", "grpc"];
const HOOK_HANDLERS: [&str; 4] = ["exec", "httpGet", "tcpSocket", "sleep"];

pub(super) fn check(container: &Value, path: &Path, errors: &mut ErrorList) {
    for (field, once) in
        [("livenessProbe", true), ("readinessProbe", false), ("startupProbe", true)]
    {
        let (probe, path) = (container.at(field), path.child(field));
        if probe.is_null() {
            continue;
        }
        validate_handler(probe, &PROBE_HANDLERS, &path, errors);
        for number in [
            "initialDelaySeconds",
            "timeoutSeconds",
            "periodSeconds",
            "successThreshold",
            "failureThreshold",
        ] {
            check_not_negative(probe, number, &path, errors);
        }
        if once && probe.int("successThreshold") != 1 {
            let path = path.child("successThreshold");
            errors.push(FieldError::invalid(&path, probe.int("successThreshold"), "must be 1"));
        }
        if let Some(grace) = probe.opt_int("terminationGracePeriodSeconds") {
            let path = path.child("terminationGracePeriodSeconds");
            if field == "readinessProbe" {
                errors.push(FieldError::invalid(
                    &path,
                    grace,
                    "must not be set for readinessProbes",
                ));
            } else if grace < 1 {
                errors.push(FieldError::invalid(&path, grace, "must be greater than 0"));
            }
        }
    }
    for hook in ["postStart", "preStop"] {
        let found = container.at("lifecycle").at(hook);
        if !found.is_null() {
            validate_handler(found, &HOOK_HANDLERS, &path.child("lifecycle").child(hook), errors);
        }
    }
}

/// Validates hooks that sleep: they must end before the container is killed.
pub(super) fn check_sleep(container: &Value, spec: &Value, path: &Path, errors: &mut ErrorList) {
    let grace = spec.int("terminationGracePeriodSeconds");
    for hook in ["postStart", "preStop"] {
        let sleep = container.at("lifecycle").at(hook).at("sleep");
        let seconds = sleep.int("seconds");
        if sleep.is_object() && !(0..=grace).contains(&seconds) {
            let path = path.child("lifecycle").child(hook).child("sleep");
            let detail = format!(
                "must be non-negative and less than terminationGracePeriodSeconds ({grace})"
            );
            errors.push(FieldError::invalid(&path, seconds, detail));
        }
    }
}

fn validate_handler(object: &Value, kinds: &[&str], path: &Path, errors: &mut ErrorList) {
    let mut found = 0;
    for kind in kinds.iter().filter(|kind| object.has(kind)) {
        let path = path.child(kind);
        found += 1;
        if found > 1 {
            errors.push(FieldError::forbidden(&path, "may not specify more than 1 handler type"));
            continue;
        }
        let action = object.at(kind);
        match *kind {
            "exec" if action.items("command").is_empty() => {
                errors.push(FieldError::required(&path.child("command"), ""));
            }
            "httpGet" => validate_http_action(action, &path, errors),
            "tcpSocket" => validate_action_port(action, &path, errors),
            "grpc" => validate_action_port(action, &path, errors),
            _ => {}
        }
    }
    if found == 0 {
        errors.push(FieldError::required(path, "must specify a handler type"));
    }
}

fn validate_http_action(action: &Value, path: &Path, errors: &mut ErrorList) {
    if action.text("path").is_empty() {
        errors.push(FieldError::required(&path.child("path"), ""));
    }
    validate_action_port(action, path, errors);
    validate_one_of(action, "scheme", &["HTTP", "HTTPS"], path, errors);
    for (i, header) in action.items("httpHeaders").iter().enumerate() {
        let name = header.text("name");
        for message in validation::http_header_name(name) {
            errors.push(FieldError::invalid(
                &path.child("httpHeaders").index(i).child("name"),
                name,
                message,
            ));
        }
    }
}

fn validate_action_port(action: &Value, path: &Path, errors: &mut ErrorList) {
    check_port(action.at("port"), &path.child("port"), errors);
}

/// Validates a port number or port name.
pub(crate) fn check_port(port: &Value, path: &Path, errors: &mut ErrorList) {
    let messages = match port {
        Value::String(name) => validation::port_name(name),
        other => validation::port_number(other.as_i64().unwrap_or_default()),
    };
    for message in messages {
        errors.push(FieldError::invalid(path, port.clone(), message));
    }
}
