//! Validates single fields that several kinds share.

use std::net::IpAddr;

use api_config::kubeadm::Arg;
use api_meta::{ErrorList, FieldError, Path, validation};

pub(super) fn validate_absolute_path(value: &str, path: &Path, errors: &mut ErrorList) {
    if !value.starts_with('/') {
        errors.push(FieldError::invalid(path, value, "path is not absolute"));
    }
}

pub(super) fn validate_extra_args(args: &[Arg], path: &Path, errors: &mut ErrorList) {
    for (i, _) in args.iter().enumerate().filter(|(_, arg)| arg.name.is_empty()) {
        errors.push(FieldError::invalid(path, format!("index {i}"), "argument has no name"));
    }
}

pub(super) fn validate_alt_names(names: &[String], path: &Path, errors: &mut ErrorList) {
    for name in names {
        let plain = validation::dns1123_subdomain(name);
        let wildcard = validation::wildcard_dns1123_subdomain(name);
        if !plain.is_empty() && !wildcard.is_empty() && name.parse::<IpAddr>().is_err() {
            let why = format!(
                "altname is not a valid IP address, DNS label or a DNS label with subdomain wildcards: {}; {}",
                plain.join("; "),
                wildcard.join("; ")
            );
            errors.push(FieldError::invalid(path, name.as_str(), why));
        }
    }
}
